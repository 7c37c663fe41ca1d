"""The fault harness on plain Kazoo and one ensemble, where the truth is known.

A correct store must pass it under faults, and a client that lies must be caught:
otherwise a green fault test of ParKazoo would mean nothing.
"""

from __future__ import annotations

import time
from typing import Any

from chaos import Chaos, final_state
from conftest import EnsembleFactory
from parkazoo.connection import BatchingClient
from servers import Ensemble

DIRECTORIES = ["/w/a", "/w/b"]


class Liar(BatchingClient):
    """Says yes to one delete in five without asking anybody."""

    def delete(self, path: str, *rest: Any, **named: Any) -> Any:
        self.lies = getattr(self, "lies", 0) + 1
        if self.lies % 5 == 0:
            self.exists(path)
            return True
        return super().delete(path, *rest, **named)


def run(ensemble: Ensemble, client_class: type, seconds: float) -> Chaos:
    """Nodes and directories, an ensemble that stalls once and dies once."""

    def connect() -> Any:
        client = client_class(ensemble.hosts, timeout=4)
        client.start(60)
        return client

    judge = BatchingClient(ensemble.hosts, timeout=4)
    judge.start(60)
    judge.create("/w")
    chaos = Chaos(connect, seed=1, reads=True)
    chaos.start(chaos.nodes, 3, DIRECTORIES)
    chaos.start(chaos.directories, 2, DIRECTORIES)
    chaos.start(chaos.locks, 3, ["/locks/a"])
    time.sleep(seconds / 3)
    ensemble.pause()
    time.sleep(1)
    ensemble.resume()
    time.sleep(seconds / 3)
    ensemble.kill()
    ensemble.start()
    time.sleep(seconds / 3)
    chaos.stop()
    chaos.final = final_state(judge, DIRECTORIES)
    judge.stop()
    judge.close()
    return chaos


def test_a_correct_store_passes(ensembles: EnsembleFactory) -> None:
    chaos = run(ensembles(1)[0], BatchingClient, 4)
    assert chaos.errors == []
    assert chaos.history.violations(chaos.final) == []
    assert len(chaos.history.operations) > 100
    assert len(chaos.history.holdings) > 5


def test_a_lying_client_is_caught(ensembles: EnsembleFactory) -> None:
    chaos = run(ensembles(1)[0], Liar, 2)
    found = chaos.history.violations(chaos.final)
    assert any("no order explains" in violation for violation in found)
