"""Redis's own tools, unmodified: redis-cli and redis-benchmark."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import redis

from raw import encode
from targets import Target

SECONDS_MAX = 100


def tool(
    name: str, target: Target, *arguments: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    binary = shutil.which(name)
    assert binary, f"{name} is not installed: ./check setup"
    host, port = target.addresses[0]
    command = [binary, "-h", host, "-p", str(port), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done


def cli(target: Target, *arguments: str, stdin: bytes = b"") -> str:
    return tool("redis-cli", target, *arguments, stdin=stdin).stdout.decode()


@pytest.mark.parametrize("version", ["-2", "-3"])
def test_redis_cli_sets_and_gets(target: Target, key: str, version: str) -> None:
    assert cli(target, version, "PING") == "PONG\n"
    assert cli(target, version, "SET", key, "a value", "EX", "1000") == "OK\n"
    assert cli(target, version, "GET", key) == "a value\n"
    assert cli(target, version, "--no-raw", "GET", key) == '"a value"\n'
    assert 900 < int(cli(target, version, "TTL", key)) <= 1000
    assert cli(target, version, "--csv", "MGET", key, key + "x").strip() == '"a value",NULL'
    assert cli(target, version, "-n", "0", "DEL", key) == "1\n"
    assert cli(target, version, "--no-raw", "GET", key) == "(nil)\n"


def test_redis_cli_takes_commands_and_values_from_a_pipe(target: Target, key: str) -> None:
    script = f"SET {key} 'from a pipe'\nSTRLEN {key}\nGET {key}\nNOSUCH\n".encode()
    told = cli(target, stdin=script)
    assert told.startswith("OK\n11\nfrom a pipe\n")
    assert "ERR unknown command 'NOSUCH'" in told
    assert cli(target, "-x", "SET", key, stdin=b"all of\nstdin") == "OK\n"
    assert cli(target, "GET", key) == "all of\nstdin\n"


def test_redis_cli_loads_a_file_of_commands_in_bulk(target: Target, client: redis.Redis, key: str) -> None:
    commands = b"".join(encode("SET", f"{key}:{index}", index) for index in range(10_000))
    told = cli(target, "--pipe", stdin=commands)
    assert "errors: 0, replies: 10000" in told
    keys = [f"{key}:{index}" for index in range(10_000)]
    assert client.mget(keys) == [str(index).encode() for index in range(10_000)]


def test_redis_cli_shows_what_the_server_says_of_itself(target: Target) -> None:
    assert "redis_version:" in cli(target, "INFO", "server")
    assert cli(target, "-3", "HELLO", "3").startswith("server ")
    assert "get" in cli(target, "COMMAND", "DOCS", "get")


BENCHMARKS = [
    pytest.param(["-t", "ping,set,get,mset"], id="unpipelined"),
    pytest.param(["-t", "ping,set,get,mset", "-P", "16"], id="pipelined"),
    pytest.param(["-t", "set,get", "-P", "16", "-3", "-d", "1024"], id="resp3"),
    pytest.param(["-t", "set,get", "--threads", "2", "-d", "10000"], id="threads"),
]


@pytest.mark.parametrize("options", BENCHMARKS)
def test_redis_benchmark_runs_to_its_end(target: Target, options: list[str]) -> None:
    done = tool("redis-benchmark", target, *options, "-n", "5000", "-c", "50", "-r", "1000", "--csv")
    assert b"Error" not in done.stdout and b"error" not in done.stderr, (done.stdout, done.stderr)
    rates = re.findall(rb'^"([A-Z]+[^"]*)","([0-9.]+)"', done.stdout, re.MULTILINE)
    measured = {name.decode().split(" ")[0].split("_")[0].lower() for name, _ in rates}
    assert measured >= set(options[1].split(",")), done.stdout
    assert all(float(rate) > 0 for _, rate in rates)
