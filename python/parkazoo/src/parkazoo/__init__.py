"""ParKazoo: one ZooKeeper namespace over many ensembles."""

from parkazoo.client import ParKazooClient
from parkazoo.errors import (
    Contention,
    CrossShardTransaction,
    MoveFailed,
    NamespaceMismatch,
    NotInitialized,
    ParKazooError,
    WeakSequence,
)
from parkazoo.mapping import Rules

__all__ = [
    "Contention",
    "CrossShardTransaction",
    "MoveFailed",
    "NamespaceMismatch",
    "NotInitialized",
    "ParKazooClient",
    "ParKazooError",
    "Rules",
    "WeakSequence",
]
