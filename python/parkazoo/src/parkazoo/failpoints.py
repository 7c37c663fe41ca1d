"""Places where a test may stop the client in the middle of an operation.

What: every write of an operation has a numbered label, for instance
`create.2.link` or `delete.3.home`. `PARKAZOO_FAILPOINT=create.2.link:after` kills
the process with SIGKILL when that step's reply arrives, `:before` just before it is
sent; `:after#3` the third time. With `PARKAZOO_FAILPOINT_SIGNAL=STOP` it gets that
signal instead, and goes on when somebody continues it. `hook` is the same for tests
in one process.

Why: "any step" can only be tested if every step has a name.

Must never: cost anything when unused, or do anything but what the test asked for.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

BEFORE, AFTER = "before", "after"
LABELS = (
    "create.0.child",
    "create.1.claim",
    "create.2.link",
    "create.3.commit",
    "create.4.unclaim",
    "delete.0.node",
    "delete.2.close",
    "delete.3.home",
    "set.1.value",
    "acl.1.home",
    "acl.2.bucket",
    "recursive.1.intent",
    "recursive.2.done",
    "transaction.1.commit",
    "intent.1.prepare",
    "intent.3.apply",
    "intent.4.finish",
    "intent.5.undo",
    "move.1.plan",
    "move.2.copy",
    "move.3.freeze",
    "move.4.copy",
    "move.4.close",
    "move.5.switch",
    "move.6.clean",
)
# What the owner of an ephemeral does while its shard moves.
OWNER_LABELS = ("adopt.1.create",)
# Steps of the command line's own work, announced after they are done. `table` is any
# new table: written where it is decided, then on the other ensembles.
COMMAND_LABELS = (
    "init.0.founded",
    "init.1.fences",
    "init.2.root",
    "init.3.names",
    "init.4.table",
    "import.0.alone",
    "import.1.node",
    "import.2.acl",
    "import.3.close",
    "import.4.renewed",
    "import.5.removed",
    "table.1.decided",
    "table.2.told",
    "add.1.furnish",
    "remove.1.handover",
    "remove.2.empty",
    "remove.3.noted",
    "remove.4.farewell",
    "abort.1.clear",
    "abort.2.thaw",
    "refence.1.raised",
)

hook: Callable[[str, str], None] | None = None
_wanted = os.environ.get("PARKAZOO_FAILPOINT", "")
_signal = getattr(
    signal, "SIG" + os.environ.get("PARKAZOO_FAILPOINT_SIGNAL", "KILL"), None
)
_times = 0


def reached(label: str, when: str) -> None:
    """Called by the driver around every labelled step."""
    global _times
    if hook is not None:
        hook(label, when)
    if not _wanted:
        return
    place, _, count = _wanted.partition("#")
    if place == f"{label}:{when}":
        _times += 1
        if _times == int(count or 1) and _signal is not None:
            os.kill(os.getpid(), _signal)
