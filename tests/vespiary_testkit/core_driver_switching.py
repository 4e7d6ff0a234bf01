"""Random calls about switches to both cores: SENDs whose routes Python chooses.

Owns nothing: a mix-in of `core_driver.Driver`.
"""

from __future__ import annotations

import contextlib
import random

from vespiary_native.abc import ScanStatus
from vespiary_testkit.core_pair import Both


class SwitchingCalls:
    """Makes, teaches and closes switches, and sends what comes to them on."""

    core: Both
    random: random.Random
    routes: list[int]
    switches: list[int]

    def open_switches(self) -> None:
        """Begin with some."""
        self.switches = [self.core.open_switch() for _ in range(2)]

    def teach_switch(self, connection: int) -> None:
        """Let a connection send some of its messages through a switch."""
        pick = self.random
        if pick.random() < 0.6:
            name = b"/queue/%d" % pick.randint(0, 6)
            self.core.teach(connection, name, pick.choice(self.switches))

    def replace_switch(self) -> None:
        """Close one; who was taught it asks again."""
        self.core.close_route(self.switches.pop(0))
        self.switches.append(self.core.open_switch())

    def misuse_switch(self) -> None:
        """Do what no switch can: both cores refuse it."""
        pick = self.random
        switch = pick.choice(self.switches)
        act = pick.randint(0, 2)
        if act == 0:
            self.core.publish(switch, b"", b"", persistent=True)
        elif act == 1:
            self.core.set_route(switch, [])
        else:
            self.core.send_switched([pick.choice(self.routes)])

    def choose(self) -> tuple[int, int, int]:
        """Send what a scan kept to random routes; return what that answers."""
        pick, core = self.random, self.core
        kept = core.switched()
        assert kept
        if pick.random() < 0.1:
            with contextlib.suppress(ValueError):
                core.send_switched(
                    [*[pick.choice(self.routes) for _ in kept[1:]], self.switches[0]]
                )
            with contextlib.suppress(ValueError):
                core.send_switched([pick.choice(self.routes) for _ in kept[1:]])
        routes = [pick.choice(self.routes) for _ in kept]
        status, at, detail = core.send_switched(routes)
        assert not core.switched()
        assert status in (ScanStatus.NEED_DATA, ScanStatus.FRAME, ScanStatus.BLOCKED)
        return status, at, detail
