"""The figures of attacks, and the attackers against a real broker; nobody judges speed here."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from benchmarks.broker import running_broker
from benchmarks.protocols import hostile
from benchmarks.protocols.attacks import CLASSES, AttackFigures, figures_of, measure_attack
from benchmarks.protocols.hostile import Wave
from vespiary_testkit.waiting import wait_for

MIB = 1 << 20
ROOM = ("max-disk-usage=99",)


def figures(attacked_us: float, memory_mib: int) -> AttackFigures:
    return AttackFigures(
        quiet_p99_us=100, attacked_p99_us=attacked_us, memory_bytes=memory_mib * MIB, connections=1
    )


@pytest.mark.parametrize(
    ("attacked_us", "memory_mib", "verdicts"),
    [(200, 64, ["kept", "kept"]), (201, 64, ["MISSED", "kept"]), (200, 65, ["kept", "MISSED"])],
)
def test_floors_are_those_of_the_issue(
    attacked_us: float, memory_mib: int, verdicts: list[str]
) -> None:
    found = figures_of("x", [figures(attacked_us, memory_mib)])
    assert [figure.verdict for figure in found if figure.bound is not None] == verdicts


def test_every_class_is_there_for_every_protocol() -> None:
    for protocol in ("STOMP", "MQTT", "AMQP"):
        for kind in ("SUBSCRIBE flood", "slow readers", "slow writers"):
            assert f"{kind}, {protocol}" in CLASSES


@pytest.mark.verify
def test_a_measurement_has_all_its_figures(tmp_path: Path) -> None:
    found = measure_attack(tmp_path, CLASSES["half-open handshakes"], 0.5, 200, ROOM)
    assert found.quiet_p99_us > 0
    assert found.attacked_p99_us > 0
    assert found.connections >= CLASSES["half-open handshakes"].connections


def _until_quiet(client: socket.socket) -> None:
    """Read until nothing more comes, which raises; returns if the broker has closed."""
    while client.recv(65536):
        pass


@pytest.mark.verify
@pytest.mark.parametrize("protocol", ["STOMP", "MQTT", "AMQP"])
def test_attackers_are_taken_for_clients(tmp_path: Path, protocol: str) -> None:
    """What they say is no nonsense: the broker makes their subscriptions, and waits for the rest
    of their frames."""
    with running_broker(tmp_path / "data", settings=ROOM) as broker:
        wave = Wave(broker.port, 1)
        with wave.connect() as flood, wave.connect() as writer:
            said = [hostile.subscription(protocol, f"t{n}", n) for n in range(3)]
            flood.sendall(hostile.login(protocol, 1) + b"".join(said))
            writer.sendall(hostile.login(protocol, 2) + hostile.beginning(protocol))
            received = b""
            flood.settimeout(0.2)

            def is_served() -> bool:
                nonlocal received
                with contextlib.suppress(TimeoutError):
                    received += flood.recv(65536)
                return {"STOMP": b"CONNECTED" in received,
                        "MQTT": received.count(b"\x90\x03") == 3,
                        "AMQP": received.count(b"link-") >= 3}[protocol]  # fmt: skip

            wait_for(is_served, "the subscriptions")
            writer.settimeout(0.5)
            assert writer.recv(65536), "what answers the login"
            with pytest.raises(TimeoutError):
                _until_quiet(writer)
