"""Where is the namespace now? Asked by who finds that a member has left.

What: goes from the word that was left there to those that it names, and on from these
if they have left, too, until one has a newer table, which is then used.

Why: who knows only members that have left hears of no newer table: they have none, and
they would say of everything that it is not there.

Must never: end a connection on which requests are under way before it is known that
nobody has a newer table; the newer one says where these are to be asked again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.states import KazooState

from parkazoo.finding import follows
from parkazoo.layout import CONFIG
from parkazoo.mapping import ConfigurationInvalid, EnsembleRemoved, Table

if TYPE_CHECKING:
    from parkazoo.ensemble import EnsembleClient
    from parkazoo.sessions import Sessions

_Said = list[Table | EnsembleRemoved | None]


def follow(
    sessions: Sessions, ensemble: EnsembleClient, removed: EnsembleRemoved
) -> None:
    """Use the table of those who are members now; or say that they have none."""
    epoch, table = sessions.epoch, sessions.table
    assert table is not None
    log = sessions.client.logger
    log.info("%s has left: %s", ensemble.name, removed)
    try:
        newer, all_answered = _newest(sessions, table, removed)
        if not sessions.current(epoch):
            return
        if newer is not None:
            sessions.adopt(newer)
            sessions.open_one()
        elif not all_answered:
            log.warning("%s: %s; no answer from there yet", ensemble.name, removed)
        # One that is another member's may name the one that we look for.
        ensemble.stranded = newer is None and (all_answered or ensemble.misnamed)
    finally:
        ensemble.seeking = False
    if sessions.by_name.get(ensemble.name) is ensemble and ensemble.connected:
        # Still a member. It is looked at again when the next connection is made.
        ensemble._call(_CONNECTION_DROP, None)


def may_have_expired(ensemble: EnsembleClient) -> bool:
    """Has nothing been heard from it for so long that its session may have ended?

    Half of its time: what was sent last may not have arrived.
    """
    if ensemble.state == KazooState.LOST:
        return False  # it has none, or that is known
    silent = time.monotonic() - ensemble._connection._heard_at
    return bool(silent > ensemble._session_timeout / 2000)


def _newest(
    sessions: Sessions, table: Table, removed: EnsembleRemoved
) -> tuple[Table | None, bool]:
    """A table that follows ours, if anybody has one. Have all said what they have?"""
    asked: set[str] = set()
    ahead = list(removed.hosts)
    all_answered = True
    while ahead:
        now = sorted(set(ahead) - asked)
        asked.update(now)
        said: _Said = []
        sessions.in_parallel([partial(_ask, sessions, hosts, said) for hosts in now])
        newer = [t for t in said if isinstance(t, Table) and follows(table, t)]
        if newer:
            return max(newer, key=lambda each: each.generation), True
        all_answered = all_answered and len(said) == len(now)
        ahead = [hosts for hosts in _named_by(said, table) if hosts not in asked]
    return None, all_answered


def _named_by(said: _Said, table: Table) -> Iterable[str]:
    for word in said:
        if isinstance(word, EnsembleRemoved) and word.namespace == table.namespace:
            yield from word.hosts


def _ask(sessions: Sessions, hosts: str, said: _Said) -> None:
    with sessions.visiting(hosts) as visited:
        if visited is None:
            return
        try:
            visited.sync(CONFIG)
            said.append(Table.deserialize(visited.get(CONFIG)[0]))
        except EnsembleRemoved as removed:
            said.append(removed)
        except (ConfigurationInvalid, NoNodeError):
            said.append(None)
        except KazooException as error:
            sessions.client.logger.debug("no answer from %s: %s", hosts, error)
