"""`tontine adapter check`, and a real cluster that grows and shrinks by machines of EC2."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

from cloud import LOST, Cloud
from controlling import PATIENCE, Fleets, kill, wait_for
from hypervisor import Hypervisor, processes_of
from speaking import credentials, program

KEYS = 300


def test_the_adapter_passes_the_check_of_the_contract(
    binary: str, config: Path, cloud: Cloud
) -> None:
    cloud.unseen_seconds = 1.0
    done = subprocess.run(
        [
            *(binary, "adapter", "check", "--answer-within=30s", "--type=t3.small", "--"),
            *program(config),
        ],
        env=credentials(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 of " in done.stdout, done.stdout
    assert cloud.live("adapter-check") == []
    assert len(cloud.machines) == 1


class Cluster:
    """Three nodes of `tontine dev`."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary = binary
        self.base = _free_ports()
        self.connect = ",".join(f"127.0.0.1:{self.base + node}" for node in (1, 2, 3))
        self.coordination = folder / "data" / "coordination"
        self.log = folder / "dev.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(binary, "dev", "--nodes=3", "--partitions=64", "--no-audit-log"),
                    *(f"--port-base={self.base}", f"--data-dir={folder / 'data'}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for("the cluster", lambda: self.attempt("status").returncode == 0)

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        assert self._process.poll() is None, self.log.read_text()
        command = [self._binary, words[0], f"--connect={self.connect}", *words[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

    def engine(self) -> list[str]:
        return [
            *(self._binary, "adapter", "tontine", f"--connect={self.connect}"),
            *(f"--coordination=dir:{self.coordination}", f"--port={self.base + 9}"),
        ]

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)


def _free_ports() -> int:
    for base in range(23_000, 31_000, 400):
        try:
            for port in (1, 2, 3, 9, 101, 102, 103, 201, 202, 203):
                socket.create_server(("127.0.0.1", base + port)).close()
        except OSError:
            continue
        return base
    raise AssertionError("no ports are free")


def test_a_cluster_grows_and_shrinks_on_machines_of_ec2_with_every_key_in_place(
    binary: str, config: Path, cloud: Cloud, tmp_path: Path
) -> None:
    cloud.unseen_seconds = 3.0
    cluster = Cluster(binary, tmp_path)
    fleets = Fleets(binary, tmp_path, cluster.coordination)
    hypervisor = Hypervisor(cloud, tmp_path / "hypervisor")
    records = {f"key-{number}": f"value-{number}" for number in range(KEYS)}

    def check_all() -> None:
        keys = list(records)
        for at in range(0, KEYS, 100):
            answer = cluster.attempt("mget", "--json", *keys[at : at + 100])
            assert answer.returncode == 0, answer.stderr
            assert {one["key"]: one["value"] for one in json.loads(answer.stdout)} == {
                key: records[key] for key in keys[at : at + 100]
            }

    try:
        file = tmp_path / "records.tsv"
        file.write_text("".join(f"{key}\t{value}\n" for key, value in records.items()))
        loaded = cluster.attempt("load", str(file), "--key", "1", "--value", "2")
        assert loaded.returncode == 0, loaded.stderr
        fleets.write_adapters(config, cluster.engine())
        fleets.apply("shop", 'min = 3\nmax = 6\nmode = "auto"\nbudget = { per-hour = "0.03" }\n')
        controller = fleets.start()
        fleets.run("adopt", "shop", "--member=n1", "--member=n2", "--member=n3")
        # The first reply is lost, and the controller that had asked is killed.
        cloud.fail("RunInstances", LOST, 2)
        fleets.run("plan", "shop", "+1", "--no-wait")
        wait_for("a request", lambda: cloud.actions().count("RunInstances") >= 2)
        kill(controller)
        fleets.start()
        wait_for("a fourth member", lambda: fleets.states("shop") == ["serving"] * 4)
        check_all()
        (machine,) = cloud.live("shop")
        assert len(cloud.machines) == 1
        assert any(one.get("instance") == machine.id for one in fleets.machines("shop"))
        assert processes_of(machine.id)
        second = fleets.attempt("plan", "shop", "+1")
        assert second.returncode != 0 and "budget" in second.stderr + second.stdout, second
        fleets.run("plan", "shop", "-1")
        wait_for("three members", lambda: fleets.states("shop") == ["serving"] * 3)
        check_all()
        assert cloud.live("shop") == []
        wait_for("its end", lambda: not processes_of(machine.id))
    finally:
        fleets.stop()
        hypervisor.stop()
        cluster.stop()
