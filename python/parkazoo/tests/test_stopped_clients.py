"""A client that stops at any step, is overtaken by others, and goes on: no harm.

For each labelled step, before it is sent and after it is answered: the process is
stopped there (SIGSTOP), others do with the same nodes what hurts most, finish its
work if they may, and it is continued. All of it with its sessions alive, and with
them ended meanwhile; where an intent is owned by one session, also with only that
one ended. What everybody was told must be a history of one tree: nothing that was
acknowledged is lost, nothing deleted comes back, no lock is held twice, no item is
taken twice; and `check` has nothing to say.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError, NoNodeError

from chaos import Chaos
from conftest import EnsembleFactory
from history import (
    EXISTS,
    NO_NODE,
    NOT_EMPTY,
    OK,
    UNKNOWN,
    Holding,
    Operation,
)
from parkazoo import ParKazooClient, remove
from parkazoo.check import Checker
from parkazoo.errors import MoveFailed
from parkazoo.failpoints import AFTER, BEFORE, LABELS, OWNER_LABELS
from parkazoo.layout import INTENTS
from parkazoo.move import Mover
from servers import PATIENCE_SECONDS, Ensemble, wait_until
from stopping import Stopped
from test_killed_clients import (
    CASES,
    OUTCOMES,
    all_or_none,
    use_everything,
    value,
)
from victim import OPERATIONS, finish, move, prepare

pytestmark = pytest.mark.timeout(900)

ALIVE, EXPIRED, ONE_LOST = "alive", "expired", "one lost"
# A session that has to live as long as the test needs, and one that has to end soon.
SESSION_SECONDS = {ALIVE: 50.0, EXPIRED: 4.0, ONE_LOST: 50.0}

PLACES = list(CASES)
PLACES += [
    ("hold_lock", f"{label}:{when}")
    for label in ("create.0.child", "create.1.claim", "create.2.link",
                  "create.3.commit", "delete.0.node")
    for when in (BEFORE, AFTER)
]  # fmt: skip
# The directory of the locks is made first; its lock is the second node.
PLACES += [("hold_lock", f"create.0.child:{when}#2") for when in (BEFORE, AFTER)]
PLACES += [
    ("take_item", f"{label}:{when}")
    for label in ("create.0.child", "transaction.1.commit")
    for when in (BEFORE, AFTER)
]
WITH_INTENT = ("remove_tree", "transaction_across", "buckets_across")
ENDINGS = [
    (operation, failpoint, ending)
    for operation, failpoint in PLACES
    for ending in (ALIVE, EXPIRED, ONE_LOST)
    if ending != ONE_LOST or operation in WITH_INTENT
]


class Story:
    """One victim, the others, and all that any of them was told."""

    def __init__(
        self, client: Any, ensembles: list[Ensemble], victim: Stopped, ending: str
    ) -> None:
        self.client, self.ensembles, self.ending = client, ensembles, ending
        self.victim = victim
        self.chaos = Chaos(lambda: None, 0, reads=True)
        self.history = self.chaos.history
        self.overtaken = ending != ALIVE
        self.code: int | None = None

    def does(self, kind: str, path: str, data: bytes = b"") -> Any:
        """One operation of somebody else, recorded."""
        calls: dict[str, Callable[[], Any]] = {
            "create": lambda: self.client.create(path, data),
            "set": lambda: self.client.set(path, data),
            "delete": lambda: self.client.delete(path),
            "read": lambda: self.client.get(path),
        }
        among = self.among(path)
        return self.chaos.ask("other", kind, path, calls[kind], data or None, -1, among)

    @staticmethod
    def among(path: str) -> bool:
        """Is it a node of a directory that is in the history, too?"""
        return path.count("/") > 2

    def was_there(self, path: str, data: bytes = b"old") -> None:
        """What `prepare` had made, as far as this story is about it."""
        entry = Operation("before", "create", path, 0, 0.1, OK, data, -1, None,
                          self.among(path))  # fmt: skip
        self.history.record(entry)

    def end_sessions(self) -> None:
        if self.ending == EXPIRED:
            self.victim.expire(self.ensembles)
        elif self.ending == ONE_LOST:
            self.victim.lose(self.owner_of_intent())

    def owner_of_intent(self) -> Ensemble:
        """Where the victim's intent is; else the seat, where its next one would be."""
        table = self.client.table
        name = table.seat
        for found, session in self.client._sessions.by_name.items():
            with contextlib.suppress(NoNodeError):
                if session.get_children(INTENTS):
                    name = found
        return next(e for e in self.ensembles if e.hosts == table.ensembles[name])

    def go_on(self) -> str:
        """Continue the victim to its end; how its operation ended."""
        self.code = self.victim.go_on()
        outcome = str(self.victim.facts().get("outcome"))
        assert (self.code == 0) == (outcome == "done"), self.victim.told()
        return outcome

    def victim_did(
        self, kind: str, path: str, data: Any = None, alone: bool = True
    ) -> None:
        """The victim's operation. Not `alone`: refused for any part's reason."""
        facts = self.victim.facts()
        outcome = {
            "done": OK,
            "NodeExistsError": EXISTS,
            "NoNodeError": NO_NODE,
            "NotEmptyError": NOT_EMPTY,
        }.get(facts["outcome"], UNKNOWN)
        if outcome != OK and not alone:
            outcome = UNKNOWN
        asked, answered = facts["asked"], facts["answered"]
        among = self.among(path)
        entry = Operation("victim", kind, path, asked, answered, outcome, data, -1,
                          None, among)  # fmt: skip
        self.history.record(entry)

    def explained(self) -> None:
        """Everything told, and what there is now, is a history of one tree."""
        paths = {operation.path for operation in self.history.operations}
        final = {}
        for path in paths:
            self.client.sync(path)
            found = value(self.client, path)
            if found is not None:
                final[path] = found
        violations = self.history.violations(final)
        assert violations == [], "\n".join([*violations, self.victim.told()])


# -- what others do meanwhile, by the victim's operation ----------------------------


def beside_first_child(story: Story) -> None:
    story.was_there("/v/d")
    story.does("delete", "/v/d/x")
    story.does("delete", "/v/d")
    story.does("create", "/v/d", b"again")
    story.does("create", "/v/d/y", b"other")
    story.end_sessions()
    story.go_on()
    story.victim_did("create", "/v/d/x", b"new")
    story.does("create", "/v/d/z", b"other")


def beside_refused_child(story: Story) -> None:
    story.end_sessions()
    story.go_on()
    OUTCOMES["refused_child"](story.client, False)


def beside_remove_directory(story: Story) -> None:
    story.was_there("/v/used", b"")
    story.does("create", "/v/used/z", b"other")
    story.does("delete", "/v/used/z")
    story.does("delete", "/v/used")
    story.does("create", "/v/used", b"again")
    story.does("create", "/v/used/w", b"other")
    story.end_sessions()
    story.go_on()
    story.victim_did("delete", "/v/used")
    story.does("create", "/v/used/last", b"other")


def beside_remove_leaf(story: Story) -> None:
    story.was_there("/v/leaf")
    story.does("delete", "/v/leaf")
    story.does("create", "/v/leaf", b"again")
    story.end_sessions()
    story.go_on()
    story.victim_did("delete", "/v/leaf")


def beside_set_value(story: Story) -> None:
    story.was_there("/v/leaf")
    story.does("set", "/v/leaf", b"other")
    story.does("read", "/v/leaf")
    story.end_sessions()
    story.go_on()
    story.victim_did("set", "/v/leaf", b"new")


def beside_set_acls(story: Story) -> None:
    """Made anew meanwhile, with children; the bucket's ACL must be the node's."""
    story.was_there("/v/full", b"")
    story.was_there("/v/full/x")
    for path in ("/v/full/x", "/v/full"):
        story.does("delete", path)
    story.does("create", "/v/full", b"again")
    story.does("create", "/v/full/x", b"again")
    story.end_sessions()
    story.go_on()
    home = story.client.get_acls("/v/full")[0]
    bucket = story.client._layout.buckets("/v/full")[0]
    owner = story.client.table.owners[bucket.shard]
    session = story.client._sessions.session(owner)
    assert session.get_acls(bucket.path)[0] == home


def beside_remove_tree(story: Story) -> None:
    client = story.client
    story.end_sessions()
    if story.overtaken:
        finish(client)
    client.delete("/v/tree", recursive=True)
    if story.overtaken:
        assert client.exists("/v/tree") is None
    made = {}
    for path in ("/v/tree", "/v/tree/n1", "/v/tree/b", "/v/tree/b/n1"):
        client.create(path, b"again")
        made[path] = b"again"
    outcome = story.go_on()
    finish(client)
    left = {path: value(client, path) for path in made}
    if story.ending == EXPIRED:
        assert left == made, f"deleted by who was overtaken: {outcome}"
    if outcome == "done":
        gone = [f"/v/tree{d}/{n}" for d in ("", "/b", "/b/c") for n in ("n2", "n3")]
        assert {value(client, path) for path in gone} == {None}, "of the old life"


def beside_transaction(story: Story) -> None:
    client = story.client
    story.was_there("/v/full", b"")
    story.does("create", "/v/full/t1", b"other")
    story.end_sessions()
    outcome = story.go_on()
    for path in ("/v/full/t1", "/v/full/t2"):
        story.victim_did("create", path, b"new", alone=False)
    first, second = value(client, "/v/full/t1"), value(client, "/v/full/t2")
    assert (first, second) in ((b"other", None), (b"new", b"new"))
    if outcome == "done":
        assert second == b"new"


def beside_transaction_across(story: Story) -> None:
    """Somebody takes a place of it, if it is free; and who finishes it decides."""
    client = story.client
    story.end_sessions()
    if story.overtaken:
        finish(client)
        all_or_none(client)
    taken = False  # not in the history: what is done in parts can be seen in parts
    with contextlib.suppress(NodeExistsError):
        taken = bool(client.create("/v/a2/t", b"other"))
    outcome = story.go_on()
    finish(client)
    found = {path: value(client, path) for path in ("/v/a1/t", "/v/a2/t", "/v/a3/t")}
    if taken:
        # Unless it was undone first: then nothing of it may be there.
        assert found["/v/a2/t"] == b"other", found
        assert {found["/v/a1/t"], found["/v/a3/t"]} == {None}, found
        assert outcome != "done"
    else:
        assert set(found.values()) in ({None}, {b"new"}), found
    if outcome == "done":
        assert set(found.values()) == {b"new"}


def beside_buckets_across(story: Story) -> None:
    """Somebody makes the first child before it does, if it has not."""
    client = story.client
    story.end_sessions()
    if story.overtaken:
        finish(client)
        assert buckets_across(client) in (BEFORE, AFTER)
    taken = False
    with contextlib.suppress(NodeExistsError):
        taken = bool(client.create("/v/d/t", b"other"))
    outcome = story.go_on()
    finish(client)
    if taken:
        assert client.get("/v/d/t")[0] == b"other" and outcome != "done"
        client.delete("/v/d/t")
        assert buckets_across(client) == BEFORE
    else:
        assert buckets_across(client) in (
            [AFTER] if outcome == "done" else [BEFORE, AFTER]
        )


def buckets_across(client: Any) -> str | None:
    """Is all as it was, or as it was to be?"""
    paths = ("/v/a1/t", "/v/d/t", "/v/used")
    found = [value(client, path) for path in paths], client.get_children("/v/d")
    states = {
        BEFORE: ([None, None, b""], []),
        AFTER: ([b"new", b"new", None], ["t"]),
    }
    return next((when for when, state in states.items() if state == found), None)


def beside_move(story: Story) -> None:
    client = story.client
    if story.overtaken:
        story.end_sessions()
        wait_until(lambda: taken_over(client), "the stopped mover is overtaken")
        move(client)
        before = client.table.owners
        story.go_on()
        Mover(client).abort()
        assert client.table.owners == before, "moved by who was overtaken"
        return
    paths = [f"/v/{name}/late" for name in ("d", "full", "used", "tree")]
    asked = [(path, client.create_async(path, b"late")) for path in paths]
    with pytest.raises(MoveFailed, match="somebody else"):
        Mover(client).abort()
    assert story.go_on() == "done", story.victim.told()
    for path, result in asked:
        assert result.get(timeout=PATIENCE_SECONDS) == path
        assert value(client, path) == b"late"
        client.delete(path)


def taken_over(client: Any) -> bool:
    with contextlib.suppress(MoveFailed):
        Mover(client).abort()
        return True
    return False


def beside_hold_lock(story: Story) -> None:
    """Another waits for the lock, holds it while the victim goes on, lets it go."""
    lock = story.client.Lock("/v/lock", "other")
    held: list[float] = []
    let_go = threading.Event()
    if story.overtaken:
        story.end_sessions()

    def hold() -> None:
        if lock.acquire(timeout=PATIENCE_SECONDS):
            held.append(story.history.now())
            let_go.wait(PATIENCE_SECONDS)
            story.history.record(
                Holding("/v/lock", "other", held[0], story.history.now())
            )
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    if story.overtaken:
        wait_until(lambda: held, "a lock of ended sessions is free")
    story.victim.continues()
    time.sleep(2)  # it is not judged what does not happen meanwhile, but in what order
    let_go.set()
    story.go_on()
    holder.join()
    assert held
    since_until = story.victim.facts().get("held")
    if since_until:
        story.history.record(Holding("/v/lock", "victim", *since_until))


def beside_take_item(story: Story) -> None:
    client = story.client
    story.history.put = ["item"]
    story.end_sessions()
    queue = client.LockingQueue("/v/queue")
    if story.overtaken:
        take(story, queue)
    story.go_on()
    facts = story.victim.facts()
    if facts.get("consumed"):
        story.history.taken.append(facts["item"])
    elif facts.get("item") and facts["outcome"] != "done":
        story.history.taken_unknown += 1
    take(story, queue)


def take(story: Story, queue: Any) -> None:
    item = queue.get(timeout=2)
    if item is not None and queue.consume():
        story.history.taken.append(item.decode())


BESIDE = {
    name.removeprefix("beside_"): function
    for name, function in list(globals().items())
    if name.startswith("beside_")
}


@pytest.fixture
def taken(ensembles: EnsembleFactory) -> list[Ensemble]:
    return ensembles(3)


@pytest.fixture
def client(taken: list[Ensemble], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Finishes what others left when it is told to, not when it happens to look."""
    monkeypatch.setattr(remove, "LOOK_SECONDS", 3600.0)
    client = ParKazooClient(";".join(e.hosts for e in taken), timeout=30)
    client.start(PATIENCE_SECONDS)
    prepare(client)
    yield client
    client.stop()
    client.close()


def nothing_wrong_any_more(client: Any) -> None:
    list(Checker(client).run(repair=True))
    assert list(Checker(client).run()) == []


def test_each_operation_has_somebody_beside_it() -> None:
    assert set(BESIDE) == set(OPERATIONS) - {"finish", "own"}
    assert set(LABELS) - {"intent.5.undo"} == {
        place.partition(":")[0] for _, place in PLACES
    }


@pytest.mark.parametrize(("operation", "failpoint", "ending"), ENDINGS)
def test_a_client_that_goes_on_after_others_took_over_does_no_harm(
    taken: list[Ensemble], client: Any, operation: str, failpoint: str, ending: str
) -> None:
    words = [";".join(e.hosts for e in taken), operation]
    with Stopped("victim.py", words, failpoint, SESSION_SECONDS[ending]) as victim:
        story = Story(client, taken, victim, ending)
        BESIDE[operation](story)
        story.explained()
    use_everything(client)
    nothing_wrong_any_more(client)


@pytest.mark.parametrize("ending", [ALIVE, EXPIRED])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("label", OWNER_LABELS)
def test_an_owner_that_goes_on_after_the_move_of_its_ephemeral_does_no_harm(
    taken: list[Ensemble], client: Any, label: str, when: str, ending: str
) -> None:
    """It stops while it re-creates its ephemeral; meanwhile the move is given up, or
    its session ends and the move goes on without the ephemeral."""
    layout, table = client._layout, client.table
    node = layout.node("/v/full/mine")
    moves = {node.shard: next(n for n in table.ensembles
                              if n != table.owners[node.shard])}  # fmt: skip
    failed: list[MoveFailed] = []

    def moving() -> None:
        wait_until(lambda: client.exists("/v/full/mine"), "it owns an ephemeral")
        patience = 2 if ending == ALIVE else PATIENCE_SECONDS
        try:
            Mover(client, ephemeral_seconds=patience).move(moves)
        except MoveFailed as error:
            failed.append(error)

    mover = threading.Thread(target=moving)
    words = [";".join(e.hosts for e in taken), "own"]
    victim = Stopped("victim.py", words, f"{label}:{when}", SESSION_SECONDS[ending])
    mover.start()
    with victim:
        mover.join()
        if ending == EXPIRED:
            assert failed == []
            victim.expire(taken)
            assert victim.go_on() in (0, 1), victim.told()
            assert value(client, "/v/full/mine") is None
        else:
            assert bool(failed) == (when == BEFORE)
            assert value(client, "/v/full/mine") == b"old"
            victim.continues()
            Mover(client).move(moves)
            assert value(client, "/v/full/mine") == b"old"
            client.delete("/v/full/mine")
            assert victim.go_on() == 0, victim.told()
    assert sorted(client.get_children("/v/full")) == ["x"]
    assert client.table.owners[node.shard] == moves[node.shard]
    use_everything(client)
    nothing_wrong_any_more(client)
