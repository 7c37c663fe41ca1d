"""EC2 for tests: a real moto server behind a proxy that adds what EC2 does and moto lacks.

tontine-ec2 ──▶ proxy ──▶ moto
                 └─ client tokens that work once; machines unseen for a while; addresses of this
                    host; lost replies; no capacity, throttling, expired credentials; a metadata
                    service for each machine; a ledger of what was made and ended
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15"
ET.register_namespace("", NAMESPACE)
#: HTTP status of errors that are not 400.
STATUS = {
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "RequestLimitExceeded": 503,
    "UnauthorizedOperation": 403,
    "AuthFailure": 401,
}
LOST = "a lost reply"
#: The one image that moto has.
IMAGE = "ami-03cf127a"
IMAGE_FIELDS = {
    "public": True,
    "virtualization_type": "hvm",
    "architecture": "x86_64",
    "state": "available",
    "platform": None,
    "image_type": "machine",
    "hypervisor": "xen",
    "root_device_name": "/dev/sda1",
    "root_device_type": "ebs",
    "sriov": "simple",
    "creation_date": "2026-01-01T00:00:00.000Z",
}


@dataclass
class Machine:
    """What the ledger knows of a machine."""

    id: str
    fleet: str | None
    token: str | None
    address: str
    user_data: str
    launched: float
    ended: float | None = None


@dataclass
class Chaos:
    """Faults by chance: for each action the faults, and how probable each is."""

    dice: random.Random
    faults: dict[str, dict[str, float]]
    met: dict[str, int] = field(default_factory=dict)

    def draw(self, action: str) -> str | None:
        for fault, chance in self.faults.get(action, {}).items():
            if self.dice.random() < chance:
                self.met[fault] = self.met.get(fault, 0) + 1
                return fault
        return None


class Moto:
    """A moto server as a process."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        program = Path(sys.executable).parent / "moto_server"
        # With its own 1,300 images each reset takes half a second.
        images = folder / "images.json"
        image = {"ami_id": IMAGE, "name": "test", "description": "", "owner_id": "1"}
        images.write_text(json.dumps([{**image, **IMAGE_FIELDS}]))
        environment = dict(
            os.environ, MOTO_ENABLE_AMI_VALIDATION="true", MOTO_AMIS_PATH=str(images)
        )
        self._log = (folder / "moto.log").open("wb")
        self._process = subprocess.Popen(
            [program, "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=self._log,
            stderr=self._log,
            env=environment,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                self._load()
                return
            except OSError:
                assert self._process.poll() is None, "moto has ended; see moto.log"
                assert time.monotonic() < deadline, "moto did not answer within a minute"
                time.sleep(0.1)

    def _load(self) -> None:
        """Waits until it answers, and lets it read its data on types and images."""
        status, _ = self.ask({"Action": "DescribeInstances"})
        assert status == 200

    def ask(self, fields: dict[str, str]) -> tuple[int, bytes]:
        """Asks it, without the proxy."""
        scope = "Credential=a/20260101/eu-central-1/ec2/aws4_request"
        headers = {
            "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = urllib.parse.urlencode({"Version": "2016-11-15", **fields})
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def reset(self) -> None:
        url = f"http://127.0.0.1:{self.port}/moto-api/reset"
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20).read()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(20)
        self._log.close()


class Cloud:
    """The proxy, with what tests may set and look at."""

    def __init__(self, moto: Moto) -> None:
        self.moto = moto
        #: How long a machine is not shown after it was made, in seconds.
        self.unseen_seconds = 0.0
        #: How long an ended machine is still shown.
        self.shown_seconds = float("inf")
        #: Machines in one answer at most. moto alone shows all of them.
        self.page = 1000
        #: Whether client tokens work once. moto alone ignores them.
        self.tokens_work = True
        self.chaos: Chaos | None = None
        self.lock = threading.RLock()
        self.machines: dict[str, Machine] = {}
        #: The most machines of a fleet that ran at once.
        self.most: dict[str, int] = {}
        self.requests: list[dict[str, str]] = []
        self._faults: list[tuple[str, str, str]] = []
        self._tokens: dict[str, tuple[str, bytes]] = {}
        self._addresses = 10
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def forget(self) -> None:
        """Forgets every machine and token, as moto does."""
        with self.lock:
            self.moto.reset()
            self.machines.clear()
            self._tokens.clear()
            self.requests.clear()

    def fail(self, action: str, fault: str, times: int = 1, words: str = "asked for") -> None:
        """Lets the next requests of this action fail so: an error's code, or `LOST`."""
        self._faults += [(action, fault, words)] * times

    def heal(self) -> None:
        """Takes back what was to fail."""
        self._faults.clear()

    def live(self, fleet: str) -> list[Machine]:
        with self.lock:
            return [one for one in self.machines.values() if one.fleet == fleet and not one.ended]

    def actions(self) -> list[str]:
        return [request["Action"] for request in self.requests]

    def end_by_itself(self, machine: str) -> None:
        """As if somebody had ended it by hand."""
        self.ask({"Action": "TerminateInstances", "InstanceId.1": machine})
        with self.lock:
            self.machines[machine].ended = time.monotonic()

    def ask(self, fields: dict[str, str]) -> tuple[int, bytes]:
        """Asks moto, unseen by the ledger."""
        return self.moto.ask(fields)

    def answer(self, fields: dict[str, str]) -> tuple[int, bytes] | None:
        """The answer to a request; `None` for one that is lost."""
        action = fields["Action"]
        with self.lock:
            self.requests.append(fields)
            fault = self.chaos.draw(action) if self.chaos else None
            planned = next((one for one in self._faults if one[0] == action), None)
            words = "by chance"
            if planned:
                self._faults.remove(planned)
                _, fault, words = planned
        if fault and fault != LOST:
            return STATUS.get(fault, 400), _error(fault, words)
        answer = self._carried_out(action, fields)
        return None if fault == LOST else answer

    def _carried_out(self, action: str, fields: dict[str, str]) -> tuple[int, bytes]:
        if action == "RunInstances":
            with self.lock:
                return self._run(fields)
        if action == "DescribeInstances":
            return self._describe(fields)
        status, body = self.ask(fields)
        if action == "TerminateInstances" and status == 200:
            with self.lock:
                for name in re.findall(rb"<instanceId>(i-[0-9a-f]+)<", body):
                    machine = self.machines.get(name.decode())
                    if machine and not machine.ended:
                        machine.ended = time.monotonic()
        return status, body

    def _run(self, fields: dict[str, str]) -> tuple[int, bytes]:
        token = fields.get("ClientToken", "")
        same = hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()
        if self.tokens_work and token in self._tokens:
            parameters, body = self._tokens[token]
            if parameters == same:
                return 200, body
            return 400, _error("IdempotentParameterMismatch", "Arguments on this token differ")
        status, body = self.ask(fields)
        if status != 200:
            return status, body
        document = ET.fromstring(body)
        tags = _tags(fields)
        for item in document.iter(_name("instanceId")):
            address = f"127.0.{self._addresses // 200}.{self._addresses % 200 + 1}"
            self._addresses += 1
            fleet = tags.get("tontine:fleet")
            self.machines[str(item.text)] = Machine(
                id=str(item.text),
                fleet=fleet,
                token=tags.get("tontine:token"),
                address=address,
                user_data=base64.b64decode(fields.get("UserData", "")).decode(),
                launched=time.monotonic(),
            )
            if fleet:
                self.most[fleet] = max(self.most.get(fleet, 0), len(self.live(fleet)))
        self._write_addresses(document)
        body = ET.tostring(document)
        if token:
            self._tokens[token] = (same, body)
        return 200, body

    def _describe(self, fields: dict[str, str]) -> tuple[int, bytes]:
        asked = [text for name, text in fields.items() if name.startswith("InstanceId.")]
        hidden = self._hidden()
        if any(one in hidden for one in asked):
            why = f"The instance ID '{asked[0]}' does not exist"
            return 400, _error("InvalidInstanceID.NotFound", why)
        first = int(fields.pop("NextToken", "0"))
        most = min(int(fields.pop("MaxResults", "1000")), self.page)
        status, body = self.ask(fields)
        if status != 200:
            return status, body
        document = ET.fromstring(body)
        # Hidden ones take a place too, so that a page never depends on when it was asked for.
        place = 0
        for reservation in document.iter(_name("instancesSet")):
            for item in list(reservation):
                is_here = asked or first <= place < first + most
                if not is_here or item.findtext(_name("instanceId")) in hidden:
                    reservation.remove(item)
                place += 1
        if not asked and place > first + most:
            ET.SubElement(document, _name("nextToken")).text = str(first + most)
        self._write_addresses(document)
        return 200, ET.tostring(document)

    def _hidden(self) -> set[str]:
        now = time.monotonic()
        with self.lock:
            return {
                one.id
                for one in self.machines.values()
                if now - one.launched < self.unseen_seconds
                or (one.ended and now - one.ended > self.shown_seconds)
            }

    def _write_addresses(self, document: ET.Element) -> None:
        for instances in document.iter(_name("instancesSet")):
            for item in instances:
                machine = self.machines.get(item.findtext(_name("instanceId"), ""))
                if machine:
                    for address in item.iter(_name("privateIpAddress")):
                        address.text = machine.address

    def metadata(self, path: str, method: str, session: str | None) -> tuple[int, bytes]:
        """The metadata service of a machine, version 2, at `/metadata/ID`."""
        _, _, machine, what = path.split("/", 3)
        if method == "PUT" and what == "latest/api/token":
            return 200, f"session-of-{machine}".encode()
        if session != f"session-of-{machine}":
            return 401, b""
        with self.lock:
            found = self.machines.get(machine)
        if found and what == "latest/meta-data/local-ipv4":
            return 200, found.address.encode()
        return 404, b""


def _tags(fields: dict[str, str]) -> dict[str, str]:
    """The tags that a request gives a machine."""
    found = {}
    for name, text in fields.items():
        specification = re.fullmatch(r"(TagSpecification\.\d+\.)Tag\.(\d+)\.Key", name)
        if specification and fields[specification[1] + "ResourceType"] == "instance":
            found[text] = fields[f"{specification[1]}Tag.{specification[2]}.Value"]
    return found


def _name(tag: str) -> str:
    return f"{{{NAMESPACE}}}{tag}"


def _error(code: str, words: str) -> bytes:
    error = f"<Error><Code>{code}</Code><Message>{words}</Message></Error>"
    return f"<Response><Errors>{error}</Errors><RequestID>test</RequestID></Response>".encode()


def _handler(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            fields = dict(urllib.parse.parse_qsl(text, keep_blank_values=True))
            self.say(cloud.answer(fields))

        def do_PUT(self) -> None:
            self.say(cloud.metadata(self.path, "PUT", None))

        def do_GET(self) -> None:
            session = self.headers.get("X-aws-ec2-metadata-token")
            self.say(cloud.metadata(self.path, "GET", session))

        def say(self, answer: tuple[int, bytes] | None) -> None:
            if answer is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(answer[1])))
            self.end_headers()
            self.wfile.write(answer[1])

        def handle(self) -> None:
            # A client that was killed is no news.
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
