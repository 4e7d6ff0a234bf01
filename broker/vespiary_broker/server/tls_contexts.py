"""The TLS context of a listener, from its files.

Owns what is spoken: TLS 1.2 or newer, no renegotiation, whom clients are asked to be, and which
certificate is shown for which name. Must never keep a file open. Called by `listener`.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from vespiary_broker.server.certificates import (
    Certificate,
    read_certificate,
    user_of_certificate,
)
from vespiary_spec.errors import ConfigError
from vespiary_spec.regular_files import read_regular
from vespiary_spec.settings import AcceptorTls


def make_tls_context(tls: AcceptorTls, path: str) -> ssl.SSLContext:
    """Return the TLS context of a listener.

    Args:
        tls: Its files.
        path: Path of the setting, such as `acceptors.all.tls`, for messages.

    Raises:
        ConfigError: A file is missing or is not what it should be.
    """
    context = _make_one(tls, path, tls.certificate, tls.key)
    by_name = {
        each.server_name.lower(): _make_one(tls, f"{path}.sni", each.certificate, each.key)
        for each in tls.sni
    }
    if by_name:

        def choose(connection: ssl.SSLObject, asked: str | None, _: ssl.SSLContext) -> None:
            chosen = by_name.get(asked.lower()) if asked else None
            if chosen is None and asked:
                chosen = by_name.get(f"*.{asked.lower().partition('.')[2]}")
            if chosen is not None:
                connection.context = chosen

        context.sni_callback = choose
    return context


def tls_files(tls: AcceptorTls | None) -> tuple[Path, ...]:
    """Return the files that a listener's TLS comes from; none for one that speaks in clear."""
    if tls is None:
        return ()
    names = [tls.certificate, tls.key, tls.client_ca]
    for each in tls.sni:
        names += [each.certificate, each.key]
    return tuple(Path(name) for name in names if name is not None)


def make_tls(tls: AcceptorTls, path: str) -> tuple[ssl.SSLContext, Certificate]:
    """Return a context of TLS files as they are now, and which certificate of them ends first.

    Args:
        tls: The files.
        path: Path of the setting, for messages.

    Raises:
        ConfigError: A file is missing or is not what it should be.
    """
    context = make_tls_context(tls, path)
    return context, min(read_certificates(tls, path), key=lambda each: each.not_after_s)


def user_of(certificate: bytes, tls: AcceptorTls | None) -> str:
    """Return the user whom a client certificate stands for; empty for nobody.

    Args:
        certificate: It, in DER; TLS has found it to be good.
        tls: Settings with the users of certificates.
    """
    users = {} if tls is None else {each.subject: each.user for each in tls.certificate_users}
    return user_of_certificate(certificate, users)


def read_certificates(tls: AcceptorTls, path: str) -> list[Certificate]:
    """Return all certificates that a listener shows, its own first.

    Args:
        tls: Its files.
        path: Path of the setting, for messages.

    Raises:
        ConfigError: One cannot be read.
    """
    files = tls.certificate, *(each.certificate for each in tls.sni)
    return [read_certificate(file, f"{path}.certificate") for file in files]


def _make_one(tls: AcceptorTls, path: str, certificate: str, key: str) -> ssl.SSLContext:
    """Return a context that shows one certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _, key_bytes = _read_files(path, certificate, key)
    try:
        # With a password no encrypted key makes OpenSSL ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            _what_is_wrong(error, certificate, key, key_bytes),
            path=path,
            cure="the certificate file begins with the broker's own certificate, and the key file "
            "holds its key without a password",
        ) from error
    if tls.client_ca is not None:
        _read_files(f"{path}.client-ca", tls.client_ca)
        try:
            context.load_verify_locations(tls.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{tls.client_ca} holds no certificates of authorities in PEM form",
                path=f"{path}.client-ca",
            ) from error
        is_optional = tls.want_client_auth and not tls.need_client_auth
        context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED
    return context


_WEAK: Final = {
    "EE_KEY_TOO_SMALL": "its key is too small",
    "CA_KEY_TOO_SMALL": "the key of one of its authorities is too small",
    "CA_MD_TOO_WEAK": "it is signed with a hash that is too weak",
}
"""Reasons of OpenSSL's security level."""


def _read_files(path: str, *names: str) -> list[bytes]:
    """Reject files that cannot be read: OpenSSL does not say which one it was."""
    found = []
    for name in names:
        try:
            found.append(read_regular(Path(name)))
        except OSError as error:
            raise ConfigError(f"cannot read {name}: {error.strerror}", path=path) from error
    return found


def _what_is_wrong(error: OSError, certificate: str, key: str, key_bytes: bytes) -> str:
    """Return why OpenSSL rejects a certificate and its key."""
    if not isinstance(error, ssl.SSLError):  # a file has gone since it was read
        return f"cannot read {certificate} or {key}: {error.strerror}"
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return f"the certificate {certificate} and the key {key} do not belong together"
    if reason in _WEAK:
        return f"OpenSSL rejects the certificate {certificate}: {_WEAK[reason]}"
    if b"ENCRYPTED" in key_bytes:
        return f"the key {key} is encrypted with a password"
    return f"{certificate} and {key} do not hold a certificate and its key in PEM form"
