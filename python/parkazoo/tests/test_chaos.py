"""The fault harness on plain Kazoo and one ensemble, where the truth is known.

A correct store must pass it under faults, and a client that lies must be caught:
otherwise a green fault test of ParKazoo would mean nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from chaos import Chaos, final_state
from conftest import EnsembleFactory
from parkazoo.connection import BatchingClient
from servers import PATIENCE_SECONDS, Ensemble, wait_until

DIRECTORIES = ["/w/a", "/w/b"]


class Liar(BatchingClient):
    """Says yes to one delete in five without asking anybody."""

    lies: list[str] = []
    deletes = 0

    def delete(self, path: str, *rest: Any, **named: Any) -> Any:
        self.deletes += 1
        if self.deletes % 5 == 0:
            self.exists(path)
            self.lies.append(path)
            return True
        return super().delete(path, *rest, **named)


def run(
    ensemble: Ensemble, client_class: type, enough: Callable[[Chaos, int], bool]
) -> Chaos:
    """Nodes and directories, an ensemble that stalls once and dies once. Each of the
    three times between is over when `enough` was done until then."""

    def connect() -> Any:
        client = client_class(ensemble.hosts, timeout=20)
        client.start(PATIENCE_SECONDS)
        return client

    judge = BatchingClient(ensemble.hosts, timeout=20)
    judge.start(PATIENCE_SECONDS)
    judge.create("/w")
    chaos = Chaos(connect, seed=1, reads=True)
    chaos.start(chaos.nodes, 3, DIRECTORIES)
    chaos.start(chaos.directories, 2, DIRECTORIES)
    chaos.start(chaos.locks, 3, ["/locks/a"])
    try:
        wait_until(lambda: enough(chaos, 1), "enough before the stall")
        ensemble.pause()
        time.sleep(1)
        ensemble.resume()
        wait_until(lambda: enough(chaos, 2), "enough before the crash")
        ensemble.kill()
        ensemble.start()
        wait_until(lambda: enough(chaos, 3), "enough after the crash")
    finally:
        chaos.stop()
    wait_until(lambda: judge.connected, "the judge is connected")
    chaos.final = final_state(judge, DIRECTORIES)
    judge.stop()
    judge.close()
    return chaos


def test_a_correct_store_passes(ensembles: EnsembleFactory) -> None:
    def enough(chaos: Chaos, part: int) -> bool:
        history = chaos.history
        return len(history.operations) > 60 * part and len(history.holdings) > 5 * part

    chaos = run(ensembles(1)[0], BatchingClient, enough)
    assert chaos.errors == []
    assert chaos.history.violations(chaos.final) == []


def test_a_lying_client_is_caught(ensembles: EnsembleFactory) -> None:
    """Not each lie can be told from what others did at that moment; some can."""
    chaos = run(ensembles(1)[0], Liar, lambda _, part: len(Liar.lies) > 7 * part)
    found = chaos.history.violations(chaos.final)
    assert any("no order explains" in violation for violation in found)
