"""Loaded by pytest into Kazoo's own suite: swaps the client under test.

What: before any test module is imported, `kazoo.client.KazooClient` becomes the
client under test, so every module of the suite that imports the name gets ours,
and, for ParKazooClient, each server of Kazoo's harness stands alone, so that the
harness's "cluster" of three is three ensembles.

Why: the suite stays untouched on disk, and what differs is in one small file.

Must never: be loaded outside a run of `kazoo_suite.py`, or alter an assertion.
"""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import kazoo.client
import kazoo.exceptions
import kazoo.handlers.threading
import pytest

import parkazoo.errors

MODE = os.environ["PARKAZOO_SUITE_MODE"]
SEVERAL_ENSEMBLES = ("parkazoo", "pooled")
EXCEPTIONS = Path(__file__).resolve().parent / "kazoo_suite_exceptions.txt"


def client_class() -> type:
    """The client the suite is to exercise."""
    if MODE == "kazoo":
        return kazoo.client.KazooClient
    if MODE == "connection":
        from parkazoo.connection import BatchingClient

        return BatchingClient
    from parkazoo import ParKazooClient, PooledClient

    if MODE == "single":
        return ParKazooClient
    ours: Any = PooledClient if MODE == "pooled" else ParKazooClient

    class SuiteClient(ours):  # type: ignore[misc]
        """Our client, which reads the harness's host lists as ensembles.

        The harness joins its servers with commas, which is how one ensemble is
        written; here each of them is an ensemble, which is written with
        semicolons. This is the one change a migrating program makes, too.
        """

        def __init__(self, hosts: str = "127.0.0.1:2181", *rest: Any, **named: Any):
            if MODE == "pooled":
                named["pool"] = this_test()
            super().__init__(ensembles_of(hosts), *rest, **named)

        def set_hosts(self, hosts: str, *rest: Any, **named: Any) -> None:
            super().set_hosts(ensembles_of(hosts), *rest, **named)

    return SuiteClient


def this_test() -> str:
    """Clients of one test share sessions. Not with other tests: the suite forgets to
    stop clients here and there, and starts new, empty servers at the same ports."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]


def ensembles_of(hosts: str) -> str:
    return hosts.replace(",", ";") if isinstance(hosts, str) else hosts


def let_every_server_stand_alone() -> None:
    """Make the harness start its servers without peers."""
    from kazoo.testing import common

    plain = common.ManagedZooKeeper.__init__

    def without_peers(
        self: Any, path: Any, info: Any, peers: Any = (), **named: Any
    ) -> None:
        plain(self, path, info, (), **named)

    common.ManagedZooKeeper.__init__ = without_peers


def listed_exceptions() -> dict[str, tuple[type[BaseException], str]]:
    """Test id to error and reason, for the mode that is running."""
    listed = {}
    for line in EXCEPTIONS.read_text().splitlines():
        if line and not line.startswith("#"):
            mode, test, error, reason = line.split(None, 3)
            if mode == MODE:
                listed[test] = error_named(error), reason
    return listed


def error_named(name: str) -> type[BaseException]:
    """`Failed` is what a test that is given up after its time ends with, too."""
    if name == "Failed":
        return pytest.fail.Exception
    known = (builtins, kazoo.exceptions, kazoo.handlers.threading, parkazoo.errors)
    found = next(getattr(each, name) for each in known if hasattr(each, name))
    assert issubclass(found, BaseException)
    return found


def pytest_configure(config: Any) -> None:
    chosen = client_class()
    kazoo.client.KazooClient = chosen
    if MODE in SEVERAL_ENSEMBLES:
        let_every_server_stand_alone()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    listed = listed_exceptions()
    for item in items:
        name = item.nodeid.removeprefix("kazoo/tests/")
        if name in listed:
            error, reason = listed[name]
            fails = pytest.mark.xfail(raises=error, reason=reason, strict=True)
            item.add_marker(fails)
            if error is pytest.fail.Exception:  # it may wait for ever
                item.add_marker(pytest.mark.timeout(30))
