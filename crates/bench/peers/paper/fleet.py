"""A fleet of machines of this host under a real controller: `tontine elastic run`, `adapter local`, an engine's adapter.

Must never: leave a machine behind. Machines outlive their controller, so they are ended through their provider.
"""

import json
import subprocess
import threading
import time

from members import end, run

NAME = "burst"
PATIENCE = 120
# A machine's script begins its member at once; a cloud's boots first. `sed` puts that into the script as it passes.
SLOW = r"""exec "$@" | sed -u 's|#!/bin/sh\\n|&sleep BOOTS\\n|'"""


def slowed(command, boots):
    """An engine adapter's command line, whose machines boot for so many seconds."""
    return ["sh", "-c", SLOW.replace("BOOTS", str(boots)), "sh", *map(str, command)]


def serving(look):
    """The members that serve, by what the controller saw last; none where it has not looked, or could not."""
    members = (look or {}).get("members", {}).get("Ok", [])
    return [member["id"] for member in members if member["state"] == "serving"]


class Fleet:
    """The fleet, its controller, and what is seen of it each second."""

    def __init__(self, arguments, engine, folder, policy):
        self.arguments, self.folder = arguments, folder
        self.service = ["--coordination", engine.coordination]
        self.log, self.bench_log = folder / "controller.log", folder / "bench.log"
        self.told, self.controller = [], None
        self.is_over, self.watcher = threading.Event(), None
        most = arguments.most - arguments.members + 2
        self.provider = [arguments.tontine, "adapter", "local", "--dir", folder / "machines"]
        self.provider += ["--addresses", f"127.0.43.1-127.0.43.{max(most, arguments.most)}", "--processors", arguments.cap]
        self.provider = [str(word) for word in self.provider]
        # Texts of JSON are texts of TOML.
        words = {f"engines.{engine.name}": slowed(engine.adapter(), arguments.boots), "providers.local": self.provider}
        adapters = "".join(f"[{name}]\ncommand = {json.dumps(command)}\n" for name, command in words.items())
        (folder / "adapters.toml").write_text(adapters)
        (folder / f"{NAME}.toml").write_text(policy)

    def tell(self, verb, *words, check=True):
        return run([self.arguments.tontine, "elastic", verb, *words, *self.service], check=check)

    def status(self):
        return json.loads(self.tell("status", NAME, "-o", "json"))

    def document(self):
        return self.status()["fleet"]

    def start(self, members, standby):
        """Creates the fleet, starts its controller, and waits until the members are its own and others stand by."""
        self.tell("apply", self.folder / f"{NAME}.toml", "--adapters", self.folder / "adapters.toml")
        words = [self.arguments.tontine, "elastic", "run", *self.service, "--adapters", str(self.folder / "adapters.toml")]
        with open(self.log, "ab") as log:
            self.controller = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.await_so("the members are adopted", lambda: self.adopts(members))
        self.await_so("machines stand by", lambda: self.count("ready") == standby)

    def adopts(self, count):
        """Adopts the members as soon as the controller sees so many serve."""
        if self.count("serving") < count:
            names = serving(self.status()["look"])
            if len(names) == count:
                self.tell("adopt", NAME, *(word for name in names for word in ("--member", name)), check=False)
        return self.count("serving") == count

    def count(self, state):
        return sum(machine["state"] == state for machine in self.document()["machines"])

    def await_so(self, what, is_so):
        until = time.monotonic() + PATIENCE
        while not is_so():
            if self.controller.poll() is not None:
                raise SystemExit(f"the controller ended with {self.controller.returncode}; see {self.log}")
            if time.monotonic() > until:
                raise SystemExit(f"not within {PATIENCE} s: {what}; {self.tell('status', NAME, check=False)}")
            time.sleep(0.5)

    def watch(self, began):
        """Looks each second, from now on."""
        self.told.append((began, self.document()))
        self.watcher = threading.Thread(target=self.look, daemon=True)
        self.watcher.start()

    def look(self):
        while not self.is_over.wait(1):
            try:
                self.told.append((time.time(), self.document()))
            # One look that fails is no reason to lose the run.
            except (SystemExit, subprocess.TimeoutExpired, ValueError) as failure:
                print(f"the fleet was not read: {failure}", flush=True)

    def stop_watching(self):
        self.is_over.set()
        self.watcher.join()
        self.told.append((time.time(), self.document()))

    def run_beside(self, words):
        """Runs a load to its end, and returns its exit code."""
        with open(self.bench_log, "wb") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            return process.wait(900)
        finally:
            end(process)

    def stop(self):
        """Ends the controller, and then each machine through the provider."""
        self.is_over.set()
        if self.controller is not None:
            end(self.controller)
        provider = subprocess.Popen(self.provider, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def call(method, **params):
            request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"fleet": NAME} | params}
            print(json.dumps(request), file=provider.stdin, flush=True)
            return json.loads(provider.stdout.readline()).get("result") or {}

        try:
            until = time.monotonic() + PATIENCE
            while (left := call("list").get("instances")) and time.monotonic() < until:
                for instance in left:
                    call("terminate", instance=instance["id"])
                time.sleep(0.5)
            if left:
                print(f"machines are left: {', '.join(one['id'] for one in left)}", flush=True)
        finally:
            provider.stdin.close()
            end(provider)
