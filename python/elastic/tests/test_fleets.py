"""Fleets that grow and shrink while controllers and adapters are killed at random moments.

The controller, the adapter and moto are real; the engine is `engine_double.py`, whose members are
machines that ran their user data. One controller has many fleets at once, because a run mostly
waits. A run is one fleet's life: no machine, one, two, and one again. `test_runs.py` has more and
cheaper ones.

A ledger beside EC2 tells what was made and ended. It must never hold two machines of one token, or
more machines of a fleet at once than its budget pays for.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloud import LOST, Chaos, Cloud, Machine
from controlling import PATIENCE, Fleets, kill
from hypervisor import Hypervisor

#: Fleets that one controller has at once.
BESIDE = 20
#: Fleets that share an adapter.
FLEETS_EACH = 10
PRICE = 0.0208
#: The budget pays for two machines, and not for a third.
POLICY = (
    'min = 1\nmax = 4\nmode = "auto"\nbudget = { per-hour = "0.05" }\n'
    "deadlines = { boot = 60, terminate = 60 }\n"
)
MACHINES_MAX = 2


@dataclass
class Report:
    """What many runs came to."""

    runs: int = 0
    seconds: float = 0.0
    controllers_killed: int = 0
    adapters_killed: int = 0
    machines: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    faults: dict[str, int] = field(default_factory=dict)
    most: int = 0

    def text(self) -> str:
        return json.dumps({**self.__dict__, "seconds": round(self.seconds)}, indent=1)


class Run:
    """One fleet, and what is asked of it next."""

    #: Orders, and the answer of a controller that heard both adapters. The first is too dear.
    STEPS = (("+2", "budget"), ("+1", "taken"), ("-1", "taken"))

    def __init__(self, name: str, fleets: Fleets) -> None:
        self.name = name
        self._fleets = fleets
        self._steps = list(self.STEPS)
        self._order: subprocess.Popen[bytes] | None = None
        #: The last order before it.
        self._before = 0
        self.done = False

    def go_on(self, fleet: dict[str, Any]) -> None:
        """Gives the next order when the last one is carried out."""
        orders = [one["number"] for one in fleet["orders"]]
        if self._order:
            # Once it is in the document, the order stays there for whichever controller comes.
            placed = max(orders, default=0) > self._before
            if not placed or any("answer" not in one for one in fleet["orders"]):
                return
            self._order.kill()
            self._order.wait()
            self._order = None
            if _answer_to(fleet["orders"][-1]) == self._steps[0][1]:
                self._steps.pop(0)
        states = [one["state"] for one in fleet["machines"]]
        if fleet.get("target") is None or states != ["serving"] * fleet["target"]:
            return
        if self._steps:
            self._before = max(orders, default=0)
            words = self._fleets.command("plan", self.name, self._steps[0][0], "--no-wait")
            self._order = subprocess.Popen(
                words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        else:
            self.done = True


def _answer_to(order: dict[str, Any]) -> str:
    refusal = order["answer"].get("Err")
    return str(refusal["code"]) if refusal else "taken"


def children(process: int) -> list[int]:
    """The processes that a process has started: a controller's adapters."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            if int(parent) == process:
                found.append(int(entry.name))
    return found


class Killer:
    """Kills a controller or one of its adapters now and then."""

    def __init__(self, fleets: Fleets, dice: random.Random, report: Report) -> None:
        self._fleets, self._dice, self._report = fleets, dice, report
        self._controller = fleets.start()
        self._draw()

    def _draw(self) -> None:
        self._next = time.monotonic() + self._dice.uniform(8.0, 25.0)

    def go_on(self) -> None:
        assert self._controller.poll() is None, self._fleets.log.read_text()[-2000:]
        if time.monotonic() < self._next:
            return
        self._draw()
        adapters = children(self._controller.pid)
        if adapters and self._dice.random() < 0.4:
            try:
                os.kill(self._dice.choice(adapters), signal.SIGKILL)
            except ProcessLookupError:
                return
            self._report.adapters_killed += 1
            return
        kill(self._controller)
        self._report.controllers_killed += 1
        self._controller = self._fleets.start()


def play(
    binary: str, config: Path, cloud: Cloud, folder: Path, names: list[str], report: Report
) -> None:
    """Plays so many runs beside each other, until each is done."""
    dice = random.Random(names[0])
    often = {LOST: 0.15, "RequestLimitExceeded": 0.05}
    cloud.unseen_seconds = 3.0
    cloud.chaos = Chaos(
        dice,
        {
            "RunInstances": {**often, "InsufficientInstanceCapacity": 0.1, "ExpiredToken": 0.03},
            "TerminateInstances": often,
            "DescribeInstances": {LOST: 0.01, "RequestLimitExceeded": 0.01, "ExpiredToken": 0.005},
        },
    )
    fleets = Fleets(binary, folder, folder / "coordination")
    engine = [sys.executable, str(Path(__file__).parent / "engine_double.py"), str(folder / "e")]
    pairs = -(-len(names) // FLEETS_EACH)
    fleets.write_adapters(config, engine, pairs)
    for number, name in enumerate(names):
        fleets.apply(name, POLICY, number % pairs)
    began = time.monotonic()
    hypervisor = Hypervisor(cloud, folder / "hypervisor")
    try:
        killer = Killer(fleets, dice, report)
        runs = [Run(name, fleets) for name in names]
        while left := [run for run in runs if not run.done]:
            killer.go_on()
            status = {fleet["name"]: fleet for fleet in fleets.json("status")["fleets"]}
            for run in left:
                run.go_on(status[run.name])
            late = time.monotonic() - began > 3 * PATIENCE
            assert not late, [status[run.name] for run in left[:2]]
            time.sleep(0.2)
        judge(cloud, fleets, names)
    finally:
        fleets.stop()
        hypervisor.stop()
    report.runs += len(names)
    report.seconds += time.monotonic() - began
    report.machines += len(cloud.machines)
    report.requests.update(cloud.actions())
    report.most = max(report.most, *(cloud.most[name] for name in names))
    for fault, times in cloud.chaos.met.items():
        report.faults[fault] = report.faults.get(fault, 0) + times


def seconds_for(machines: list[Machine]) -> list[str]:
    """Tokens that have more than one machine."""
    tokens = Counter(str(machine.token) for machine in machines)
    return [token for token, times in tokens.items() if times > 1]


def judge(cloud: Cloud, fleets: Fleets, names: list[str]) -> None:
    """No duplicate was made, none stays, and the budget was kept."""
    assert seconds_for(list(cloud.machines.values())) == []
    for name in names:
        live = {machine.id for machine in cloud.live(name)}
        kept = {machine["instance"] for machine in fleets.machines(name)}
        assert live == kept, f"{name}: EC2 has {live}, and the document {kept}"
        assert len(live) == 1
        assert cloud.most[name] <= MACHINES_MAX, f"{name} had {cloud.most[name]} at once"


def test_a_few_fleets_keep_one_machine_for_each_token_and_their_budget(
    binary: str, config: Path, cloud: Cloud, tmp_path: Path
) -> None:
    report = Report()
    play(binary, config, cloud, tmp_path, [f"few-{number}" for number in range(3)], report)
    assert (report.machines, report.most) == (6, 2), report.text()


def test_the_judge_finds_a_second_machine(cloud: Cloud, start: object) -> None:
    cloud.tokens_work = False
    cloud.unseen_seconds = 10.0
    adapter = start()  # type: ignore[operator]
    adapter.ensure("u-1")
    adapter.ensure("u-1")
    assert seconds_for(list(cloud.machines.values())) == ["u-1"]


@pytest.mark.full
@pytest.mark.timeout(5400)
def test_forty_runs_with_kills(binary: str, moto: object, config: Path, tmp_path: Path) -> None:
    runs = int(os.environ.get("ELASTIC_RUNS", "40"))
    report = Report()
    for first in range(0, runs, BESIDE):
        moto.reset()  # type: ignore[attr-defined]
        cloud = Cloud(moto)  # type: ignore[arg-type]
        folder = tmp_path / str(first)
        folder.mkdir()
        settings = folder / "ec2.toml"
        lines = config.read_text().splitlines()
        kept = [line for line in lines if not line.startswith(("endpoint", "data-directory"))]
        own = [f'endpoint = "{cloud.endpoint}"', f'data-directory = "{folder}/machines"']
        settings.write_text("\n".join(own + kept))
        try:
            names = [f"run-{number}" for number in range(first, min(first + BESIDE, runs))]
            play(binary, settings, cloud, folder, names, report)
        finally:
            cloud.stop()
        print(f"after {report.runs} runs: {report.text()}", file=sys.stderr, flush=True)
    assert report.runs == runs
    assert report.controllers_killed > 0
    assert report.faults[LOST] > 0


def test_a_controller_that_is_killed_leaves_no_adapter(
    binary: str, config: Path, cloud: Cloud, tmp_path: Path
) -> None:
    fleets = Fleets(binary, tmp_path, tmp_path / "coordination")
    engine = [sys.executable, str(Path(__file__).parent / "engine_double.py"), str(tmp_path / "e")]
    fleets.write_adapters(config, engine)
    fleets.apply("shop", POLICY)
    controller = fleets.start()
    try:
        deadline = time.monotonic() + 60
        while len(children(controller.pid)) < 2 or "DescribeInstances" not in cloud.actions():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        adapters = children(controller.pid)
        kill(controller)
        while alive := [one for one in adapters if Path(f"/proc/{one}/cmdline").exists()]:
            assert time.monotonic() < deadline, subprocess.run(
                ["ps", "-o", "args", *map(str, alive)], capture_output=True
            )
            time.sleep(0.1)
    finally:
        fleets.stop()
