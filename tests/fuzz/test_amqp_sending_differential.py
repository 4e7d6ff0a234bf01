"""The C core against its twin, where both send to clients of AMQP, and hear what these accept."""

from __future__ import annotations

import contextlib
import random

import pytest

from vespiary_native.abc import NoRoom
from vespiary_native.loader import is_wanted

if not is_wanted():
    pytest.skip("the native part is switched off: nothing to compare", allow_module_level=True)

from vespiary_testkit.core_driver import Driver
from vespiary_testkit.core_driver_amqp_readers import AmqpReader, AmqpReaderCalls

OPERATIONS = 500


class AmqpDriver(AmqpReaderCalls, Driver):  # type: ignore[misc]
    """A run of AMQP clients that receive, and little else."""

    def __init__(self, seed: int, *, has_room: bool) -> None:
        super().__init__(seed)
        self.is_paging, self.is_starved = False, not has_room
        self.slab_bytes = 128 * 1024
        self.sizes |= {"slab_bytes": self.slab_bytes, "slabs_max": 64, "record_bytes_max": 12_000}
        self.begin_life()

    def begin_life(self) -> None:
        super().begin_life()
        self.readers: list[AmqpReader] = []

    def go_on(self, client, consumer, status) -> bool:  # type: ignore[no-untyped-def]
        return Driver.go_on(self, client, consumer, status)

    def operate(self) -> None:
        act = self.random.random()
        with contextlib.suppress(NoRoom, ValueError):  # both said the same
            if act < 0.65:
                self.serve_reader()
            elif act < 0.85:
                self.send_amqp()
            elif act < 0.93:
                self.keep_files()
                self.flush()
            elif act < 0.97:
                self.core.take_receipts()
                self.core.take_ready_queues()
            else:
                self.settle_message()
        self.compare()


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("seed", range(16))
def test_cores_agree_about_what_amqp_clients_are_sent(seed: int, has_room: bool) -> None:
    driver = AmqpDriver(seed, has_room=has_room)
    driver.start()
    for number in range(OPERATIONS):
        driver.operate()
        if number % 170 == 169:
            is_clean = random.Random(seed + number).random() < 0.6
            for reader in list(driver.readers) if is_clean else ():
                driver.close_amqp(reader)
            driver.restart(is_clean=is_clean)
