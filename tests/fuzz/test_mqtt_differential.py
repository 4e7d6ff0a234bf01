"""The C core against its twin, where both have much to do with MQTT.

`test_core_differential` makes all calls there are; here most of them are those of MQTT clients, and
the journal has room, so that windows fill, ids come round, and acknowledgements meet what was sent.
"""

from __future__ import annotations

import contextlib
import os

import pytest

from vespiary_native.abc import NoRoom
from vespiary_native.loader import is_wanted

if not is_wanted():
    pytest.skip("the native part is switched off: nothing to compare", allow_module_level=True)

from vespiary_testkit.core_driver import Driver
from vespiary_testkit.seeds import seed_for

pytestmark = pytest.mark.ci

OPERATIONS = 400
CASES = int(os.environ.get("VESPIARY_FUZZ_CASES", "20")) // 2


class MqttDriver(Driver):
    """A run of MQTT clients, and little else."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.is_paging = self.is_starved = False
        self.slab_bytes = 128 * 1024
        self.sizes |= {"slab_bytes": self.slab_bytes, "slabs_max": 64, "record_bytes_max": 12_000}
        self.begin_life()

    def operate(self) -> None:
        pick = self.random
        act = pick.random()
        with contextlib.suppress(NoRoom, ValueError):  # both said the same
            if act < 0.7:
                self.serve_client()
            elif act < 0.9:
                self.keep_files()
                self.flush()
            elif act < 0.95:
                self.core.take_receipts()
                self.core.take_ready_queues()
            elif act < 0.98:
                self.settle_message()
            else:
                self.core.publish(
                    pick.choice(self.routes), b"destination:x\n", b"y", persistent=True, protocol=2,
                    priority=pick.choice([4, 4, 5]), special=pick.random() < 0.1,
                )  # fmt: skip
        self.compare()


@pytest.mark.parametrize("case", range(CASES))
def test_cores_agree_about_mqtt(case: int) -> None:
    driver = MqttDriver(seed_for(f"mqtt differential {case}"))
    driver.start()
    for number in range(OPERATIONS):
        driver.operate()
        if number % 170 == 169:
            driver.restart(is_clean=driver.random.random() < 0.6)
