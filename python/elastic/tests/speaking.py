"""An adapter as a child process: a line in, a line out."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

#: Longer than any call may take, also where the adapter waits for a processor all the time.
PATIENCE = 60.0
KEY, SECRET, SESSION = "AKIATESTTESTTESTTEST", "sEcReT+of/the/tests" * 2, "sEsSiOn" * 40


class Failed(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]


def credentials() -> dict[str, str]:
    """An environment with the credentials of the tests and nothing of this host's own."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    return {
        **kept,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SESSION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


def program(config: Path) -> list[str]:
    """The command line of the adapter under test."""
    return [str(Path(sys.executable).parent / "tontine-ec2"), "--config", str(config)]


class Speaking:
    def __init__(
        self,
        command: list[str],
        log: Path,
        environment: dict[str, str] | None = None,
        fleet: str = "shop",
    ) -> None:
        self.fleet = fleet
        self.log = log
        self._number = 0
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment or credentials(),
            )
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def call(self, method: str, **params: Any) -> Any:
        """The result of a call. Raises `Failed` for an error."""
        self._number += 1
        params = {"fleet": self.fleet, **params}
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        answer = self.say(json.dumps(request).encode())
        assert answer["id"] == self._number, answer
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["result"]

    def say(self, line: bytes) -> Any:
        assert self.process.stdin
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        answer = self._lines.get(timeout=PATIENCE)
        if not answer:
            # Later calls see it too: one may still find room in the pipe of a dying process.
            self._lines.put(answer)
            raise EOFError("the adapter has ended")
        return json.loads(answer)

    def code(self, method: str, **params: Any) -> tuple[int, str]:
        """The code and the words of a call that must fail."""
        try:
            result = self.call(method, **params)
        except Failed as failed:
            return failed.code, failed.message
        raise AssertionError(f"{method} succeeded with {result}")

    def ensure(self, token: str, kind: str = "t3.small", script: str = "exec sleep 600\n") -> Any:
        return self.call("ensure", token=token, type=kind, script=script)

    def instances(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("list")["instances"]
        return found

    def with_token(self, token: str) -> list[dict[str, Any]]:
        return [one for one in self.instances() if one["token"] == token]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(15)
