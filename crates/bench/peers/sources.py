#!/usr/bin/env python3
"""Fetching from nginx, S3 and HDFS, each beside raw reading and writing: `tontine bench source` three times.

    ./check --full sources          installs the servers below target/check-servers
    cargo build --profile shipped -p cli --features sources
    crates/bench/peers/sources.py --records 1000000 --rounds 3

What: starts the three servers on loopback, one after the other, and ends each by its id.
Must never: listen outside 127.0.0.1, or leave a server or a table behind.
"""

import argparse
import os
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SERVERS = ROOT / "target/check-servers"
CLASSES = f"{SERVERS}/lib/*:{SERVERS}/classes"
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "of-a-bench"}
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def server(command: list, port: int):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **QUIET)
    try:
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} does not listen on port {port}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def nginx(folder: Path):
    port, tables = free_port(), folder / "tables"
    tables.mkdir()
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; sendfile on; {temporary}\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ root {tables}; }} }} }}\n"
    )
    command = ["nginx", "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log", "-g", "user root;"]
    with server(command, port):
        yield [f"http://127.0.0.1:{port}", "--to", str(tables)], {}


@contextmanager
def s3(folder: Path):
    port = free_port()
    (folder / "tables").mkdir()
    key, secret = KEYS.values()
    command = [f"{SERVERS}/bin/s3s-fs", "--access-key", key, "--secret-key", secret]
    with server([*command, "--host", "127.0.0.1", "--port", str(port), str(folder)], port):
        endpoint = {"AWS_ENDPOINT": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        yield ["s3://tables/bench"], KEYS | endpoint


@contextmanager
def hdfs(folder: Path):
    command = ["java", "-Xmx1g", "-cp", CLASSES, "Hdfs", str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, cwd=folder, **pipes)
    try:
        port = next(line.split()[1] for line in process.stdout if line.startswith("port "))
        yield [f"hdfs://127.0.0.1:{port}/bench", "--read", f"java -cp '{CLASSES}' Read 2>/dev/null"], {}
    finally:
        process.kill()
        process.wait()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tontine", default=str(ROOT / "target/shipped/tontine"))
    arguments.add_argument("--records", default="1000000", help="of a kilobyte each")
    arguments.add_argument("--rounds", default="3")
    arguments.add_argument("--scratch", default=None, help="the disk to measure; servers keep their tables there, too")
    arguments.add_argument("--only", choices=["nginx", "s3", "hdfs"])
    given = arguments.parse_args()
    for name, start in {"nginx": nginx, "s3": s3, "hdfs": hdfs}.items():
        if given.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(dir=given.scratch) as folder, start(Path(folder)) as (words, environment):
            command = [given.tontine, "bench", "source", *words]
            command += ["--table-records", given.records, "--rounds", given.rounds]
            command += ["--scratch", given.scratch] if given.scratch else []
            subprocess.run(command, env=os.environ | environment, check=True)


if __name__ == "__main__":
    main()
