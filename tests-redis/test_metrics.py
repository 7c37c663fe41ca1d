"""What `tontine metrics` prints, read by the parser of Prometheus's own client library."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from targets import Target

pytestmark = pytest.mark.only("tontine", "Redis has no metrics of this form")

SECONDS_MAX = 60


@pytest.fixture
def families(request: pytest.FixtureRequest, target: Target, client: redis.Redis, key: str) -> dict:
    if not getattr(target, "native", []):
        pytest.skip("the target's native addresses are not known")
    client.set(key, "value")
    client.get(key)
    with pytest.raises(redis.ResponseError):
        client.execute_command("NOPE")
    command = [request.config.getoption("--binary").resolve(), "metrics", "--from=1"]
    command.append(f"--connect={target.native[0]}")
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=True, text=True)
    return {family.name: family for family in text_string_to_metric_families(done.stdout)}


def test_a_real_parser_reads_every_metric_that_the_reference_page_names(families: dict) -> None:
    page = Path(__file__).parent.parent / "docs" / "reference" / "metrics.md"
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| `tontine_")]
    described = {}
    for name, kind, _, _, meaning in rows:
        # The parser takes the suffix of a counter off, as OpenMetrics does.
        name = name.strip("|` ").removesuffix("_total")
        described[name] = (kind, meaning.removesuffix(" |"))
    read = {name: (family.type, family.documentation) for name, family in families.items()}
    assert read == described


def test_histograms_are_cumulative_and_end_in_their_count(families: dict) -> None:
    histograms = [family for family in families.values() if family.type == "histogram"]
    assert len(histograms) >= 2
    for family in histograms:
        series: dict[tuple, dict] = {}
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            parts = series.setdefault(tuple(sorted(labels.items())), {"buckets": []})
            if sample.name.endswith("_bucket"):
                parts["buckets"].append((float(sample.labels["le"]), sample.value))
            else:
                parts[sample.name.rsplit("_", 1)[1]] = sample.value
        for labels, parts in series.items():
            bounds, counts = zip(*parts["buckets"], strict=True)
            assert list(bounds) == sorted(set(bounds)) and bounds[-1] == math.inf, labels
            assert list(counts) == sorted(counts) and counts[-1] == parts["count"], labels
            assert parts["sum"] >= 0 and (parts["sum"] > 0) == (parts["count"] > 0), labels


def test_no_series_stands_twice_and_every_value_is_a_number(families: dict) -> None:
    for family in families.values():
        seen = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(seen) == len(set(seen)), family.name
        assert all(math.isfinite(sample.value) for sample in family.samples), family.name
