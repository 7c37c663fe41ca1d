"""What a type checker makes of a program that uses the package, although Kazoo, which
does most of the work, has no types."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from kazoo.client import KazooClient, TransactionRequest
from kazoo.protocol.states import ZnodeStat
from mypy import api

import parkazoo

STUBS = Path(parkazoo.__file__).with_name("kazoo_types.pyi")

GOOD = """
from parkazoo import ParKazooClient, PooledClient

for zk in (ParKazooClient("a;b"), PooledClient("a;b")):
    zk.start(5)
    path: str = zk.create("/a", b"1", makepath=True)
    made, created = zk.create("/b", include_data=True)
    data, stat = zk.get(made.upper())
    length: int = len(data) + stat.version + created.czxid
    names: list[str] = zk.get_children("/", lambda event: print(event.path))
    there = zk.exists("/a")
    late: bytes = zk.get_async("/a").get(timeout=1)[0]
    zk.transaction().set_data("/a", b"2")
    with zk.Lock("/lock", "me"):
        zk.delete("/a", recursive=True)
"""
BAD = {
    'zk.create("/a", "text")': "call-overload",
    'number: int = zk.create("/a")': "assignment",
    'zk.exists("/a").version': "union-attr",
    'zk.get("/a").data': "attr-defined",
    'zk.set("/a")': "call-arg",
    'zk.get_children_async("/a", 1)': "arg-type",
}


def check(program: str, tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text(program)
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\nignore_missing_imports = true\n")
    cache = str(tmp_path / "cache")
    out, err, _ = api.run(
        ["--config-file", str(config), "--cache-dir", cache, str(file)]
    )
    return out + err


def test_a_program_is_checked(tmp_path: Path) -> None:
    assert "Success" in check(GOOD, tmp_path)
    lines = ["from parkazoo import ParKazooClient", 'zk = ParKazooClient("a;b")', *BAD]
    found = check("\n".join(lines), tmp_path)
    for number, (line, kind) in enumerate(BAD.items(), start=3):
        told = [each for each in found.splitlines() if f"program.py:{number}:" in each]
        assert told and f"[{kind}]" in told[0], (line, found)


@pytest.mark.parametrize("name", ["KazooClient", "TransactionRequest"])
def test_the_types_name_the_arguments_that_kazoo_has(name: str) -> None:
    """So that they do not grow old with a new Kazoo."""
    kazoo = {"KazooClient": KazooClient, "TransactionRequest": TransactionRequest}[name]
    (stub,) = [
        node
        for node in ast.parse(STUBS.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    for method in stub.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        real = inspect.getattr_static(kazoo, method.name, None)
        if real is None or isinstance(real, property):
            continue
        args = method.args
        named = [arg.arg for arg in (*args.args, *args.kwonlyargs)]
        assert named == list(inspect.signature(real).parameters), method.name


def test_the_stat_has_what_kazoos_has() -> None:
    assert all(
        f"    {field}: int\n" in STUBS.read_text() for field in ZnodeStat._fields
    )
