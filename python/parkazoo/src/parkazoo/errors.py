"""What can go wrong that Kazoo has no name for.

Every error is also a Kazoo exception of the nearest kind, so that a program that
handles Kazoo's errors handles ours. Each says what happened, why, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from kazoo.exceptions import BadArgumentsError, KazooException, NoAuthError

# So many nodes are named where there may be many.
SHOWN = 5


class ParKazooError(KazooException):
    """The base of every error that only ParKazoo raises."""


class CrossShardTransaction(ParKazooError, BadArgumentsError):
    """A transaction touches more than one shard and nobody allowed that."""


class NotUndone(ParKazooError, NoAuthError):
    """A transaction over shards was done in part, and whoever tried to undo that may
    not. It stays on record until a client that may comes by; `parkazoo check --repair`
    with `--auth` of somebody who may does it at once."""


class WeakSequence(ParKazooError, BadArgumentsError):
    """A sequence node was asked for in a directory whose children are spread."""


class Contention(ParKazooError):
    """An operation met others so often, or waited so long for a shard on its way to
    another ensemble, that it gave up. It had no effect that anybody could see."""


class NamespaceMismatch(ParKazooError):
    """The ensembles given belong to different namespaces."""


class NotInitialized(ParKazooError):
    """The ensembles hold no namespace and the client was told not to make one."""


class MoveFailed(ParKazooError):
    """A shard could not be moved; it stays, whole, where it was."""


class Unmovable(MoveFailed):
    """A node keeps its shard where it is. `why`: which, and for what; `advice`: what to
    do about it."""

    def __init__(self, why: str, advice: str, others: Sequence[str] = ()) -> None:
        stays = "so its shard stays where it is"
        if others:
            named = "; ".join(others[:SHOWN])
            rest = f", and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
            stays += f"; so do those of others: {named}{rest}"
        super().__init__(f"{why}, {stays}; {advice}")
        self.why, self.advice = why, advice


class MemberAway(MoveFailed):
    """An ensemble was away for too long while something about it was to be changed."""


class SharedCredentials(ParKazooError, BadArgumentsError):
    """A client that shares its sessions asked for credentials of its own."""


class Unreadable(ParKazooError, NoAuthError):
    """The servers do not let whoever asks see a node that the message names."""


class ImportEnded(ParKazooError):
    """No data may be brought in: none is awaited, or another import took over."""


class ImportConflict(ParKazooError):
    """Two ensembles have different nodes at one path, so not both can be imported; or
    an import that broke off made a node that its original no longer is like."""
