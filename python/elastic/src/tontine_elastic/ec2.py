"""A provider of machines: EC2, by botocore.

A machine is found again by its tags, which it gets in the request that makes it:

    tontine:fleet    the fleet
    tontine:token    the token

EC2 shows a machine up to half a minute after it was made, and a reply may be lost. So the token is
also the request's client token: EC2 makes one machine of it, however often it is asked.

Must never: make a second machine for a token, end a machine without the fleet's tag, or remember
anything that it could not do without.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import botocore.config
import botocore.session
from botocore.exceptions import BotoCoreError, ClientError

from .adapter import CREDENTIALS, Deadline, Json, Method, Params, Refusal, passing, refused
from .failures import code_of, translated
from .settings import ADDRESSES, Settings
from .user_data import user_data

FLEET_TAG = "tontine:fleet"
TOKEN_TAG = "tontine:token"
#: Machines that one answer of `DescribeInstances` holds.
PAGE = 1000
#: How long what EC2 said of types is kept, in seconds. They do not change.
TYPES_SECONDS = 3600.0
#: A machine of this age is shown, if it is there: ten times what EC2 may need.
SHOWN_AFTER = timedelta(seconds=300)

_STATES = {
    "pending": "pending",
    "running": "running",
    # It has a disk and may have data, so no controller may take it for one that never ran.
    "stopping": "running",
    "stopped": "running",
    "shutting-down": "ending",
    "terminated": "ended",
}
_NOT_THERE = ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed")

Instance = dict[str, Any]


class Ec2:
    """The verbs of a provider."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._made: Any = None
        self._types: tuple[float, list[Json], list[str]] | None = None

    def methods(self) -> dict[str, Method]:
        """The methods of the contract."""
        return {
            "describe": self.describe,
            "list": self.machines,
            "ensure": self.ensure,
            "preflight": self.preflight,
            "terminate": self.terminate,
        }

    def describe(self, params: Params, deadline: Deadline) -> Json:
        """Types, prices and quota."""
        params.fleet()
        kept = self._types
        if kept is None or kept[0] < time.monotonic():
            kept = (time.monotonic() + TYPES_SECONDS, *self._ask_types(deadline))
            self._types = kept
        facts: Json = {"name": f"EC2 {self._settings.region}", "protocol": 1, "types": kept[1]}
        if self._settings.quota is not None:
            facts["quota"] = self._settings.quota
        if kept[2]:
            facts["warnings"] = kept[2]
        return facts

    def machines(self, params: Params, deadline: Deadline) -> Json:
        """Every machine with the fleet's tag."""
        fleet = params.fleet()
        found = self._tagged({FLEET_TAG: fleet}, "list machines", deadline)
        return {"instances": [self._shown(instance) for instance in found]}

    def ensure(self, params: Params, deadline: Deadline) -> Json:
        """A machine of this token, unless there is or was one."""
        fleet, token = params.fleet(), params.token()
        kind, script = params.text("type"), params.text("script")
        if kind not in self._settings.types:
            known = ", ".join(self._settings.types)
            raise refused(f"there is no type {kind[:40]!r} of machines; there is {known}")
        text = user_data(self._settings, fleet, token, script)
        doing = f"make the machine {token}"
        found = list(self._tagged({FLEET_TAG: fleet, TOKEN_TAG: token}, doing, deadline))
        if any(not _has_ended(instance) for instance in found):
            return {}
        if found:
            raise _was_ended(token)
        request = self._request(fleet, token, kind, text)
        try:
            answer = self._call("run_instances", doing, deadline, request)
        except ClientError as error:
            if code_of(error) == "IdempotentParameterMismatch":
                # It is not shown yet, or not any more. Whoever calls again soon knows which.
                raise passing(
                    f"EC2 has used the token {token} for a request with other settings, and "
                    "shows no machine of it; ask with another token if this lasts for a minute"
                ) from None
            raise translated(error, doing) from None
        instance = answer["Instances"][0]
        if _has_ended(instance) or _is_long_gone(instance, answer):
            raise _was_ended(token)
        return {}

    def preflight(self, params: Params, deadline: Deadline) -> Json:
        """Whether `terminate` would be refused."""
        fleet, instance = params.fleet(), params.text("instance")
        if self._own(fleet, instance, deadline) is None:
            return {}
        doing = f"end {instance}"
        try:
            asked = {"InstanceId": instance, "Attribute": "disableApiTermination"}
            answer = self._call("describe_instance_attribute", doing, deadline, asked)
            if answer.get("DisableApiTermination", {}).get("Value"):
                raise _is_protected(instance)
            self._call(
                "terminate_instances", doing, deadline, {"InstanceIds": [instance], "DryRun": True}
            )
        except ClientError as error:
            if code_of(error) == "DryRunOperation" or code_of(error) in _NOT_THERE:
                return {}
            raise translated(error, doing) from None
        raise passing(f"cannot {doing}: EC2 did not say whether it would; call again")

    def terminate(self, params: Params, deadline: Deadline) -> Json:
        """Ends a machine of the fleet. One that is gone is ended already."""
        fleet, instance = params.fleet(), params.text("instance")
        found = self._own(fleet, instance, deadline)
        if found is None or _has_ended(found):
            return {}
        doing = f"end {instance}"
        try:
            self._call("terminate_instances", doing, deadline, {"InstanceIds": [instance]})
        except ClientError as error:
            if code_of(error) in _NOT_THERE:
                return {}
            if code_of(error) == "OperationNotPermitted":
                raise _is_protected(instance) from None
            raise translated(error, doing) from None
        return {}

    def _ask_types(self, deadline: Deadline) -> tuple[list[Json], list[str]]:
        """The types of the settings with what EC2 knows of them, and what is to be told."""
        names, doing = list(self._settings.types), "ask about types of machines"
        warnings, known = [], {}
        try:
            answer = self._call(
                "describe_instance_types", doing, deadline, {"InstanceTypes": names}
            )
            known = {one["InstanceType"]: one for one in answer["InstanceTypes"]}
        except ClientError as error:
            if code_of(error) != "UnauthorizedOperation":
                raise translated(error, doing) from None
            warnings.append(
                "sizes of machines are not known; allow ec2:DescribeInstanceTypes to tontine-ec2"
            )
        types = []
        for name, price in self._settings.types.items():
            one: Json = {"name": name, "price_per_hour": price}
            processors = known.get(name, {}).get("VCpuInfo", {}).get("DefaultVCpus")
            if processors:
                one["processors_milli"] = processors * 1000
            memory = known.get(name, {}).get("MemoryInfo", {}).get("SizeInMiB")
            if memory:
                one["memory_bytes"] = memory << 20
            types.append(one)
        return types, warnings

    def _tagged(self, tags: dict[str, str], doing: str, deadline: Deadline) -> Iterator[Instance]:
        """All machines with these tags, the ended ones included as long as EC2 shows them."""
        asked: Json = {
            "Filters": [{"Name": f"tag:{key}", "Values": [text]} for key, text in tags.items()],
            "MaxResults": PAGE,
        }
        while True:
            try:
                answer = self._call("describe_instances", doing, deadline, asked)
            except ClientError as error:
                raise translated(error, doing) from None
            yield from _instances(answer)
            if not answer.get("NextToken"):
                return
            asked["NextToken"] = answer["NextToken"]

    def _own(self, fleet: str, instance: str, deadline: Deadline) -> Instance | None:
        """A machine of this id, if there is one. One without the fleet's tag is refused."""
        doing = f"look at {instance}"
        try:
            asked = {"InstanceIds": [instance]}
            found = list(_instances(self._call("describe_instances", doing, deadline, asked)))
        except ClientError as error:
            if code_of(error) in _NOT_THERE:
                return None
            raise translated(error, doing) from None
        if not found:
            return None
        if _tags(found[0]).get(FLEET_TAG) != fleet:
            raise refused(
                f"{instance} is not of the fleet {fleet}: its tag {FLEET_TAG} does not say so; "
                "it is not touched"
            )
        return found[0]

    def _shown(self, instance: Instance) -> Json:
        """A machine as the contract has it."""
        state = instance.get("State", {}).get("Name", "")
        shown: Json = {
            "id": instance["InstanceId"],
            "token": _tags(instance).get(TOKEN_TAG),
            "address": instance.get(ADDRESSES[self._settings.address][0]),
            # A state that nobody knows may hold data.
            "state": _STATES.get(state, "running"),
            "type": instance.get("InstanceType"),
            "detail": instance.get("StateReason", {}).get("Message"),
        }
        if state in ("stopping", "stopped"):
            shown["detail"] = (
                f"it is {state}, and keeps its disk; start it and its member, or end it at EC2"
            )
        return {name: value for name, value in shown.items() if value}

    def _request(self, fleet: str, token: str, kind: str, text: str) -> Json:
        """The one request that makes a machine; the same for each call with the same settings."""
        settings = self._settings
        tags = {**settings.tags, FLEET_TAG: fleet, TOKEN_TAG: token, "Name": f"{fleet} {token}"}
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        request: Json = {
            "ClientToken": client_token(fleet, token),
            "ImageId": settings.image,
            "InstanceType": kind,
            "MinCount": 1,
            "MaxCount": 1,
            "UserData": text,
            # Its disk goes with it only once a controller has proved that nothing is on it.
            "InstanceInitiatedShutdownBehavior": "stop",
            "MetadataOptions": {"HttpTokens": "required"},
            "TagSpecifications": [
                {"ResourceType": what, "Tags": pairs} for what in ("instance", "volume")
            ],
        }
        if settings.subnet:
            request["SubnetId"] = settings.subnet
        if settings.security_groups:
            request["SecurityGroupIds"] = list(settings.security_groups)
        if settings.key:
            request["KeyName"] = settings.key
        if settings.instance_profile:
            by = "Arn" if settings.instance_profile.startswith("arn:") else "Name"
            request["IamInstanceProfile"] = {by: settings.instance_profile}
        return request

    def _call(self, operation: str, doing: str, deadline: Deadline, asked: Json) -> Json:
        """Asks EC2. What it answers with an error is left to the caller, everything else told."""
        deadline.hold(doing)
        try:
            return getattr(self._client(), operation)(**asked)
        except ClientError as error:
            if translated(error, doing).code == CREDENTIALS:
                self._forget()
            raise
        except BotoCoreError as error:
            refusal = translated(error, doing)
            if refusal.code == CREDENTIALS:
                self._forget()
            raise refusal from None

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._connect()
            return self._made

    def _forget(self) -> None:
        """The next call reads the credentials anew: an operator may have renewed them."""
        with self._lock:
            self._made = None

    def _connect(self) -> Any:
        # Together with the deadline of a call these keep every answer below 9 s.
        config = botocore.config.Config(
            connect_timeout=2,
            read_timeout=6,
            retries={"mode": "standard", "total_max_attempts": 2},
            user_agent_extra="tontine-elastic",
        )
        return botocore.session.Session().create_client(
            "ec2",
            region_name=self._settings.region,
            endpoint_url=self._settings.endpoint,
            config=config,
        )


def client_token(fleet: str, token: str) -> str:
    """EC2's own token for ours: 64 characters at most, and of this fleet alone."""
    digest = hashlib.sha256(f"{fleet}\n{token}".encode()).hexdigest()
    return f"tontine-{digest[:48]}"


def _instances(answer: Json) -> Iterator[Instance]:
    for reservation in answer.get("Reservations", []):
        yield from reservation.get("Instances", [])


def _tags(instance: Instance) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}


def _has_ended(instance: Instance) -> bool:
    return instance.get("State", {}).get("Name") in ("shutting-down", "terminated")


def _is_long_gone(instance: Instance, answer: Json) -> bool:
    """Whether EC2 answered with a machine of an earlier request that it does not show any more.

    It repeats its first answer, in which the machine was pending. Both times are EC2's own.
    """
    said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    launched = instance.get("LaunchTime")
    if not said or not isinstance(launched, datetime):
        return False
    try:
        return parsedate_to_datetime(said) - launched > SHOWN_AFTER
    except (TypeError, ValueError):
        return False


def _was_ended(token: str) -> Refusal:
    return refused(
        f"the machine of token {token} was ended, and a token works once; ask with another one"
    )


def _is_protected(instance: str) -> Refusal:
    return passing(
        f"{instance} is protected from being ended; lift that with `aws ec2 "
        f"modify-instance-attribute --instance-id {instance[:40]} --no-disable-api-termination`"
    )
