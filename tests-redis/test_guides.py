"""The programs of docs/guides: what the tests run is the code of the pages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from programs import GUIDES, LANGUAGES, Programs, code_of
from targets import Address, Target

pytestmark = pytest.mark.only("tontine", "Redis keeps no siblings")


def dead_address() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_recipe_goes_on_at_another_address_and_merges_siblings(
    target: Target, programs: Programs, key: str, language: str
) -> None:
    code = code_of(GUIDES / f"{language}.md", language)
    addresses = [f"{host}:{port}" for host, port in target.addresses]
    printed = programs.run(language, "Carts", code, [key, dead_address(), *addresses])
    assert printed == "siblings: eggs + milk\nmerged: eggs,milk\n"


@pytest.fixture(params=["SHUTTINGDOWN the node is stopping", "NOREPLICAS too few replicas can answer"])
def refusing(target: Target, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a node that answers what it is asked about keys as one does that stops, or reaches too few others."""
    refusal = f"-{request.param}\r\n".encode()

    def answer(client: socket.socket, node: Address) -> None:
        # A client that has heard the refusal breaks off.
        with suppress(OSError), client, socket.create_connection(node) as behind:
            while asked := client.recv(65536):
                if b"TONTINE.GET" in asked or b"TONTINE.PUT" in asked:
                    client.sendall(refusal)
                else:
                    behind.sendall(asked)
                    client.sendall(behind.recv(65536))

    def accept(door: socket.socket) -> None:
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client, target.addresses[0]), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=accept, args=(door,), daemon=True).start()
        yield f"127.0.0.1:{door.getsockname()[1]}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_recipe_goes_on_at_another_address_when_a_node_has_written_nothing(
    target: Target, programs: Programs, key: str, refusing: str, language: str
) -> None:
    code = code_of(GUIDES / f"{language}.md", language)
    addresses = [f"{host}:{port}" for host, port in target.addresses]
    printed = programs.run(language, "Carts", code, [key, refusing, *addresses])
    assert printed == "siblings: eggs + milk\nmerged: eggs,milk\n"


def test_the_cache_class_for_django_does_what_the_plain_one_cannot(
    target: Target, programs: Programs, key: str
) -> None:
    host, port = target.addresses[0]
    trial = f"""
from django.conf import settings
settings.configure(CACHES={{"default": {{
    "BACKEND": "__main__.TontineCache", "LOCATION": "redis://{host}:{port}", "KEY_PREFIX": "{key}"}}}})
import django
django.setup()
from django.core.cache import cache
assert cache.set_many({{"a": 1, "b": 2}}, 100) == []
assert cache.get_many(["a", "b"]) == {{"a": 1, "b": 2}}
from django.core.cache.backends.redis import RedisCache
assert 90 < cache._cache.get_client().ttl(cache.make_key("a")) <= 100
cache.clear()
assert cache.get_many(["a", "b"]) == {{}}
print("done")
"""
    code = code_of(GUIDES / "from-redis.md", "python")
    assert programs.run("python", "Caching", code + trial, []) == "done\n"
