"""What a certificate says about itself: whose it is, and until when.

Owns the reading. Must never decide whether it is good: TLS does. Called by `listener`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vespiary_spec.errors import ConfigError

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


def read_certificate(path: str, acceptor: str) -> Certificate:
    """Read the first certificate of a PEM file: the server's own.

    Args:
        path: The file.
        acceptor: Name of the acceptor, for messages.

    Raises:
        ConfigError: There is none that can be read.
    """
    # Not at the top: without TLS a start does not pay for it.
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        found = x509.load_pem_x509_certificate(Path(path).read_bytes())
        return Certificate(
            subject=found.subject.rfc4514_string()[:SUBJECT_CHARACTERS_MAX],
            not_after_s=int(found.not_valid_after_utc.timestamp()),
            fingerprint=found.fingerprint(SHA256()).hex(),
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificate cannot be read: {error}",
            path=f"acceptors.{acceptor}.tls.certificate",
            value=path,
        ) from error
