"""The command `tontine-ec2`: a provider of machines of EC2, as a child process of a controller."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from .adapter import serve
from .ec2 import Ec2
from .settings import SettingsError, read


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
    serve(Ec2(settings).methods())
    return 0


if __name__ == "__main__":
    sys.exit(main())
