"""Certificates of acceptors and of the HTTP port: what their Secrets hold, and until when.

Owns: the condition CertificateValid and the status of each certificate. A Secret is read by the
name that the Broker gives it; its key is looked at to see that it fits, and never kept.
Never: reads the cluster or the clock. Called by: `status`, `live_files`.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from vespiary_operator.admin_ports import host_of
from vespiary_operator.builders import services
from vespiary_operator.conditions import FALSE, TRUE, Finding
from vespiary_operator.observation import Observed
from vespiary_spec.acceptor_tls import HTTP_CERTIFICATE
from vespiary_spec.certificate_status import CertificateStatus
from vespiary_spec.resources import Broker

WARNING: Final = datetime.timedelta(days=30)
_CERTIFICATE, _KEY, _AUTHORITIES = "tls.crt", "tls.key", "ca.crt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a Secret holds.

    Attributes:
        problem: Why it cannot be used, as one sentence; empty if it can.
        fingerprint: SHA-256 of the certificate, as hexadecimal digits.
        subject: Whose it is.
        not_after: When it ends.
    """

    problem: str = ""
    fingerprint: str = ""
    subject: str = ""
    not_after: datetime.datetime | None = None


def acceptors(broker: Broker) -> dict[str, tuple[str, bool]]:
    """Return the Secret of each acceptor with TLS, and whether clients are asked for one.

    The HTTP port is among them as `http`, if it speaks TLS.
    """
    found = {}
    for name, _, acceptor in services.acceptor_ports(broker):
        secret = getattr(acceptor, "tls", None) or broker.spec.tls
        if secret is not None:
            found[name] = (secret.secret_name, secret.needs_authorities)
    admin = broker.spec.admin.tls
    if admin is not None:
        found[HTTP_CERTIFICATE] = (admin.secret_name, admin.needs_authorities)
    return found


def look(
    secret: Mapping[str, Any] | None, name: str, *, needs_authorities: bool, needs_host: bool
) -> Found:
    """Look at what a Secret holds.

    Args:
        secret: The Secret; None if it is not there.
        name: Its name, for sentences.
        needs_authorities: Whether clients are asked for a certificate of its `ca.crt`.
        needs_host: Whether the operator and other brokers look at the certificate.
    """
    cure = f"Put a certificate and its key into it (`kubectl create secret tls {name} ...`)."
    if secret is None:
        return Found(problem=f"The Secret {name} does not exist. {cure}")
    try:
        data = {
            key: base64.b64decode(value, validate=True)
            for key, value in (secret.get("data") or {}).items()
            if key in (_CERTIFICATE, _KEY, _AUTHORITIES)
        }
    except binascii.Error:
        return Found(problem=f"The Secret {name} holds no base64. {cure}")
    wanted = [_CERTIFICATE, _KEY, *([_AUTHORITIES] if needs_authorities else [])]
    missing = [key for key in wanted if not data.get(key)]
    if missing:
        return Found(problem=f"The Secret {name} has no {' and no '.join(missing)}. {cure}")
    try:
        certificate = x509.load_pem_x509_certificate(data[_CERTIFICATE])
    except ValueError as error:
        return Found(problem=f"tls.crt of the Secret {name} is no certificate: {error}. {cure}")
    try:
        key = load_pem_private_key(data[_KEY], None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        return Found(
            problem=f"tls.key of the Secret {name} is no key without a password: {error}. {cure}"
        )
    if needs_authorities:
        try:
            x509.load_pem_x509_certificates(data[_AUTHORITIES])
        except ValueError as error:
            return Found(problem=f"ca.crt of the Secret {name} has no certificate: {error}. {cure}")
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        return Found(problem=f"tls.key of the Secret {name} is not the key of its tls.crt. {cure}")
    if needs_host and not host_of(certificate):
        return Found(
            problem=f"tls.crt of the Secret {name} is for no host, so the operator cannot tell "
            "whose it is. Issue one with the name of the Service among its subjectAltNames."
        )
    return Found(
        fingerprint=certificate.fingerprint(SHA256()).hex(),
        subject=certificate.subject.rfc4514_string()[:200],
        not_after=certificate.not_valid_after_utc,
    )


def found_by_acceptor(observed: Observed) -> dict[str, tuple[str, Found]]:
    """Return the Secret of each acceptor with TLS, and what it holds."""
    return {
        acceptor: (
            secret,
            look(
                observed.tls_secrets.get(secret),
                secret,
                needs_authorities=is_mutual,
                needs_host=acceptor == HTTP_CERTIFICATE,
            ),
        )
        for acceptor, (secret, is_mutual) in acceptors(observed.broker).items()
    }


def statuses(observed: Observed) -> tuple[CertificateStatus, ...]:
    """Return the status of each acceptor's certificate."""
    return tuple(
        CertificateStatus(
            acceptor=acceptor,
            secret_name=secret,
            subject=found.subject,
            not_after=_shown(found.not_after) if found.not_after is not None else "",
            fingerprint=found.fingerprint,
            message=found.problem,
        )
        for acceptor, (secret, found) in found_by_acceptor(observed).items()
    )


def unusable(observed: Observed) -> Finding | None:
    """Return which Secret keeps brokers from being started, or will; None if none does."""
    for acceptor, (_, found) in found_by_acceptor(observed).items():
        if found.problem:
            place = _place(acceptor)
            return FALSE, "SecretUnusable", f"{place[0].upper()}{place[1:]}: {found.problem}"
    return None


def valid(observed: Observed, *, now: str) -> Finding:
    """Return the condition CertificateValid.

    Args:
        observed: What was found.
        now: The time, RFC 3339.
    """
    everything = found_by_acceptor(observed)
    if not everything:
        return TRUE, "NoTls", "Neither an acceptor nor the HTTP port speaks TLS."
    wrong = unusable(observed)
    if wrong is not None:
        return wrong
    for pod, answer in sorted(observed.answers.items()):
        told = answer.configuration
        for acceptor, sentence in (told.certificates_refused if told else {}).items():
            said = f"{pod} refuses the certificate of the {_place(acceptor)}"
            return FALSE, "Refused", f"{said}: {sentence}"
    moment = datetime.datetime.fromisoformat(now)
    first = min(everything, key=lambda name: everything[name][1].not_after or moment)
    secret, found = everything[first]
    assert found.not_after is not None
    end = _shown(found.not_after)
    said = f"certificate of the {_place(first)} (Secret {secret})"
    if found.not_after <= moment:
        return FALSE, "Expired", f"The {said} ended at {end}. Renew it in the Secret."
    days = (found.not_after - moment).days
    if found.not_after - moment < WARNING:
        return TRUE, "ExpiresSoon", f"The {said} ends at {end}, in {days} days. Renew it."
    return TRUE, "Valid", f"The first to end is the {said}, at {end}."


def _place(acceptor: str) -> str:
    """Return what a certificate is of, for a sentence."""
    return "HTTP port" if acceptor == HTTP_CERTIFICATE else f"acceptor {acceptor}"


def _shown(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
