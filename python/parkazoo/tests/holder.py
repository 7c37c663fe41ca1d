"""The holder of a lock that is stopped inside its critical section; run as a process.

    holder.py kazoo|parkazoo HOSTS LOCK NODE

What: takes the lock, prints "held", stops itself (SIGSTOP), and when it is continued
writes to the node that the lock guards, at once, as a program would that knows nothing
of its stop. Prints how that ended.

Must never: look at its state, or the time, before it writes.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from parkazoo import ParKazooClient

SESSION_SECONDS = 4.0


def main() -> int:
    kind, hosts, lock, node = sys.argv[1:]
    make = {"kazoo": KazooClient, "parkazoo": ParKazooClient}[kind]
    client = make(hosts, timeout=SESSION_SECONDS)
    client.start(60)
    client.Lock(lock, "holder").acquire(timeout=60)
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        client.set(node, b"late")
        outcome = "accepted"
    except KazooException as error:
        outcome = type(error).__name__
    print(json.dumps({"outcome": outcome}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
