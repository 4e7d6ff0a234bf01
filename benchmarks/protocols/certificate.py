"""A certificate for the broker of one run, made when it is needed.

Owns: its files. Must never: be good for longer than a day, or for another machine. Called by
`benchmarks.protocols.measurement`.
"""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

_HOUR = datetime.timedelta(hours=1)


def configure(folder: Path) -> tuple[Path, Path]:
    """Write a certificate, its key and a broker.yaml whose acceptor for all protocols speaks TLS.

    Args:
        folder: Where to.

    Returns:
        The configuration, and the certificate for clients to trust: it has signed itself.
    """
    certificate, key = folder / "tls.crt", folder / "tls.key"
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _HOUR)
        .not_valid_after(now + 12 * _HOUR)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    configuration = folder / "broker.yaml"
    configuration.write_text(
        "acceptors:\n"
        f"  - {{name: all, port: 0, tls: {{certificate: '{certificate}', key: '{key}'}}}}\n"
    )
    return configuration, certificate
