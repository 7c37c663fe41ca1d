"""The file of the operator: what is wrong in it is named, with what helps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from speaking import program
from tontine_elastic.adapter import Refusal
from tontine_elastic.ec2 import Ec2
from tontine_elastic.settings import SettingsError, check, read
from tontine_elastic.user_data import user_data

GOOD = 'region = "eu-central-1"\nimage = "ami-0123"\n'
TYPES = '[types]\n"m7g.large" = "0.0816"\n'

WHOLE = {"region": "eu-central-1", "image": "ami-0123", "types": {"m7g.large": 1}}


def written(folder: Path, text: str) -> Path:
    path = folder / "ec2.toml"
    path.write_text(text)
    return path


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    further = (
        'subnet = "subnet-1"\nsecurity-groups = ["sg-1", "sg-2"]\ninstance-profile = "nodes"\n'
        'key = "ops"\naddress = "private-dns"\nquota = 9\ndata-directory = "/srv/data"\n'
        'endpoint = "https://vpce.example"\ntags = { team = "storage" }\n'
    )
    prices = TYPES + '"m7g.xlarge" = 0.1632\n"m7g.2xlarge" = 1\n'
    found = read(written(tmp_path, GOOD + further + prices))
    assert dict(found.types) == {
        "m7g.large": "0.0816",
        "m7g.xlarge": "0.1632",
        "m7g.2xlarge": "1",
    }
    assert (found.security_groups, found.quota) == (("sg-1", "sg-2"), 9)
    assert (found.address, found.tags) == ("private-dns", {"team": "storage"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the field region is missing"),
        (GOOD, "the field types is missing"),
        (GOOD + "[types]\n", "a table of 1 to 100 types"),
        (GOOD + '[types]\n"m7g.large" = "-0.1"\n', "types.m7g.large must be a price"),
        (GOOD + '[types]\n"m7g.large" = -0.1\n', "types.m7g.large must be a price"),
        (GOOD + '[types]\n"m7g.large" = nan\n', "types.m7g.large must be a price"),
        (GOOD + '[types]\n"m7g.large" = inf\n', "types.m7g.large must be a price"),
        (GOOD + '[types]\n"m7g.large" = "cheap"\n', "types.m7g.large must be a price"),
        (GOOD + '[types]\n"m7g.large" = "0.0000001"\n', "six decimals at most"),
        (GOOD + '[types]\n"m7g.large" = true\n', "types.m7g.large must be a price"),
        (GOOD + '[types]\n"M7G large" = 1\n', "is no type of EC2"),
        (GOOD + 'imgae = "ami-1"\n' + TYPES, "there is no field imgae; there is region, image"),
        (GOOD + 'subnet = "sg-1"\n' + TYPES, "subnet must be an id that begins subnet-"),
        (GOOD + 'security-groups = "sg-1"\n' + TYPES, "security-groups must be a list"),
        (GOOD + 'address = "public-ip"\n' + TYPES, "address must be private-ip or private-dns"),
        (GOOD + "quota = 0\n" + TYPES, "quota must be a number of machines"),
        (GOOD + 'data-directory = "/a b"\n' + TYPES, "data-directory must be an absolute path"),
        (GOOD + 'endpoint = "https://me:pw@ec2"\n' + TYPES, "without a user and a password"),
        (GOOD + 'tags = { Name = "x" }\n' + TYPES, "the tag Name is taken"),
        (GOOD + "secret =\n", "is no TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as error:
        read(path)
    assert expected in str(error.value)
    assert str(path) in str(error.value)


def test_the_command_says_what_is_wrong_and_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        program(tmp_path / "missing.toml"), stdin=subprocess.DEVNULL, capture_output=True
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"name the file with --config" in done.stderr


def test_the_command_listens_before_it_loads_what_is_large() -> None:
    """On a busy host ten adapters took more than ten seconds to load botocore, and were ended."""
    script = "import sys, tontine_elastic.cli as c; print('botocore' in sys.modules, *c.VERBS)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["False", *Ec2(check(WHOLE)).methods()]


def test_user_data_is_bounded_and_takes_any_script(tmp_path: Path) -> None:
    settings = read(written(tmp_path, GOOD + TYPES))
    script = "#!/bin/sh\necho \"$MACHINE_ADDRESS\" '{brace}' `date`\ncat <<END\nEND\n"
    text = user_data(settings, "shop", "u-1", script)
    assert text.startswith("#!/bin/sh\n")
    assert script in text
    assert "latest/meta-data/local-ipv4" in text
    with pytest.raises(Refusal) as refusal:
        user_data(settings, "shop", "u-1", "#" * 16_000)
    assert refusal.value.code == -32001
    assert "16384" in refusal.value.message
