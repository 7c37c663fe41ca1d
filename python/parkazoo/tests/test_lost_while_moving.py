"""What a fence refuses as the session is lost is not sent in the next session, on
connections that only note what they would send (`test_held_reads.py`)."""

from __future__ import annotations

import pytest
from kazoo.exceptions import SessionExpiredError
from kazoo.protocol.states import KeeperState

from parkazoo.wire import ShardMoved
from test_held_reads import PATH, Moving, copy, value


class Losing(Moving):
    def __init__(self) -> None:
        super().__init__()
        self.client._sessions.running = True

    def lose(self) -> None:
        """One session is lost, and all are renewed at once."""
        sessions, lost = self.client._sessions, self[self.new]
        lost._state = KeeperState.EXPIRED_SESSION
        sessions._lost(lost)
        assert self.client._state == KeeperState.EXPIRED_SESSION
        sessions.lost = self[self.old].closing = False
        self.client._state = lost._state = KeeperState.CONNECTED

    def arrive(self) -> None:
        """The shard has moved, and its old place says so."""
        self.announce(self.old)
        self.replies(self.old)[0][1].set(copy(self.switched))


def test_a_write_refused_after_lost_was_told_is_not_sent_again() -> None:
    """It made an ephemeral in the renewed session, whose caller had been told that it
    is not there."""
    fake = Losing()
    asked = fake.client.create_async(PATH, b"", ephemeral=True)
    ((_, reply),) = fake.sent(fake.old)
    fake.lose()
    reply.set(ShardMoved())
    with pytest.raises(SessionExpiredError):
        asked.get_nowait()
    fake.arrive()
    assert fake.words(fake.new) == fake.words(fake.old) == []


def test_what_waited_before_lost_ends_with_it() -> None:
    fake = Losing()
    fake.set()
    ((_, reply),) = fake.replies(fake.old)
    reply.set(ShardMoved())
    fake.set("behind")
    fake.lose()
    for word in ("set", "behind"):
        with pytest.raises(SessionExpiredError):
            fake.asked[word].get_nowait()
    fake.arrive()
    assert fake.words(fake.new) == []


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "moved"])
def test_a_read_held_after_lost_was_told_ends_with_it(stays: bool) -> None:
    fake = Losing()
    fake.get()
    ((_, get),) = fake.replies(fake.old)
    fake.announce(fake.old)
    fake.lose()
    get.set(value(b"before"))
    ((_, table),) = fake.replies(fake.old)
    table.set(copy(fake.table if stays else fake.switched))
    with pytest.raises(SessionExpiredError):
        fake.asked["get"].get_nowait()
    fake.arrive()
    assert fake.words(fake.new) == []
