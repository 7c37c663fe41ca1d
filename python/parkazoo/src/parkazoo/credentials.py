"""How a command connects, and as whom: `--auth`, TLS and SASL.

What: the options for that, and what they are to a client of Kazoo. Passwords come from
files or the environment, because everybody can read a command's words.

Why it is all looked at first: Kazoo tries again and again where a file is missing or a
password is wrong, and says nothing but that there is no connection.

Must never: ask on the terminal, show a password, or connect without TLS where any
option of TLS was given.
"""

from __future__ import annotations

import argparse
import os
import ssl
from importlib.util import find_spec
from pathlib import Path
from socket import create_connection, getaddrinfo
from typing import Any

from parkazoo import arguments, hosts

KEY_PASSWORD, SASL_PASSWORD = "PARKAZOO_KEY_PASSWORD", "PARKAZOO_SASL_PASSWORD"
DIGEST, KERBEROS = "DIGEST-MD5", "GSSAPI"
# How long a server may take to say what it does not like about our TLS.
PROBE_SECONDS = 2.0

# Options that need another one: (its name as an option, what it is about).
_OF_TLS = ("ca", "cert", "key", "key_password_file", "check_hostname", "no_verify")
_OF_SASL = ("sasl_user", "sasl_password_file", "sasl_service", "sasl_principal")


def add(parser: argparse.ArgumentParser) -> None:
    """The options of TLS and SASL, before a command's name or after it."""
    group = parser.add_argument_group("TLS and SASL")

    def option(name: str, text: str, **named: Any) -> None:
        group.add_argument(name, help=text, default=argparse.SUPPRESS, **named)

    option("--tls", "connect with TLS", action="store_true")
    option("--ca", "whose certificates are trusted (PEM)", metavar="FILE")
    option("--cert", "our own certificate (PEM)", metavar="FILE")
    option("--key", "its key (PEM; default: in the --cert file)", metavar="FILE")
    text = f"the key's password (default: ${KEY_PASSWORD})"
    option("--key-password-file", text, metavar="FILE")
    text = "servers must have certificates for the names in HOSTS"
    option("--check-hostname", text, action="store_true")
    text = "take any certificate: no protection from who is in between"
    option("--no-verify", text, action="store_true")
    text = "log in by SASL; needs parkazoo[sasl]"
    option("--sasl", text, choices=(DIGEST, KERBEROS), type=str.upper)
    option("--sasl-user", f"who logs in ({DIGEST})", metavar="USER")
    text = f"the user's password (default: ${SASL_PASSWORD})"
    option("--sasl-password-file", text, metavar="FILE")
    text = "the servers' service name (default: zookeeper)"
    option("--sasl-service", text, metavar="NAME")
    option("--sasl-principal", f"who logs in ({KERBEROS})", metavar="PRINCIPAL")


DEFAULTS: dict[str, Any] = {
    **dict.fromkeys((*_OF_TLS, *_OF_SASL, "tls", "sasl")),
    **dict.fromkeys(("tls", "check_hostname", "no_verify"), False),
}


def connection(options: Any) -> dict[str, Any]:
    """What a client of Kazoo is made with.

    :raises arguments.Usage: the options do not go together, or a file is not as it
        should be.
    """
    return {
        "auth_data": arguments.auth(options),
        **_tls(options),
        "sasl_options": _sasl(options),
    }


# -- TLS -----------------------------------------------------------------------------


def _tls(options: Any) -> dict[str, Any]:
    if not options.tls:
        _refuse_any(options, _OF_TLS, "is about TLS: give `--tls`, too")
        return {}
    if options.no_verify:
        why = "and `--no-verify`, which trusts everybody, exclude each other"
        _refuse_any(options, ("ca", "check_hostname"), why)
    if not options.cert:
        why = "is about our own certificate: give `--cert FILE`, too"
        _refuse_any(options, ("key", "key_password_file"), why)
    made = {
        "use_ssl": True,
        "ca": options.ca,
        "certfile": options.cert,
        "keyfile": options.key or options.cert,
        "keyfile_password": _password(options.key_password_file, KEY_PASSWORD),
        "check_hostname": options.check_hostname,
        "verify_certs": not options.no_verify,
    }
    _context(made)
    return made


def _context(made: dict[str, Any]) -> ssl.SSLContext:
    """TLS as Kazoo will have it. Whatever is wrong with a file is found here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = made["check_hostname"]
    context.verify_mode = ssl.CERT_REQUIRED if made["verify_certs"] else ssl.CERT_NONE
    context.load_default_certs()
    ca, cert, key = made["ca"], made["certfile"], made["keyfile"]
    for name, file in (("--ca", ca), ("--cert", cert), ("--key", key)):
        if file is not None:
            _contents(name, file)
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except ssl.SSLError as error:
            raise arguments.Usage(
                f"--ca {ca}: no certificates in PEM in it ({_said(error)})"
            ) from None
    if cert is not None:
        # Never None, for which OpenSSL asks on the terminal.
        password = made["keyfile_password"] or ""
        try:
            context.load_cert_chain(cert, key, lambda: password)
        except ssl.SSLError as error:
            raise arguments.Usage(
                f"--cert {cert} with the key in {key} cannot be used ({_said(error)}):"
                " they must be PEM and belong together, and a key with a password"
                f" wants `--key-password-file`, or ${KEY_PASSWORD}"
            ) from None
    return context


def _said(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def doubt(options: Any) -> str:
    """What may be wrong where there is no connection."""
    made = connection(options)
    named = hosts.split(options.hosts)[0]
    listed = [server for part in named for server in sorted(hosts.servers(part))]
    unknown = sorted({name for name, port in listed if not _is_known(name, port)})
    if unknown:
        return f"no address is known here for {', '.join(unknown)}."
    refused = None
    if options.tls:
        context = _context(made)
        refused = next(filter(None, (_refusal(context, s) for s in listed)), None)
    if refused is not None:
        return f"TLS failed: {refused}."
    asked = ["are the servers up", "are these their addresses"]
    asked.append("is that a port for TLS" if options.tls else "do they want `--tls`")
    if options.sasl:
        asked.append("are SASL's user and password right")
    return f"{', '.join(asked[:-1])}, and {asked[-1]}?"


def _is_known(name: str, port: int) -> bool:
    try:
        return bool(getaddrinfo(name, port))
    except (OSError, UnicodeError):
        return False


def _refusal(context: ssl.SSLContext, server: tuple[str, int]) -> str | None:
    """What a server does not like about our TLS, or we about its, if it is that."""
    try:
        with (
            create_connection(server, PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=server[0]) as connected,
        ):
            connected.settimeout(PROBE_SECONDS)
            connected.recv(1)  # who refuses our certificate says so only then
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or _said(error)
        return f"{hosts.server(server)}: {why}"
    except OSError:
        pass
    return None


# -- SASL ----------------------------------------------------------------------------


def _sasl(options: Any) -> dict[str, Any] | None:
    if not options.sasl:
        _refuse_any(options, _OF_SASL, f"is about SASL: give `--sasl {DIGEST}`, too")
        return None
    if find_spec("puresasl") is None:
        raise arguments.Usage("--sasl needs pure-sasl: `pip install 'parkazoo[sasl]'`")
    if any(scheme == "sasl" for scheme, _ in arguments.auth(options)):
        raise arguments.Usage("`--sasl` and `--auth sasl:...` exclude each other")
    made = {"mechanism": options.sasl, "service": options.sasl_service or "zookeeper"}
    if options.sasl == KERBEROS:
        if find_spec("kerberos") is None and find_spec("winkerberos") is None:
            raise arguments.Usage(
                f"--sasl {KERBEROS} needs the package kerberos: `pip install kerberos`"
            )
        why = f"is for `--sasl {DIGEST}`; {KERBEROS} takes a ticket from `kinit`"
        _refuse_any(options, ("sasl_user", "sasl_password_file"), why)
        if options.sasl_principal:
            made["principal"] = options.sasl_principal
        return made
    _refuse_any(options, ("sasl_principal",), f"is for `--sasl {KERBEROS}`")
    password = _password(options.sasl_password_file, SASL_PASSWORD)
    if not options.sasl_user or password is None:
        raise arguments.Usage(
            f"--sasl {DIGEST}: give `--sasl-user USER`, and the password by"
            f" `--sasl-password-file FILE` or ${SASL_PASSWORD}"
        )
    return {**made, "username": options.sasl_user, "password": password}


# -- both ------------------------------------------------------------------------------


def _refuse_any(options: Any, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(options, name):
            raise arguments.Usage(f"`--{name.replace('_', '-')}` {why}")


def _password(file: str | None, variable: str) -> str | None:
    if file is None:
        return os.environ.get(variable)
    return _contents("a password's file", file).rstrip("\r\n")


def _contents(name: str, file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise arguments.Usage(f"{name} {file} cannot be read: {why}") from None
