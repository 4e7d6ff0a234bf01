"""AMQP's fast path in, on both implementations (`abc_amqp`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_codec.wire.amqp import Frame, Transfer, encode_frame
from vespiary_codec.wire.amqp.values import UInt
from vespiary_native.abc import Core, ScanStatus
from vespiary_native.abc_amqp import AmqpLimits
from vespiary_testkit.core_rig import IMPLEMENTATIONS

NEED, FRAME, ODD = ScanStatus.NEED_DATA, ScanStatus.FRAME, ScanStatus.ODD
FRAME_BYTES = 4096


class Client:
    """A connection of AMQP, and what it sends."""

    def __init__(self, make: Callable[..., Core]) -> None:
        core = self.core = make(
            slab_bytes=1 << 20, block_bytes=1 << 16, slabs_max=8, record_bytes_max=60_000
        )
        core.add_file(1, 7, 1 << 22)
        core.start(1, 0, 0)
        self.memory = bytearray(1 << 16)
        self.buffer = core.attach_buffer(self.memory)
        self.handle = core.open_connection()
        core.set_ready_amqp(self.handle, AmqpLimits(FRAME_BYTES, 2000))

    def scan(self, data: bytes) -> tuple[int, int, int]:
        self.memory[: len(data)] = data
        return self.core.scan_amqp(self.handle, self.buffer, 0, len(data))


@pytest.fixture(params=IMPLEMENTATIONS)
def client(request: pytest.FixtureRequest) -> Client:
    return Client(IMPLEMENTATIONS[request.param][0])


def test_a_frame_that_is_not_plain_is_left(client: Client) -> None:
    data = encode_frame(Frame(3, Transfer(handle=UInt(0)), b"xyz"))
    assert client.scan(data + data) == (FRAME, 0, len(data))
    assert client.scan(b"\0\0\0\x08\2\0\0\0") == (FRAME, 0, 8)


@pytest.mark.parametrize(
    ("there", "needed"), [(0, 0), (1, 4), (3, 4), (4, 8), (7, 8), (8, 100), (99, 100)]
)
def test_an_incomplete_frame_says_what_it_needs(client: Client, there: int, needed: int) -> None:
    data = b"\0\0\0\x64\2\0\0\0" + bytes(92)
    assert client.scan(data[:there]) == (NEED, 0, needed)


@pytest.mark.parametrize(
    ("data", "is_odd"),
    [
        (b"\0\0\0\x07", True),
        ((FRAME_BYTES + 1).to_bytes(4, "big"), True),
        (FRAME_BYTES.to_bytes(4, "big"), False),
        (b"\0\0\0\x0c\1\0\0\0", True),
        (b"\0\0\0\x0c\4\0\0\0", True),
        (b"\0\0\0\x0c\3\0\0\0", False),
        (b"\0\0\0\x0c\2\1\0\0", True),
        (b"AMQP\0\1\0\0", True),
    ],
)
def test_what_is_no_frame_of_amqp_is_odd(client: Client, data: bytes, is_odd: bool) -> None:
    assert client.scan(data)[0] is (ODD if is_odd else NEED)


def test_arguments_are_checked(client: Client) -> None:
    core, handle = client.core, client.handle
    other = core.open_connection()
    for bad in (
        lambda: core.set_ready_amqp(99, AmqpLimits(FRAME_BYTES, 2000)),
        lambda: core.set_ready_amqp(handle, AmqpLimits(7, 2000)),
        lambda: core.scan_amqp(other, client.buffer, 0, 0),
        lambda: core.scan_amqp(handle, 7, 0, 0),
        lambda: core.scan_amqp(handle, client.buffer, 1, 0),
        lambda: core.scan_amqp(handle, client.buffer, 0, len(client.memory) + 1),
        lambda: core.set_amqp_window(other, 0, 1),
        lambda: core.set_amqp_window(handle, 65_536, 1),
        lambda: core.set_amqp_window(handle, 0, 2**31),
        lambda: core.forget_amqp_session(other, 0),
    ):
        with pytest.raises(ValueError):
            bad()


def test_sessions_are_forgotten_with_their_connection(client: Client) -> None:
    core, handle = client.core, client.handle
    for channel in (0, 7, 65_535, 7):
        core.set_amqp_window(handle, channel, 5)
    core.forget_amqp_session(handle, 7)
    core.forget_amqp_session(handle, 8)
    core.close_connection(handle)
    assert core.open_connection() == handle
    core.set_ready_amqp(handle, AmqpLimits(FRAME_BYTES, 2000))
    core.forget_amqp_session(handle, 0)
