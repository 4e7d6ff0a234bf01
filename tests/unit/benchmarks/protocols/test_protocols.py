"""The figures of the protocols, their rows, and connections that do nothing."""

from __future__ import annotations

import stat
from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import generator
from benchmarks.broker import BrokerError
from benchmarks.generator import Checks, LoadReport
from benchmarks.protocols.__main__ import Found, main
from benchmarks.protocols.figures import idle_figures, load_figures, ratio_figures
from benchmarks.protocols.measurement import (
    IdleFigures,
    LoadFigures,
    ProtocolError,
    complaint,
    measure_idle,
    measure_load,
)
from benchmarks.protocols.rows import IDLE, ROWS, Row, RowError, choose

MIB = 1 << 20
ROOM = ("max-disk-usage=99",)
PROTOCOLS = ("STOMP", "MQTT", "AMQP")


def figures(rate: float, cpu: float = 1.0) -> LoadFigures:
    return LoadFigures(
        confirmed_per_s=rate, delivered_per_s=rate, confirm_p50_us=1, cpu_us_per_message=cpu
    )


def verdicts(name: str, rate: float, cpu: float = 1.0) -> list[str]:
    return [figure.verdict for figure in load_figures(ROWS[name], [figures(rate, cpu)])]


@pytest.mark.parametrize(
    ("name", "per_s"),
    [
        ("MQTT 1 x 200", 200_000),
        ("MQTT 10 x 100", 200_000),
        ("MQTT 5, 1 x 200", 200_000),
        ("AMQP 1 x 200", 150_000),
    ],
)
def test_floors_of_publishing_are_those_of_the_issue(name: str, per_s: float) -> None:
    assert verdicts(name, per_s, 4.0) == ["kept", "", "kept"]
    assert verdicts(name, per_s - 1, 4.1) == ["MISSED", "", "MISSED"]


@pytest.mark.parametrize(
    ("name", "per_s"),
    [
        *((f"{protocol} 8 + 8", 100_000) for protocol in PROTOCOLS),
        *((f"{one} to {other}", 60_000) for one, other in permutations(PROTOCOLS, 2)),
    ],
)
def test_floors_end_to_end_are_those_of_the_issue(name: str, per_s: float) -> None:
    assert verdicts(name, per_s) == ["kept", "", ""]
    assert verdicts(name, per_s - 1) == ["MISSED", "", ""]
    load = ROWS[name].load
    assert (load.producers, load.consumers, load.queues, load.body_size) == (8, 8, 8, 1024)


def test_what_only_explains_has_no_floor() -> None:
    for name in ("STOMP 1 x 200", "STOMP 10 x 100", "MQTT 10 x 100, TLS"):
        assert verdicts(name, 1, 1000) == ["", "", ""]
    for size, verdict in ((250, "kept"), (251, "MISSED")):
        idle = IdleFigures(connections=10, before_bytes=0, with_bytes=size * MIB)
        assert idle_figures([idle])[0].verdict == verdict


def test_ratios_are_of_one_round() -> None:
    found = {
        "STOMP 1 x 200": [figures(100), figures(10)],
        "MQTT 1 x 200": [figures(300), figures(20)],
        "AMQP 1 x 200": [figures(50), figures(20)],
        "AMQP 10 x 100": [figures(1, cpu=2), figures(1, cpu=3)],
        "AMQP 10 x 100, TLS": [figures(1, cpu=4), figures(1, cpu=6.3)],
    }
    ratios = ratio_figures(found)
    assert [figure.values for figure in ratios] == [[3, 2], [0.5, 2], [2, pytest.approx(2.1)]]
    assert [figure.verdict for figure in ratios] == ["", "", "MISSED"]
    found["AMQP 10 x 100, TLS"][1] = figures(1, cpu=5.9)
    assert ratio_figures(found)[2].verdict == "kept"
    assert ratio_figures({"MQTT 8 + 8": [figures(1)]}) == []
    found["AMQP 10 x 100"][0] = figures(1, cpu=0)  # too short a run for the kernel to count
    assert ratio_figures(found)[2].values == [pytest.approx(5.9 / 3)]
    found["AMQP 10 x 100"][1] = figures(1, cpu=0)
    assert len(ratio_figures(found)) == 2


def test_every_row_with_tls_has_a_plain_one_beside_it() -> None:
    names = list(ROWS)
    rows = [row for row in ROWS.values() if row.has_tls]
    assert len(rows) == len(PROTOCOLS)
    for row in rows:
        before = ROWS[names[names.index(row.name) - 1]]
        assert f"{before.name}, TLS" == row.name
        assert before.load == row.load


def test_rows_are_chosen_by_name_and_by_parts_of_names() -> None:
    assert choose([]) == [*ROWS, IDLE]
    assert choose(["amqp 10 X 100"]) == ["AMQP 10 x 100"]
    assert choose(["amqp 10 x 100, tls"]) == ["AMQP 10 x 100", "AMQP 10 x 100, TLS"]
    assert choose(["idle", "mqtt to"]) == ["MQTT to STOMP", "MQTT to AMQP", IDLE]
    with pytest.raises(RowError, match="no row has 'xmpp' in its name; there are: STOMP 1 x 200"):
        choose(["xmpp"])


def test_a_row_that_has_failed_once_has_no_figures() -> None:
    found = Found(
        loads={"MQTT 8 + 8": [figures(1)], "AMQP 8 + 8": [figures(1)]},
        idle=[IdleFigures(connections=1, before_bytes=0, with_bytes=MIB)],
        failed={"AMQP 8 + 8": "of 3 messages 1 lost"},
    )
    assert {figure.name.partition(":")[0] for figure in found.figures()} == {
        "MQTT 8 + 8",
        "MiB with 1 idle connections",
        "KiB a connection",
    }
    found.failed[IDLE] = "a client was not let in"
    assert {figure.name.partition(":")[0] for figure in found.figures()} == {"MQTT 8 + 8"}


def test_the_command_names_rows_and_refuses_others() -> None:
    listed = CliRunner().invoke(main, ["--list", "mqtt to"])
    assert (listed.exit_code, listed.output) == (0, "MQTT to STOMP\nMQTT to AMQP\n")
    refused = CliRunner().invoke(main, ["xmpp"])
    assert refused.exit_code == 2
    assert "no row has 'xmpp'" in refused.output


@pytest.mark.verify
def test_the_command_measures_what_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = msgspec.structs.replace(
        ROWS["AMQP 10 x 100"].load, messages=20_000, warmup=0.0, body_size=64
    )
    for name in ("AMQP 10 x 100", "AMQP 10 x 100, TLS"):
        monkeypatch.setitem(ROWS, name, msgspec.structs.replace(ROWS[name], load=load))
    chosen = ["AMQP 10 x 100, TLS", "--rounds", "1", "--directory", str(tmp_path)]
    done = CliRunner().invoke(main, [*chosen, "--set", ROOM[0]])
    assert done.exit_code == 0, done.output
    for text in ("AMQP 10 x 100: confirmed a second", "AMQP 10 x 100, TLS per plain: CPU"):
        assert text in done.output
    assert "MQTT" not in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
def test_without_openssl_rows_with_tls_are_left_out_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(stat.S_IRWXU)
    monkeypatch.setenv("CC", str(compiler))
    assert not generator.has_tls()
    monkeypatch.setitem(ROWS, "STOMP 10 x 100", msgspec.structs.replace(
        ROWS["STOMP 10 x 100"], load=msgspec.structs.replace(
            ROWS["STOMP 10 x 100"].load, messages=10, warmup=0.0
        ),
    ))  # fmt: skip
    generator_binary = generator.PROTOCOL_BINARY
    monkeypatch.delenv("CC")
    generator.build(generator_binary)
    monkeypatch.setenv("CC", str(compiler))
    arguments = ["stomp 10 x 100", "stomp 10 x 100, tls", "--rounds", "1", "--set", ROOM[0]]
    done = CliRunner().invoke(main, [*arguments, "--directory", str(tmp_path / "store")])
    assert done.exit_code == 0, done.output
    assert "rows with TLS are left out" in done.output
    assert "STOMP 10 x 100: confirmed" in done.output
    assert "STOMP 10 x 100, TLS" not in done.output


@pytest.mark.verify
def test_a_row_without_confirms_is_void_and_named(tmp_path: Path) -> None:
    row = Row(name="STOMP 1 x 200", load=msgspec.structs.replace(
        ROWS["STOMP 1 x 200"].load, seconds=3.0, warmup=0.0, drain_seconds=0.1
    ))  # fmt: skip
    with pytest.raises(BrokerError, match=r"the disk was too full.* max-disk-usage"):
        measure_load(tmp_path, row, ("max-disk-usage=1",))


def test_a_complaint_names_what_was_found_and_nothing_else() -> None:
    names = {field.name for field in msgspec.structs.fields(Checks)}
    checks = msgspec.convert(
        {**dict.fromkeys(names, 0), "lost": 2, "out_of_order": 1, "order_checked": True}, Checks
    )
    empty = {"sent": 7, "confirmed": 7, "delivered": 5, "acknowledged": 5}
    latency = dict.fromkeys(("count", "mean", "p50", "p90", "p99", "p999", "max"), 0)
    report = msgspec.convert(
        {
            "passed": False, "ended": "", "reason": "", "settings": {}, "seconds": 1,
            "confirmed_per_s": 1, "delivered_per_s": 1, "window": empty, "totals": empty,
            "confirm_latency_us": latency, "end_to_end_latency_us": latency, "checks": checks,
            "generator": {"user_us_per_message": 0, "system_us_per_message": 0, "cores": 0},
            "per_second": [],
        },
        LoadReport,
    )  # fmt: skip
    assert complaint(report) == "of 7 messages 2 lost, 1 out of order"


@pytest.mark.verify
def test_idle_connections_are_all_let_in(tmp_path: Path) -> None:
    found = measure_idle(tmp_path, 50, ROOM)
    assert found.connections == 50
    assert 0 < found.before_bytes <= found.with_bytes
    with pytest.raises(ProtocolError, match="descriptors"):
        measure_idle(tmp_path / "more", 100_000_000, ROOM)
