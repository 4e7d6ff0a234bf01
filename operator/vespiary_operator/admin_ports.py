"""Where the HTTP API of a broker is called, and by what certificate the broker is known.

While a change of `spec.admin.tls` is rolled out, some pods speak TLS and some do not, so each pod's
own annotation decides. A pod that speaks TLS is asked nothing, and told no password, before it has
shown a certificate that is in the Secret or was signed by one in it, and that is for the same host
as the Secret's own. That host need not be the pod's: certificates are issued for Services, and pods
are called by their addresses.

Never: reads the cluster or opens a connection. Called by: `observer`, `reconciler`, `draining`,
`remote`, `certificates`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from vespiary_operator import names
from vespiary_operator.pods import Pod
from vespiary_spec.limits import AUTHORITIES_CHARACTERS_MAX
from vespiary_spec.resources import Broker

_HOST: Final = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_ANY_HOST: Final = "broker"
"""Stands for the `*` of a name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """Which certificate a broker has to show.

    Attributes:
        authorities: PEM certificates: it has to be one of them, or signed by one.
        server_name: Host that it has to be for.
    """

    authorities: str
    server_name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminPort:
    """Where the HTTP API of a broker is called.

    Attributes:
        number: TCP port.
        trust: Which certificate it has to show; None: it speaks in clear.
    """

    number: int
    trust: Trust | None = None


def tls_secret(pod: Pod) -> str:
    """Return the Secret of the certificate that a pod's HTTP port shows; empty without TLS."""
    annotations = pod["metadata"].get("annotations") or {}
    return str(annotations.get(names.ANNOTATION_ADMIN_TLS, ""))


def admin_port(
    broker: Broker, pod: Pod, secrets: Mapping[str, Mapping[str, Any] | None]
) -> AdminPort | None:
    """Return where a pod's HTTP API is called.

    Args:
        broker: Its Broker.
        pod: The pod.
        secrets: The Secrets that the Broker names for TLS, by name; None for one that is not there.

    Returns:
        None if the pod speaks TLS and there is nothing to know its certificate by. It may have a
        Secret that the Broker no longer names, which the operator does not read.
    """
    number, secret = broker.spec.admin.port, tls_secret(pod)
    if not secret:
        return AdminPort(number=number)
    trust = trust_of(secrets.get(secret))
    return None if trust is None else AdminPort(number=number, trust=trust)


def trust_of(secret: Mapping[str, Any] | None) -> Trust | None:
    """Return which certificates belong to a Secret's; None if it holds none with a host's name.

    Args:
        secret: The Secret; None if it is not there.
    """
    data = (secret or {}).get("data") or {}
    own = _certificates(data.get("tls.crt"))
    host = host_of(own[0]) if own else ""
    if not host:
        return None
    # Of two that are too long together, its own chain suffices until it comes from another signer.
    both = _pem([*own, *_certificates(data.get("ca.crt"))])
    return Trust(
        authorities=both if len(both) <= AUTHORITIES_CHARACTERS_MAX else _pem(own),
        server_name=host,
    )


def host_of(certificate: x509.Certificate) -> str:
    """Return the first host that a certificate is for, or its first address; empty if none.

    Of `*.example` any name will do.
    """
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.UnsupportedGeneralNameType, ValueError):
        return ""
    hosts = [host.replace("*", _ANY_HOST) for host in found.get_values_for_type(x509.DNSName)]
    hosts = [host for host in hosts if _HOST.fullmatch(host)]
    hosts += map(str, found.get_values_for_type(x509.IPAddress))
    return next(iter(hosts), "")


def _certificates(encoded: object) -> list[x509.Certificate]:
    """Return the certificates in a value of a Secret; none if it holds anything else."""
    try:
        return x509.load_pem_x509_certificates(base64.b64decode(str(encoded or ""), validate=True))
    except (binascii.Error, ValueError):
        return []


def _pem(several: list[x509.Certificate]) -> str:
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in dict.fromkeys(several))
