"""The TLS context of an acceptor, from its files.

Owns what is spoken: TLS 1.2 or newer, no renegotiation, whom clients are asked to be, and which
certificate is shown for which name. Must never keep a file open. Called by `listener`.
"""

from __future__ import annotations

import ssl

from vespiary_broker.server.certificates import Certificate, read_certificate
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import AcceptorTls


def make_tls_context(tls: AcceptorTls, name: str) -> ssl.SSLContext:
    """Return the TLS context of an acceptor.

    Args:
        tls: Its files.
        name: Name of the acceptor, for messages.

    Raises:
        ConfigError: A file is missing or is not what it should be.
    """
    path = f"acceptors.{name}.tls"
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


def read_certificates(tls: AcceptorTls, name: str) -> list[Certificate]:
    """Return all certificates that an acceptor shows, its own first.

    Args:
        tls: Its files.
        name: Name of the acceptor, for messages.

    Raises:
        ConfigError: One cannot be read.
    """
    files = tls.certificate, *(each.certificate for each in tls.sni)
    return [read_certificate(file, name) for file in files]


def _make_one(tls: AcceptorTls, path: str, certificate: str, key: str) -> ssl.SSLContext:
    """Return a context that shows one certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"certificate or key cannot be used: {error}", path=path, value=f"{certificate}, {key}"
        ) from error
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the authorities cannot be used: {error}",
                path=f"{path}.client-ca",
                value=tls.client_ca,
            ) from error
        is_optional = tls.want_client_auth and not tls.need_client_auth
        context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED
    return context
