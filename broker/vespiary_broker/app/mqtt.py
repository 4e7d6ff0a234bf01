"""MQTT at the start and at the end of a broker.

Owns how what all MQTT clients share is made from the configuration. Called by `broker`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from vespiary_broker.engine.ports import Bindings
from vespiary_broker.server.cycle import Cycle
from vespiary_broker.server.mqtt.hub import MqttHub
from vespiary_spec.settings import Configuration


def restore_mqtt(
    cycle: Cycle,
    bindings: Bindings,
    configuration: Configuration,
    load_slab: Callable[[int, int], None],
) -> None:
    """Take the sessions of MQTT clients from the bindings, whether a listener speaks MQTT or not.

    Queues that are not configured any more are deleted after that: it ends their sessions.

    Args:
        cycle: What all connections share.
        bindings: The bindings journal.
        configuration: Its acceptors say what stands in front of addresses.
        load_slab: Begins to read a part of a queue that is not in memory.

    Raises:
        ValueError: A session in the bindings is none.
    """
    prefixes = {
        prefix
        for acceptor in configuration.acceptors
        for prefix in (acceptor.anycast_prefix, acceptor.multicast_prefix)
    }
    hub = cycle.mqtt = MqttHub(cycle, bindings, load_slab, tuple(sorted(prefixes, reverse=True)))
    hub.restore()


def begin_mqtt(stack: AsyncExitStack, cycle: Cycle) -> None:
    """Begin to send wills and to watch sessions; who may do what has to be known.

    Args:
        stack: Ends it.
        cycle: What all connections share.
    """
    assert cycle.mqtt is not None
    cycle.mqtt.start()
    stack.callback(cycle.mqtt.close)
