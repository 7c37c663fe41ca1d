"""Commands on ensembles that want TLS, or a login by SASL, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from conftest import started
from parkazoo import cli
from parkazoo.connection import BatchingClient
from servers import Ensemble, Options, free_port, start_ensembles

PASSWORD = "to the key"
USER, SECRET = "jaasuser", "jaas secret"
NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
SASL = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
LOGIN = "org.apache.zookeeper.server.auth.DigestLoginModule"


# -- servers -------------------------------------------------------------------------


class Authority:
    """Somebody who signs certificates, and the files with them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, directory.name)])
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self._signed(self.name, self.key, True))

    def _signed(self, name: x509.Name, key: Any, authority: bool) -> bytes:
        now = datetime.now()
        addresses = [
            x509.DNSName("localhost"),
            x509.IPAddress(ip_address("127.0.0.1")),
        ]
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=9))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .sign(self.key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )

    def issue(self, name: str, password: str | None = None) -> Path:
        """A file with a certificate and its key, which may have a password."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        kept = BestAvailableEncryption(password.encode()) if password else None
        private = key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, kept or NoEncryption()
        )
        file = self.directory / f"{name}.pem"
        file.write_bytes(private + self._signed(subject, key, False))
        return file


@contextmanager
def serving(count: int, options: Callable[[], Options]) -> Iterator[list[Ensemble]]:
    taken: list[Ensemble] = []
    try:
        for _ in range(count):
            taken += start_ensembles(1, options=options())
        yield taken
    finally:
        for ensemble in taken:
            ensemble.close()


def secure(ensemble: Ensemble) -> str:
    """Its hosts for TLS: one server by two names, so that it is looked at by each."""
    port = ensemble.options.configuration["secureClientPort"]
    return f"localhost:{port},127.0.0.1:{port}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def with_tls(authority: Authority) -> Iterator[list[Ensemble]]:
    server = authority.issue("server")

    def options() -> Options:
        configuration = {
            "secureClientPort": str(free_port()),
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": NETTY,
            "ssl.keyStore.location": str(server),
            "ssl.trustStore.location": str(authority.ca),
        }
        return Options(configuration=configuration)

    with serving(3, options) as taken:
        yield taken


# -- TLS -----------------------------------------------------------------------------


def test_every_command_works_where_only_tls_is_spoken(
    with_tls: list[Ensemble],
    authority: Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two, three = (secure(ensemble) for ensemble in with_tls)
    hosts = f"{one};{two}"
    mine = authority.issue("operator", PASSWORD)
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    tls = ["--tls", "--ca", str(authority.ca), "--check-hostname"]
    who = ["--cert", str(mine), "--key-password-file", str(password)]
    secrets: dict[str, Any] = {
        "use_ssl": True,
        "ca": str(authority.ca),
        "check_hostname": True,
        "certfile": str(mine),
        "keyfile": str(mine),
        "keyfile_password": PASSWORD,
    }
    plain = BatchingClient(one, **secrets)
    plain.start()
    plain.create("/old", b"1")
    plain.stop()
    plain.close()

    def run(*words: str) -> str:
        capsys.readouterr()
        # Some before the name, some after it.
        code = cli.main(["--hosts", hosts, *tls, *words, *who])
        told = capsys.readouterr()
        assert code == 0, told
        return told.out

    run("init", "--import")
    with started(hosts, auto_init=False, **secrets) as client:
        assert client.get("/old")[0] == b"1"
        client.create("/app/new", makepath=True)
    assert "Mode: standalone" in run("status")
    assert "/old" in run("tree") + run("where", "/old")
    run("add-ensemble", three)
    run("set-hosts", "e2", three.split(",")[0])
    run("rebalance")
    assert "nothing wrong" in run("check", "--repair")
    run("remove-ensemble", "e2")
    with started(hosts, auto_init=False, **secrets) as client:
        assert client.exists("/app/new")


def test_why_tls_failed_is_said(
    with_tls: list[Ensemble],
    authority: Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hosts = secure(with_tls[0])
    mine, ca = str(authority.issue("somebody")), str(authority.ca)
    other = Authority(tmp_path / "other")
    stranger = str(other.issue("stranger"))

    def said(*words: str) -> str:
        capsys.readouterr()
        assert cli.main(["--hosts", hosts, "--timeout", "2", "status", *words]) == 2
        return capsys.readouterr().err

    assert "do they want `--tls`" in said()
    assert "certificate" in said("--tls", "--cert", mine)
    assert "certificate" in said("--tls", "--ca", str(other.ca), "--cert", mine)
    assert "TLS failed" in said("--tls", "--ca", ca)
    assert "TLS failed" in said("--tls", "--ca", ca, "--cert", stranger)
    assert "port for TLS" in said("--tls", "--no-verify", "--hosts", "127.0.0.1:1")


# -- SASL ----------------------------------------------------------------------------


def test_commands_log_in_by_sasl(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f'Server {{ {LOGIN} required user_{USER}="{SECRET}"; }};\n')

    def options() -> Options:
        return Options(
            configuration={"authProvider.1": SASL},
            properties={
                "java.security.auth.login.config": str(jaas),
                "zookeeper.sessionRequireClientSASLAuth": "true",
            },
        )

    password = tmp_path / "password"
    password.write_text(SECRET)
    sasl = ["--sasl", "digest-md5", "--sasl-user", USER]
    with serving(2, options) as taken:
        hosts, more = taken[0].hosts, taken[1].hosts

        def run(*words: str, code: int = 0) -> str:
            capsys.readouterr()
            given = ["--hosts", hosts, "--timeout", "5", *words]
            found = cli.main(given)
            told = capsys.readouterr()
            assert found == code, told
            return "".join(told)

        by_file = ["--sasl-password-file", str(password)]
        run(*sasl, "init", *by_file)
        monkeypatch.setenv("PARKAZOO_SASL_PASSWORD", SECRET)
        run(*sasl, "add-ensemble", more)
        assert json.loads(run("--json", "status", *sasl))["ensembles"]["e1"][
            "connected"
        ]
        run(*sasl, "check")
        monkeypatch.setenv("PARKAZOO_SASL_PASSWORD", "wrong")
        assert "the password right" in run(*sasl, "status", code=2)
        assert "the password right" in run(*sasl, "init", code=2)
        for command in ("init", "status"):
            assert "--sasl" in run(command, code=2)


# -- what is refused -----------------------------------------------------------------


def test_what_does_not_go_together_is_refused_at_once(
    authority: Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("PARKAZOO_KEY_PASSWORD", "PARKAZOO_SASL_PASSWORD"):
        monkeypatch.delenv(variable, raising=False)
    missing, mine = str(tmp_path / "missing"), str(authority.issue("me", PASSWORD))
    words = tmp_path / "words"
    words.write_text("no certificate\n")
    ca = str(authority.ca)
    for given, why in [
        (["--ca", ca], "`--ca` is about TLS: give `--tls`, too"),
        (["--no-verify"], "`--no-verify` is about TLS"),
        (["--tls", "--no-verify", "--ca", ca], "exclude each other"),
        (["--tls", "--no-verify", "--check-hostname"], "exclude each other"),
        (["--tls", "--key", mine], "give `--cert FILE`, too"),
        (["--tls", "--ca", missing], f"--ca {missing} cannot be read: No such file"),
        (["--tls", "--ca", str(words)], "no certificates in PEM"),
        (["--tls", "--cert", missing], f"--cert {missing} cannot be read"),
        (["--tls", "--cert", ca, "--key", missing], f"--key {missing} cannot be"),
        (["--tls", "--cert", mine], "--key-password-file"),
        (["--tls", "--cert", mine, "--key-password-file", missing], "cannot be read"),
        (["--tls", "--cert", mine, "--key-password-file", str(words)], "cannot be use"),
        (["--sasl-user", "me"], "`--sasl-user` is about SASL"),
        (["--sasl", "DIGEST-MD5"], "give `--sasl-user USER`, and the password"),
        (["--sasl", "DIGEST-MD5", "--sasl-user", "me"], "$PARKAZOO_SASL_PASSWORD"),
        (["--sasl", "DIGEST-MD5", "--sasl-principal", "me"], "for `--sasl GSSAPI`"),
        (["--sasl", "GSSAPI"], "kerberos"),
    ]:
        for command in ("init", "status"):
            assert cli.main([command, "--hosts", "127.0.0.1:1", *given]) == 2
            assert why in capsys.readouterr().err, given
