"""A real Prometheus with the rules and the dashboard of monitoring/, and Debian's exporter for Redis."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clusters import Child, Cluster
from test_clients import tool

HERE = Path(__file__).parent
REPOSITORY = HERE.parent
RULES = REPOSITORY / "monitoring" / "alerts.yml"
DASHBOARD = REPOSITORY / "monitoring" / "dashboard.json"
PAGE = REPOSITORY / "docs" / "operating" / "monitoring.md"
REFERENCE = REPOSITORY / "docs" / "reference" / "metrics.md"
SECONDS_MAX = 60.0


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def promtool(*words: str, given: bytes | None = None) -> str:
    done = subprocess.run(
        [tool("promtool"), *words], input=given, capture_output=True, timeout=SECONDS_MAX, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 0, (words, done.stdout.decode()[-4000:], done.stderr.decode()[-4000:])
    return done.stdout.decode() + done.stderr.decode()


def alerts() -> list[dict]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def dashboard_queries() -> list[str]:
    """Each query of the dashboard, with what Grafana would put in place of its variables."""
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(queries) > 30
    put = {"$job": "tontine", "$instance": ".*", "$__rate_interval": "1m"}
    for variable, value in put.items():
        queries = [query.replace(variable, value) for query in queries]
    assert not any("$" in query for query in queries), queries
    return queries


def described() -> dict[str, str]:
    """Each metric of the reference page, and its type."""
    rows = re.findall(r"^\| `(tontine_\w+)` \| (\w+) \|", REFERENCE.read_text(), re.MULTILINE)
    assert len(rows) > 50
    return dict(rows)


def named_metrics(text: str) -> set[str]:
    return set(re.findall(r"\btontine_\w+", text))


# --- the files by themselves ----------------------------------------------------------------------------------------


def test_promtool_finds_no_fault_in_the_rules_and_each_says_what_to_do(closed_cluster: Cluster) -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "rules", str(RULES))
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "command"}, rule
        first, *words = notes["command"].split()
        assert first == "tontine", rule
        # What an operator shall type is a command of this program.
        closed_cluster.command(*words, "--help")


def test_each_rule_fires_in_a_state_of_a_cluster_and_none_in_a_cluster_that_is_well() -> None:
    states = HERE / "alerts_test.yml"
    assert "SUCCESS" in promtool("test", "rules", str(states))
    expected = set(re.findall(r'alertname=\\?"(Tontine\w+)', states.read_text()))
    assert expected == {rule["alert"] for rule in alerts()}


def test_each_metric_of_the_rules_and_the_dashboard_stands_in_the_reference() -> None:
    known = set()
    for name, kind in described().items():
        known |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    for query in [rule["expr"] for rule in alerts()] + dashboard_queries():
        used = named_metrics(query)
        assert used or "up{" in query, query
        assert used <= known, (used - known, query)
    assert named_metrics(yaml.safe_dump(alerts())) <= known


def test_the_panels_of_the_dashboard_do_not_overlap_and_have_ids_of_their_own() -> None:
    every = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


# --- with servers ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def monitor(closed_cluster: Cluster) -> Path:
    """The secret of a user that may observe."""
    return closed_cluster.user("monitor", "observe")


class Prometheus:
    """A Prometheus with the settings of the page, its addresses and files put in."""

    def __init__(self, cluster: Cluster, secret: Path, folder: Path) -> None:
        shown = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
        settings = (
            shown.replace("/etc/prometheus/tontine/alerts.yml", str(RULES))
            .replace("/etc/prometheus/tontine/authority.pem", str(cluster.authority))
            .replace("/etc/prometheus/tontine/monitor.secret", str(secret))
            .replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s")
        )
        for number, node in cluster.nodes.items():
            settings = settings.replace(f"10.0.0.{number}:7601", node.http)
        (folder / "prometheus.yml").write_text(settings)
        promtool("check", "config", str(folder / "prometheus.yml"))
        self.address = free_address()
        words = ["--config.file=prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        words.append(f"--web.listen-address={self.address}")
        self.child = Child("prometheus", [tool("prometheus"), *words], folder)

    def ask(self, path: str, **parameters: str) -> dict:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise ConnectionError("it starts, and is not ready yet") from None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def await_targets(self, health: str) -> list[dict]:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            self.child.check_alive()
            try:
                targets = self.ask("targets")["activeTargets"]
            except OSError:
                targets = []
            if len(targets) == 3 and all(target["health"] == health for target in targets):
                return targets
            assert time.monotonic() < deadline, (targets, self.child.log()[-2000:])
            time.sleep(0.2)


@pytest.fixture(scope="module")
def prometheus(
    closed_cluster: Cluster, monitor: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    running = Prometheus(closed_cluster, monitor, tmp_path_factory.mktemp("prometheus"))
    try:
        yield running
    finally:
        running.child.stop(signal.SIGTERM)


def test_promtool_finds_no_fault_in_what_a_node_says(closed_cluster: Cluster, monitor: Path) -> None:
    asked = urllib.request.Request(f"{closed_cluster.url(1)}/metrics")
    asked.add_header("Authorization", f"Bearer {monitor.read_text().strip()}")
    context = ssl.create_default_context(cafile=str(closed_cluster.authority))
    with urllib.request.urlopen(asked, timeout=SECONDS_MAX, context=context) as answer:
        told = answer.read()
    assert promtool("check", "metrics", given=told) == ""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", told.decode(), re.MULTILINE))
    assert kinds == described()


def test_prometheus_scrapes_every_node_and_answers_the_queries_of_the_dashboard(
    closed_cluster: Cluster, prometheus: Prometheus
) -> None:
    prometheus.await_targets("up")
    assert {sample["value"][1] for sample in prometheus.ask("query", query="up")["result"]} == {"1"}
    closed_cluster.command("put", "monitored", "1")
    closed_cluster.command("get", "monitored")
    # A rate needs two scrapes.
    deadline = time.monotonic() + SECONDS_MAX
    while not prometheus.ask("query", query="rate(tontine_node_uptime_seconds[1m])")["result"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    silent = [query for query in dashboard_queries() if not prometheus.ask("query", query=query)["result"]]
    # Errors are shown where there are any.
    assert all("> 0" in query for query in silent), silent
    metadata = prometheus.ask("metadata")
    assert set(described()) <= set(metadata)


def test_prometheus_evaluates_every_rule_and_none_fires(prometheus: Prometheus) -> None:
    prometheus.await_targets("up")
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        if all(rule["health"] == "ok" for rule in rules):
            break
        assert time.monotonic() < deadline, [rule for rule in rules if rule["health"] != "ok"]
        time.sleep(0.2)
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in alerts()}
    # Other tests send what is refused, which is a separate kind of alert only after minutes.
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_prometheus_with_a_secret_that_is_no_longer_good_says_so(
    closed_cluster: Cluster, prometheus: Prometheus, monitor: Path
) -> None:
    """And with the new one goes on, without a restart: it reads the file of the secret for each scrape."""
    prometheus.await_targets("up")
    rotated = monitor.with_name("monitor.next")
    closed_cluster.command("user", "rotate", "monitor", "--secret-to", str(rotated))
    closed_cluster.command("user", "rotate", "monitor", "--finish")
    targets = prometheus.await_targets("down")
    assert all("401" in target["lastError"] for target in targets), targets
    monitor.write_text(rotated.read_text())
    prometheus.await_targets("up")


def exported(cluster: Cluster, secret: str, folder: Path) -> str:
    """What Debian's exporter for Redis says of a node."""
    address = f"rediss://{cluster.nodes[2].redis}"
    (folder / "monitor.json").write_text(json.dumps({address: secret}))
    listen = free_address()
    words = ["-redis.addr", address, "-redis.user", "monitor", "-redis.password-file", "monitor.json"]
    words += ["-tls-ca-cert-file", str(cluster.authority), "-web.listen-address", listen]
    child = Child("exporter", [tool("prometheus-redis-exporter"), *words], folder)
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            child.check_alive()
            try:
                with urllib.request.urlopen(f"http://{listen}/metrics", timeout=SECONDS_MAX) as answer:
                    return answer.read().decode()
            except OSError:
                assert time.monotonic() < deadline, child.log()[-2000:]
            time.sleep(0.1)
    finally:
        child.stop(signal.SIGTERM)


def test_the_exporter_for_redis_reads_a_node_over_tls_as_a_user(
    closed_cluster: Cluster, monitor: Path, tmp_path: Path
) -> None:
    told = exported(closed_cluster, monitor.read_text().strip(), tmp_path)
    assert re.search(r"^redis_up 1$", told, re.MULTILINE), told
    assert re.search(r'^redis_exporter_last_scrape_error\{err=""\} 0$', told, re.MULTILINE)
    assert int(re.search(r"^redis_commands_processed_total (\d+)$", told, re.MULTILINE)[1]) > 0
    refused = exported(closed_cluster, "wrong", tmp_path)
    assert re.search(r"^redis_up 0$", refused, re.MULTILINE), refused
