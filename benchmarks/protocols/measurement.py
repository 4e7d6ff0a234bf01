"""Measures one protocol at a time, each load on a fresh broker, and connections that do nothing.

Owns: the brokers and the idle connections of one measurement. Must never: judge a figure. Called by
`benchmarks.protocols.__main__`.
"""

import resource
import socket
from pathlib import Path

import msgspec

from benchmarks import generator, usage
from benchmarks.broker import running_broker
from benchmarks.generator import LoadReport
from benchmarks.protocols import certificate
from benchmarks.protocols.rows import Row

_CONNECT = bytes([0x10, 0, 0, 4, *b"MQTT", 4, 2, 0, 0, 0])
"""A CONNECT of MQTT 3.1.1 without keep alive; its lengths are filled in."""
_CONNACK_BYTES = 4
_ANSWER_S = 60.0
_SPARE_DESCRIPTORS = 200


class ProtocolError(Exception):
    """A run's figures count for nothing."""


class LoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a load has cost."""

    confirmed_per_s: float
    delivered_per_s: float
    confirm_p50_us: float
    cpu_us_per_message: float


class IdleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What connections cost that do nothing."""

    connections: int
    before_bytes: int
    with_bytes: int

    @property
    def bytes_each(self) -> float:
        """Memory of one connection."""
        return (self.with_bytes - self.before_bytes) / self.connections


def measure_load(folder: Path, row: Row, settings: tuple[str, ...]) -> LoadFigures:
    """Run one load on a fresh broker.

    Args:
        folder: An empty folder for the store, and for the certificate of a row with TLS.
        row: What to send, and how.
        settings: Of the broker, `NAME=VALUE`.

    Raises:
        ProtocolError: The generator's checks have failed.
        BrokerError, GeneratorError: A part of the measurement could not run.
    """
    binary = generator.build(generator.PROTOCOL_BINARY)
    configuration: Path | None = None
    extra: tuple[str, ...] = ()
    if row.has_tls:
        configuration, trusted = certificate.configure(folder)
        extra = ("--tls-ca", str(trusted))
    samples: list[usage.Usage] = []
    with running_broker(folder / "data", settings=settings, configuration=configuration) as broker:
        report = generator.run_load(
            binary,
            broker.port,
            row.load,
            on_measuring=lambda: samples.append(broker.usage()),
            on_measured=lambda: samples.append(broker.usage()),
            extra_arguments=extra,
        )
    if not report.passed or len(samples) != 2:
        raise ProtocolError(complaint(report))
    return _figures(report, samples[1].since(samples[0]))


def complaint(report: LoadReport) -> str:
    """Say what a generator's checks have found."""
    checks = msgspec.structs.asdict(report.checks)
    spoiled = [f"{count} {name.replace('_', ' ')}" for name, count in checks.items() if count]
    wanted = [text for text in spoiled if not text.endswith((" not seen", " order checked"))]
    sentence = f"of {report.totals.sent} messages {', '.join(wanted) or 'none was measured'}"
    if report.checks.unconfirmed:
        sentence += "; a broker whose disk is fuller than max-disk-usage answers none"
    return sentence


def _figures(report: LoadReport, used: usage.Usage) -> LoadFigures:
    count = report.window.delivered if report.settings["consumers"] else report.window.confirmed
    return LoadFigures(
        confirmed_per_s=report.confirmed_per_s,
        delivered_per_s=report.delivered_per_s,
        confirm_p50_us=report.confirm_latency_us.p50,
        cpu_us_per_message=(used.user_s + used.system_s) * 1e6 / max(count, 1),
    )


def measure_idle(folder: Path, connections: int, settings: tuple[str, ...]) -> IdleFigures:
    """Have clients of MQTT log in and do nothing more.

    Args:
        folder: An empty folder for the store.
        connections: How many.
        settings: Of the broker, `NAME=VALUE`.

    Raises:
        ProtocolError: Not all were let in, or there are too few descriptors.
        BrokerError: The broker could not run.
    """
    needed = connections + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ProtocolError(f"{connections} connections need {needed} descriptors; {hard} are had")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    with running_broker(folder / "data", settings=settings) as broker:
        before = broker.usage().rss_bytes
        clients = [_log_in(broker.port, number) for number in range(connections)]
        try:
            for client in clients:
                if client.recv(_CONNACK_BYTES, socket.MSG_WAITALL)[3:] != b"\0":
                    raise ProtocolError("a client was not let in")
            with_all = broker.usage().rss_bytes
        finally:
            for client in clients:
                client.close()
    return IdleFigures(connections=connections, before_bytes=before, with_bytes=with_all)


def _log_in(port: int, number: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
    name = b"idle-%06d" % number
    packet = bytearray(_CONNECT + len(name).to_bytes(1, "big") + name)
    packet[1] = len(packet) - 2
    client.sendall(packet)
    return client
