"""The command line: `parkazoo init|status|where|tree|check|add-ensemble|...`.

What: one subcommand per thing an operator does. The answer goes to stdout, one
JSON document with `--json`; progress and errors go to stderr. Exit code 0: done;
1: looked and found something wrong, or stopped when told to; 2: failed, with what, why
and what to do next.

Must never: print a stack trace for what an operator can cause, or change anything
in a command whose name does not say so.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from parkazoo import (
    addresses,
    arguments,
    commands,
    credentials,
    ending,
    importing,
    namespace,
    seat,
    tree,
)
from parkazoo import hosts as hosts_string
from parkazoo.check import Checker, Finding
from parkazoo.clearing import NotCleared
from parkazoo.client import ParKazooClient
from parkazoo.connection import BatchingClient
from parkazoo.ending import CUT_SHORT, DONE, FAILED, WRONG, Answer
from parkazoo.errors import MoveFailed
from parkazoo.mapping import Rules, Table, balanced
from parkazoo.membership import member
from parkazoo.move import Mover, State
from parkazoo.naming import STRANGER_SECONDS
from parkazoo.progress import Progress, counted

# For so long after a command was killed, nobody else may change the table.
SESSION_SECONDS = 10.0
# With the second ensemble, what one server did for every transaction ends.
NOT_ALONE = (
    "From now on a transaction over directories on different shards is refused"
    ' (CrossShardTransaction), if its client was made without `cross_shard="intent"`;'
    " on one ensemble none was. To find them, look in each program for `.transaction(`"
    " and give `parkazoo where PATH` the paths that one transaction names: those of"
    " different shards are refused. `parkazoo remove-ensemble` undoes it"
)
# So many nodes that may not be read are named.
UNREADABLE_SHOWN = 10


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    answer = Answer("--json" in words)  # whatever is wrong with the others
    options = None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name in another alphabet
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        with ending.stopped_by(ending.interrupt):
            arguments.refuse_unreadable(words)
            options = commands.parser(RUN).parse_args(words)
            options.answer = answer
            answer.as_json = options.json
            logging.basicConfig(level=logging.ERROR, format="%(message)s")
            if not options.verbose:
                logging.disable(logging.CRITICAL)
            code: int = options.run(options)
            return code
    except BrokenPipeError:
        return CUT_SHORT
    except ending.EXPECTED as error:
        return answer.failed(**ending.failure(error, options))


# -- what all commands use ---------------------------------------------------------


@contextmanager
def _client(
    options: Any, degraded: bool = False, renews: bool = True
) -> Iterator[ParKazooClient]:
    # Without a chroot: commands are about the whole namespace.
    client = ParKazooClient(
        hosts_string.SEPARATOR.join(hosts_string.split(options.hosts)[0]),
        degraded=degraded,
        auto_init=False,
        timeout=SESSION_SECONDS,
        **credentials.connection(options),
    )
    client.enters_unfinished, client.renews = True, renews
    client.start(options.timeout)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def _visiting(
    options: Any, server: str, seconds: float = STRANGER_SECONDS
) -> Iterator[Any]:
    """A session with one server by itself; None if it does not answer."""
    client = BatchingClient(server, **credentials.connection(options))
    try:
        try:
            client.start(seconds)
        except KazooTimeoutError:
            yield None
        else:
            yield client
    finally:
        client.stop()
        client.close()


def _whole(options: Any) -> str:
    """The path the operator means, in the namespace: HOSTS may have a chroot."""
    chroot = hosts_string.split(options.hosts)[1]
    return "/" + f"{chroot}{options.path}".strip("/")


def _moved(
    options: Any,
    mover: Mover,
    work: Callable[[], State],
    go_on: str,
    before: Mapping[str, Any] | None = None,
) -> int:
    """Run a move with progress; Ctrl-C, or SIGTERM, stops it after the shards under
    way, and `go_on` says what to do then, or if it fails.

    `before`: what is to be answered, too.
    """
    failure: MoveFailed | None = None
    progress = Progress(options.json)
    mover.progress = progress.moved
    try:
        with ending.stopped_by(mover.stop):
            work()
    except MoveFailed as error:
        if not mover.state.shards_total:
            raise  # nothing had begun
        failure = error
    finally:
        progress.end()
        _say_left(mover)
    state = mover.state
    lines = [
        f"moved {state.shards_moved} of {state.shards_total} shards,"
        f" {state.nodes_copied} nodes; longest pause {state.pause_max * 1000:.0f} ms"
    ]
    if before and before.get("joined"):
        lines.insert(0, f"{before['name']} ({before['hosts']}) is a member now")
    if mover.stopped or failure:
        lines.append(f"next: {go_on}")
    document = {**(before or {}), **vars(state)}
    document |= {"stopped": mover.stopped, "left": mover.left}
    if failure is None:
        options.answer.give(document, lines)
        return WRONG if mover.stopped else DONE
    why = ending.failure(failure, options)
    print(f"parkazoo: {why['message']}", file=sys.stderr)
    kept = {str(shard): found.why for shard, found in sorted(mover.kept.items())}
    options.answer.give({**document, "kept": kept, "error": why}, lines)
    return FAILED


def _say_left(mover: Mover) -> None:
    """Say what a move that is done could not clear away."""
    for name, nodes in mover.left.items():
        print(f"parkazoo: {NotCleared(name, nodes)}", file=sys.stderr)


# -- commands ------------------------------------------------------------------------


def init_command(options: Any) -> int:
    ensembles, chroot = hosts_string.split(options.hosts)
    if chroot:
        raise arguments.Usage(
            "a namespace is made on whole ensembles; give HOSTS without chroot"
        )
    rules = Rules(colocate=tuple(options.colocate), weak=tuple(options.weak))
    clients: dict[str, Any] = {}
    try:
        for hosts in ensembles:
            client = BatchingClient(hosts, **credentials.connection(options))
            clients[hosts] = client
        _start_all(options, clients)
        beside = options.beside or options.import_data
        copies = list(map(namespace.found, clients.values()))
        present = next(filter(None, copies), None)
        if present and rules != Rules() and rules != present.rules:
            raise arguments.Usage(
                f"namespace {present.namespace} is there already, with other rules,"
                " and rules cannot change; `parkazoo --json status` shows them"
            )
        visit = partial(_visiting, options)
        if options.import_data:  # before anything is changed
            importing.refuse_ended(copies)
            if present and present.ensembles[present.seat] in clients:
                seat.refuse_busy(clients[present.ensembles[present.seat]])
            with counted("nodes looked at", options.json) as seen_to:
                importing.look(clients, seen_to)
        table = namespace.initialize(
            clients, rules, visit, beside, importing=options.import_data
        )
        count = 0
        if options.import_data:
            with (
                _client(options, renews=False) as client,
                counted("nodes brought in", options.json) as seen_to,
            ):
                count = importing.copy_in(clients, client, seen_to)
        elif table.importing and not options.beside:
            raise namespace.unfinished()
        elif table.importing:
            with _client(options, renews=False) as client:
                importing.give_up(clients, client)
    finally:
        for client in clients.values():
            client.stop()
            client.close()
    document = {**_table_document(table), "importing": False, "imported": count}
    lines = [
        f"namespace {table.namespace} over {len(table.ensembles)} ensembles"
        + (f" was there already: {table.members()}" if present else "")
    ]
    if options.import_data:
        lines.append(f"{count} nodes imported; the originals are still there")
    elif table.importing:
        lines.append("what an import had not yet brought in is left aside")
    options.answer.give(document, [*lines, "next: `parkazoo status`"])
    return DONE


def _start_all(options: Any, clients: Mapping[str, Any]) -> None:
    deadline = time.monotonic() + options.timeout
    for connected in [client.start_async() for client in clients.values()]:
        connected.wait(max(0.0, deadline - time.monotonic()))
    silent = [hosts for hosts, client in clients.items() if not client.connected]
    if silent:
        raise arguments.Usage(
            f"no answer from {', '.join(silent)} within {options.timeout:g} s:"
            f" {credentials.doubt(options)} A namespace is made when all its ensembles"
            " answer; nothing was changed"
        )


def _table_document(table: Table) -> dict[str, Any]:
    return {
        "namespace": table.namespace,
        "generation": table.generation,
        "seat": table.seat,
        "ensembles": {
            name: {"hosts": hosts, "shards": len(table.shards(name))}
            for name, hosts in table.ensembles.items()
        },
        "moving": sorted({*table.moving, *table.planned}),
        "importing": table.importing,
        "rules": table.rules.document(),
    }


def status_command(options: Any) -> int:
    with _client(options, degraded=True) as client:
        assert client.table is not None
        document = _table_document(client.table)
        for name, entry in document["ensembles"].items():
            session = client._sessions.session(name)
            why = session.refused
            entry["connected"] = bool(session.connected) and why is None
            entry["refused"] = None if why is None else str(why)
            entry["server"] = _server(session)
        document["unfinished"] = left = bool(document["moving"]) and _left(client)
    lines = [f"namespace {document['namespace']}, table {document['generation']}"]
    for name, entry in document["ensembles"].items():
        state = "connected" if entry["connected"] else "NOT CONNECTED"
        seat = ", seat" if name == document["seat"] else ""
        lines.append(f"{name}  {entry['shards']:4} shards  {state}{seat}")
        lines.append(f"      {entry['hosts']}  {entry['server']}")
        if entry["refused"]:
            lines.append(f"      NOT USED: {entry['refused']}")
    if document["moving"]:
        lines += _on_their_way(len(document["moving"]), left)
    if document["importing"]:
        lines.append(f"NOT USED BY PROGRAMS: {namespace.unfinished()}")
    options.answer.give(document, lines)
    good = all(entry["connected"] for entry in document["ensembles"].values())
    good = good and not document["importing"] and left is False
    return DONE if good else WRONG


def _left(client: ParKazooClient) -> bool | None:
    """Was a move left unfinished? None: the seat, which would know, cannot be asked."""
    assert client.table is not None
    session = client._sessions.session(client.table.seat)
    return seat.left_unfinished(client) if session.connected else None


def _on_their_way(count: int, left: bool | None) -> list[str]:
    if left is False:
        return [f"{count} shards are on their way: somebody is at work, or was killed"
                " less than ten seconds ago"]  # fmt: skip
    known = "A MOVE WAS" if left else "The seat cannot be asked whether a move was"
    return [
        f"{known} LEFT UNFINISHED: requests to some of {count} shards may wait",
        "next: the command that was interrupted once more, or"
        " `parkazoo rebalance --abort` to undo what it had begun",
    ]


def _server(session: Any) -> str:
    try:
        text = str(session.command(b"srvr"))
    except (KazooException, OSError):
        return ""
    wanted = ("Mode", "Node count", "Latency min/avg/max")
    found = [line for line in text.splitlines() if line.startswith(wanted)]
    return "; ".join(found)


def _away(client: ParKazooClient) -> set[str]:
    """The ensembles that cannot be asked now; a request to them would wait."""
    assert client.table is not None
    at = client._sessions.session
    found = {name: at(name) for name in client.table.ensembles}
    return {n for n, e in found.items() if not (e.connected or e.refused)}


def _strangers(client: ParKazooClient) -> set[str]:
    """The members that are not used, for they hold nothing of the namespace or another
    one; why is said on stderr."""
    assert client.table is not None
    found = {n: client._sessions.session(n).refused for n in client.table.ensembles}
    for name, why in found.items():
        if why is not None:
            print(f"parkazoo: {name} is not used: {why}", file=sys.stderr)
    return {name for name, why in found.items() if why is not None}


def where_command(options: Any) -> int:
    with _client(options, degraded=True) as client:
        path = _whole(options)
        table = client.table
        assert table is not None
        node, below = tree.places(client, path)
        # Its Stat is joined from all of these.
        asked = {node.ensemble, *(place.ensemble for place in below)}
        strangers = _strangers(client)
        missed = asked & (_away(client) | strangers)
        document = {
            "path": path,
            "exists": None if missed else client.exists(path) is not None,
            "unreachable": sorted(missed),
            "shard": node.shard,
            "ensemble": node.ensemble,
            "hosts": table.ensembles[node.ensemble],
            "physical": node.physical,
            "children": [place._asdict() for place in below],
        }
    lines = [
        path
        + (
            tree.reach(missed) + "; whether it exists is not known"
            if missed
            else ("" if document["exists"] else "  (is not there; it would be here)")
        ),
        f"  node      {node.held} {node.ensemble} ({document['hosts']})"
        f"  {node.physical}",
        *(f"  children  {p.held} {p.ensemble}  {p.physical}" for p in below),
    ]
    options.answer.give(document, lines)
    good = document["exists"] and not strangers
    return DONE if good else WRONG


def tree_command(options: Any) -> int:
    with _client(options, degraded=True) as client:
        strangers = _strangers(client)
        away = _away(client) | strangers
        found = list(tree.walk(client, _whole(options), 0, options.depth, away))
    lines = [tree.branch(node) for node in found]
    options.answer.give(found, lines or [f"{_whole(options)}  (does not exist)"])
    missed = any(n["unreachable"] or n["unreadable"] for n in found)
    whole = found and not strangers and not missed
    return DONE if whole else WRONG


def check_command(options: Any) -> int:
    if options.delete_orphans and not options.repair:
        raise arguments.Usage(
            "`--delete-orphans` is done in repairing: give `--repair`"
        )
    with _client(options, degraded=True) as client:
        away = _away(client)
        if away and options.repair:
            raise arguments.Usage(
                f"{', '.join(sorted(away))} cannot be reached, and repairing needs"
                " every ensemble; nothing was changed. `parkazoo check` looks at the"
                " others"
            )
        checker = Checker(client, away)
        found = list(checker.run(options.repair, options.delete_orphans))
    lines = [
        f"{f.kind:10} {f.where}: {f.what}" + (f"  ({_ended(f)})" if f.repaired else "")
        for f in found
        if f.kind != "unreadable"
    ]
    unreadable = [f for f in found if f.kind == "unreadable"]
    lines += [f"{f.kind:10} {f.where}: {f.what}" for f in unreadable[:UNREADABLE_SHOWN]]
    if len(unreadable) > UNREADABLE_SHOWN:
        more = len(unreadable) - UNREADABLE_SHOWN
        lines.append(f"unreadable and {more} more, of which `--json` has all")
    ended = Counter(_ended(f) for f in found if f.repaired)
    total = [f"{len(found)} found", *(f"{n} {word}" for word, n in ended.items())]
    lines.append(", ".join(total) if found else "nothing wrong")
    mendable = any(f.mendable and not f.repaired for f in found)
    # With a stranger in the namespace nothing is repaired.
    if mendable and not options.repair and not any(f.kind == "stranger" for f in found):
        back = f", when {', '.join(sorted(away))} can be reached" if away else ""
        lines.append(f"next{back}: `parkazoo check --repair`")
    if any(f.kind == "orphan" and not f.repaired for f in found):
        lines.append(
            "next, for orphans: to keep what is in them, make their directories again,"
            " then `parkazoo check --repair`; or `--delete-orphans` with it deletes it"
        )
    options.answer.give([vars(f) for f in found], lines)
    return WRONG if any(not f.repaired for f in found) else DONE


def _ended(finding: Finding) -> str:
    """What was done about it, if it was `repaired`."""
    return "deleted" if finding.kind == "orphan" else "repaired"


def add_command(options: Any) -> int:
    with _client(options) as client:
        mover = Mover(client, connect_seconds=options.timeout)
        table = mover.table
        known = member(table.ensembles, options.ensemble)
        if known is not None:
            addresses.refuse_others(mover, known, options.ensemble)
        name = mover.add_ensemble(options.ensemble, options.name, options.beside)
        if known is None and len(table.ensembles) == 1:
            print(NOT_ALONE, file=sys.stderr)
        if known is not None:
            print(_known(known, table, options.ensemble), file=sys.stderr)
        hosts = options.ensemble if known is None else table.ensembles[known]
        document = {"name": name, "joined": known is None, "hosts": hosts}
        if options.no_rebalance:
            _say_left(mover)
            joined = "is a member already" if known else "joined"
            options.answer.give(document, [f"{name} {joined}; next: `rebalance`"])
            return DONE
        undo = f"`parkazoo remove-ensemble {name}` undoes it"
        go_on = f"`parkazoo rebalance` to go on; {undo}"
        return _moved(options, mover, mover.rebalance, go_on, document)


def _known(name: str, table: Table, hosts: str) -> str:
    listed = table.ensembles[name]
    said = f"{hosts} is a member already: {name}"
    if hosts_string.servers(hosts) == hosts_string.servers(listed):
        return said
    return (
        f"{said}, and stays at {listed}; to change that,"
        f" `parkazoo set-hosts {name} {hosts}`"
    )


def hosts_command(options: Any) -> int:
    # Those given come first: who is found there is not looked for elsewhere.
    given = hosts_string.servers(options.ensemble)
    ensembles, _ = hosts_string.split(options.hosts)
    others = [e for e in ensembles if not hosts_string.servers(e) & given]
    seconds = min(options.timeout, addresses.SERVER_SECONDS)
    visit = partial(_visiting, options, seconds=seconds)
    addresses.refuse_strangers(options.ensemble, others, visit)
    options.hosts = hosts_string.SEPARATOR.join([options.ensemble, *others])
    with _client(options, degraded=True) as client:
        mover = Mover(client, connect_seconds=options.timeout)
        addresses.set_hosts(mover, options.name, options.ensemble)
        document = _table_document(mover.table)
    text = f"{options.name} is at {options.ensemble}; give programs its new hosts, too"
    options.answer.give(document, [text])
    return DONE


def remove_command(options: Any) -> int:
    with _client(options) as client:
        mover = Mover(client)
        again = f"`parkazoo remove-ensemble {options.name}` again to go on"
        go_on = f"{again}; `parkazoo rebalance` undoes it"
        work = partial(mover.remove_ensemble, options.name)
        return _moved(options, mover, work, go_on)


def rebalance_command(options: Any) -> int:
    with _client(options) as client:
        mover = Mover(client)
        if options.abort:
            shards = mover.abort()
            _say_left(mover)
            options.answer.give({"kept": shards}, [f"{len(shards)} shards stay"])
            return DONE
        among = options.among
        table = mover.table
        strangers = set(among or []) - set(table.ensembles)
        if strangers:
            raise arguments.Usage(f"no ensembles {', '.join(sorted(strangers))} here")
        if options.plan:
            plan = balanced(table, among or list(table.ensembles))
            document = {str(s): [table.owners[s], to] for s, to in sorted(plan.items())}
            pairs = Counter((table.owners[s], to) for s, to in plan.items())
            lines = [f"{a} -> {b}: {n} shards" for (a, b), n in sorted(pairs.items())]
            if lines:
                lines.append(f"{len(plan)} shards would move")
            options.answer.give(document, lines or ["nothing to move"])
            return DONE
        only = f" --among {','.join(among)}" if among else ""
        go_on = f"`parkazoo rebalance{only}` to go on"
        return _moved(options, mover, partial(mover.rebalance, among), go_on)


RUN: dict[str, Callable[[Any], int]] = {
    "init": init_command,
    "status": status_command,
    "where": where_command,
    "tree": tree_command,
    "check": check_command,
    "add-ensemble": add_command,
    "remove-ensemble": remove_command,
    "set-hosts": hosts_command,
    "rebalance": rebalance_command,
}

if __name__ == "__main__":
    sys.exit(main())
