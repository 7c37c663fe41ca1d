"""The command line, with a session that ends soon after it is killed.

    PARKAZOO_FAILPOINT=add.1.furnish:after victim_command.py --hosts HOSTS status

Why: whoever comes after a killed command waits until its session has ended, and a
test that does so for every step should not wait ten seconds each time. And it says
on stderr which sessions it has, for those who end one of them.

Must never: differ from `parkazoo` in anything else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parkazoo import cli
from victim import sessions_of

SESSION_SECONDS = float(os.environ.get("PARKAZOO_SESSION_SECONDS", "4"))
_client = cli._client


@contextmanager
def telling(*arguments: Any, **options: Any) -> Iterator[Any]:
    with _client(*arguments, **options) as client:
        told = json.dumps({"sessions": sessions_of(client)})
        print(told, file=sys.stderr, flush=True)
        yield client


if __name__ == "__main__":
    cli.SESSION_SECONDS = SESSION_SECONDS
    if os.environ.get("PARKAZOO_FAILPOINT_SIGNAL") == "STOP":
        cli._client = telling
    sys.exit(cli.main())
