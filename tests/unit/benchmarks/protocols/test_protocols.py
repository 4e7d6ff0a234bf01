"""The figures of the protocols, and the generator of MQTT against a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import generator
from benchmarks.broker import running_broker
from benchmarks.generator import MqttLoad
from benchmarks.protocols.__main__ import LOADS, idle_figures, load_figures, ratio_figures
from benchmarks.protocols.measurement import IdleFigures, LoadFigures, ProtocolError, measure_idle

MIB = 1 << 20
ROOM = ("max-disk-usage=99",)


def figures(rate: float, cpu: float = 1.0) -> LoadFigures:
    return LoadFigures(
        confirmed_per_s=rate, delivered_per_s=rate, confirm_p50_us=1, cpu_us_per_message=cpu
    )


def test_floors_are_those_of_the_issue() -> None:
    kept = load_figures("MQTT 1 x 200", [figures(200_000, 4.0)])
    missed = load_figures("MQTT 1 x 200", [figures(199_999, 4.1)])
    assert [figure.verdict for figure in kept] == ["kept", "", "kept"]
    assert [figure.verdict for figure in missed] == ["MISSED", "", "MISSED"]
    assert load_figures("MQTT 8 + 8", [figures(100_000)])[0].verdict == "kept"
    assert load_figures("MQTT 8 + 8", [figures(99_999)])[0].verdict == "MISSED"
    assert {figure.verdict for figure in load_figures("STOMP 8 + 8", [figures(1)])} == {""}
    for size, verdict in ((250, "kept"), (251, "MISSED")):
        idle = IdleFigures(connections=10, before_bytes=0, with_bytes=size * MIB)
        assert idle_figures([idle])[0].verdict == verdict


def test_ratios_are_of_one_round() -> None:
    found = {name: [figures(100), figures(10)] for name in LOADS}
    found["MQTT 1 x 200"] = [figures(300), figures(20)]
    assert [figure.values for figure in ratio_figures(found)] == [[3, 2], [1, 1]]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("consumers", [0, 2])
def test_mqttload_counts_what_a_broker_confirms(
    tmp_path: Path, version: int, consumers: int
) -> None:
    binary = generator.build(generator.MQTT_BINARY)
    load = MqttLoad(
        producers=3, consumers=consumers, queues=2, window=20, body_size=100, version=version,
        warmup=0.1, seconds=5, messages=3000,
    )  # fmt: skip
    seen: list[str] = []
    with running_broker(tmp_path / "data", settings=ROOM) as broker:
        report = generator.run_load(
            binary,
            broker.port,
            load,
            on_measuring=lambda: seen.append("measuring"),
            on_measured=lambda: seen.append("measured"),
        )
    assert seen == ["measuring", "measured"]
    assert report.passed
    assert report.ended == "messages"
    assert report.totals.confirmed == report.totals.sent == 3000
    assert report.totals.delivered == report.totals.acknowledged == (3000 if consumers else 0)
    assert report.checks.confirmed_not_seen == (0 if consumers else 3000)


def test_mqttload_says_what_is_wrong_with_its_options() -> None:
    binary = generator.build(generator.MQTT_BINARY)
    with pytest.raises(generator.GeneratorError, match="consumers 0 or as many as queues"):
        generator.run_load(binary, 1, MqttLoad(consumers=3, queues=2))


def test_idle_connections_are_all_let_in(tmp_path: Path) -> None:
    found = measure_idle(tmp_path, 50, ROOM)
    assert found.connections == 50
    assert 0 < found.before_bytes <= found.with_bytes
    with pytest.raises(ProtocolError, match="descriptors"):
        measure_idle(tmp_path / "more", 100_000_000, ROOM)
