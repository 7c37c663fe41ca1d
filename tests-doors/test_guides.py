"""docs/guides/http.md: what the tests run is what the page shows."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusters import Cluster
from test_clients import tool

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "http.md"
SECONDS_MAX = 120.0
DONE = "created: True, then False\nsiblings: eggs + milk\nmerged: eggs,milk\ndeleted: True\n"
LISTED = "listed: 3 of 3\n"
MARK = "=== the next command ==="


def section(title: str) -> str:
    """What stands below a heading of the second level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{PAGE} has no section {title}"
    return found[1]


def program(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{PAGE} has no block of {language}"
    return found[1]


def session(title: str) -> list[tuple[str, str]]:
    """The commands of a section, and what the page says that each prints."""
    blocks = re.findall(r"^```console\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    commands = []
    for block in blocks:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            commands.append((command, printed))
    return commands


def run_session(cluster: Cluster, title: str) -> None:
    """Runs the commands of a section in one shell, in the folder of the cluster, and compares what each prints.

    `…` stands for anything. The addresses of the page are those of a `dev` that found its usual ports free.
    """
    commands = session(title)
    assert commands, f"{PAGE}: {title} has no commands"
    script = "".join(f"{command}\necho '{MARK}'\n" for command, _ in commands)
    script = re.sub(r"127\.0\.0\.1:760(\d)", lambda found: cluster.nodes[int(found[1])].http, script)
    # curl shows progress beside output that is no terminal; a person at a terminal sees none.
    script = f"curl() {{ command curl --no-progress-meter \"$@\"; }}\ntontine() {{ '{cluster.binary}' \"$@\"; }}\n{script}"
    environment = cluster.environment()
    for variable in ("TONTINE_TLS_AUTHORITY", "TONTINE_SECRET_FILE"):
        environment.pop(variable, None)
    done = subprocess.run(
        [tool("bash"), "-c", script], cwd=cluster.folder, env=environment, timeout=SECONDS_MAX, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    parts = done.stdout.split(f"{MARK}\n")
    assert len(parts) == len(commands) + 1, done.stdout
    for (command, wanted), printed in zip(commands, parts, strict=False):
        # A body has no end of line of its own; a terminal shows the next prompt behind it, the page a new line.
        pattern = ".*?".join(re.escape(piece) for piece in wanted.rstrip("\n").split("…"))
        assert re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL), (command, wanted, printed)


def test_the_commands_for_curl_print_what_the_page_says(open_cluster: Cluster) -> None:
    run_session(open_cluster, "curl")


def test_the_commands_for_a_closed_cluster_print_what_the_page_says(closed_cluster: Cluster) -> None:
    run_session(closed_cluster, "A closed cluster")


@pytest.fixture(scope="module", params=["python", "java"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the program of the page in a language."""
    folder = tmp_path_factory.mktemp("guide")
    if request.param == "python":
        (folder / "carts.py").write_text(program("python"))
        return [sys.executable, str(folder / "carts.py")]
    (folder / "Carts.java").write_text(program("java"))
    built = subprocess.run(
        [tool("javac"), "-Xlint:all,-serial", "-Werror", "-d", str(folder), str(folder / "Carts.java")],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )
    assert built.returncode == 0, built.stderr
    return [tool("java"), "-cp", str(folder), "Carts"]


@pytest.fixture(scope="module")
def secret(closed_cluster: Cluster) -> Path:
    rights = [f"{right}:{store}" for store in ("default", "siblings") for right in ("read", "write")]
    rights.append("scan:default")
    return closed_cluster.user("guides", *rights)


def printed_by(written: list[str]) -> str:
    """What the page says that its program prints."""
    return DONE + LISTED if written[0] == sys.executable else DONE


def run(command: list[str], key: str, nodes: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*command, key, *nodes], env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def as_guest(cluster: Cluster, secret: Path | None = None) -> dict[str, str]:
    environment = cluster.environment(named=False)
    if secret:
        environment |= {"TONTINE_TLS_AUTHORITY": str(cluster.authority), "TONTINE_SECRET_FILE": str(secret)}
    return environment


@contextmanager
def refusing(answer: bytes, swallow: bool = False) -> Iterator[str]:
    """The address of a node that answers each request with these bytes, or closes the connection without a word."""

    def serve(client: socket.socket) -> None:
        with client:
            asked = b""
            while b"\r\n\r\n" not in asked and (more := client.recv(65536)):
                asked += more
            if asked and not swallow:
                client.sendall(answer)

    def accept(door: socket.socket) -> None:
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=accept, args=(door,), daemon=True).start()
        yield f"127.0.0.1:{door.getsockname()[1]}"


def status(number: int, words: str) -> bytes:
    body = b'{"error":{"kind":"planted","message":"planted","outcome":"unknown","retryable":true}}'
    head = f"HTTP/1.1 {number} {words}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def dead_address() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_a_program_works_on_an_open_cluster_although_the_first_node_is_not_there(
    open_cluster: Cluster, written: list[str], tmp_path: Path
) -> None:
    nodes = [f"http://{dead_address()}", *open_cluster.urls()]
    done = run(written, f"open:{tmp_path.name}", nodes, as_guest(open_cluster))
    assert (done.returncode, done.stdout) == (0, printed_by(written)), done.stderr


def test_a_program_works_on_a_closed_cluster_by_its_authority_and_a_secret(
    closed_cluster: Cluster, written: list[str], secret: Path, tmp_path: Path
) -> None:
    nodes = [f"https://{dead_address()}", *closed_cluster.urls()]
    # Any path of bytes is a key: what would end a path or begin a query, too.
    done = run(written, f"closed/{tmp_path.name} ?#%+ä", nodes, as_guest(closed_cluster, secret))
    assert (done.returncode, done.stdout) == (0, printed_by(written)), done.stderr


def test_a_program_goes_on_at_another_node_after_503(
    open_cluster: Cluster, written: list[str], tmp_path: Path
) -> None:
    with refusing(status(503, "Service Unavailable")) as node:
        nodes = [f"http://{node}", *open_cluster.urls()]
        done = run(written, f"refused:{tmp_path.name}", nodes, as_guest(open_cluster))
    assert (done.returncode, done.stdout) == (0, printed_by(written)), done.stderr


@pytest.mark.parametrize("broken", [False, True], ids=["504", "broken-off"])
def test_a_program_does_not_repeat_a_write_with_a_condition_of_which_nobody_knows(
    open_cluster: Cluster, written: list[str], tmp_path: Path, broken: bool
) -> None:
    key = f"unknown:{tmp_path.name}"
    with refusing(status(504, "Gateway Timeout"), swallow=broken) as node:
        done = run(written, key, [f"http://{node}", *open_cluster.urls()], as_guest(open_cluster))
    assert done.returncode != 0 and done.stdout == "", done.stdout
    assert "Unknown" in done.stderr, done.stderr
    with pytest.raises(AssertionError, match="not-found|not found"):
        open_cluster.command("get", key)
