"""Clients and frameworks of Python with their defaults: `python round.py HOST PORT PREFIX`.

Prints one line of JSON for each probe: client, version, probe, result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version

import django
import flask
import flask_caching
import redis
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path

HOST, PORT, PREFIX = sys.argv[1], int(sys.argv[2]), sys.argv[3]
URL = f"redis://{HOST}:{PORT}"


def probe(client: str, name: str, work: Callable[[], object]) -> None:
    result = "yes"
    try:
        work()
    except Exception as error:
        result = f"{error}" or type(error).__name__
    package = {"redis-py": "redis"}.get(client, client)
    print(json.dumps({"client": client, "version": version(package), "probe": name, "result": result}))


def redis_py() -> None:
    client = redis.Redis(host=HOST, port=PORT)

    def key(name: str) -> str:
        return f"{PREFIX}:redis-py:{name}"

    def strings() -> None:
        assert client.set(key("a"), "1", ex=100)
        assert client.get(key("a")) == b"1"
        assert client.mget(key("a"), key("none")) == [b"1", None]
        assert client.ttl(key("a")) > 90
        assert client.delete(key("a")) == 1

    def pipeline() -> None:
        with client.pipeline(transaction=False) as pipe:
            assert pipe.set(key("p"), "1").get(key("p")).ttl(key("p")).execute() == [True, b"1", -1]

    def scan() -> None:
        assert list(client.scan_iter(match=key("*"), count=1000)) == [key("p").encode()]

    def transaction() -> None:
        with client.pipeline() as pipe:
            pipe.set(key("t"), "1").execute()

    def nothing() -> None:
        assert client.get(key("t")) is None

    def lock() -> None:
        with client.lock(key("lock"), timeout=10):
            pass

    probe("redis-py", "strings", strings)
    probe("redis-py", "pipeline", pipeline)
    probe("redis-py", "scan", scan)
    probe("redis-py", "transaction", transaction)
    probe("redis-py", "nothing of a transaction", nothing)
    probe("redis-py", "`Lock`", lock)


def visits(request: HttpRequest) -> JsonResponse:
    request.session["visits"] = request.session.get("visits", 0) + 1
    return JsonResponse({"visits": request.session["visits"]})


def leave(request: HttpRequest) -> JsonResponse:
    request.session.flush()
    return JsonResponse({})


urlpatterns = [path("visits", visits), path("leave", leave)]


def of_django() -> None:
    cache_options = {"KEY_PREFIX": PREFIX, "LOCATION": URL}
    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="s",
        MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
        SESSION_ENGINE="django.contrib.sessions.backends.cache",
        CACHES={"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", **cache_options}},
    )
    django.setup()
    from django.core.cache import cache

    def single() -> None:
        assert cache.get("a", "absent") == "absent"
        cache.set("a", {"deep": [1, 2]}, 100)
        assert cache.get("a") == {"deep": [1, 2]}
        assert cache.add("a", 1) is False and cache.add("b", 2) is True
        assert cache.touch("a", 1000) and cache.touch("a", None) and not cache.touch("none")
        assert cache.has_key("a") and "none" not in cache
        assert cache.get_or_set("c", lambda: 3) == 3
        assert cache.delete("c") is True and cache.delete("c") is False

    def get_many() -> None:
        assert cache.get_many(["a", "b", "none"]) == {"a": {"deep": [1, 2]}, "b": 2}
        cache.delete_many(["a", "b"])
        assert cache.get_many(["a", "b"]) == {}

    def set_many() -> None:
        cache.set_many({"x": 1, "y": 2})
        assert cache.get_many(["x", "y"]) == {"x": 1, "y": 2}

    def incr() -> None:
        cache.set("n", 1)
        assert cache.incr("n") == 2

    def sessions() -> None:
        browser = Client()
        assert [browser.get("/visits").json()["visits"] for _ in range(3)] == [1, 2, 3]
        browser.get("/leave")
        assert browser.get("/visits").json()["visits"] == 1

    probe("Django", "cache: `get`, `set`, `add`, `touch`, `delete`, `has_key`", single)
    probe("Django", "cache: `get_many`, `delete_many`", get_many)
    probe("Django", "cache: `set_many`", set_many)
    probe("Django", "cache: `incr`, `decr`", incr)
    probe("Django", "sessions in the cache", sessions)
    # Last, for where it is carried out it empties everything.
    probe("Django", "cache: `clear`", cache.clear)


def of_flask() -> None:
    app = flask.Flask(__name__)
    options = {"CACHE_TYPE": "RedisCache", "CACHE_REDIS_URL": URL, "CACHE_KEY_PREFIX": f"{PREFIX}:flask:"}
    cache = flask_caching.Cache(app, config=options)
    calls: list[int] = []

    @cache.memoize(100)
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    @app.route("/page")
    @cache.cached(100)
    def page() -> str:
        calls.append(-1)
        return "page"

    def single() -> None:
        assert cache.get("a") is None
        assert cache.set("a", [1, 2], 100) and cache.get("a") == [1, 2]
        assert cache.add("b", 1) and not cache.add("b", 2)
        assert cache.has("a") and not cache.has("none")
        assert cache.get_many("a", "b") == [[1, 2], 1]
        assert cache.delete("a")

    def set_many() -> None:
        cache.set_many({"x": 1, "y": 2})
        assert cache.get_many("x", "y") == [1, 2]

    def cached() -> None:
        calls.clear()
        browser = app.test_client()
        assert [browser.get("/page").text for _ in range(3)] == ["page"] * 3
        assert [double(4), double(4), double(5)] == [8, 8, 10]
        cache.delete_memoized(double)
        assert double(4) == 8
        assert calls == [-1, 4, 5, 4]

    def clear() -> None:
        cache.set("gone", 1)
        assert cache.clear() and cache.get("gone") is None

    with app.app_context():
        probe("Flask-Caching", "`get`, `set`, `add`, `has`, `delete`, `get_many`", single)
        probe("Flask-Caching", "`set_many`", set_many)
        probe("Flask-Caching", "`cached`, `memoize`, `delete_memoized`", cached)
        probe("Flask-Caching", "`clear` with a key prefix", clear)


redis_py()
of_django()
of_flask()
