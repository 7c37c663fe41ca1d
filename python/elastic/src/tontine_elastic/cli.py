"""The command `tontine-ec2`: a provider of machines of EC2, as a child process of a controller.

botocore is loaded by the first call, within its deadline. A controller ends an adapter that does
not answer, so on a busy host one that loaded before it listened would be started again and again.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from .adapter import Deadline, Json, Method, Params, serve
from .settings import Settings, SettingsError, read

if TYPE_CHECKING:
    from .ec2 import Ec2

VERBS = ("describe", "list", "ensure", "preflight", "terminate")


def main() -> int:
    """Answers a controller until standard input ends. 2 if the settings cannot be used."""
    parser = argparse.ArgumentParser(
        prog="tontine-ec2",
        description="Machines of EC2 for `tontine elastic`. Speaks the contract of adapters on "
        "standard input and output. Credentials are found as by every AWS tool.",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=Path("/etc/tontine/ec2.toml"),
        metavar="FILE",
        help="types with prices, image and network of machines (default: %(default)s)",
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        settings = read(arguments.config)
    except SettingsError as error:
        print(f"tontine-ec2: {error}", file=sys.stderr)
        return 2
    serve(_methods(settings))
    return 0


def _methods(settings: Settings) -> dict[str, Method]:
    """The methods of a provider that the first call makes."""
    lock = threading.Lock()
    made: list[Ec2] = []

    def provider() -> Ec2:
        with lock:
            if not made:
                from .ec2 import Ec2

                made.append(Ec2(settings))
            return made[0]

    def method(verb: str) -> Method:
        def call(params: Params, deadline: Deadline) -> Json:
            return provider().methods()[verb](params, deadline)

        return call

    return {verb: method(verb) for verb in VERBS}


if __name__ == "__main__":
    sys.exit(main())
