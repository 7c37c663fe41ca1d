#!/usr/bin/env python3
"""An engine adapter for etcd 3.4: Python 3.11, its standard library, and nothing else.

    etcd_adapter.py --endpoints http://10.0.0.1:2379,http://10.0.0.2:2379 [-- ARGUMENTS OF ETCD]

docs/guides/etcd-adapter.md walks through it. A machine adds itself as a learner, which has no vote,
and `join` promotes it. `drain` removes a member, and only while all others are up to date.
It must never trust an old list of members, nor what a member says of itself.
"""

import argparse
import base64
import json
import shlex
import sys
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

CLIENT_PORT, PEER_PORT = 2379, 2380
HTTP_SECONDS = 1  # `drain` makes seven calls in a row, and the controller waits 10 s.
REQUESTS_AT_ONCE = 8
LATER, NEVER, CREDENTIALS = -32000, -32001, -32002
NO_JSON, NO_REQUEST, NO_METHOD, NO_PARAMETERS = -32700, -32600, -32601, -32602

SERIES = {  # What is measured: how its lines of /metrics begin, and what else is in them.
    "processor": ("process_cpu_seconds_total", ""),
    "operations": ("grpc_server_handled_total", 'grpc_service="etcdserverpb.KV"'),
    "data-bytes": ("etcd_mvcc_db_total_size_in_use_in_bytes", ""),
    "disk-bytes": ("etcd_mvcc_db_total_size_in_bytes", ""),
}

BOOT = """#!/bin/sh
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={seeds}
peer=http://$MACHINE_ADDRESS:{peer_port} client=http://$MACHINE_ADDRESS:{client_port}
# A cluster has one learner at a time. Further machines wait here for their turn.
until etcdctl member list | grep -qF ", $peer,"; do
    etcdctl member add "$MACHINE_TOKEN" --learner --peer-urls="$peer" || sleep 1
done
members=$(etcdctl member list | awk -F', ' -v me="$peer" -v name="$MACHINE_TOKEN" '
    {{ printf "%s%s=%s", comma, ($4 == me ? name : $3), $4; comma = "," }}')
etcd --name "$MACHINE_TOKEN" --data-dir "$MACHINE_DATA/etcd" \\
    --initial-cluster "$members" --initial-cluster-state existing \\
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \\
    --listen-client-urls "$client" --advertise-client-urls "$client" {arguments}
# etcd has ended. If it is a learner still, it leaves, or no other machine could become one.
etcdctl member list | awk -F', ' -v me="$peer" '$4 == me && $6 == "true" {{ print $1 }}' |
    xargs -r etcdctl member remove >/dev/null
"""


class Failure(Exception):
    """What a call answers in place of a result."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def post(url, path, body):
    """One call of the JSON gateway of one member."""
    try:
        with urllib.request.urlopen(url + path, json.dumps(body).encode(), HTTP_SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        try:
            refusal = json.load(error)
        except ValueError:
            refusal = {}
        # The codes of gRPC for a wrong user, and, in 3.4, for none: 7, 16 and 3.
        code = CREDENTIALS if refusal.get("code") in (3, 7, 16) else LATER
        raise Failure(code, f"etcd at {url}: {refusal.get('message', error)}") from None
    except (OSError, ValueError) as error:
        where = f"etcd at {url}" if url else "a member that was added and never started"
        raise Failure(LATER, f"{where} does not answer: {error}; look at its log") from None


def metrics(url):
    """Pairs of a series and its value, of one member."""
    try:
        with urllib.request.urlopen(url + "/metrics", timeout=HTTP_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, ValueError) as error:
        raise Failure(LATER, f"etcd at {url} shows no metrics: {error}; look at its log") from None
    return [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]


def each(function, items):
    """Calls `function` for all items at once. A result is a value, or the `Failure`."""

    def guarded(item):
        try:
            return function(item)
        except Failure as failure:
            return failure

    items = list(items)
    with ThreadPoolExecutor(max(1, len(items))) as pool:
        return list(pool.map(guarded, items))


class Member:
    def __init__(self, fields):
        self.number = fields["ID"]  # As the gateway writes it: decimal, in a text.
        self.id = f"{int(self.number):x}"  # As etcdctl and /metrics write it.
        self.votes = not fields.get("isLearner", False)
        self.url = next(iter(fields.get("clientURLs", [])), "")  # Empty until it has started.
        self.address = urllib.parse.urlsplit(fields["peerURLs"][0]).hostname


def members_by(url):
    """All members as the one at `url` knows them, not older than this call.

    A member lists what it knows, however old. The read before it waits until this member has
    applied all that the cluster had agreed on, and fails where there is no majority.
    """
    post(url, "/v3/kv/range", {"key": base64.b64encode(b"\0").decode()})
    return [Member(fields) for fields in post(url, "/v3/cluster/member/list", {})["members"]]


def is_connected(witness, member_id):
    """Whether `witness` has a connection to the member, or does not say that it has none."""
    series = f'etcd_network_active_peers{{Local="{witness.id}",Remote="{member_id}"}}'
    return [value for name, value in metrics(witness.url) if name == series] != ["0"]


class Adapter:
    def __init__(self, options):
        self.options = options
        self.seeds = options.endpoints.split(",")
        self.looks = {}  # Member: when its counters were read, and they. A cache, for rates.

    def reach(self):
        """An endpoint with a majority behind it, and the members that it knows."""
        lists = each(members_by, self.seeds)
        for url, found in zip(self.seeds, lists):
            if not isinstance(found, Failure):
                return url, found
        raise Failure(lists[0].code, f"no endpoint speaks for a majority; {lists[0]}")

    def find(self, params):
        """As `reach`, and the member that is asked about, or None."""
        wanted = text(params, "member")
        url, members = self.reach()
        return url, members, next((one for one in members if one.id == wanted), None)

    def describe(self, _):
        return {"name": f"etcd at {self.seeds[0]}", "protocol": 1, "acts_max": 1, "drain_cancellable": False,
                "members_min": self.options.members_min, "measures": list(SERIES)}

    def boot(self, params):
        text(params, "token")  # The script finds it in its environment.
        seeds, arguments = shlex.quote(self.options.endpoints), shlex.join(self.options.arguments)
        return {"script": BOOT.format(seeds=seeds, peer_port=PEER_PORT, client_port=CLIENT_PORT, arguments=arguments)}

    def observe(self, _):
        return {"members": each(self.look, self.reach()[1])}

    def look(self, member):
        shown = {"id": member.id, "address": member.address}
        if not member.url:
            return shown | {"state": "joining", "detail": "it was added, and has not started yet"}
        try:
            now, lines = time.monotonic(), metrics(member.url)
        except Failure as failure:
            return shown | {"state": "down", "detail": str(failure)}
        measures = self.measures(member, now, lines)
        return shown | {"state": "serving" if member.votes else "waiting", "measures": measures}

    def measures(self, member, now, lines):
        sums = {
            name: sum(float(value) for series, value in lines if series.startswith(start) and label in series)
            for name, (start, label) in SERIES.items()
        }
        values = {name: sums[name] for name in ("data-bytes", "disk-bytes")}
        before, self.looks[member.id] = self.looks.get(member.id), (now, sums)
        if before and now > before[0] and sums["processor"] >= before[1]["processor"]:
            gain = {name: (sums[name] - before[1][name]) / (now - before[0]) for name in sums}
            values["operations"] = gain["operations"]
            values["processor"] = 100 * gain["processor"] / self.options.processors
        age_ms = int((time.monotonic() - now) * 1000)
        return {name: {"value": value, "age_ms": age_ms} for name, value in values.items()}

    def join(self, params):
        url, _, member = self.find(params)
        if not member:
            raise Failure(NEVER, f"etcd has no member {params['member']}; start its machine's script anew")
        if not member.votes:
            post(url, "/v3/cluster/member/promote", {"ID": member.number})
        return {}

    def drain(self, params):
        url, members, member = self.find(params)
        if member and member.votes:
            url = self.make_dispensable(member, [one for one in members if one.votes and one is not member])
        if member:
            post(url, "/v3/cluster/member/remove", {"ID": member.number})
        return {}

    def make_dispensable(self, member, others):
        """Checks that the others are enough without it, and takes the lead from it. Gives the URL of one of them."""
        if len(others) < self.options.members_min:
            least = self.options.members_min
            raise Failure(LATER, f"{len(others)} would vote without {member.id}, and {least} must; add one first")
        for found in each(members_by, (other.url for other in others)):
            if isinstance(found, Failure):
                raise Failure(LATER, f"{member.id} stays until all others are up to date: {found}")
        url = others[0].url
        if post(url, "/v3/maintenance/status", {}).get("leader") == member.number:
            post(member.url, "/v3/maintenance/transfer-leadership", {"targetID": others[0].number})
        return url

    def cancel(self, params):
        raise Failure(NEVER, f"etcd removes at once, so {text(params, 'member')} cannot be taken back")

    def forget(self, params):
        url, _, member = self.find(params)
        if member and member.votes and self.look(member)["state"] == "serving":
            raise Failure(NEVER, f"{member.id} serves; drain it first")
        if member:
            post(url, "/v3/cluster/member/remove", {"ID": member.number})
        return {}

    def evidence(self, params):
        key = "member" if "member" in params else "address"
        wanted = text(params, key)

        def is_meant(member):
            return wanted == (member.id if key == "member" else member.address)

        others = [one for one in self.reach()[1] if one.votes and not is_meant(one)]
        answers = list(zip(others, each(members_by, (one.url for one in others))))
        lists = [(one, found) for one, found in answers if not isinstance(found, Failure)]
        lacks = [str(found) for _, found in answers if isinstance(found, Failure)]
        if len({frozenset((one.id, one.votes) for one in found) for _, found in lists}) > 1:
            lacks.append("the members know different lists")
        if len(others) < self.options.members_min:
            lacks.append(f"{len(others)} others vote, and {self.options.members_min} must")
        proof = {"witnesses": [one.id for one, _ in lists], "nothing_short": not lacks}
        # All others that vote are up to date, so nothing hangs on a learner, nor on a voter that no other can reach.
        votes = {one.id for _, found in lists for one in found if one.votes and is_meant(one)}
        reached = each(lambda other: any(is_connected(other, vote) for vote in votes), (one for one, _ in lists))
        if any(reached):  # A `Failure` counts as reached.
            lacks.append(f"{wanted} votes, and others are connected to it")
            proof |= {"owns_nothing": False, "nothing_moves": False}
        elif not lacks:
            proof |= {"owns_nothing": True, "nothing_moves": True}
        return proof | ({"detail": "; ".join(lacks)} if lacks else {})


METHODS = ("describe", "boot", "observe", "join", "drain", "cancel", "forget", "evidence")


def text(params, name):
    if not isinstance(params.get(name), str) or not params[name]:
        raise Failure(NO_PARAMETERS, f"`{name}` is missing, or no text; docs/reference/adapters.md has all parameters")
    return params[name]


def result(adapter, request):
    if not isinstance(request.get("method"), str):
        raise Failure(NO_REQUEST, "this is no request: it has no method")
    if request["method"] not in METHODS:
        raise Failure(NO_METHOD, f"there is no method {request['method']}; there are {', '.join(METHODS)}")
    params = request.get("params")
    if not isinstance(params, dict):
        raise Failure(NO_PARAMETERS, "`params` is no object")
    text(params, "fleet")
    return getattr(adapter, request["method"])(params)


def reply(adapter, line):
    answer = {"jsonrpc": "2.0", "id": None}
    try:
        request = json.loads(line)
    except ValueError as error:
        return answer | {"error": {"code": NO_JSON, "message": f"this line is no JSON: {error}"}}
    if not isinstance(request, dict):
        return answer | {"error": {"code": NO_REQUEST, "message": "this is no request: it is no object"}}
    answer["id"] = request.get("id")
    try:
        return answer | {"result": result(adapter, request)}
    except Failure as failure:
        return answer | {"error": {"code": failure.code, "message": str(failure)}}
    except Exception as error:  # A defect of ours. Other calls go on, and the log has the place.
        traceback.print_exc()
        return answer | {"error": {"code": LATER, "message": f"a defect of the adapter: {error!r}; see its log"}}


def main():
    parser = argparse.ArgumentParser(description="engine adapter for etcd")
    parser.add_argument("--endpoints", required=True, help="client URLs of members that stay, with commas between")
    parser.add_argument("--members-min", type=int, default=3, help="never fewer that vote (default 3)")
    parser.add_argument("--processors", type=float, default=1, help="how many each machine may use (default 1)")
    parser.add_argument("arguments", nargs="*", help="behind --: further arguments for etcd on new machines")
    adapter, lock = Adapter(parser.parse_args()), threading.Lock()

    def serve(line):
        answer = json.dumps(reply(adapter, line))
        with lock:
            print(answer, flush=True)

    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for line in sys.stdin.buffer:
            pool.submit(serve, line)


if __name__ == "__main__":
    main()
