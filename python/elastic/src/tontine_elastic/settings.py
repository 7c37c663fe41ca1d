"""What the operator says about machines of EC2: one TOML file.

It is read once and checked whole. An error names the field and says what it must be.

Must never: hold credentials. botocore finds them where every AWS tool does.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

#: Types that `DescribeInstanceTypes` tells in one answer.
TYPES_MAX = 100
#: Tags that EC2 lets a machine have, less our own three.
TAGS_MAX = 47
#: An amount of money has six decimals at most.
_PRICE_DECIMALS_MAX = 6
_PRICE_MAX = Decimal(1_000_000)
#: What a member's address may be, and the field of `DescribeInstances` and path of the metadata
#: service that hold it.
ADDRESSES = {
    "private-ip": ("PrivateIpAddress", "local-ipv4"),
    "private-dns": ("PrivateDnsName", "local-hostname"),
}
_PATH = re.compile(r"/[A-Za-z0-9._/-]+")
_NAME = re.compile(r"[a-z0-9.-]{1,64}")


class SettingsError(Exception):
    """Why the file cannot be used: a sentence for people."""


@dataclass(frozen=True)
class Settings:
    """A file that was checked."""

    region: str
    image: str
    #: Price of an hour by type, in the order of the file.
    types: Mapping[str, str]
    subnet: str | None = None
    security_groups: tuple[str, ...] = ()
    instance_profile: str | None = None
    key: str | None = None
    #: One of `ADDRESSES`.
    address: str = "private-ip"
    #: Machines at once.
    quota: int | None = None
    #: Where a machine keeps its data. A folder of its own is made below.
    data_directory: str = "/var/lib/tontine-machine"
    #: Where EC2 is, in place of the region's own address.
    endpoint: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


def read(path: Path) -> Settings:
    """Reads and checks the file."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise SettingsError(f"cannot read {path}: {why}; name the file with --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML: {error}") from None
    try:
        return check(document)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def check(document: Mapping[str, Any]) -> Settings:
    """The settings of a document, if every field is as it must be."""
    readers: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
        "region": ("region", _matching(_NAME, "a region, such as eu-central-1")),
        "image": ("image", _starting("ami-")),
        "types": ("types", _types),
        "subnet": ("subnet", _starting("subnet-")),
        "security-groups": ("security_groups", _groups),
        "instance-profile": ("instance_profile", _text),
        "key": ("key", _text),
        "address": ("address", _address),
        "quota": ("quota", _quota),
        "data-directory": ("data_directory", _matching(_PATH, "an absolute path without spaces")),
        "endpoint": ("endpoint", _endpoint),
        "tags": ("tags", _tags),
    }
    for name in document:
        if name not in readers:
            raise SettingsError(f"there is no field {name}; there is {', '.join(readers)}")
    for name in ("region", "image", "types"):
        if name not in document:
            raise SettingsError(f"the field {name} is missing")
    found = {readers[name][0]: readers[name][1](name, value) for name, value in document.items()}
    return Settings(**found)


def _wrong(name: str, what: str) -> SettingsError:
    return SettingsError(f"the field {name} must be {what}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(name, "a text")
    return value


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _wrong(name, what)
        return value

    return read


def _starting(prefix: str) -> Callable[[str, Any], str]:
    return _matching(re.compile(re.escape(prefix) + r"[0-9a-z]+"), f"an id that begins {prefix}")


def _groups(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong(name, "a list of ids that begin sg-")
    return tuple(_starting("sg-")(name, one) for one in value)


def _address(name: str, value: Any) -> str:
    if value not in ADDRESSES:
        raise _wrong(name, " or ".join(ADDRESSES))
    return str(value)


def _quota(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
        raise _wrong(name, "a number of machines, 1 to 1000000")
    return value


def _endpoint(name: str, value: Any) -> str:
    text = _text(name, value)
    # It stands in messages.
    if not re.fullmatch(r"https?://[^@\s]+", text):
        raise _wrong(name, "a URL that begins http:// or https://, without a user and a password")
    return text


def _tags(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > TAGS_MAX:
        raise _wrong(name, f"a table of {TAGS_MAX} tags at most")
    for key, text in value.items():
        if not isinstance(text, str) or len(text) > 256 or not 1 <= len(key) <= 128:
            raise _wrong(f"{name}.{key}", "a text of at most 256 characters")
        if key == "Name" or key.startswith(("aws:", "tontine:")):
            raise SettingsError(f"the tag {key} is taken; name another one in {name}")
    return dict(value)


def _types(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not 1 <= len(value) <= TYPES_MAX:
        raise _wrong(name, f"a table of 1 to {TYPES_MAX} types with the price of an hour")
    for kind in value:
        if not _NAME.fullmatch(kind):
            raise SettingsError(f"{kind!r} in {name} is no type of EC2, such as m7g.large")
    return {kind: _price(f"{name}.{kind}", price) for kind, price in value.items()}


def _price(name: str, value: Any) -> str:
    what = 'a price for an hour, such as "0.0816": 0 to 1000000, six decimals at most'
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong(name, what)
    try:
        price = Decimal(str(value))
    except InvalidOperation:
        raise _wrong(name, what) from None
    # A number that is none has no order.
    if not price.is_finite() or not 0 <= price <= _PRICE_MAX:
        raise _wrong(name, what)
    if price != round(price, _PRICE_DECIMALS_MAX):
        raise _wrong(name, what)
    return f"{price:f}"
