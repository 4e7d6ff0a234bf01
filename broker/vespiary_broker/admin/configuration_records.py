"""What the API says of the configuration in effect, and the metrics made of it.

Owns the records, which are the API's schema. Must never hold behaviour beyond putting them into
Prometheus' form. Called by `configuration`, `configuration_routes` and `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from vespiary_broker.admin.journal_records import Record


class ConfigurationFile(Record, frozen=True):
    """A configuration file.

    Attributes:
        path: Where it is.
        digest: SHA-256 of its content that is in effect, as hexadecimal digits; empty if it was
            not there.
    """

    path: str
    digest: str


class Certificate(Record, frozen=True):
    """The certificate that an acceptor shows to new connections.

    Attributes:
        acceptor: Name of the acceptor.
        subject: Whose it is.
        not_after_s: When it ends, in seconds since 1970.
        expires_in_s: Seconds until then; negative when it has ended.
        fingerprint: SHA-256 of it, as hexadecimal digits.
        refused: Why its files as they are now were not taken; empty if they were.
    """

    acceptor: str
    subject: str
    not_after_s: int
    expires_in_s: float
    fingerprint: str
    refused: str


class UsersFile(Record, frozen=True):
    """The users file.

    Attributes:
        path: Where it is.
        digest: SHA-256 of its content that is in effect; empty if there is none.
        refused: Why the file as it is now was not taken; empty if it was.
    """

    path: str
    digest: str
    refused: str


class Configuration(Record, frozen=True):
    """The configuration in effect, and what became of the last reload.

    Attributes:
        files: Its files; none if the broker was started without one.
        loaded_at_ms: When they were taken, in milliseconds since 1970.
        taken: Reloads that were taken since the start.
        failed: Reloads that were refused since the start.
        refused: Why the files as they are now were not taken; empty if they were.
        waits_for_restart: Settings of the files that come into effect with the next start.
        kept: What is not configured any more and stays, such as `queue orders`.
        users: The users file.
        certificates: Certificates of the acceptors with TLS.
    """

    files: tuple[ConfigurationFile, ...]
    loaded_at_ms: int
    taken: int
    failed: int
    refused: str
    waits_for_restart: tuple[str, ...]
    kept: tuple[str, ...]
    users: UsersFile
    certificates: tuple[Certificate, ...]


def metrics_of(found: Configuration, prefix: str) -> Iterator[Metric]:
    """Yield the metrics of a configuration.

    Args:
        found: The configuration.
        prefix: What all names begin with.
    """
    reloads = CounterMetricFamily(
        f"{prefix}_configuration_reloads", "Reloads of the configuration.", labels=("result",)
    )
    reloads.add_metric(("taken",), found.taken)
    reloads.add_metric(("refused",), found.failed)
    yield reloads
    yield GaugeMetricFamily(
        f"{prefix}_configuration_refused",
        "1 while configuration files, users or certificates are not taken as they are now.",
        value=int(
            bool(found.refused or found.users.refused)
            or any(each.refused for each in found.certificates)
        ),
    )
    yield GaugeMetricFamily(
        f"{prefix}_configuration_waits_for_restart",
        "Settings of the files that come into effect with the next start.",
        value=len(found.waits_for_restart),
    )
    expiry = GaugeMetricFamily(
        f"{prefix}_certificate_expires_in_seconds",
        "Seconds until the certificate of an acceptor ends; negative when it has.",
        labels=("acceptor",),
    )
    for each in found.certificates:
        expiry.add_metric((each.acceptor,), each.expires_in_s)
    yield expiry
