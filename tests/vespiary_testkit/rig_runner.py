"""Runs an asynchronous test on a loop of its own with a rig for MQTT clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from vespiary_testkit import product_loop
from vespiary_testkit.mqtt_rig import MqttRig


def on_rig(
    runner: Callable[[Any], None] = product_loop.run, **options: Callable[[], Any]
) -> Callable[[Callable[[MqttRig], Awaitable[None]]], Any]:
    """Run a test with a rig.

    Args:
        runner: Runs a coroutine.
        options: Make what the rig is made with: on the loop, for each test.
    """

    def decorate(test: Callable[[MqttRig], Awaitable[None]]) -> Any:
        @wraps(test)
        def run() -> None:
            async def scenario() -> None:
                rig = MqttRig(**{key: value() for key, value in options.items()})
                await test(rig)
                await rig.close()

            runner(scenario())

        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for a fixture `rig`
        return run

    return decorate
