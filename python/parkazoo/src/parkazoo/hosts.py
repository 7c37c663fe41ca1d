"""The hosts string: `h1:2181,h2:2181;h3:2181,h4:2181/chroot`.

What: commas join the servers of one ensemble, as in Kazoo; semicolons separate
ensembles. A chroot, if any, ends the string and holds for the whole namespace.
A string without a semicolon is one ensemble, so every Kazoo hosts string means
what it meant. What can only be a slip, an empty ensemble or a server in two of them, is
refused. The ensembles named are where a client starts to look: the table
read from any of them says which others there are.

Must never: resolve names or connect.
"""

from __future__ import annotations

from kazoo.hosts import collect_hosts

SEPARATOR = ";"
Hosts = str | list[str]


def split(hosts: Hosts) -> tuple[list[str], str]:
    """(the hosts string of each ensemble, the chroot or "")."""
    if isinstance(hosts, list):
        servers = list(hosts)
        chroot = servers.pop().strip() if servers[-1].strip().startswith("/") else ""
        return split(",".join(servers) + chroot)
    listed, _, chroot = hosts.partition("/")
    if SEPARATOR in chroot:
        raise ValueError(f"{hosts!r}: a chroot stands once, after the last ensemble")
    ensembles = [part.strip() for part in listed.split(SEPARATOR)]
    if len(ensembles) > 1:
        _refuse_slips(hosts, ensembles)
    return ensembles, f"/{chroot}" if chroot else ""


def _refuse_slips(hosts: str, ensembles: list[str]) -> None:
    """A namespace made by such a string would be on other ensembles than was meant."""
    if "" in ensembles:
        raise ValueError(
            f"{hosts!r}: nothing stands before or after one of the semicolons; one"
            " stands between two ensembles"
        )
    seen: set[tuple[str, int]] = set()
    for ensemble in ensembles:
        twice = seen & servers(ensemble)
        if twice:
            raise ValueError(
                f"{hosts!r}: {server(min(twice))} stands in two ensembles; a server is"
                " of one"
            )
        seen |= servers(ensemble)


def servers(hosts: str) -> frozenset[tuple[str, int]]:
    """The servers of one ensemble, to tell whether two strings mean the same one."""
    return frozenset(collect_hosts(hosts)[0])


def server(found: tuple[str, int]) -> str:
    """One of `servers`, as it is written in a hosts string."""
    name, port = found
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
