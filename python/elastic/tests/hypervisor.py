"""Machines as processes of this host: each runs its user data, and stops when EC2 ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from cloud import Cloud, Machine

#: What marks all processes of a machine.
MARK = "TEST_MACHINE"


class Hypervisor:
    def __init__(self, cloud: Cloud, folder: Path) -> None:
        self._cloud = cloud
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._begun: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        for machine in self._begun:
            self._end(machine)

    def log_of(self, machine: str) -> str:
        return (self._folder / f"{machine}.log").read_text()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            with self._cloud.lock:
                machines = list(self._cloud.machines.values())
            for machine in machines:
                if machine.ended and machine.id not in self._stopped:
                    self._stopped.add(machine.id)
                    self._end(machine.id)
                elif not machine.ended and machine.id not in self._begun:
                    self._begin(machine)
            for process in self._begun.values():
                process.poll()

    def _begin(self, machine: Machine) -> None:
        # Executed as cloud-init does it, so its first line must name its shell.
        path = self._folder / machine.id
        path.write_text(machine.user_data)
        path.chmod(0o700)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{self._cloud.endpoint}/metadata/{machine.id}",
            MARK: machine.id,
        }
        with (self._folder / f"{machine.id}.log").open("wb") as log:
            self._begun[machine.id] = subprocess.Popen(
                [path],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self, machine: str) -> None:
        """As when the power goes off."""
        for _ in range(100):
            processes = processes_of(machine)
            for process in processes:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if not processes:
                break
            time.sleep(0.01)
        if machine in self._begun:
            self._begun[machine].wait(10)


def processes_of(machine: str) -> list[int]:
    """Processes that run with a machine's mark."""
    mark = f"{MARK}={machine}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                marks = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in marks:
                found.append(int(entry.name))
    return found
