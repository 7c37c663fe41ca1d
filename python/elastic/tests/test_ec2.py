"""The provider as a process, against moto with what EC2 does beside it."""

from __future__ import annotations

import json
import random
import socket
import time
from pathlib import Path

import pytest

from cloud import IMAGE, LOST, Chaos, Cloud
from conftest import Start
from hypervisor import Hypervisor, processes_of
from speaking import KEY, SECRET, SESSION, Failed, Speaking, credentials


def wait_for(what: str, found: object, seconds: float = 20.0) -> object:
    deadline = time.monotonic() + seconds
    while not (value := found()):  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what} did not come to be"
        time.sleep(0.05)
    return value


def test_types_have_the_price_of_the_operator_and_the_size_that_ec2_says(
    adapter: Speaking, cloud: Cloud
) -> None:
    facts = adapter.call("describe")
    assert facts == {
        "name": "EC2 eu-central-1",
        "protocol": 1,
        "quota": 20,
        "types": [
            {
                "name": "t3.small",
                "price_per_hour": "0.0208",
                "processors_milli": 2000,
                "memory_bytes": 2 << 30,
            },
            {
                "name": "t3.large",
                "price_per_hour": "0.08",
                "processors_milli": 2000,
                "memory_bytes": 8 << 30,
            },
        ],
    }
    adapter.call("describe")
    assert cloud.actions().count("DescribeInstanceTypes") == 1


def test_types_are_offered_though_ec2_does_not_tell_their_size(
    adapter: Speaking, cloud: Cloud
) -> None:
    cloud.fail("DescribeInstanceTypes", "UnauthorizedOperation", 2)
    facts = adapter.call("describe")
    assert facts["types"][0] == {"name": "t3.small", "price_per_hour": "0.0208"}
    assert "allow ec2:DescribeInstanceTypes" in facts["warnings"][0]


def test_a_machine_has_tags_from_its_first_moment_and_its_life_is_shown(
    adapter: Speaking, cloud: Cloud
) -> None:
    assert adapter.ensure("u-1") == {}
    (shown,) = adapter.instances()
    (machine,) = cloud.live("shop")
    assert shown == {
        "id": machine.id,
        "token": "u-1",
        "address": machine.address,
        "state": "running",
        "type": "t3.small",
    }
    assert "CreateTags" not in cloud.actions()
    assert adapter.call("preflight", instance=machine.id) == {}
    assert adapter.call("terminate", instance=machine.id) == {}
    assert adapter.call("terminate", instance=machine.id) == {}
    assert cloud.actions().count("TerminateInstances") == 2, "a dry run, and one that ends it"
    (ended,) = adapter.instances()
    assert ended["state"] == "ended"
    assert "User" in ended["detail"]
    assert cloud.live("shop") == []


def test_a_token_works_once(adapter: Speaking, cloud: Cloud, start: Start) -> None:
    for _ in range(3):
        adapter.ensure("u-1")
    start().ensure("u-1")
    assert len(cloud.live("shop")) == 1
    # Another fleet's token is another one.
    start(fleet="other").ensure("u-1")
    (other,) = cloud.live("other")
    assert len(adapter.instances()) == 1
    adapter.call("terminate", instance=adapter.instances()[0]["id"])
    code, why = adapter.code("ensure", token="u-1", type="t3.small", script="exec sleep 600\n")
    assert (code, "a token works once" in why) == (-32001, True), why
    assert cloud.live("shop") == []
    assert cloud.live("other") == [other]


def test_a_token_whose_ended_machine_is_not_shown_any_more_does_not_work_again(
    adapter: Speaking, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter.ensure("u-1")
    cloud.end_by_itself(adapter.instances()[0]["id"])
    cloud.shown_seconds = 0.0
    assert adapter.instances() == []
    # EC2 repeats its first answer; as if that were an hour ago.
    for token, (parameters, body) in cloud._tokens.items():
        old = body.replace(b"<launchTime>20", b"<launchTime>19")
        old = old.replace(b":launchTime>20", b":launchTime>19")
        assert old != body
        cloud._tokens[token] = (parameters, old)
    code, why = adapter.code("ensure", token="u-1", type="t3.small", script="exec sleep 600\n")
    assert (code, "a token works once" in why) == (-32001, True), why
    assert len(cloud.machines) == 1


def test_a_machine_that_is_not_shown_yet_gets_no_second_one(
    adapter: Speaking, cloud: Cloud, start: Start
) -> None:
    cloud.unseen_seconds = float("inf")
    adapter.ensure("u-1")
    assert adapter.instances() == []
    adapter.ensure("u-1")
    start().ensure("u-1")
    # With another script EC2 refuses, and nobody can tell yet what became of the first request.
    code, why = adapter.code("ensure", token="u-1", type="t3.small", script="exec sleep 1\n")
    assert (code, "other settings" in why) == (-32000, True), why
    cloud.unseen_seconds = 0.0
    assert adapter.call("ensure", token="u-1", type="t3.small", script="exec sleep 1\n") == {}
    assert len(cloud.machines) == 1


def test_a_lost_reply_leaves_one_machine(adapter: Speaking, cloud: Cloud) -> None:
    cloud.unseen_seconds = 1.0
    # botocore asks once more by itself.
    cloud.fail("RunInstances", LOST, 2)
    code, why = adapter.code("ensure", token="u-1", type="t3.small", script="exec sleep 600\n")
    assert (code, "EC2 did not answer" in why) == (-32000, True), why
    assert len(cloud.live("shop")) == 1
    adapter.ensure("u-1")
    wait_for("the machine", adapter.instances)
    assert len(cloud.machines) == 1
    cloud.fail("TerminateInstances", LOST, 2)
    (machine,) = cloud.live("shop")
    assert adapter.code("terminate", instance=machine.id)[0] == -32000
    assert cloud.live("shop") == []
    assert adapter.call("terminate", instance=machine.id) == {}


def test_without_client_tokens_there_would_be_a_second_machine(
    adapter: Speaking, cloud: Cloud
) -> None:
    """The tests above can fail: moto alone makes two machines of one token."""
    cloud.tokens_work = False
    cloud.unseen_seconds = 1.0
    adapter.ensure("u-1")
    adapter.ensure("u-1")
    assert len(cloud.live("shop")) == 2


@pytest.mark.parametrize(
    ("fault", "code", "hint"),
    [
        ("InsufficientInstanceCapacity", -32000, "choose another type or subnet"),
        ("VcpuLimitExceeded", -32000, "higher quota"),
        ("RequestLimitExceeded", -32000, "EC2 is busy"),
        ("InternalError", -32000, "EC2 is busy"),
        ("ExpiredToken", -32002, "renew the credentials"),
        ("RequestExpired", -32002, "clock"),
        ("AuthFailure", -32002, "renew the credentials"),
        ("SignatureDoesNotMatch", -32002, "renew the credentials"),
        ("UnauthorizedOperation", -32002, "allow it in the policy"),
        ("InvalidSubnetID.NotFound", -32001, "asked for"),
        ("Unsupported", -32001, "asked for"),
    ],
)
def test_each_failure_has_its_code_and_a_remedy(
    adapter: Speaking, cloud: Cloud, fault: str, code: int, hint: str
) -> None:
    cloud.fail("RunInstances", fault, 2)
    found, why = adapter.code("ensure", token="u-1", type="t3.small", script="exec sleep 600\n")
    assert (found, hint in why, fault in why) == (code, True, True), why
    cloud.heal()
    adapter.ensure("u-1")
    assert len(cloud.live("shop")) == 1


def test_a_bad_image_and_an_unknown_type_are_refused_for_good(
    config: Path, start: Start, cloud: Cloud
) -> None:
    config.write_text(config.read_text().replace(IMAGE, "ami-00000000000000000"))
    adapter = start()
    code, why = adapter.code("ensure", token="u-1", type="t3.small", script="x")
    assert (code, "InvalidAMIID.NotFound" in why) == (-32001, True), why
    code, why = adapter.code("ensure", token="u-1", type="t9.huge", script="x")
    assert (code, "there is t3.small, t3.large" in why) == (-32001, True), why
    config.write_text(config.read_text().replace("t3.large", "t9.huge"))
    code, why = start().code("describe")
    assert (code, "t9.huge" in why) == (-32001, True), why
    assert cloud.machines == {}


def test_a_machine_that_is_protected_is_seen_before_its_drain(
    adapter: Speaking, cloud: Cloud
) -> None:
    adapter.ensure("u-1")
    (machine,) = cloud.live("shop")
    attribute = {"Action": "ModifyInstanceAttribute", "InstanceId": machine.id}
    cloud.ask({**attribute, "DisableApiTermination.Value": "true"})
    for verb in ("preflight", "terminate"):
        code, why = adapter.code(verb, instance=machine.id)
        assert (code, "--no-disable-api-termination" in why) == (-32000, True), why
    assert cloud.live("shop") == [machine]
    cloud.ask({**attribute, "DisableApiTermination.Value": "false"})
    cloud.fail("TerminateInstances", "UnauthorizedOperation", 2)
    assert adapter.code("preflight", instance=machine.id)[0] == -32002
    cloud.heal()
    assert adapter.call("preflight", instance=machine.id) == {}
    assert cloud.live("shop") == [machine], "a preflight ends nothing"


def test_a_machine_without_the_fleets_tag_is_not_touched(
    adapter: Speaking, cloud: Cloud, start: Start
) -> None:
    start(fleet="other").ensure("u-1")
    (stranger,) = cloud.live("other")
    cloud.ask(
        {
            "Action": "RunInstances",
            "ImageId": IMAGE,
            "MinCount": "1",
            "MaxCount": "1",
        }
    )
    assert adapter.instances() == []
    for verb in ("preflight", "terminate"):
        code, why = adapter.code(verb, instance=stranger.id)
        assert (code, "is not of the fleet shop" in why) == (-32001, True), why
    assert cloud.live("other") == [stranger]
    assert "TerminateInstances" not in cloud.actions()
    for gone in ("i-0123456789abcdef0", "no-such-instance"):
        assert adapter.call("terminate", instance=gone) == {}
        assert adapter.call("preflight", instance=gone) == {}


def test_a_stopped_machine_is_not_taken_for_one_that_never_ran(
    adapter: Speaking, cloud: Cloud
) -> None:
    adapter.ensure("u-1")
    (machine,) = cloud.live("shop")
    # One that powers itself off is stopped, too: its disk may have the only copy of something.
    (request,) = [one for one in cloud.requests if one["Action"] == "RunInstances"]
    assert request["InstanceInitiatedShutdownBehavior"] == "stop"
    cloud.ask({"Action": "StopInstances", "InstanceId.1": machine.id})
    (shown,) = adapter.instances()
    assert (shown["state"], "it is stopped" in shown["detail"]) == ("running", True)
    assert adapter.ensure("u-1") == {}
    assert len(cloud.machines) == 1


def test_a_fleet_of_more_machines_than_a_page_is_listed_whole(
    adapter: Speaking, cloud: Cloud
) -> None:
    fields = {
        "Action": "RunInstances",
        "ImageId": IMAGE,
        "MinCount": "7",
        "MaxCount": "7",
        "TagSpecification.1.ResourceType": "instance",
        "TagSpecification.1.Tag.1.Key": "tontine:fleet",
        "TagSpecification.1.Tag.1.Value": "shop",
    }
    assert cloud.ask(fields)[0] == 200
    cloud.page = 3
    found = adapter.instances()
    assert len({one["id"] for one in found}) == 7
    assert cloud.actions().count("DescribeInstances") == 3
    assert all("token" not in one for one in found), "orphans, which no controller ends"
    # The machine of a token may be on any page.
    adapter.ensure("u-1")
    adapter.ensure("u-1")
    assert len(cloud.live("shop")) == 1


def test_no_secret_is_said_or_logged(start: Start, cloud: Cloud, tmp_path: Path) -> None:
    adapter = start()
    said = []
    # EC2 explains a refused signature with the text that was signed.
    leak = f"should be {KEY} x-amz-security-token:{SESSION} ({SECRET})"
    for action, verb, params in (
        ("RunInstances", "ensure", {"token": "u-1", "type": "t3.small", "script": "x"}),
        ("DescribeInstances", "list", {}),
        ("DescribeInstanceTypes", "describe", {}),
    ):
        for code in ("SignatureDoesNotMatch", "ExpiredToken", "InvalidParameterValue", LOST):
            cloud.fail(action, code, 2, leak)
            said.append(adapter.code(verb, **params)[1])
            cloud.heal()
    text = json.dumps(said) + (tmp_path / "adapter.log").read_text()
    assert len(said) == 12
    assert "InvalidParameterValue: should be … …" in text
    for secret in (KEY, SECRET, SESSION[:40]):
        assert secret not in text


def test_missing_credentials_are_told_and_renewed_ones_are_read(
    start: Start, cloud: Cloud, tmp_path: Path
) -> None:
    shared = tmp_path / "credentials"
    environment = credentials()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        del environment[name]
    adapter = start(environment={**environment, "AWS_SHARED_CREDENTIALS_FILE": str(shared)})
    code, why = adapter.code("list")
    assert (code, "aws sts get-caller-identity" in why) == (-32002, True), why
    shared.write_text(f"[default]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n")
    assert adapter.call("list") == {"instances": []}
    cloud.fail("DescribeInstances", "ExpiredToken")
    assert adapter.code("list")[0] == -32002
    assert adapter.call("list") == {"instances": []}


def test_an_ec2_that_does_not_answer_is_given_up_in_time(config: Path, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lines = config.read_text().splitlines()
        endpoint = f'endpoint = "http://127.0.0.1:{silent.getsockname()[1]}"'
        lines = [endpoint if line.startswith("endpoint") else line for line in lines]
        config.write_text("\n".join(lines))
        adapter = start()
        began = time.monotonic()
        with pytest.raises(Failed) as failed:
            adapter.call("list")
        assert failed.value.code == -32000
        assert time.monotonic() - began < 9.5
        assert adapter.end() == 0, "it ends with its input, though a call hangs"


def test_user_data_starts_the_script_with_its_address_and_an_empty_folder(
    adapter: Speaking, cloud: Cloud, tmp_path: Path
) -> None:
    hypervisor = Hypervisor(cloud, tmp_path / "hypervisor")
    try:
        script = (
            '#!/bin/sh\necho "$MACHINE_ADDRESS $MACHINE_TOKEN $(pwd)" >"$MACHINE_DATA/said"\n'
            "exec sleep 600\n"
        )
        adapter.ensure("u-1", script=script)
        (machine,) = cloud.live("shop")
        data = tmp_path / "machines" / "machine-u-1" / "data"
        said = wait_for(
            "its word", lambda: (data / "said").exists() and (data / "said").read_text()
        )
        assert said == f"{machine.address} u-1 {data}\n"
        assert processes_of(machine.id)
        adapter.call("terminate", instance=machine.id)
        wait_for("its end", lambda: not processes_of(machine.id))
    finally:
        hypervisor.stop()


def test_faults_by_chance_leave_one_machine_for_each_token(start: Start, cloud: Cloud) -> None:
    """Two dozen tokens, asked for and ended by processes that are killed again and again."""
    dice = random.Random(4)
    cloud.unseen_seconds = 0.3
    busy = {LOST: 0.2, "RequestLimitExceeded": 0.05, "ExpiredToken": 0.05}
    cloud.chaos = Chaos(
        dice,
        {
            "RunInstances": {**busy, "InsufficientInstanceCapacity": 0.1},
            "TerminateInstances": busy,
            "DescribeInstances": {"RequestLimitExceeded": 0.02},
        },
    )
    adapter = start()
    tokens = [f"u-{number}" for number in range(24)]
    for token in tokens:
        for _ in range(dice.randint(2, 4)):
            if dice.random() < 0.1:
                adapter.kill()
                adapter = start()
            try:
                adapter.ensure(token)
            except Failed as failed:
                assert failed.code in (-32000, -32002), failed
    made = [machine.token for machine in cloud.machines.values()]
    assert len(made) == len(set(made)) > 20
    assert cloud.chaos.met.get(LOST, 0) > 3
