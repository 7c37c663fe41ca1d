"""The real controller and the real command line, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from speaking import credentials, program

#: Longer than anything may take on a busy machine.
PATIENCE = 240.0
T = TypeVar("T")


def wait_for(what: str, found: Callable[[], T], seconds: float = PATIENCE) -> T:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what} did not come to be"
        time.sleep(0.1)
    return value


class Fleets:
    """A coordination service with fleets, and controllers of them."""

    def __init__(self, binary: str, folder: Path, coordination: Path) -> None:
        self._binary = binary
        self._folder = folder
        self._coordination = coordination
        self._controllers: list[subprocess.Popen[bytes]] = []
        self.log = folder / "controller.log"

    def write_adapters(self, config: Path, engine: list[str], pairs: int = 1) -> None:
        """Names so many adapters of each kind, of one command line: a call waits for the one
        before it at the same adapter."""
        text = ""
        for pair in range(pairs):
            text += f"[engines.engine-{pair}]\ncommand = {json.dumps(engine)}\n"
            text += f"[providers.ec2-{pair}]\ncommand = {json.dumps(program(config))}\n"
        (self._folder / "adapters.toml").write_text(text)

    def apply(self, name: str, policy: str, pair: int = 0) -> None:
        path = self._folder / f"{name}.toml"
        fixed = f'engine = "engine-{pair}"\nprovider = "ec2-{pair}"\nmachine-type = "t3.small"\n'
        path.write_text(fixed + policy)
        self.run("apply", str(path))

    def command(self, *words: str) -> list[str]:
        verb, *further = words
        service = f"--coordination=dir:{self._coordination}"
        return [self._binary, "elastic", verb, service, *further]

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=PATIENCE
        )

    def run(self, *words: str) -> str:
        done = self.attempt(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def machines(self, fleet: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("status", fleet)["fleet"]["machines"]
        return found

    def states(self, fleet: str) -> list[str]:
        return sorted(one["state"] for one in self.machines(fleet))

    def start(self) -> subprocess.Popen[bytes]:
        adapters = f"--adapters={self._folder / 'adapters.toml'}"
        with self.log.open("ab") as log:
            controller = subprocess.Popen(
                self.command("run", adapters, "--session-timeout=2s"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=credentials(),
                start_new_session=True,
            )
        self._controllers.append(controller)
        return controller

    def stop(self) -> None:
        for controller in self._controllers:
            if controller.poll() is None:
                controller.send_signal(signal.SIGTERM)
                try:
                    controller.wait(20)
                except subprocess.TimeoutExpired:
                    controller.kill()
                    controller.wait()


def kill(controller: subprocess.Popen[bytes]) -> None:
    """As when the power goes off: without a word. Its adapters end with their input."""
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
