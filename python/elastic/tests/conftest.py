from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloud import IMAGE, Cloud, Moto
from speaking import Failed, Speaking, program


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--binary", help="the program `tontine`")


@pytest.fixture(scope="session")
def binary(request: pytest.FixtureRequest) -> str:
    given = request.config.getoption("--binary")
    if not given:
        pytest.skip("needs --binary PROGRAM")
    return str(Path(given).resolve())


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    server = Moto(tmp_path_factory.mktemp("moto"))
    yield server
    server.stop()


@pytest.fixture
def cloud(moto: Moto) -> Iterator[Cloud]:
    moto.reset()
    cloud = Cloud(moto)
    yield cloud
    cloud.stop()


@pytest.fixture
def config(cloud: Cloud, tmp_path: Path) -> Path:
    """The settings of the adapter, and what its machines keep their data in."""
    path = tmp_path / "ec2.toml"
    path.write_text(
        f'region = "eu-central-1"\nimage = "{IMAGE}"\nendpoint = "{cloud.endpoint}"\n'
        f'data-directory = "{tmp_path}/machines"\nquota = 20\n'
        '[types]\n"t3.small" = "0.0208"\n"t3.large" = 0.08\n'
    )
    return path


Start = Callable[..., Speaking]


@pytest.fixture
def start(config: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts processes of the adapter."""
    started = []

    def begin(**further: object) -> Speaking:
        adapter = Speaking(program(config), tmp_path / "adapter.log", **further)  # type: ignore[arg-type]
        started.append(adapter)
        return adapter

    yield begin
    for adapter in started:
        adapter.kill()


@pytest.fixture
def adapter(start: Start, cloud: Cloud) -> Speaking:
    """A process of the adapter that has loaded botocore, which takes long on a busy machine."""
    adapter = start()
    for _ in range(5):
        try:
            adapter.call("list")
            break
        except Failed:
            continue
    cloud.requests.clear()
    return adapter


@pytest.fixture(scope="session", autouse=True)
def _curl() -> None:
    if not shutil.which("curl"):
        pytest.exit("curl is missing: user data asks the metadata service with it", 2)
