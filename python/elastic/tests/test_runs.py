"""Three hundred runs of the real adapter under a controller that is killed at random moments.

A run is one fleet's life: no machine, one, two, and one again. The controller here is a script of
the same shape as the real one: what it intends stands in a document before it acts, a successor
goes on from the document and from what `list` shows, and it pays for two machines at most. Unlike
the real one it asks again at once, so a token is asked for many times while its machine is not
shown. `test_fleets.py` has the real controller, of which a run takes longer.

Killed are the script between any two steps, and the adapter's process in the middle of a call.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from cloud import LOST, Chaos, Cloud
from conftest import Start
from speaking import Failed, Speaking
from test_fleets import seconds_for

MACHINES_MAX = 2
#: How many machines are wanted, one after the other.
WANTED = (1, 2, 1)
#: How probable it is that a controller is killed at each step, and an adapter in a call.
KILLED, ADAPTER_KILLED = 0.04, 0.01
SCRIPT = "#!/bin/sh\nexec sleep 600\n"


class Killed(Exception):
    """The controller's process has ended here."""


@dataclass
class Document:
    """What outlives a controller."""

    machines: dict[str, str] = field(default_factory=dict)
    next_token: int = 1
    stage: int = 0


@dataclass
class Run:
    fleet: str
    start: Start
    dice: random.Random
    kills: int = 0
    adapter_kills: int = 0
    asked: int = 0

    def play(self, adapters: list[Speaking]) -> None:
        """Lives through. The last of the adapters, if it runs, is the one to speak with."""
        document = Document()
        deadline = time.monotonic() + 240
        while document.stage < len(WANTED):
            assert time.monotonic() < deadline, f"{self.fleet}: {document}"
            if not adapters or adapters[-1].process.poll() is not None:
                adapters.append(self.start())
            adapter = adapters[-1]
            adapter.fleet = self.fleet
            try:
                while document.stage < len(WANTED):
                    self.turn(document, adapter)
                    time.sleep(0.1)
            except Killed:
                self.kills += 1
                # Adapters remember nothing, so the next controller may as well have this one: to
                # start another costs more than all the rest of a run.
                if self.dice.random() < 0.1:
                    adapter.kill()

    def step(self) -> None:
        if self.dice.random() < KILLED:
            raise Killed

    def call(self, adapter: Speaking, verb: str, **params: str) -> object:
        """A call; `None` if it failed in a way that may pass."""
        self.step()
        timer = None
        if self.dice.random() < ADAPTER_KILLED:
            self.adapter_kills += 1
            pause = self.dice.uniform(0.0, 0.1)
            timer = threading.Timer(pause, adapter.process.send_signal, [signal.SIGKILL])
            timer.start()
        try:
            result = adapter.call(verb, **params)
        except Failed as failed:
            assert failed.code in (-32000, -32002), f"{verb} {params}: {failed}"
            return None
        except (BrokenPipeError, EOFError):
            raise Killed from None
        finally:
            if timer:
                timer.join()
        if timer:
            raise Killed
        self.step()
        return result

    def turn(self, document: Document, adapter: Speaking) -> None:
        listed = self.call(adapter, "list")
        if listed is None:
            return
        seen = {one["token"]: one for one in listed["instances"]}  # type: ignore[index]
        assert len(seen) == len(listed["instances"])  # type: ignore[index]
        for token, state in list(document.machines.items()):
            shown = seen.get(token)
            live = shown is not None and shown["state"] in ("pending", "running")
            if state == "requested" and live:
                document.machines[token] = "serving"
            elif state == "requested":
                self.asked += 1
                self.call(adapter, "ensure", token=token, type="t3.small", script=SCRIPT)
            elif state == "terminating" and live:
                if self.call(adapter, "preflight", instance=shown["id"]) is not None:
                    self.call(adapter, "terminate", instance=shown["id"])
            elif state == "terminating":
                del document.machines[token]
        wanted = WANTED[document.stage]
        staying = [token for token, state in document.machines.items() if state != "terminating"]
        if len(staying) < wanted and len(document.machines) < MACHINES_MAX:
            document.machines[f"{self.fleet}-{document.next_token}"] = "requested"
            document.next_token += 1
        elif len(staying) > wanted:
            document.machines[self.dice.choice(staying)] = "terminating"
        elif list(document.machines.values()) == ["serving"] * wanted:
            document.stage += 1
        self.step()


def play_all(runs: list[Run], done: Callable[[Run], None]) -> None:
    """One after the other."""
    adapters: list[Speaking] = []
    for run in runs:
        run.play(adapters)
        done(run)


def play(cloud: Cloud, start: Start, count: int, beside: int, first: int = 0) -> None:
    """Plays so many runs from this one on, so many of them beside each other, and judges each."""
    often = {LOST: 0.15, "RequestLimitExceeded": 0.05}
    cloud.unseen_seconds = 1.0
    cloud.chaos = Chaos(
        random.Random(first + count),
        {
            "RunInstances": {**often, "InsufficientInstanceCapacity": 0.1, "ExpiredToken": 0.03},
            "TerminateInstances": often,
            "DescribeInstances": {LOST: 0.01, "RequestLimitExceeded": 0.01, "ExpiredToken": 0.005},
        },
    )
    numbers = range(first, first + count)
    runs = [Run(f"run-{number}", start, random.Random(number)) for number in numbers]
    began = time.monotonic()
    ended: list[Run] = []

    def judge(run: Run) -> None:
        with cloud.lock:
            machines = [one for one in cloud.machines.values() if one.fleet == run.fleet]
            assert seconds_for(machines) == [], "a token has two machines"
            assert len(cloud.live(run.fleet)) == 1, f"{run.fleet}: one stays that nobody wants"
            assert cloud.most[run.fleet] == MACHINES_MAX, f"{run.fleet}: over its budget"
            ended.append(run)
            if len(ended) % 10 == 0 or len(ended) == count:
                print(told(cloud, ended, time.monotonic() - began), file=sys.stderr, flush=True)

    with ThreadPoolExecutor(beside) as pool:
        parts = [pool.submit(play_all, runs[first::beside], judge) for first in range(beside)]
        for part in parts:
            part.result()


def told(cloud: Cloud, ended: list[Run], seconds: float) -> str:
    """What the runs came to that have ended, and those under way."""
    actions = cloud.actions()
    met = cloud.chaos.met if cloud.chaos else {}
    return (
        f"{len(ended)} runs in {seconds:.0f} s: "
        f"controllers killed {sum(run.kills for run in ended)}, "
        f"adapters {sum(run.adapter_kills for run in ended)}, "
        f"calls of ensure {sum(run.asked for run in ended)}; with those under way: "
        f"machines {len(cloud.machines)}, RunInstances {actions.count('RunInstances')}, "
        f"requests {len(actions)}, faults {met}"
    )


def test_a_few_runs_leave_no_second_machine(cloud: Cloud, start: Start) -> None:
    play(cloud, start, 6, 3)
    assert len(cloud.machines) >= 12


def test_the_runs_find_second_machines_where_tokens_do_not_work(cloud: Cloud, start: Start) -> None:
    """They can fail: moto alone makes a machine for each call."""
    cloud.tokens_work = False
    with pytest.raises(AssertionError):
        play(cloud, start, 2, 2)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_three_hundred_runs(cloud: Cloud, start: Start) -> None:
    """moto keeps what has ended, and lists it ever more slowly; EC2 forgets it in an hour."""
    for first in range(0, 300, 50):
        play(cloud, start, 50, 6, first)
        assert cloud.chaos and cloud.chaos.met[LOST] > 10
        cloud.forget()
