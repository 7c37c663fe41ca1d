"""Where a logical node is, physically. Pure: paths in, paths out, Stats merged.

    /parkazoo                          everything of ours, on every ensemble
    /parkazoo/config                   a copy of the table
    /parkazoo/ensemble                 the ensemble's name in the table
    /parkazoo/importer                 while data is brought in: by whose session
    /parkazoo/imported                 its data was brought in: when that had ended
    /parkazoo/s0123                    a shard; its version is the fence
    /parkazoo/s0123/!<id>              a transaction over several shards was here
    /parkazoo/s0123/:app:locks         the anchor of directory /app/locks
    /parkazoo/s0123/:app:locks/t<id>   a creator's claim, an ephemeral
    /parkazoo/s0123/:app:locks/b       its bucket: exists only while it may be used
    /parkazoo/s0123/:app:locks/b/a     the node /app/locks/a
    .../b/a/k<id>                      a link: "/app/locks/a has a bucket somewhere"
    .../b/a/i<id>                      a mark of a recursive delete

Why: a node's place follows from its path alone, so an operation on a leaf is one
round trip, needs no cache, and a watch on a node that does not exist yet is just a
watch. A directory may be removed only when its links are gone, which ZooKeeper
itself enforces, because a link is a child.

Must never: put anything beside the bucket's children that a listing would show,
or make a physical path that two logical paths share.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kazoo.protocol.serialization import Exists
from kazoo.protocol.states import ZnodeStat

from parkazoo.mapping import SHARDS, Rules, join, name, parent, shard_of
from parkazoo.steps import Call

BASE = "/parkazoo"
CONFIG = BASE + "/config"
# The ensemble's own name in the table, so that it is known by any address.
IDENTITY = BASE + "/ensemble"
# On the first ensemble of a namespace that is made: which founding this is.
FOUNDED = BASE + "/founded"
# The session of the one import that may write on this ensemble, an ephemeral of it.
IMPORTER = BASE + "/importer"
# On an ensemble whose data was brought in: what was there before this was.
IMPORTED = BASE + "/imported"
# Beside the anchors: this shard has done its part of a cross-shard transaction.
DONE = "!"
# Work that must be finished even if its client dies.
INTENTS = BASE + "/intents"
# Ours to pass through to the first ensemble: quotas and the dynamic configuration.
SYSTEM = "/zookeeper"
BUCKET = "/b"
CLAIM = "/t"
LINK = "/k"
# A recursive delete marks the life of the node that it is about.
MARK = "/i"
# The root's own node is the only child of the directory above it, "".
ROOT_NAME = "root"

# Directories whose place is remembered, at some hundred bytes each, and nodes: fewer,
# because most names are seen once.
CACHED_MAX = 65536
NODES_MAX = 8192

_ESCAPES = (("%", "%p"), (":", "%c"), ("/", ":"))


_FENCES = tuple(f"{BASE}/s{shard:04d}" for shard in range(SHARDS))


def fence(shard: int) -> str:
    """The znode whose version every write to the shard checks."""
    return _FENCES[shard]


def encode(directory: str) -> str:
    """A directory's path as one znode name that people can read."""
    if directory == "":
        return "%r"
    for plain, escaped in _ESCAPES:
        directory = directory.replace(plain, escaped)
    return directory


def decode(anchor: str) -> str:
    """The directory an anchor's name stands for; the bucket number is dropped."""
    anchor = anchor.partition("%w")[0]
    if anchor == "%r":
        return ""
    for plain, escaped in reversed(_ESCAPES):
        anchor = anchor.replace(escaped, plain)
    return anchor


def shown(physical: str) -> str:
    """The node or directory that a physical path is about, for people."""
    parts = physical.split("/")
    if len(parts) < 4 or parts[3].startswith(DONE):
        return physical
    directory = decode(parts[3])
    return join(directory, parts[5]) if len(parts) > 5 else directory


def is_system(path: str) -> bool:
    return path.startswith(SYSTEM) and path[len(SYSTEM) : len(SYSTEM) + 1] in ("", "/")


class Bucket(NamedTuple):
    """One bucket of a directory: the only one, unless the directory is weak."""

    shard: int
    anchor: str
    directory: str

    @property
    def path(self) -> str:
        return self.anchor + BUCKET


class Node(NamedTuple):
    """A node's home: the bucket of its directory that it is in, and its path."""

    shard: int
    bucket: Bucket
    path: str
    logical: str


class BucketStat(Exists):  # type: ignore[misc, unused-ignore]
    """The read of a bucket that completes a directory's Stat.

    `home` is the physical path of the directory's own node, if that is on another
    shard than the bucket, so that no order is promised between the two.
    """

    home: str | None

    @classmethod
    def of(cls, bucket: Bucket, home: Node) -> BucketStat:
        request = cls(bucket.path, None)
        request.home = None if home.shard == bucket.shard else home.path
        return request


class Layout:
    """The layout under given rules; results are cached, the caches are bounded.

    `linked` are nodes that had a link when last seen, with the reads that complete
    their Stat. It is a guess, about what to ask in the same round trip, and never an
    answer.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.buckets = lru_cache(maxsize=CACHED_MAX)(self._buckets)
        self.node = lru_cache(maxsize=NODES_MAX)(self._node)
        self.linked: dict[str, tuple[Call, ...]] = {}
        self.learn("/", True)

    def learn(self, path: str, linked: bool) -> None:
        """A node was seen with or without a link."""
        if not linked:
            self.linked.pop(path, None)
        elif path not in self.linked:
            if len(self.linked) >= CACHED_MAX:
                self.linked = {}  # a guess less costs one round trip, once
            self.linked[path] = self.bucket_stats(path)

    def bucket_stats(self, path: str) -> tuple[Call, ...]:
        """The reads that complete a directory's Stat."""
        home = self.node(path)
        buckets = self.buckets(path)
        return tuple(Call(b.shard, BucketStat.of(b, home)) for b in buckets)

    def _buckets(self, directory: str) -> tuple[Bucket, ...]:
        keys = self.rules.keys(directory)
        encoded = encode(directory)
        if len(keys) == 1:
            shard = shard_of(keys[0])
            return (Bucket(shard, f"{fence(shard)}/{encoded}", directory),)
        buckets = []
        for index, key in enumerate(keys):
            shard = shard_of(key)
            anchor = f"{fence(shard)}/{encoded}%w{index}"
            buckets.append(Bucket(shard, anchor, directory))
        return tuple(buckets)

    def is_weak(self, directory: str) -> bool:
        return len(self.buckets(directory)) > 1

    def _node(self, path: str) -> Node:
        """The home of a node. A trailing slash means a nameless sequence node."""
        if path == "/":
            bucket = self.buckets("")[0]
            physical = f"{bucket.anchor}{BUCKET}/{ROOT_NAME}"
            return Node(bucket.shard, bucket, physical, path)
        directory = parent(path)
        buckets = self.buckets(directory)
        if len(buckets) == 1:
            bucket = buckets[0]
        else:
            bucket = buckets[shard_of(path) % len(buckets)]
        physical = f"{bucket.anchor}{BUCKET}/{name(path)}"
        return Node(bucket.shard, bucket, physical, path)

    def logical(self, bucket: Bucket, physical: str) -> str:
        """The logical path of a node a server named, for instance in a sequence."""
        return join(bucket.directory, physical[len(bucket.anchor) + len(BUCKET) + 1 :])


def merged(home: ZnodeStat, buckets: list[ZnodeStat | None]) -> ZnodeStat:
    """A directory's Stat: its own facts from home, its children's from its buckets.

    Without this the link would be counted as a child. `pzxid` is the bucket's and
    comes from another ensemble: it may be compared only with itself.
    """
    children = cversion = pzxid = 0
    for stat in buckets:
        if stat is not None:
            children += stat.numChildren
            cversion += stat.cversion
            pzxid = max(pzxid, stat.pzxid)
    # Written out because `_replace` takes three times as long.
    return ZnodeStat(
        home.czxid,
        home.mzxid,
        home.ctime,
        home.mtime,
        home.version,
        cversion,
        home.aversion,
        home.ephemeralOwner,
        home.dataLength,
        children,
        pzxid or home.czxid,
    )
