"""The ConfigMap with `broker.yaml`, named after its content and immutable.

A pod that restarts while a change is rolled out so still reads the settings that its own
template names, whatever the newest ones are.

Never: reads the cluster. Called by: `plan`.
"""

from __future__ import annotations

import hashlib
from typing import Any

from vespiary_operator import names
from vespiary_spec import configuration
from vespiary_spec.resources import Broker

FILE = "broker.yaml"


def digest(text: str) -> str:
    """Return the hash of a configuration, as hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def config_map(broker: Broker) -> dict[str, Any]:
    """Return the ConfigMap.

    Raises:
        ConfigError: Settings contradict each other; with the path in the resource's spelling.
    """
    text = configuration.dump(configuration.from_broker(broker))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(broker, names.config_map(broker.metadata.name, digest(text))),
        "immutable": True,
        "data": {FILE: text},
    }
