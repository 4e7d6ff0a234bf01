"""TLS of an acceptor: its files, other names, and whom client certificates stand for.

Owns: names of files, and subjects.
Never: opens a file.
Called by: `acceptors` and `settings`, which users import from.
"""

from typing import Annotated

import msgspec

from vespiary_spec.model import Change, setting

SERVER_NAME_PATTERN = r"^(\*\.)?[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?$"
"""Names of servers, of which the first part may be `*`."""

HTTP_CERTIFICATE = "http"
"""What the certificate of `admin.tls` is called where those of acceptors have their names."""


class SniCertificate(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A certificate for clients that ask for a server by its name."""

    server_name: Annotated[
        str,
        setting(
            "Name that the client asks for, such as `orders.example`; `*.example` is every name "
            "with one part more.",
            change=Change.RESTART,
            pattern=SERVER_NAME_PATTERN,
            max_length=253,
        ),
    ]
    certificate: Annotated[
        str, setting("PEM file with the certificate chain for it.", change=Change.RESTART)
    ]
    key: Annotated[str, setting("PEM file with its private key.", change=Change.RESTART)]


class CertificateUser(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Whom a client certificate stands for."""

    subject: Annotated[
        str,
        setting(
            "Subject of the certificate as RFC 4514 writes it, such as `CN=press 7,O=Orders`.",
            change=Change.RESTART,
            max_length=1000,
        ),
    ]
    user: Annotated[
        str, setting("Name of the user in the users file.", change=Change.RESTART, max_length=200)
    ]


class AcceptorTls(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """TLS of an acceptor, by files."""

    certificate: Annotated[
        str, setting("PEM file with the server's certificate chain.", change=Change.RESTART)
    ]
    key: Annotated[str, setting("PEM file with the private key.", change=Change.RESTART)]
    client_ca: Annotated[
        str | None,
        setting(
            "PEM file with the authorities whose client certificates are accepted; with it a "
            "client certificate is required, unless `want-client-auth` says otherwise.",
            change=Change.RESTART,
        ),
    ] = None
    need_client_auth: Annotated[
        bool | None,
        setting(
            "Turn clients away that show no certificate of `client-ca`.",
            change=Change.RESTART,
            default_text="true with `client-ca`, unless `want-client-auth` is",
        ),
    ] = None
    want_client_auth: Annotated[
        bool,
        setting(
            "Ask clients for a certificate, and let those in that have none. One that is not of "
            "`client-ca` is refused nevertheless.",
            change=Change.RESTART,
        ),
    ] = False
    certificate_users: Annotated[
        tuple[CertificateUser, ...],
        setting(
            "Users whom client certificates stand for, by subject; one that is not listed stands "
            "for the user of its common name (CN).",
            change=Change.RESTART,
            max_length=10_000,
        ),
    ] = ()
    sni: Annotated[
        tuple[SniCertificate, ...],
        setting(
            "Further certificates, by the server's name that a client asks for; who asks for "
            "another name is shown `certificate`.",
            change=Change.RESTART,
            max_length=1000,
        ),
    ] = ()
