"""The short way to read a transfer says what the general one says, or nothing."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from vespiary_codec.wire.amqp import AmqpLimits, RemoteProtocolError, Transfer
from vespiary_codec.wire.amqp.composites import read, write
from vespiary_codec.wire.amqp.decoding import Decoder
from vespiary_codec.wire.amqp.quick_transfer import read_transfer
from vespiary_codec.wire.amqp.values import UInt
from vespiary_testkit.seeds import seed_for


def general(data: bytes) -> tuple[Any, bytes] | None:
    decoder = Decoder(data, AmqpLimits())
    try:
        found = read(decoder, Transfer)
    except RemoteProtocolError:
        return None
    return found, data[decoder.at :]


@pytest.mark.parametrize("number", [None, 0, 1, 255, 256, 2**32 - 1])
def test_usual_transfers_are_read(number: int | None) -> None:
    seen = 0
    for tag, settled, more in product([None, b"", b"t" * 32], [None, True, False], [False, True]):
        transfer = Transfer(
            handle=UInt(7),
            delivery_id=None if number is None else UInt(number),
            delivery_tag=tag,
            message_format=None if number is None else UInt(0),
            settled=settled,
            more=more,
        )
        data = write(transfer) + b"payload"
        found = read_transfer(data)
        assert found == general(data)
        seen += found is not None
    assert seen == 18


@pytest.mark.parametrize("case", range(8))
def test_it_agrees_on_noise(case: int) -> None:
    noise = random.Random(seed_for(f"transfer noise {case}"))
    transfer = Transfer(
        handle=UInt(1), delivery_id=UInt(300), delivery_tag=b"tag", message_format=UInt(0),
        settled=False, more=True,
    )  # fmt: skip
    for _ in range(3000):
        data = bytearray(write(transfer) + b"payload")
        for _ in range(noise.randint(1, 3)):
            data[noise.randrange(len(data))] = noise.getrandbits(8)
        cut = bytes(data[: noise.randint(0, len(data))])
        found = read_transfer(cut)
        assert found is None or found == general(cut), cut.hex()
