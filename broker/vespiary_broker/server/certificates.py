"""What a certificate says about itself: whose it is, until when, and which user it stands for.

Owns the reading. Must never decide whether it is good: TLS does. Called by `listener`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vespiary_spec.errors import ConfigError
from vespiary_spec.regular_files import read_regular

SUBJECT_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate.

    Attributes:
        subject: Whose it is, as RFC 4514 writes it.
        not_after_s: When it ends, in seconds since 1970.
        fingerprint: SHA-256 of it, as hexadecimal digits.
    """

    subject: str
    not_after_s: int
    fingerprint: str


def read_certificate(path: str, setting: str) -> Certificate:
    """Read the first certificate of a PEM file: the server's own.

    Args:
        path: The file.
        setting: Path of the setting that names it, for messages.

    Raises:
        ConfigError: There is none that can be read.
    """
    # Not at the top: without TLS a start does not pay for it.
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        found = x509.load_pem_x509_certificate(read_regular(Path(path)))
        return Certificate(
            subject=found.subject.rfc4514_string()[:SUBJECT_CHARACTERS_MAX],
            not_after_s=int(found.not_valid_after_utc.timestamp()),
            fingerprint=found.fingerprint(SHA256()).hex(),
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificate cannot be read: {error}",
            path=setting,
            value=path,
        ) from error


def user_of_certificate(certificate: bytes, users: Mapping[str, str]) -> str:
    """Return the user whom a client certificate stands for, which TLS has found to be good.

    Args:
        certificate: It, in DER.
        users: Users by subject, as RFC 4514 writes it.

    Returns:
        The user of its subject, else its common name; empty if it has none or several.
    """
    from cryptography import x509

    subject = x509.load_der_x509_certificate(certificate).subject
    user = users.get(subject.rfc4514_string())
    if user is not None:
        return user
    names = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def certificate_user(transport: asyncio.Transport | None, user_of: Callable[[bytes], str]) -> str:
    """Return the user whom the certificate of a connection's client stands for.

    Args:
        transport: The connection.
        user_of: Says so of a certificate in DER.

    Returns:
        The user; empty without TLS, without a certificate, or if it stands for nobody.
    """
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    return user_of(certificate) if certificate else ""
