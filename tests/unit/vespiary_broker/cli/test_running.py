"""What `vespiary run` prints for people."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from vespiary_broker.cli.running import event_printer


def listening(name: str, host: str, port: int) -> dict[str, Any]:
    protocols = ["http"] if name == "http" else ["stomp"]
    return {
        "event": "listening",
        "name": name,
        "protocols": protocols,
        "host": host,
        "port": port,
    }


READY = {
    "event": "ready",
    "seconds": 0.1234,
    "engine": "NIO",
    "durability": "D2",
    "data": "/srv/data",
}


def printed(capsys: pytest.CaptureFixture[str], *events: dict[str, Any]) -> list[str]:
    show = event_printer()
    for event in events:
        show(event)
    return capsys.readouterr().out.splitlines()


def test_one_line_for_each_listener_then_ready_and_a_line_to_try(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/local/lib/vespiary"])
    lines = printed(
        capsys,
        listening("all", "127.0.0.1", 61616),
        listening("http", "127.0.0.1", 8161),
        READY,
    )
    assert lines[0].split() == ["listening", "all", "tcp://127.0.0.1:61616", "stomp"]
    assert lines[1].split() == ["listening", "http", "http://127.0.0.1:8161", "http"]
    assert lines[2] == (
        "ready      in 0.12 s, journal NIO, durability D2 (survives a power cut), data in /srv/data"
    )
    assert lines[3] == 'try        vespiary send orders "hello" && vespiary receive orders'


def test_the_line_to_try_works_as_it_stands(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", [".venv/bin/vespiary"])
    *_, line = printed(capsys, listening("all", "::1", 7000), READY)
    assert line == (
        'try        .venv/bin/vespiary send --url stomp://[::1]:7000 orders "hello" && '
        ".venv/bin/vespiary receive --url stomp://[::1]:7000 orders"
    )
