"""The command line, with a session that ends soon after it is killed.

    PARKAZOO_FAILPOINT=add.1.furnish:after victim_command.py --hosts HOSTS status

Why: whoever comes after a killed command waits until its session has ended, and a
test that does so for every step should not wait ten seconds each time.

Must never: differ from `parkazoo` in anything else.
"""

from __future__ import annotations

import sys

from parkazoo import cli

SESSION_SECONDS = 4.0

if __name__ == "__main__":
    cli.SESSION_SECONDS = SESSION_SECONDS
    sys.exit(cli.main())
