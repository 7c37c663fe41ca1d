"""Which shard a directory's children live on, and which ensemble holds a shard.

What: `Rules` turn a directory into the *key* that is hashed (SHA-256) to one of
1,024 virtual shards; `Table` says which ensemble holds each shard and under which
fence version. Both are pure values, read from the configuration znode.

Why: siblings share a key, so sequence numbers, child watches, locks, queues and
parties are served by one ensemble and keep ZooKeeper's own guarantees. Ensembles
are reached through the table and never through `hash mod N`, so adding one moves
about 1/N of the shards and nothing else.

Must never: depend on the process, the platform or the Python version (no `hash()`),
or change the key of an existing directory: rules are fixed when a namespace is
made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

SHARDS = 1024
# Children of one weak directory are spread over this many buckets by default:
# enough for a dozen ensembles, few enough to list in one round trip each.
WEAK_BUCKETS = 16
# A limit on rules, so that resolving a path stays cheap.
RULES_MAX = 256
# Version of the document's shape; a client refuses what it does not know.
FORMAT = 1


class ConfigurationInvalid(ValueError):
    """The configuration document is not one this version can serve."""


class EnsembleRemoved(ConfigurationInvalid):
    """The ensemble belonged to a namespace; the message says where that is now."""

    def __init__(self, namespace: str, hosts: Iterable[str]) -> None:
        self.namespace, self.hosts = namespace, tuple(map(str, hosts))
        super().__init__(
            f"this ensemble was taken out of namespace {namespace}, which is now on"
            f" {';'.join(self.hosts)}"
        )


@lru_cache(maxsize=65536)
def shard_of(key: str) -> int:
    """The virtual shard of a key; the same on every platform for ever."""
    return int.from_bytes(sha256(key.encode("utf-8")).digest()[:8], "big") % SHARDS


def parent(path: str) -> str:
    """The directory of a node; "" above the root, whose own node needs a home."""
    if path == "/":
        return ""
    return path[: path.rindex("/")] or "/"


def name(path: str) -> str:
    """The last component; "" for a sequence node that is given no prefix."""
    return path[path.rindex("/") + 1 :]


def join(directory: str, child: str) -> str:
    if directory == "":
        return "/"
    return f"/{child}" if directory == "/" else f"{directory}/{child}"


def _matches(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Does `path` begin with `pattern`, in which `*` stands for any component?"""
    return len(path) >= len(pattern) and all(
        wanted in ("*", found) for wanted, found in zip(pattern, path, strict=False)
    )


def _components(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


@dataclass(frozen=True)
class Rules:
    """How directories are grouped and spread.

    `companions`: a directory with one of these names shares its parent's key, so
    that it lives beside its companion. Kazoo's LockingQueue deletes below
    `entries` and `taken` in one transaction.
    `colocate`: everything below a match of such a prefix shares one key.
    `weak`: below such a prefix the children of each directory are spread over the
    given number of buckets by their own path; no sequence nodes there.
    Prefixes may use `*` for one component. The first match counts.
    """

    companions: tuple[str, ...] = ("entries", "taken")
    colocate: tuple[str, ...] = ()
    weak: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if len(self.colocate) + len(self.weak) > RULES_MAX:
            raise ConfigurationInvalid(f"more than {RULES_MAX} rules")
        for prefix in [*self.colocate, *(prefix for prefix, _ in self.weak)]:
            if not prefix.startswith("/") or prefix.rstrip("/") == "":
                raise ConfigurationInvalid(
                    f"prefix {prefix!r}: give an absolute path below the root"
                )
        if any(not 1 <= count <= SHARDS for _, count in self.weak):
            raise ConfigurationInvalid(f"weak buckets: 1 to {SHARDS}")

    def refuse_globs(self) -> None:
        """Not asked of rules in a table, which are as they are.

        :raises ConfigurationInvalid: a component that looks like a pattern of a shell.
        """
        for prefix in [*self.colocate, *(prefix for prefix, _ in self.weak)]:
            parts = _components(prefix)
            if any("*" in part and part != "*" for part in parts):
                plain = [part for part in parts if part.strip("*")]
                raise ConfigurationInvalid(
                    f"prefix {prefix!r}: `*` stands for one whole component, and a rule"
                    " holds for everything below its prefix anyway: all below"
                    f" {'/' + '/'.join(plain)} together is '/{'/'.join(plain)}', each"
                    f" of its children by itself '/{'/'.join([*plain, '*'])}'"
                )

    def keys(self, directory: str) -> tuple[str, ...]:
        """The keys of a directory's buckets: one, or several where it is weak."""
        if not directory:
            return ("",)
        path = _components(directory)
        for prefix in self.colocate:
            pattern = _components(prefix)
            if _matches(pattern, path):
                return ("/" + "/".join(path[: len(pattern)]),)
        for prefix, count in self.weak:
            if _matches(_components(prefix), path):
                return tuple(f"{directory}\0{index}" for index in range(count))
        if path and path[-1] in self.companions:
            return (parent(directory),)
        return (directory,)

    def document(self) -> dict[str, Any]:
        return {
            "companions": list(self.companions),
            "colocate": list(self.colocate),
            "weak": [list(rule) for rule in self.weak],
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Rules:
        return cls(
            companions=tuple(document.get("companions", ())),
            colocate=tuple(document.get("colocate", ())),
            weak=tuple((str(p), int(n)) for p, n in document.get("weak", ())),
        )


@dataclass(frozen=True)
class Table:
    """Who holds what. Invariant: every shard has one owner among `ensembles`.

    `generation` only grows; of two tables the higher one is right.
    `ensembles` maps an ensemble's name to its hosts.
    `owners[shard]` is the name of the ensemble that holds it.
    `fences[shard]` is the version its fence znode has there: what every write to
    the shard checks. `moving` are shards that are frozen, on their way elsewhere.
    `importing`: data of plain ZooKeeper is still being brought in; programs wait.
    `gone`: the names of ensembles that have left. None is given again: a client that
    has not heard of the leaving would take the one for the other.
    """

    namespace: str
    generation: int
    ensembles: Mapping[str, str]
    owners: tuple[str, ...]
    fences: tuple[int, ...]
    rules: Rules = field(default_factory=Rules)
    moving: Mapping[int, str] = field(default_factory=dict)
    planned: Mapping[int, str] = field(default_factory=dict)
    importing: bool = False
    gone: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if len(self.owners) != SHARDS or len(self.fences) != SHARDS:
            raise ConfigurationInvalid(f"the table must name {SHARDS} shards")
        strangers = set(self.owners) - set(self.ensembles)
        if strangers:
            raise ConfigurationInvalid(f"shards of unknown ensembles: {strangers}")

    @property
    def seat(self) -> str:
        """The ensemble whose copy decides, and where `/zookeeper` is looked up."""
        return next(iter(self.ensembles))

    def members(self) -> str:
        """Its ensembles, for people."""
        return ", ".join(f"{name} ({hosts})" for name, hosts in self.ensembles.items())

    def shards(self, ensemble: str) -> list[int]:
        return [shard for shard, owner in enumerate(self.owners) if owner == ensemble]

    def with_owner(self, shard: int, ensemble: str, fence: int) -> Table:
        """The shard has arrived (or stays) at an ensemble; it is not moving."""
        owners, fences = list(self.owners), list(self.fences)
        owners[shard], fences[shard] = ensemble, fence
        return replace(
            self,
            owners=tuple(owners),
            fences=tuple(fences),
            moving={k: v for k, v in self.moving.items() if k != shard},
            planned={k: v for k, v in self.planned.items() if k != shard},
        )

    def with_plan(self, shards: Mapping[int, str]) -> Table:
        return replace(self, planned={**self.planned, **shards})

    def with_frozen(self, shards: Mapping[int, str]) -> Table:
        return replace(self, moving={**self.moving, **shards})

    def with_ensembles(self, ensembles: Mapping[str, str]) -> Table:
        gone = self.gone | (self.ensembles.keys() - ensembles.keys())
        return replace(self, ensembles=dict(ensembles), gone=gone)

    def next(self) -> Table:
        return replace(self, generation=self.generation + 1)

    def serialize(self) -> bytes:
        names = list(self.ensembles)
        indexes = {name: index for index, name in enumerate(names)}
        document = {
            "format": FORMAT,
            "namespace": self.namespace,
            "generation": self.generation,
            "ensembles": [[name, self.ensembles[name]] for name in names],
            "owners": _runs(indexes[owner] for owner in self.owners),
            "fences": _runs(self.fences),
            "rules": self.rules.document(),
            "moving": {str(shard): name for shard, name in self.moving.items()},
            "planned": {str(shard): name for shard, name in self.planned.items()},
            **({"importing": True} if self.importing else {}),
            **({"gone": sorted(self.gone)} if self.gone else {}),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    def tombstone(self) -> bytes:
        """What is left on an ensemble that is taken out, for those who still come."""
        hosts = list(self.ensembles.values())
        return json.dumps({"removed": self.namespace, "ensembles": hosts}).encode()

    @classmethod
    def deserialize(cls, data: bytes) -> Table:
        try:
            document = json.loads(data)
            if "removed" in document:
                raise EnsembleRemoved(document["removed"], document["ensembles"])
            if document["format"] != FORMAT:
                raise ConfigurationInvalid(
                    f"configuration format {document['format']}; this version of"
                    f" parkazoo knows {FORMAT}: upgrade it"
                )
            names = [name for name, _ in document["ensembles"]]
            return cls(
                namespace=document["namespace"],
                generation=document["generation"],
                ensembles=dict(document["ensembles"]),
                owners=tuple(names[index] for index in _unrolled(document["owners"])),
                fences=tuple(_unrolled(document["fences"])),
                rules=Rules.of_document(document["rules"]),
                moving={int(k): v for k, v in document["moving"].items()},
                planned={int(k): v for k, v in document["planned"].items()},
                importing=bool(document.get("importing", False)),
                gone=frozenset(document.get("gone", ())),
            )
        except (KeyError, TypeError, IndexError, UnicodeDecodeError) as error:
            raise ConfigurationInvalid(f"not a configuration: {error!r}") from error
        except json.JSONDecodeError as error:
            raise ConfigurationInvalid(f"not a configuration: {error}") from error

    @classmethod
    def initial(
        cls,
        ensembles: Mapping[str, str],
        rules: Rules | None = None,
        founded: str = "",
    ) -> Table:
        """The table of a new namespace: shards dealt out evenly, like cards.

        Everything in it follows from the arguments, so two clients that make the
        same namespace at the same time write the same bytes. `founded` tells it from
        one that was on these ensembles before, or is on others of the same names.
        """
        names = list(ensembles)
        if not names:
            raise ConfigurationInvalid("no ensembles")
        source = [*sorted(ensembles.values()), founded]
        digest = sha256(json.dumps(source).encode()).hexdigest()
        return cls(
            namespace=digest[:16],
            generation=1,
            ensembles=dict(ensembles),
            owners=tuple(names[shard % len(names)] for shard in range(SHARDS)),
            fences=(0,) * SHARDS,
            rules=rules or Rules(),
        )


def _runs(values: Iterable[int]) -> list[list[int]]:
    """Run-length encoding, which keeps the document small after many moves."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][1] == value:
            runs[-1][0] += 1
        else:
            runs.append([1, value])
    return runs


def _unrolled(runs: Iterable[list[int]]) -> list[int]:
    return [value for count, value in runs for _ in range(count)]


def balanced(table: Table, among: Iterable[str]) -> dict[int, str]:
    """The fewest moves that give each of `among` its even share, and others none.

    Only surplus shards move, so one ensemble more moves about 1/N of them.
    """
    keep = list(among)
    share, rest = divmod(SHARDS, len(keep))
    counts = {name: len(table.shards(name)) for name in keep}
    # The fuller ones get the larger shares, which spares moves.
    ranked = sorted(keep, key=lambda name: -counts[name])
    target = {name: share + (index < rest) for index, name in enumerate(ranked)}
    wanting = [n for n in keep for _ in range(max(0, target[n] - counts[n]))]
    moves: dict[int, str] = {}
    given = dict.fromkeys(keep, 0)
    for shard, owner in enumerate(table.owners):
        if not wanting:
            break
        if owner in target:
            if counts[owner] - given[owner] <= target[owner]:
                continue
            given[owner] += 1
        moves[shard] = wanting.pop()
    return moves
