"""The account of TLS records: content pays, and what brings none is cut off."""

from __future__ import annotations

import asyncio

from vespiary_broker.server.tls_meter import CREDIT_BYTES, TlsMeter


class Inner:
    """A TLS protocol that makes as much content of what it gets as the test says."""

    def __init__(self) -> None:
        self.buffer = bytearray(64 * 1024)
        self.content = 0
        self.share = 0.0
        self.calls: list[str] = []

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.content += int(nbytes * self.share)

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


class Metered:
    def __init__(self) -> None:
        self.inner = Inner()
        self.is_paused = False
        self.cuts = 0
        self.meter = TlsMeter(
            self.inner, lambda: self.inner.content, lambda: self.is_paused, self.cut
        )

    def cut(self) -> None:
        self.cuts += 1

    def read(self, total: int, share: float) -> None:
        """Have bytes arrive, in as large pieces as there is room for."""
        self.inner.share = share
        while total and not self.cuts:
            count = min(len(self.meter.get_buffer(65536)), total)
            self.meter.buffer_updated(count)
            total -= count


def test_a_handshake_without_content_is_taken() -> None:
    metered = Metered()
    metered.read(CREDIT_BYTES, 0)
    assert not metered.cuts


def test_more_than_that_is_cut_off_within_one_small_read() -> None:
    metered = Metered()
    metered.read(CREDIT_BYTES, 0)
    metered.read(1, 0)
    assert metered.cuts == 1


def test_what_may_be_read_at_once_is_little_until_it_is_content() -> None:
    metered = Metered()
    assert len(metered.meter.get_buffer(65536)) == CREDIT_BYTES
    metered.read(1000, 0)
    assert len(metered.meter.get_buffer(65536)) == CREDIT_BYTES - 1000
    metered.read(1000, 0.9)
    assert len(metered.meter.get_buffer(65536)) == 65536
    metered.read(1000, 0)
    assert len(metered.meter.get_buffer(65536)) == CREDIT_BYTES - 1000


def test_bulk_and_single_bytes_pay_for_themselves() -> None:
    metered = Metered()
    metered.read(100_000_000, 0.99)
    for _ in range(10_000):
        metered.read(23, 1 / 23 + 0.001)  # one byte in a record of 23
    assert not metered.cuts


def test_content_does_not_pay_ahead() -> None:
    metered = Metered()
    metered.read(10_000_000, 0.99)
    metered.read(200_000, 0)
    assert metered.cuts == 1


def test_what_waits_while_nothing_is_read_is_not_held_against_it() -> None:
    metered = Metered()
    metered.is_paused = True
    metered.read(200_000, 0)
    assert not metered.cuts
    metered.is_paused = False
    metered.inner.content += 190_000  # it is read now
    metered.read(100, 0.9)
    assert not metered.cuts
    metered.is_paused = True
    metered.read(200_000, 0)
    metered.is_paused = False
    metered.read(100, 0)  # there was nothing in it
    assert metered.cuts == 1


def test_the_rest_is_handed_on() -> None:
    metered = Metered()
    assert isinstance(metered.meter, asyncio.BufferedProtocol)
    metered.meter.pause_writing()
    metered.meter.resume_writing()
    assert metered.meter.eof_received()
    metered.meter.connection_lost(None)
    assert metered.inner.calls == ["pause", "resume", "eof", "lost"]
