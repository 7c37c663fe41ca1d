"""ParKazoo: one ZooKeeper namespace over many ensembles."""

from parkazoo.client import ParKazooClient
from parkazoo.errors import (
    Contention,
    CrossShardTransaction,
    MoveFailed,
    NamespaceMismatch,
    NotInitialized,
    NotUndone,
    ParKazooError,
    SharedCredentials,
    WeakSequence,
)
from parkazoo.mapping import Rules
from parkazoo.pool import PooledClient

__all__ = [
    "Contention",
    "CrossShardTransaction",
    "MoveFailed",
    "NamespaceMismatch",
    "NotInitialized",
    "NotUndone",
    "ParKazooClient",
    "ParKazooError",
    "PooledClient",
    "Rules",
    "SharedCredentials",
    "WeakSequence",
]
