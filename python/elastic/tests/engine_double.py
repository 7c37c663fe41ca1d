"""An engine adapter for tests: members are files of a folder, written by the machines' scripts.

    FOLDER/FLEET/ADDRESS    waiting | serving | drained

Data is not its matter: it is for tests of providers, in which machines come and go.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tontine_elastic.adapter import Deadline, Json, Params, passing, serve


class Engine:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self, params: Params, deadline: Deadline) -> Json:
        params.fleet()
        return {
            "name": "double",
            "protocol": 1,
            "acts_max": 1,
            "drain_cancellable": True,
            "members_min": 1,
            "measures": [],
        }

    def boot(self, params: Params, deadline: Deadline) -> Json:
        folder = self._folder / params.fleet()
        folder.mkdir(parents=True, exist_ok=True)
        script = f'echo waiting >"{folder}/$MACHINE_ADDRESS"\nexec sleep 3600\n'
        return {"script": f"#!/bin/sh\n# {params.token()}\n{script}"}

    def observe(self, params: Params, deadline: Deadline) -> Json:
        members = []
        for path in sorted((self._folder / params.fleet()).glob("127.*")):
            state = path.read_text().strip()
            if state:
                members.append({"id": path.name, "address": path.name, "state": state})
        return {"members": members}

    def join(self, params: Params, deadline: Deadline) -> Json:
        return self._set(params, "serving")

    def drain(self, params: Params, deadline: Deadline) -> Json:
        return self._set(params, "drained")

    def cancel(self, params: Params, deadline: Deadline) -> Json:
        return self._set(params, "serving")

    def forget(self, params: Params, deadline: Deadline) -> Json:
        self._path(params, "member").unlink(missing_ok=True)
        return {}

    def evidence(self, params: Params, deadline: Deadline) -> Json:
        name = "member" if params.has("member") else "address"
        path = self._path(params, name)
        owns = path.exists() and path.read_text().strip() == "serving"
        return {
            "witnesses": ["double"],
            "owns_nothing": not owns,
            "nothing_moves": True,
            "nothing_short": True,
        }

    def _path(self, params: Params, name: str) -> Path:
        return self._folder / params.fleet() / Path(params.text(name)).name

    def _set(self, params: Params, state: str) -> Json:
        path = self._path(params, "member")
        if not path.exists():
            raise passing(f"there is no member {path.name}")
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(state)
        temporary.rename(path)
        return {}


if __name__ == "__main__":
    engine = Engine(Path(sys.argv[1]))
    names = ["describe", "boot", "observe", "join", "drain", "cancel", "forget", "evidence"]
    methods: dict[str, Any] = {name: getattr(engine, name) for name in names}
    serve(methods)
