"""What a machine runs when it starts: user data that tells a script its address and starts it.

cloud-init runs it once, as root. It asks the metadata service for the machine's own address, which
nobody knows when the machine is asked for. The script outlives cloud-init as a unit of systemd, or
in its own session where there is none.

Must never: hold a secret. Users of the account and processes of the machine can read user data.
"""

from __future__ import annotations

import hashlib

from .adapter import refused
from .settings import ADDRESSES, Settings

#: What EC2 takes as user data, in bytes before they are encoded.
USER_DATA_BYTES_MAX = 16_384

_TEXT = """\
#!/bin/sh
# Made by tontine-ec2: starts the machine {token} of the fleet {fleet}.
set -eu
umask 077
MACHINE_TOKEN={token}
# The name of the folder begins so that no token can lead elsewhere.
machine={directory}/machine-{token}
MACHINE_DATA=$machine/data
mkdir -p "$MACHINE_DATA"
cat >"$machine/boot.sh" <<'{end}'
{script}
{end}
metadata=${{AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}}
ask() {{ curl -sSf --max-time 5 --retry 20 --retry-delay 1 --retry-connrefused "$@"; }}
session=$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$metadata/latest/api/token")
MACHINE_ADDRESS=$(ask -H "X-aws-ec2-metadata-token: $session" "$metadata/latest/meta-data/{path}")
export MACHINE_ADDRESS MACHINE_DATA MACHINE_TOKEN
cd "$MACHINE_DATA"
if [ -d /run/systemd/system ]; then
    exec systemd-run --unit=tontine-machine --collect --working-directory="$MACHINE_DATA" \\
        --setenv=MACHINE_ADDRESS="$MACHINE_ADDRESS" --setenv=MACHINE_DATA="$MACHINE_DATA" \\
        --setenv=MACHINE_TOKEN="$MACHINE_TOKEN" /bin/sh "$machine/boot.sh"
fi
setsid /bin/sh "$machine/boot.sh" </dev/null >"$machine/log" 2>&1 &
"""


def user_data(settings: Settings, fleet: str, token: str, script: str) -> str:
    """The user data of a machine. A script that is too long for EC2 is refused."""
    text = _TEXT.format(
        fleet=fleet,
        token=token,
        directory=settings.data_directory.rstrip("/"),
        end="end-" + hashlib.sha256(script.encode()).hexdigest()[:32],
        script=script.removesuffix("\n"),
        path=ADDRESSES[settings.address][1],
    )
    size = len(text.encode())
    if size > USER_DATA_BYTES_MAX:
        raise refused(
            f"the script is too long: with it the user data has {size} bytes, and EC2 takes "
            f"{USER_DATA_BYTES_MAX}; let it fetch what it needs"
        )
    return text
