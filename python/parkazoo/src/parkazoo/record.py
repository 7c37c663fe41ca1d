"""The record of a transaction over shards: written, owned, taken over, taken away.

What: an intent at the seat with its owner, an ephemeral; and with what was before in
a node of its own, if not everybody may see it (`parkazoo.intents` has the drawing).
Recursive deletes use the same owner and the same end.

Must never: let anybody read in a record what he could not read where it is from, if
who writes it is anybody in particular; take a record away that another has taken
over; or end the ownership of anybody else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from parkazoo.errors import Contention, NamespaceMismatch, NotUndone
from parkazoo.layout import CONFIG
from parkazoo.mapping import EnsembleRemoved, Table

if TYPE_CHECKING:
    from parkazoo.client import ParKazooClient

# The table changes a few times a second while shards move, and rarely otherwise.
ATTEMPTS_MAX, PAUSE = 100, 0.05
# Between two attempts to see to a record whose ensemble is away.
RETRY_SECONDS = 1.0
# After these it is not known what the servers have done; after all others it is.
UNKNOWN = (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
)


def is_hidden(records: list[Any]) -> bool:
    """Has this transaction to do with a node that not everybody may see?"""
    return any(record.get("hidden") for record in records)


def split(record: dict[str, Any]) -> dict[str, Any]:
    """Take out of a record what others may not see."""
    return {key: record.pop(key) for key in ("data", "acls") if key in record}


def whole(records: list[Any], before: list[Any]) -> list[Any]:
    """Records with what was taken out of them."""
    if not before:
        return records
    return [{**record, **more} for record, more in zip(records, before, strict=True)]


def write(client: ParKazooClient, intent: str, document: bytes, apart: bytes) -> Any:
    """Write the intent at the seat, owned by us; returns the seat. `apart`, if there
    is any, only who is one of us may read.

    It must be the seat at that instant, because one that is about to leave the
    namespace waits for what is recorded on it, but not for what might yet be. So the
    same transaction checks the copy of the table that says so.
    """
    ours = CREATOR_ALL_ACL
    for _ in range(ATTEMPTS_MAX):
        seat = client._sessions.seat()
        data, stat = seat.get(CONFIG)
        try:
            found = Table.deserialize(data)
        except EnsembleRemoved:
            client.handler.sleep_func(PAUSE)  # we are about to hear of it
            continue
        if found.seat != seat.name:
            client._sessions.adopt(found)
            continue
        begin = seat.transaction()
        begin.check(CONFIG, stat.version)
        begin.create(intent, document, acl=OPEN_ACL_UNSAFE)
        begin.create(f"{intent}/owner", b"", acl=OPEN_ACL_UNSAFE, ephemeral=True)
        if apart:
            begin.create(f"{intent}/before", apart, acl=ours)
        try:
            results = begin.commit()
        except BaseException:
            release(client, seat, intent)  # if it is there, nobody would go on with it
            raise
        if isinstance(results[0], BadVersionError):
            continue
        if isinstance(results[-1], InvalidACLError):
            ours = OPEN_ACL_UNSAFE  # we are nobody, and read it as anybody can
            continue
        for result in results:
            if isinstance(result, Exception):
                raise result
        return seat
    raise Contention("a transaction could not be begun: the table keeps changing")


def hidden_part(ensemble: Any, intent: str) -> list[Any]:
    try:
        return list(json.loads(ensemble.get(f"{intent}/before")[0]))
    except NoNodeError:
        return []  # another has ended it
    except NoAuthError as error:
        raise NotUndone(
            "a transaction over shards was done in part, and this client may not read"
            " what was before, so cannot undo that; it stays on record, and a client"
            " with the rights of the one that began it undoes it"
        ) from error


def forget(ensemble: Any, intent: str, version: int = -1, hidden: bool = False) -> bool:
    """Take an intent away with its owner, at once: between the two others would take
    it over. If they have, it is theirs to take away: False, as if it is not here.

    :raises ConnectionLoss: the ensemble is away. Nobody waits for it to come back.
    """
    if not ensemble.connected:
        raise ConnectionLoss
    for inside in (("owner", "before"), ("before",)) if hidden else (("owner",),):
        both = ensemble.transaction()
        for name in inside:
            both.delete(f"{intent}/{name}")
        both.delete(intent, version)
        if not any(isinstance(result, Exception) for result in both.commit()):
            return True
    try:
        ensemble.delete(intent, version)
    except NoNodeError:
        return version < 0  # it is gone; with a version: another has ended it
    except (BadVersionError, NotEmptyError):
        return False
    return True


def take(
    client: ParKazooClient, ensemble: Any, intent: str
) -> tuple[dict[str, Any], int] | None:
    """Become the owner of an intent whose owner is gone. Returns what it says and its
    new version; None if somebody owns it, or is done with it."""
    try:
        data, stat = ensemble.get(intent)
    except NoNodeError:
        return None
    document = json.loads(data)
    both = ensemble.transaction()
    both.create(f"{intent}/owner", b"", acl=OPEN_ACL_UNSAFE, ephemeral=True)
    both.set_data(intent, data, stat.version)
    try:
        results = both.commit()
    except BaseException:
        release(client, ensemble, intent)  # if it is ours, nobody would go on with it
        raise
    if any(isinstance(result, Exception) for result in results):
        return None
    return document, stat.version + 1


def decide_undone(
    ensemble: Any, intent: str, document: dict[str, Any], version: int
) -> int | None:
    """Write into an intent that it is to be undone, by whoever ends it. Returns its
    version then; None if another has taken it over."""
    data = json.dumps({**document, "undone": True}).encode()
    try:
        return int(ensemble.set(intent, data, version).version)
    except (BadVersionError, NoNodeError):
        return None


# -- what is seen to behind the caller's back ------------------------------------


def release(client: ParKazooClient, ensemble: Any, intent: str) -> None:
    """Let others finish what we cannot, as soon as the ensemble is there. If this
    fails, our session's end does it."""
    client.handler.spawn(
        until_seen_to, client, ensemble, lambda: _disown(ensemble, intent)
    )


def _disown(ensemble: Any, intent: str) -> None:
    """Own it no more, if it is we who do: who takes it over gives it a new version."""
    ensemble.sync(intent)  # what it is about may just be on its way
    try:
        _, stat = ensemble.get(intent)
    except NoNodeError:
        return
    owner = ensemble.exists(f"{intent}/owner")
    if owner is not None and owner.ephemeralOwner == ensemble._session_id:
        both = ensemble.transaction()
        both.check(intent, stat.version)
        both.delete(f"{intent}/owner")
        both.commit()


def until_seen_to(
    client: ParKazooClient, ensemble: Any, work: Callable[[], None]
) -> None:
    """Try it until it is done, or the client has no session with the ensemble."""
    while not seen_to(client, work):
        stopped = client._stopped.wait(RETRY_SECONDS)
        if stopped or ensemble not in client._sessions.by_name.values():
            return


def seen_to(client: ParKazooClient, work: Callable[[], None]) -> bool:
    """Do something about a record. False: it is not known whether it is done."""
    try:
        work()
    except (*UNKNOWN, NamespaceMismatch) as error:
        client.logger.debug("an intent is not seen to yet: %r", error)
        return False
    except KazooException:
        client.logger.warning("an intent is left behind", exc_info=True)
    return True
