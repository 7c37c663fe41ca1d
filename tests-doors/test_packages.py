"""This machine's Debian package index, written by HTTP into three closed nodes while much happens to them.

One node is killed and restarted, the certificate of each is renewed, and the secret of the writers is rotated. No
request may fail, and every value is read back. Beside it all bytes of the ports are captured: none of them is plain.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from capture import HEAD, found
from clusters import Child, Cluster
from test_clients import tool
from test_guides import program

HERE = Path(__file__).parent
WRITERS = 4
# Fewer packages mean that the lists were never fetched.
PACKAGES_MIN = 20_000
# Without --full, one package of so many.
STRIDE = 12
SECONDS_MAX = 900.0
# What is sent in the clear in place of a secret.
PLANTED = "tontine_not-a-secret-of-anybody"
# Words of which each value has most, and each key the first.
WORDS = [b"debian-package", b"Package: ", b"\nVersion: ", b"\nMaintainer: ", b"\nFilename: pool/", b"\nSHA256: "]


def package_index() -> list[tuple[str, bytes]]:
    """Names of packages and their stanzas; of several versions the last."""
    printed = subprocess.run([tool("apt-cache"), "dumpavail"], capture_output=True, check=True).stdout
    stanzas: dict[str, bytes] = {}
    for stanza in printed.split(b"\n\n"):
        if named := re.search(rb"^Package: (.*)$", stanza, re.MULTILINE):
            stanzas[named[1].decode()] = stanza
    assert len(stanzas) >= PACKAGES_MIN, f"apt-cache dumpavail knows {len(stanzas)} packages only: apt-get update"
    return list(stanzas.items())


class Sharing:
    """The writers: each writes a share of the records, as its own process."""

    def __init__(self, cluster: Cluster, records: list[tuple[str, bytes]], folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.program = folder / "writer.py"
        page = program("python")
        classes, main, _ = page.partition("cart, *nodes = sys.argv[1:]\n")
        assert main, "the program of the guide does not read its arguments after its classes"
        self.program.write_text(classes + (HERE / "writer.py").read_text())
        self.stop = folder / "stop"
        self.shares = [folder / f"share-{number}" for number in range(WRITERS)]
        for number, share in enumerate(self.shares):
            share.write_bytes(pickle.dumps(records[number::WRITERS]))
        rights = ["read:default/debian-package/", "write:default/debian-package/"]
        self.secret = cluster.user("packages", *rights)
        self.children: list[Child] = []

    def start(self, what: str, others: list[str]) -> None:
        environment = self.cluster.environment() | {"TONTINE_SECRET_FILE": str(self.secret)}
        nodes = self.cluster.urls()
        self.children = []
        for number, (share, other) in enumerate(zip(self.shares, others, strict=True)):
            # Each begins at another node, so that every node has writers when it is killed or renewed.
            first = number % len(nodes)
            command = [sys.executable, str(self.program), what, str(share), other]
            command += nodes[first:] + nodes[:first]
            self.children.append(Child(f"{what}-{number}", command, self.folder, environment))

    def progress(self) -> int:
        """Acknowledged records."""
        return sum(int((re.findall(r"^(\d+)$", child.log(), re.MULTILINE) or ["0"])[-1]) for child in self.children)

    def await_progress(self, records: int) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while (done := self.progress()) < records:
            for child in self.children:
                child.check_alive()
            assert time.monotonic() < deadline, f"the writers do not come to {records}, only to {done}"
            time.sleep(0.05)

    def await_ends(self) -> list[dict]:
        """What each says at its end. One whose request has failed ends with its traceback instead."""
        for child in self.children:
            child.process.wait(SECONDS_MAX)
            assert child.process.returncode == 0, f"{child.name}:\n{child.log()[-4000:]}"
        return [json.loads(child.log().splitlines()[-1]) for child in self.children]

    def end(self) -> None:
        for child in self.children:
            child.stop(signal.SIGKILL)


class Capture:
    """All bytes of the cluster's ports, in its own process."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.path = folder / "bytes"
        self.ports = [int(address.rsplit(":", 1)[1]) for node in cluster.nodes.values() for address in node]
        root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        command = [*root, sys.executable, str(HERE / "capture.py"), str(self.path), *map(str, self.ports)]
        self.child = Child("capture", command, folder)
        deadline = time.monotonic() + 30
        while "captures" not in self.child.log():
            assert self.child.process.poll() is None, f"packets are captured by root only:\n{self.child.log()}"
            assert time.monotonic() < deadline, self.child.log()
            time.sleep(0.05)

    def end(self) -> dict:
        self.child.stop(signal.SIGTERM)
        return json.loads(self.child.log().splitlines()[-1])


def certificate(address: str) -> str:
    """The certificate that is shown to a new connection."""
    host, port = address.rsplit(":", 1)
    return ssl.get_server_certificate((host, int(port)), timeout=30)


def renew(cluster: Cluster, number: int) -> None:
    """Renews the certificate of a node, and waits until each of its doors shows the new one."""
    node = cluster.nodes[number]
    old = certificate(node.http)
    folder = f"{cluster.authority.parent}"
    cluster.command("cert", "node", folder, f"node-{number}", "127.0.0.1", "localhost", "--renew")
    new = (cluster.authority.parent / f"node-{number}.pem").read_text()
    deadline = time.monotonic() + 30
    for address in node:
        while (shown := certificate(address)).split() != new.split():
            assert shown == old and time.monotonic() < deadline, f"{address} does not show the new certificate"
            time.sleep(0.2)


def rotate(cluster: Cluster, sharing: Sharing) -> tuple[str, str]:
    """Rotates the secret of the writers as docs/operating/closing.md says; the old and the new one."""
    old = sharing.secret.read_text().strip()
    following = sharing.folder / "next.secret"
    cluster.command("user", "rotate", "packages", "--secret-to", str(following))
    new = following.read_text().strip()
    before = sharing.progress()
    following.replace(sharing.secret)
    # Every writer has read the new one once it has written a hundred records more.
    sharing.await_progress(before + 100 * WRITERS)
    cluster.command("user", "rotate", "packages", "--finish")
    return old, new


def status_with(cluster: Cluster, secret: str) -> set[int]:
    """What the nodes answer to a secret."""
    words = ["-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", str(cluster.authority), "-H", "@-"]
    told = set()
    for url in cluster.urls():
        done = subprocess.run(
            [tool("curl"), *words, f"{url}/v1/stores/default/keys/debian-package%2Fnone"],
            input=f"Authorization: Bearer {secret}\n".encode(), capture_output=True, check=True, timeout=60,
        )
        told.add(int(done.stdout))
    return told


def send_in_the_clear(cluster: Cluster, record: tuple[str, bytes], secret: str) -> list[int]:
    """Sends a put without TLS to every door, which refuses it; the ports that it came from."""
    name, stanza = record
    head = f"PUT /v1/stores/default/keys/debian-package%2F{name} HTTP/1.1\r\nAuthorization: Bearer {secret}\r\n\r\n"
    ports = []
    for node in cluster.nodes.values():
        for address in node:
            host, port = address.rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=30) as client:
                ports.append(client.getsockname()[1])
                client.sendall(head.encode() + stanza)
    return ports


def encoded(secret: str) -> list[bytes]:
    """A secret as it is, and in base 64 wherever it begins."""
    shifted = [base64.b64encode(b"x" * at + secret.encode())[4:40] for at in range(3)]
    return [secret.encode(), *shifted]


@pytest.mark.timeout(1200)
def test_the_package_index_goes_by_http_into_a_cluster_to_which_much_happens(
    own_cluster: Cluster, full: bool, tmp_path: Path
) -> None:
    records = package_index() if full else package_index()[::STRIDE]
    sharing = Sharing(own_cluster, records, tmp_path)
    captured = Capture(own_cluster, tmp_path)
    try:
        sharing.start("write", [str(sharing.stop)] * WRITERS)
        sharing.await_progress(len(records) // 10)
        own_cluster.kill(2)
        sharing.await_progress(len(records) // 4)
        own_cluster.restart(2)
        for number in own_cluster.nodes:
            renew(own_cluster, number)
        old, new = rotate(own_cluster, sharing)
        assert status_with(own_cluster, new) == {404} and status_with(own_cluster, old) == {401}
        sharing.await_progress(sharing.progress() + len(records) // 10)
        sharing.stop.touch()
        written = sharing.await_ends()
        sharing.start("read", [str(share["done"]) for share in written])
        read = sharing.await_ends()
        plain = send_in_the_clear(own_cluster, records[0], PLANTED)
    finally:
        sharing.end()
        passed = captured.end()
    report(records, written, read, passed)
    check_requests(own_cluster, records, written, read)
    assert passed["dropped"] == 0
    # Each record went over the network to a node, to its replicas, and back to a reader.
    assert passed["bytes"] > 2 * sum(len(stanza) for _, stanza in records)
    secrets = [old, new, own_cluster.root_secret.read_text().strip()]
    check_bytes(captured, plain, secrets)
    check_logs(own_cluster, secrets)


def report(records: list, written: list[dict], read: list[dict], passed: dict) -> None:
    """What happened, for whoever runs it with -s or sees it fail."""
    total = sum(share["done"] for share in written)
    print(f"\n{len(records)} packages, {total} records written by {WRITERS} writers and read back; captured {passed}")
    for share in written + read:
        print({name: share[name] for name in ("done", "statuses")}, {
            node: {kind: len(errors) for kind, errors in kinds.items()} for node, kinds in share["failures"].items()
        })


def check_requests(cluster: Cluster, records: list, written: list[dict], read: list[dict]) -> None:
    """Every record is acknowledged, and only the node that was killed has ever refused a connection or broken it."""
    assert sum(share["done"] for share in written) >= len(records)
    assert [share["done"] for share in read] == [share["done"] for share in written]
    killed = cluster.nodes[2].http
    assert any(killed in share["failures"] for share in written), "no writer was at the node that was killed"
    for share in written:
        assert set(share["failures"]) <= {killed}, share["failures"]
        assert set(share["statuses"]) <= {"204", "503"}, share["statuses"]
    for share in read:
        assert not share["failures"] and set(share["statuses"]) == {"200"}, share


def check_bytes(captured: Capture, plain: list[int], secrets: list[str]) -> None:
    """What was sent in the clear on purpose is found at each port, and nothing else is found anywhere."""
    planted = {*WORDS, PLANTED.encode()}
    places = found(captured.path, [*planted, *(word for secret in secrets for word in encoded(secret))])
    assert len(plain) == len(captured.ports) == 9
    assert set(places) == planted, set(places) ^ planted
    for word, flows in places.items():
        assert {source for source, _ in flows} == set(plain), f"{word} in the clear: {flows}, beside what {plain} sent"
        assert {target for _, target in flows} == set(captured.ports), word


def check_logs(cluster: Cluster, secrets: list[str]) -> None:
    """No log has a key, a value or a secret. The prefix of the keys is in the rights of the user, which an order names."""
    logs = list((cluster.authority.parent.parent / "log").iterdir())
    assert len(logs) >= 3
    for log in logs:
        text = log.read_bytes()
        assert not [word for word in [b"debian-package/0/", *WORDS[1:]] if word in text], log
        assert not [word for secret in secrets for word in encoded(secret) if word in text], log


def test_words_that_packets_cut_are_found_and_others_are_not(tmp_path: Path) -> None:
    kept = tmp_path / "bytes"
    said = b"a word that is cut, and one that is not"
    with kept.open("wb") as file:
        for cut in range(1, len(said)):
            for piece in (said[:cut], said[cut:]):
                file.write(HEAD.pack(1000 + cut, 80, len(piece)) + piece)
                # Another stream between the two pieces.
                file.write(HEAD.pack(80, 1000 + cut, 3) + b"...")
    places = found(kept, [said, b"cut, ...", b"not there"])
    assert places == {said: {(1000 + cut, 80) for cut in range(1, len(said))}}
