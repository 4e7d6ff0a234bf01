"""What the operator reports about certificates.

Owns: the shape of this part of a Broker's status.
Never: decides anything; the operator fills it in.
Called by: `status`, the operator.
"""

from typing import Annotated

from vespiary_spec.model import setting
from vespiary_spec.scheduling import Part


class CertificateStatus(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The certificate of one acceptor or of the HTTP port, as its Secret has it."""

    acceptor: Annotated[str, setting("Name of the acceptor; `http` for `admin.tls`.")]
    secret_name: Annotated[str, setting("Secret that it comes from.")]
    subject: Annotated[str, setting("Whose it is.")] = ""
    not_after: Annotated[str, setting("When it ends, RFC 3339.")] = ""
    fingerprint: Annotated[str, setting("SHA-256 of it, as hexadecimal digits.")] = ""
    message: Annotated[str, setting("Why it cannot be used, if it cannot.")] = ""
