"""`read_only=True` over several ensembles, of which one has lost its majority."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NotReadOnlyCallError
from kazoo.protocol.states import KeeperState

from conftest import started
from servers import (
    PATIENCE_SECONDS,
    Ensemble,
    Options,
    four_letter_word,
    wait_until,
)

READ_ONLY = Options(
    properties={"readonlymode.enabled": "true"},
    configuration={
        "localSessionsEnabled": "true",
        "localSessionsUpgradingEnabled": "true",
    },
)


def test_only_what_has_lost_its_majority_takes_no_writes() -> None:
    with (
        Ensemble(size=3, options=READ_ONLY) as first,
        Ensemble() as second,
        started(f"{first.hosts};{second.hosts}") as client,
    ):
        table = client.table
        assert table is not None
        by_hosts: dict[str, str] = {}
        for number in range(1000):
            path = f"/d{number}"
            owner = table.owners[client._layout.buckets(path)[0].shard]
            by_hosts.setdefault(table.ensembles[owner], path)
        here, there = by_hosts[first.hosts], by_hosts[second.hosts]
        for path in (here, there):
            client.create(f"{path}/n", b"1", makepath=True)
        client.stop()
        *others, last = first.servers
        for server in others:
            server.kill()

        def is_read_only() -> bool:
            return four_letter_word(last.client_port, "isro") == "ro"

        wait_until(is_read_only, "the last server serves reads")
        options: dict[str, Any] = {"timeout": 15, "read_only": True}
        with started(f"{first.hosts};{second.hosts}", **options) as reader:
            assert reader.client_state == KeeperState.CONNECTED_RO
            assert reader.get(f"{here}/n")[0] == reader.get(f"{there}/n")[0] == b"1"
            assert reader.get_children(here) == ["n"]
            with pytest.raises(NotReadOnlyCallError):
                reader.set(f"{here}/n", b"2")
            assert reader.set(f"{there}/n", b"2").version == 1
            for server in others:
                server.start()
            wait_until(
                lambda: reader.client_state == KeeperState.CONNECTED,
                "it has found servers that write",
                4 * PATIENCE_SECONDS,
            )
            assert reader.retry(reader.set, f"{here}/n", b"2").version == 1
