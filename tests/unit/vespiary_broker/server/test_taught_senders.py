"""What a connection is taught stays bounded, and is taught again however often it changed."""

from __future__ import annotations

from vespiary_spec.settings import RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import ServerRig

CHANGES = 1100


def test_who_was_taught_a_thousand_times_is_taught_again() -> None:
    async def scenario() -> None:
        rig = ServerRig()
        registry = rig.engine.registry
        await registry.create_queue("kept", "x", RoutingType.ANYCAST)
        peer = rig.peer()
        await peer.login()
        message = b"SEND\ndestination:/queue/x\npersistent:true\n\nbody\0"
        for _ in range(CHANGES):
            second = await registry.create_queue("second", "x", RoutingType.ANYCAST)
            peer.send(message)  # two queues take turns: nothing that could be taught
            registry.drop_queue(second)
            peer.send(message)
            await rig.flush()
        frames = rig.cycle.frames
        assert frames >= CHANGES, "each change is met in Python"
        peer.send(message * 10)
        await rig.flush()
        assert rig.cycle.frames == frames
        await rig.close()

    product_loop.run(scenario())
