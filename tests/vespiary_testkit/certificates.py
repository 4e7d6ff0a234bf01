"""Certificates for tests of TLS: an authority, and what it has signed."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Signed:
    """A certificate with its key, as PEM.

    Attributes:
        certificate: The certificate.
        key: The private key.
        fingerprint: SHA-256 of the certificate, as hexadecimal digits.
    """

    certificate: bytes
    key: bytes
    fingerprint: str

    def write(self, folder: Path) -> None:
        """Write both as `tls.crt` and `tls.key`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tls.key").write_bytes(self.key)
        (folder / "tls.crt").write_bytes(self.certificate)


class Authority:
    """An authority of its own, which signs what it is asked to."""

    def __init__(self, name: str = "Test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key(), days=365)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """Its certificate, as PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    def sign(self, name: str, *, days: float = 90, subject: str = "", rsa_bits: int = 0) -> Signed:
        """Return a certificate for 127.0.0.1, localhost and a name, and its key.

        Args:
            name: Common name.
            days: How long it is good; negative for one that has ended.
            subject: Another subject, as RFC 4514 writes it; empty for the common name alone.
            rsa_bits: Size of an RSA key; 0 for a key on the curve P-256.
        """
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = (
            rsa.generate_private_key(65_537, rsa_bits)
            if rsa_bits
            else ec.generate_private_key(ec.SECP256R1())
        )
        subject_name = x509.Name.from_rfc4514_string(subject or f"CN={name}")
        names: list[x509.GeneralName] = [
            x509.DNSName(name),
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        made = (
            _builder(subject_name, self._name, key.public_key(), days=days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return _signed(made, key)


def self_signed(*hosts: x509.GeneralName) -> Signed:
    """Return a certificate that has signed itself, and its key.

    Args:
        hosts: Whom it is for.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "alone")])
    made = _builder(name, name, key.public_key(), days=9)
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return _signed(made.sign(key, hashes.SHA256()), key)


def _signed(made: x509.Certificate, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> Signed:
    return Signed(
        made.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        made.fingerprint(hashes.SHA256()).hex(),
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    *,
    days: float,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + days * DAY) - DAY)
        .not_valid_after(now + days * DAY)
    )
