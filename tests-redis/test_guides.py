"""The programs of docs/guides: what the tests run is the code of the pages."""

from __future__ import annotations

import socket

import pytest

from programs import GUIDES, LANGUAGES, Programs, code_of
from targets import Target

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
