"""The C core against its twin, where both have much to do with AMQP.

`test_core_differential` makes all calls there are; here most of them are those of AMQP clients:
frames in pieces, with lessons, allowances and routes that change between them.
"""

from __future__ import annotations

import contextlib

import pytest

from vespiary_native.abc import NoRoom
from vespiary_native.loader import is_wanted

if not is_wanted():
    pytest.skip("the native part is switched off: nothing to compare", allow_module_level=True)

from vespiary_testkit.core_driver import Driver
from vespiary_testkit.core_driver_amqp import AmqpCalls, AmqpClient

OPERATIONS = 400


class AmqpDriver(AmqpCalls, Driver):
    """A run of AMQP clients, and little else."""

    def __init__(self, seed: int) -> None:
        self.taken = 0
        super().__init__(seed)
        self.is_paging = self.is_starved = False
        self.slab_bytes = 128 * 1024
        self.sizes |= {"slab_bytes": self.slab_bytes, "slabs_max": 64, "record_bytes_max": 12_000}
        self.begin_life()

    def begin_life(self) -> None:
        self.amqp: list[AmqpClient] = []
        super().begin_life()

    def operate(self) -> None:
        pick = self.random
        act = pick.random()
        with contextlib.suppress(NoRoom, ValueError):  # both said the same
            if act < 0.7:
                self.serve_amqp()
            elif act < 0.87:
                self.keep_files()
                self.flush()
            elif act < 0.93:
                self.core.take_receipts()
                self.core.take_ready_queues()
            elif act < 0.95:
                self.open_route()
            elif act < 0.97 and len(self.routes) > 2:
                self.core.close_route(self.routes.pop())
            elif act < 0.98:
                self.core.hold_adds(held=pick.random() < 0.2)
            else:
                self.core.publish(
                    pick.choice(self.routes), b"destination:x\n", b"y", persistent=True
                )
        self.compare()


@pytest.mark.parametrize("seed", range(24))
def test_cores_agree_about_amqp(seed: int) -> None:
    driver = AmqpDriver(seed)
    driver.start()
    for number in range(OPERATIONS):
        driver.operate()
        if number % 170 == 169:
            driver.restart(is_clean=driver.random.random() < 0.6)
    assert driver.taken > 20
