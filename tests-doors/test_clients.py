"""Clients that everybody has, against a closed cluster: TLS by its authority, and a user with few rights."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from clusters import Cluster

SECONDS_MAX = 60.0
HERE = Path(__file__).parent


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed: ./check setup"
    return found


@pytest.fixture(scope="module")
def shop(closed_cluster: Cluster) -> str:
    """The secret of a user that may read and write keys that begin with `shop:`, and no others."""
    return closed_cluster.user("shop-clients", "read:default/shop:", "write:default/shop:").read_text().strip()


class Curl:
    """curl as the user `shop`; the secret reaches it by a file."""

    def __init__(self, cluster: Cluster, secret: str) -> None:
        self.cluster = cluster
        self.header = cluster.folder / "shop.header"
        self.header.write_text(f"Authorization: Bearer {secret}\n")

    def __call__(self, path: str, *words: str, node: int = 1) -> tuple[str, int, str]:
        """The version of HTTP that was spoken, the status, and the body."""
        told = "\n%{http_version} %{http_code}"
        command = [tool("curl"), "-sS", "--cacert", str(self.cluster.authority), "-w", told, *words]
        command += ["-H", f"@{self.header}", self.cluster.url(node) + path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        assert done.returncode == 0, (words, done.stderr)
        body, told = done.stdout.rsplit("\n", 1)
        version, status = told.split()
        return version, int(status), body


@pytest.fixture
def curl(closed_cluster: Cluster, shop: str) -> Curl:
    return Curl(closed_cluster, shop)


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_curl_writes_at_one_node_and_reads_at_another(curl: Curl, version: str) -> None:
    path = f"/v1/stores/default/keys/shop:curl{version}"
    spoken, status, _ = curl(path, version, "-X", "PUT", "-d", "hello", node=2)
    assert status == 204
    assert spoken == {"--http1.1": "1.1", "--http2": "2"}[version]
    assert curl(path, version, node=3) == (spoken, 200, "hello")
    assert curl(path, version, "-X", "DELETE")[1] == 204
    assert curl(path, version, node=2)[1] == 404


def test_curl_puts_and_gets_a_large_value_by_http_2(curl: Curl, tmp_path: Path) -> None:
    sent, got = tmp_path / "sent", tmp_path / "got"
    sent.write_bytes(bytes(range(256)) * (15 << 12))
    path = "/v1/stores/default/keys/shop:large"
    assert curl(path, "--http2", "-T", str(sent))[:2] == ("2", 204)
    assert curl(path, "--http2", "-o", str(got), node=3)[:2] == ("2", 200)
    assert got.read_bytes() == sent.read_bytes()
    assert curl(path, "--http2", "-X", "DELETE")[1] == 204


def test_curl_asks_for_many_keys_on_one_connection_by_http_2(curl: Curl) -> None:
    path = "/v1/stores/default/keys/shop:many"
    assert curl(path, "--http2", "-X", "PUT", "-d", "hello")[1] == 204
    # The first request says that it is HTTP/2, and the others wait for that.
    told, url = "%{http_version} %{http_code}\\n", curl.cluster.url(1) + path + "?timeout=[1-50]s"
    command = [tool("curl"), "-sS", "--http2", "-Z", "--cacert", str(curl.cluster.authority)]
    command += ["-H", f"@{curl.header}", "-o", "/dev/null", "-w", told, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 200"] * 50


def test_curl_is_refused_without_the_authority_the_secret_or_the_right(
    curl: Curl, closed_cluster: Cluster
) -> None:
    url = f"{closed_cluster.url(1)}/v1/stores/default/keys/shop:refused"
    unverified = subprocess.run([tool("curl"), "-sS", url], capture_output=True, timeout=SECONDS_MAX, check=False)
    assert unverified.returncode == 60, "curl does not trust the node: its own certificates do not name its authority"
    _, status, body = curl("/v1/stores/default/keys/other", "-X", "PUT", "-d", "x")
    assert (status, json.loads(body)["error"]["kind"]) == (403, "forbidden")
    # The later header does not take the place of the first one, so the file itself says something else.
    curl.header.write_text("Authorization: Bearer wrong\n")
    _, status, body = curl("/v1/stores/default/keys/shop:refused")
    assert (status, json.loads(body)["error"]["kind"]) == (401, "unauthenticated")


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(request: pytest.FixtureRequest, closed_cluster: Cluster, shop: str) -> Iterator[redis.Redis]:
    host, port = closed_cluster.nodes[1].redis.rsplit(":", 1)
    with redis.Redis(
        host=host,
        port=int(port),
        username="shop-clients",
        password=shop,
        ssl=True,
        ssl_ca_certs=str(closed_cluster.authority),
        protocol=request.param,
        socket_timeout=SECONDS_MAX,
    ) as client:
        yield client


def test_redis_py_does_with_tls_and_a_user_what_its_rights_allow(client: redis.Redis) -> None:
    assert client.set("shop:py", "1", ex=100)
    assert client.mget("shop:py", "shop:none") == [b"1", None]
    with client.pipeline(transaction=False) as pipeline:
        assert pipeline.set("shop:a", "2").get("shop:a").delete("shop:a").execute() == [True, b"2", 1]
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.set("other", "1")


def test_redis_py_with_a_wrong_secret_is_refused(client: redis.Redis) -> None:
    given = client.connection_pool.connection_kwargs | {"password": "wrong"}
    pool = redis.ConnectionPool(connection_class=redis.SSLConnection, **given)
    with redis.Redis.from_pool(pool) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.get("shop:py")


def test_jedis_and_lettuce_speak_tls_as_a_user(
    closed_cluster: Cluster, shop: str, libraries: Path, tmp_path: Path
) -> None:
    classes = f"{tmp_path}:{libraries}/*"
    source = HERE / "java" / "Closed.java"
    built = subprocess.run(
        [tool("javac"), "-nowarn", "-cp", classes, "-d", str(tmp_path), str(source)],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )
    assert built.returncode == 0, built.stderr
    host, port = closed_cluster.nodes[3].redis.rsplit(":", 1)
    # The secret goes in by a pipe: the list of processes is open to all.
    done = subprocess.run(
        [tool("java"), "-cp", classes, "Closed", host, port, str(closed_cluster.authority), "shop-clients"],
        input=shop, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    refused = "NOPERM"
    assert [line.split(" ", 2)[:2] for line in done.stdout.splitlines()] == [
        ["jedis", "hello"], ["jedis", refused], ["lettuce", "hello"], ["lettuce", refused],
    ]
