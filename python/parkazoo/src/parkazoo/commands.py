"""The commands of `parkazoo`: their names, what each takes, and what its help says.

Must never: know what a command does, or connect to anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from parkazoo import arguments, credentials


def parser(run: Mapping[str, Callable[[Any], int]]) -> arguments.Parser:
    """`run`: what does each command, by its name."""
    parser = arguments.Parser(
        prog="parkazoo",
        description="One ZooKeeper namespace over many ensembles.",
        epilog="HOSTS is `h1:2181,h2:2181;h3:2181`: commas inside an ensemble,"
        " semicolons between ensembles; one ensemble of a namespace is enough.",
    )
    hosts = os.environ.get("PARKAZOO_HOSTS", "127.0.0.1:2181")
    arguments.add_common(parser, "auth")
    credentials.add(parser)
    parser.set_defaults(hosts=hosts, json=False, timeout=15.0, verbose=False)
    parser.set_defaults(auth=[], more_auth=[], **credentials.DEFAULTS)
    parser.add_argument("--version", action="version", version=version("parkazoo"))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str) -> Any:
        added = commands.add_parser(name, help=text, description=text)
        arguments.add_common(added, "more_auth")
        credentials.add(added)
        added.set_defaults(run=run[name], command=name)
        return added

    init = command("init", "make a namespace on the ensembles of HOSTS")
    init.add_argument(
        "--weak",
        action="append",
        default=[],
        type=arguments.weak,
        metavar="PREFIX[:BUCKETS]",
        help="spread the children of each directory below PREFIX over so many buckets"
        " (default: 16); no sequence nodes there; for ever",
    )
    init.add_argument(
        "--colocate",
        action="append",
        default=[],
        metavar="PREFIX",
        help="keep all below PREFIX on one shard; `*` is one component; for ever",
    )
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
    command("status", "show ensembles, shards and unfinished moves")
    a_path, a_name = "the path of a node", "an ensemble's name, as `status` shows it"
    where = command("where", "show which ensemble holds a node")
    where.add_argument("path", type=arguments.path, metavar="PATH", help=a_path)
    below = command("tree", "show the nodes below a path")
    below.add_argument(
        "path",
        nargs="?",
        default="/",
        type=arguments.path,
        metavar="PATH",
        help=f"{a_path} (default: /)",
    )
    below.add_argument(
        "--depth", type=arguments.levels, default=3, help="levels (default: 3)"
    )
    check = command("check", "look for what should not be there")
    check.add_argument(
        "--repair", action="store_true", help="mend what is found, but for orphans"
    )
    check.add_argument(
        "--delete-orphans",
        action="store_true",
        help="with --repair: delete buckets whose directory is gone, and what is in"
        " them",
    )
    add = command("add-ensemble", "take in an ensemble and rebalance")
    its = "its servers, with commas between: h1:2181,h2:2181"
    add.add_argument("ensemble", type=arguments.ensemble, metavar="HOSTS", help=its)
    add.add_argument(
        "--name", type=arguments.name, help="what to call it (default: the next e<N>)"
    )
    add.add_argument(
        "--no-rebalance", action="store_true", help="give it no shards yet"
    )
    add.add_argument(
        "--beside", action="store_true", help="leave aside data that is there already"
    )
    away = command("remove-ensemble", "empty an ensemble, let it go")
    away.add_argument("name", metavar="NAME", help=a_name)
    moved = command("set-hosts", "say where an ensemble's servers are")
    moved.add_argument("name", metavar="NAME", help=a_name)
    moved.add_argument("ensemble", type=arguments.ensemble, metavar="HOSTS", help=its)
    even = command("rebalance", "even out the shards")
    only = even.add_mutually_exclusive_group()
    only.add_argument("--plan", action="store_true", help="only show what would move")
    only.add_argument("--abort", action="store_true", help="undo an unfinished move")
    even.add_argument(
        "--among",
        type=arguments.names,
        metavar="NAMES",
        help="the ensembles to keep shards on, with commas between",
    )
    return parser
