"""What every command takes, and what an operator may write.

What: the options that stand before a command's name or after it, and a function for
each kind of word, which reads it or refuses it and says how it is written.

Must never: connect to anything.
"""

from __future__ import annotations

import argparse
import math
import re
from typing import Any, NoReturn

from parkazoo import hosts as hosts_string
from parkazoo.mapping import WEAK_BUCKETS


class Usage(Exception):
    """The operator asked for something that cannot be; the message says what."""


class Parser(argparse.ArgumentParser):
    """Leaves it to others to say what is wrong with the words, and to end."""

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; `{self.prog} --help` shows what may be given")


def add_common(parser: argparse.ArgumentParser, auth: str) -> None:
    """What every command takes, before its name or after it, or, of what may be given
    several times, both: `auth` is the name that the one place has for it."""

    def option(name: str, text: str, **named: Any) -> None:
        parser.add_argument(name, help=text, default=argparse.SUPPRESS, **named)

    where = "where the namespace is (default: $PARKAZOO_HOSTS, or 127.0.0.1:2181)"
    option("--hosts", where, type=hosts)
    option("--json", "answer in JSON", action="store_true")
    option("--timeout", "seconds to connect (default: 15)", type=seconds)
    who = "who asks; may be given several times"
    option("--auth", who, action="append", metavar="SCHEME:CREDENTIAL", dest=auth)
    option("--verbose", "log on stderr", action="store_true")


# -- what the operator may write ---------------------------------------------------


def hosts(given: str) -> str:
    try:
        ensembles = hosts_string.split(given)[0]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    for ensemble in ensembles:
        try:
            hosts_string.servers(ensemble)
            good = hosts_string.SEPARATOR not in ensemble
        except ValueError:
            good = False
        if not good:
            raise argparse.ArgumentTypeError(
                f"{ensemble!r}: write `h1:2181,h2:2181`, with semicolons between"
                " ensembles"
            )
    return given


def ensemble(given: str) -> str:
    ensembles, chroot = hosts_string.split(hosts(given))
    if chroot or len(ensembles) > 1:
        raise argparse.ArgumentTypeError(
            f"{given!r}: give the servers of one ensemble, without chroot"
        )
    return given


def name(given: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", given):
        raise argparse.ArgumentTypeError(
            f"{given!r}: a name is of letters, digits, `_`, `.` and `-`"
        )
    return given


def names(given: str) -> list[str]:
    """Several, each once, in the order given."""
    return list(dict.fromkeys(name(one.strip()) for one in given.split(",")))


def refuse_unreadable(words: list[str]) -> None:
    """:raises Usage: a word is not in the alphabet of this terminal."""
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:  # not shown: it may be a password
            raise Usage(f"word {number} of the command has bytes of no text") from None


def path(given: str) -> str:
    if "//" in given:
        raise argparse.ArgumentTypeError(f"{given!r}: a node has a name; write one `/`")
    path = "/" + given.strip("/")
    if {".", ".."} & set(path.split("/")):
        raise argparse.ArgumentTypeError(f"{given!r}: relative paths are not allowed")
    return path


def seconds(given: str) -> float:
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{given!r}: give seconds, more than none")
    return found


def levels(given: str) -> int:
    if not given.isdecimal():
        raise argparse.ArgumentTypeError(f"{given!r}: give a number, 0 or more")
    return int(given)


def weak(given: str) -> tuple[str, int]:
    prefix, _, count = given.partition(":")
    if not (count or "0").isdecimal():
        raise argparse.ArgumentTypeError(
            f"{given!r}: {count!r} is not a number of buckets"
        )
    return prefix, int(count or WEAK_BUCKETS)


def auth(options: Any) -> list[tuple[str, str]]:
    pairs = []
    for given in [*options.auth, *options.more_auth]:
        scheme, separator, credential = given.partition(":")
        if not separator:
            raise Usage(f"--auth {given}: write SCHEME:CREDENTIAL")
        pairs.append((scheme, credential))
    return pairs
