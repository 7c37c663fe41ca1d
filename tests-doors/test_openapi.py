"""Schemathesis makes requests of all kinds from the node's own OpenAPI document, sound and unsound ones.

Whatever a client sends, a node answers with another status than 5xx, but for 503 (not done) and 504 (unknown), which
are no faults. And no node ends, or says of itself that it met a bug.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusters import Cluster

SECONDS = 60
SECONDS_FULL = 600
# For what it does after its time is over: shrinking what failed, and telling it.
MORE_SECONDS_MAX = 300
# Beside 5xx: what the document does not say, and what is served to a stranger. Whether bodies and parameters are as it
# says is for the node's own tests.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
]
# Everything but `admin`: an order about users could take its own secret away.
RIGHTS = ["operate", "observe", "read:*", "write:*", "scan:*"]
SETTINGS = """
headers = {{ Authorization = "Bearer ${{TONTINE_SECRET}}" }}
tls-verify = "{authority}"
max-time = {seconds}
request-timeout = 75
# A stream of events has no end.
max-stream-events = 3
continue-on-failure = true
workers = 2

# Stores that are there, and keys that occur more than once; otherwise hardly a request would come to a record.
[dictionaries]
stores = {{ values = ["default", "siblings"] }}
keys = {{ values = ["a", "b", "c"] }}

[parameters]
"path.store" = {{ dictionary = "stores", probability = 0.9 }}
"path.key" = {{ dictionary = "keys", probability = 0.5 }}

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]
"""


@pytest.mark.timeout(SECONDS_FULL + 2 * MORE_SECONDS_MAX)
def test_no_request_that_the_openapi_document_describes_finds_a_fault(
    own_cluster: Cluster, full: bool, tmp_path: Path
) -> None:
    secret = own_cluster.user("schemathesis", *RIGHTS)
    seconds = SECONDS_FULL if full else SECONDS
    settings = SETTINGS.format(authority=own_cluster.authority, seconds=seconds)
    (tmp_path / "schemathesis.toml").write_text(settings)
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{own_cluster.url(1)}/v1/openapi.json",
         "--checks", ",".join(CHECKS)],
        cwd=tmp_path,
        env=own_cluster.environment(named=False) | {"TONTINE_SECRET": secret.read_text().strip()},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=seconds + MORE_SECONDS_MAX, check=False,
    )
    print(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-20000:]
    own_cluster.check_alive()
    for number in own_cluster.nodes:
        told = own_cluster.command("metrics", "--from", str(number))
        bugs = re.findall(r'^tontine_node_errors_total\{code="internal"\} (\d+)$', told, re.MULTILINE)
        assert bugs == ["0"], f"node {number}"
