"""The command line: `parkazoo init|status|where|tree|check|add-ensemble|...`.

What: one subcommand per thing an operator does. The answer goes to stdout, one
JSON document with `--json`; progress and errors go to stderr. Exit code 0: done;
1: looked and found something wrong; 2: failed, with what, why and what to do next.

Must never: print a stack trace for what an operator can cause, or change anything
in a command whose name does not say so.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kazoo.exceptions import KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from parkazoo import addresses, importing, namespace, tree
from parkazoo import hosts as hosts_string
from parkazoo.check import Checker
from parkazoo.client import ParKazooClient
from parkazoo.connection import BatchingClient
from parkazoo.errors import ParKazooError
from parkazoo.mapping import ConfigurationInvalid, Rules, Table, balanced
from parkazoo.move import Mover, State, member
from parkazoo.naming import STRANGER_SECONDS

DONE, WRONG, FAILED = 0, 1, 2
# For so long after a command was killed, nobody else may change the table.
SESSION_SECONDS = 10.0


class Usage(Exception):
    """The operator asked for something that cannot be; the message says what."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    if not options.verbose:
        logging.disable(logging.CRITICAL)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except (Usage, ParKazooError, ConfigurationInvalid) as error:
        print(f"parkazoo: {error}", file=sys.stderr)
    except KazooTimeoutError:
        print(
            f"parkazoo: no answer from {options.hosts} within {options.timeout:g} s;"
            " are the servers up, and is `--hosts` right?"
            " `parkazoo status` shows which of a namespace's ensembles answer",
            file=sys.stderr,
        )
    except NoAuthError as error:
        what = getattr(options, "path", "") or str(error) or "what was asked for"
        print(
            f"parkazoo: whoever asks has no right to {what}; give `--auth"
            " SCHEME:CREDENTIAL` of somebody who has",
            file=sys.stderr,
        )
    except KazooException as error:
        print(
            f"parkazoo: ZooKeeper refused: {type(error).__name__} {error}".rstrip(),
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        print("parkazoo: interrupted", file=sys.stderr)
    except BrokenPipeError:  # whoever read the answer has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="parkazoo",
        description="One ZooKeeper namespace over many ensembles.",
        epilog="HOSTS is `h1:2181,h2:2181;h3:2181`: commas inside an ensemble,"
        " semicolons between ensembles; one ensemble of a namespace is enough.",
    )
    hosts = os.environ.get("PARKAZOO_HOSTS", "127.0.0.1:2181")
    _add_common(parser, "auth")
    parser.set_defaults(hosts=hosts, json=False, timeout=15.0, verbose=False)
    parser.set_defaults(auth=[], more_auth=[])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Any], int], text: str) -> Any:
        added = commands.add_parser(name, help=text, description=text)
        _add_common(added, "more_auth")
        added.set_defaults(run=run)
        return added

    init = command("init", init_command, "make a namespace on the ensembles of HOSTS")
    init.add_argument(
        "--weak", action="append", default=[], type=_weak, metavar="PREFIX[:BUCKETS]"
    )
    init.add_argument("--colocate", action="append", default=[], metavar="PREFIX")
    data = init.add_mutually_exclusive_group()
    data.add_argument(
        "--import",
        dest="import_data",
        action="store_true",
        help="copy what all the ensembles hold into the namespace; a path that"
        " differs on two of them is refused",
    )
    data.add_argument(
        "--beside", action="store_true", help="leave aside data that is there already"
    )
    command("status", status_command, "show ensembles, shards and unfinished moves")
    where = command("where", where_command, "show which ensemble holds a node")
    where.add_argument("path", type=_path)
    below = command("tree", tree_command, "show the nodes below a path")
    below.add_argument("path", nargs="?", default="/", type=_path)
    below.add_argument("--depth", type=int, default=3, help="levels (default: 3)")
    check = command("check", check_command, "look for what should not be there")
    check.add_argument("--repair", action="store_true")
    check.add_argument("--delete-orphans", action="store_true")
    add = command("add-ensemble", add_command, "take in an ensemble and rebalance")
    add.add_argument("ensemble", type=_ensemble, metavar="HOSTS")
    add.add_argument("--name", type=_name)
    add.add_argument("--no-rebalance", action="store_true")
    add.add_argument(
        "--beside", action="store_true", help="leave aside data that is there already"
    )
    away = command("remove-ensemble", remove_command, "empty an ensemble, let it go")
    away.add_argument("name")
    moved = command("set-hosts", hosts_command, "say where an ensemble's servers are")
    moved.add_argument("name")
    moved.add_argument("ensemble", type=_ensemble, metavar="HOSTS")
    even = command("rebalance", rebalance_command, "even out the shards")
    even.add_argument("--plan", action="store_true", help="only show what would move")
    even.add_argument("--abort", action="store_true", help="undo an unfinished move")
    even.add_argument(
        "--among", help="names of the ensembles to keep shards on, with commas between"
    )
    return parser


def _add_common(parser: argparse.ArgumentParser, auth: str) -> None:
    """What every command takes, before its name or after it, or, of what may be given
    several times, both: `auth` is the name that the one place has for it."""

    def option(name: str, text: str, **named: Any) -> None:
        parser.add_argument(name, help=text, default=argparse.SUPPRESS, **named)

    where = "where the namespace is (default: $PARKAZOO_HOSTS, or 127.0.0.1:2181)"
    option("--hosts", where, type=_hosts)
    option("--json", "answer in JSON", action="store_true")
    option("--timeout", "seconds to connect (default: 15)", type=float)
    who = "who asks; may be given several times"
    option("--auth", who, action="append", metavar="SCHEME:CREDENTIAL", dest=auth)
    option("--verbose", "log on stderr", action="store_true")


# -- what the operator may write ---------------------------------------------------


def _hosts(given: str) -> str:
    try:
        ensembles = hosts_string.split(given)[0]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    for ensemble in ensembles:
        try:
            hosts_string.servers(ensemble)
            good = hosts_string.SEPARATOR not in ensemble
        except ValueError:
            good = False
        if not good:
            raise argparse.ArgumentTypeError(
                f"{ensemble!r}: write `h1:2181,h2:2181`, with semicolons between"
                " ensembles"
            )
    return given


def _ensemble(given: str) -> str:
    ensembles, chroot = hosts_string.split(_hosts(given))
    if chroot or len(ensembles) > 1:
        raise argparse.ArgumentTypeError(
            f"{given!r}: give the servers of one ensemble, without chroot"
        )
    return given


def _name(given: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", given):
        raise argparse.ArgumentTypeError(
            f"{given!r}: a name is of letters, digits, `_`, `.` and `-`"
        )
    return given


def _path(given: str) -> str:
    path = "/" + given.strip("/")
    if {".", ".."} & set(path.split("/")):
        raise argparse.ArgumentTypeError(f"{given!r}: relative paths are not allowed")
    return path


def _weak(given: str) -> tuple[str, int]:
    prefix, _, count = given.partition(":")
    if not (count or "16").isdecimal():
        raise argparse.ArgumentTypeError(
            f"{given!r}: {count!r} is not a number of buckets"
        )
    return prefix, int(count or 16)


# -- what all commands use ---------------------------------------------------------


def _auth(options: Any) -> list[tuple[str, str]]:
    pairs = []
    for given in [*options.auth, *options.more_auth]:
        scheme, separator, credential = given.partition(":")
        if not separator:
            raise Usage(f"--auth {given}: write SCHEME:CREDENTIAL")
        pairs.append((scheme, credential))
    return pairs


@contextmanager
def _client(options: Any, degraded: bool = False) -> Iterator[ParKazooClient]:
    # Without a chroot: commands are about the whole namespace.
    client = ParKazooClient(
        hosts_string.SEPARATOR.join(hosts_string.split(options.hosts)[0]),
        auth_data=_auth(options),
        degraded=degraded,
        auto_init=False,
        timeout=SESSION_SECONDS,
    )
    client.enters_unfinished = True
    client.start(options.timeout)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def _visiting(options: Any, server: str) -> Iterator[Any]:
    """A session with one server by itself; None if it does not answer."""
    client = BatchingClient(server, auth_data=_auth(options))
    try:
        try:
            client.start(STRANGER_SECONDS)
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


def _answer(options: Any, document: Any, lines: list[str]) -> None:
    print(json.dumps(document) if options.json else "\n".join(lines))


def _progress(state: State) -> None:
    print(
        f"\r{state.shards_moved}/{state.shards_total} shards,"
        f" {state.nodes_copied} nodes, longest pause {state.pause_max * 1000:.0f} ms ",
        end="",
        file=sys.stderr,
        flush=True,
    )


def _moved(options: Any, mover: Mover, work: Callable[[], State]) -> int:
    """Run a move with progress; Ctrl-C stops it after the shards under way."""
    import signal

    before = signal.signal(signal.SIGINT, lambda *_: mover.stop())
    try:
        state = work()
    finally:
        signal.signal(signal.SIGINT, before)
        if mover.state.shards_total and not options.json:
            print(file=sys.stderr)
    _answer(
        options,
        {**vars(state), "stopped": mover.stopped},
        [
            f"moved {state.shards_moved} of {state.shards_total} shards,"
            f" {state.nodes_copied} nodes; longest pause"
            f" {state.pause_max * 1000:.0f} ms",
            "next: `parkazoo rebalance` to go on" if mover.stopped else "",
        ][: 2 if mover.stopped else 1],
    )
    return WRONG if mover.stopped else DONE


# -- commands ------------------------------------------------------------------------


def init_command(options: Any) -> int:
    ensembles, chroot = hosts_string.split(options.hosts)
    if chroot:
        raise Usage("a namespace is made on whole ensembles; give HOSTS without chroot")
    rules = Rules(colocate=tuple(options.colocate), weak=tuple(options.weak))
    clients: dict[str, Any] = {}
    try:
        for hosts in ensembles:
            client = BatchingClient(hosts, auth_data=_auth(options))
            clients[hosts] = client
            client.start(options.timeout)
        beside = options.beside or options.import_data
        present = next(filter(None, map(namespace.found, clients.values())), None)
        if present and rules != Rules() and rules != present.rules:
            raise Usage(
                f"namespace {present.namespace} is there already, with other rules,"
                " and rules cannot change; `parkazoo --json status` shows them"
            )
        visit = partial(_visiting, options)
        if options.import_data:
            importing.look(clients)  # before anything is changed
        table = namespace.initialize(
            clients, rules, visit, beside, importing=options.import_data
        )
        count = 0
        if options.import_data:
            count = importing.copy_in(clients, options.hosts, _auth(options))
        elif table.importing and not options.beside:
            raise namespace.unfinished()
        elif table.importing:
            importing.give_up(options.hosts, _auth(options))
    finally:
        for client in clients.values():
            client.stop()
            client.close()
    document = {**_table_document(table), "importing": False, "imported": count}
    lines = [
        f"namespace {table.namespace} over {len(table.ensembles)} ensembles"
        + (" was there already" if present else "")
    ]
    if options.import_data:
        lines.append(f"{count} nodes imported; the originals are still there")
    elif table.importing:
        lines.append("what an import had not yet brought in is left aside")
    _answer(options, document, [*lines, "next: `parkazoo status`"])
    return DONE


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
    lines = [f"namespace {document['namespace']}, table {document['generation']}"]
    for name, entry in document["ensembles"].items():
        state = "connected" if entry["connected"] else "NOT CONNECTED"
        seat = ", seat" if name == document["seat"] else ""
        lines.append(f"{name}  {entry['shards']:4} shards  {state}{seat}")
        lines.append(f"      {entry['hosts']}  {entry['server']}")
        if entry["refused"]:
            lines.append(f"      NOT USED: {entry['refused']}")
    if document["moving"]:
        lines.append(f"{len(document['moving'])} shards are on their way, or a move")
        lines.append("was left unfinished: `parkazoo rebalance --abort` undoes it")
    if document["importing"]:
        lines.append(f"NOT USED BY PROGRAMS: {namespace.unfinished()}")
    _answer(options, document, lines)
    good = all(entry["connected"] for entry in document["ensembles"].values())
    good = good and not document["importing"]
    return DONE if good else WRONG


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
        layout, table = client._layout, client.table
        assert table is not None
        node = layout.node(path)
        buckets = layout.buckets(path)
        # Its Stat is joined from all of these.
        asked = {table.owners[node.shard], *(table.owners[b.shard] for b in buckets)}
        strangers = _strangers(client)
        missed = asked & (_away(client) | strangers)
        document = {
            "path": path,
            "exists": None if missed else client.exists(path) is not None,
            "unreachable": sorted(missed),
            "shard": node.shard,
            "ensemble": table.owners[node.shard],
            "hosts": table.ensembles[table.owners[node.shard]],
            "physical": node.path,
            "children": [
                {
                    "shard": b.shard,
                    "ensemble": table.owners[b.shard],
                    "physical": b.path,
                }
                for b in buckets
            ],
        }
    lines = [
        path
        + (
            tree.reach(missed) + "; whether it exists is not known"
            if missed
            else ("" if document["exists"] else "  (does not exist)")
        ),
        f"  node      shard {node.shard} on {document['ensemble']}"
        f" ({document['hosts']})  {node.path}",
    ]
    for b in buckets:
        lines.append(
            f"  children  shard {b.shard} on {table.owners[b.shard]}  {b.path}"
        )
    _answer(options, document, lines)
    return WRONG if missed or strangers else DONE


def tree_command(options: Any) -> int:
    with _client(options, degraded=True) as client:
        strangers = _strangers(client)
        away = _away(client) | strangers
        found = list(tree.walk(client, _whole(options), 0, options.depth, away))
    lines = [tree.branch(node) for node in found]
    _answer(options, found, lines or [f"{_whole(options)}  (does not exist)"])
    missed = any(n["unreachable"] or n["unreadable"] for n in found)
    whole = found and not strangers and not missed
    return DONE if whole else WRONG


def check_command(options: Any) -> int:
    with _client(options, degraded=True) as client:
        away = _away(client)
        if away and options.repair:
            raise Usage(
                f"{', '.join(sorted(away))} cannot be reached, and repairing needs"
                " every ensemble; nothing was changed. `parkazoo check` looks at the"
                " others"
            )
        checker = Checker(client, away)
        found = list(checker.run(options.repair, options.delete_orphans))
    lines = [
        f"{f.kind:10} {f.where}: {f.what}" + ("  (repaired)" if f.repaired else "")
        for f in found
    ] or ["nothing wrong"]
    shown = ("unreachable", "unreadable", "stranger")
    mendable = [f for f in found if not f.repaired and f.kind not in shown]
    if mendable and not options.repair:
        lines.append("next: `parkazoo check --repair`")
    _answer(options, [vars(f) for f in found], lines)
    return WRONG if any(not f.repaired for f in found) else DONE


def add_command(options: Any) -> int:
    with _client(options) as client:
        mover = Mover(client, None if options.json else _progress)
        table = mover.table
        known = member(table.ensembles, options.ensemble)
        name = mover.add_ensemble(options.ensemble, options.name, options.beside)
        if known is not None:
            print(_known(known, table, options.ensemble), file=sys.stderr)
        if options.no_rebalance:
            joined = "is a member already" if known else "joined"
            _answer(options, {"name": name}, [f"{name} {joined}; next: `rebalance`"])
            return DONE
        return _moved(options, mover, mover.rebalance)


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
    ensembles, _ = hosts_string.split(options.hosts)
    options.hosts = hosts_string.SEPARATOR.join([options.ensemble, *ensembles])
    with _client(options, degraded=True) as client:
        mover = Mover(client)
        addresses.set_hosts(mover, options.name, options.ensemble)
        document = _table_document(mover.table)
    text = f"{options.name} is at {options.ensemble}; give programs its new hosts, too"
    _answer(options, document, [text])
    return DONE


def remove_command(options: Any) -> int:
    with _client(options) as client:
        mover = Mover(client, None if options.json else _progress)
        return _moved(options, mover, lambda: mover.remove_ensemble(options.name))


def rebalance_command(options: Any) -> int:
    with _client(options) as client:
        mover = Mover(client, None if options.json else _progress)
        if options.abort:
            shards = mover.abort()
            _answer(options, {"kept": shards}, [f"{len(shards)} shards stay"])
            return DONE
        among = options.among.split(",") if options.among else None
        table = mover.table
        strangers = set(among or []) - set(table.ensembles)
        if strangers:
            raise Usage(f"no ensembles {', '.join(sorted(strangers))} here")
        if options.plan:
            plan = balanced(table, among or list(table.ensembles))
            document = {str(s): [table.owners[s], to] for s, to in sorted(plan.items())}
            lines = [f"shard {s}: {a} -> {b}" for s, (a, b) in document.items()]
            if lines:
                lines.append(f"{len(plan)} shards would move")
            _answer(options, document, lines or ["nothing to move"])
            return DONE
        return _moved(options, mover, lambda: mover.rebalance(among))


if __name__ == "__main__":
    sys.exit(main())
