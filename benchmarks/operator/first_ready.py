"""How soon a Broker with real volumes is Ready after its apply, where its image is present.

Called by `benchmarks.operator.__main__`.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.operator.api import Api, path_of
from benchmarks.operator.fleet import is_ready
from benchmarks.operator.process import OperatorError
from vespiary_operator import kinds
from vespiary_spec.resources import API_VERSION

_LIMIT_S = 180.0


def broker(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Broker with small volumes of the default storage class."""
    sizes = {"bindings": "64Mi", "journal": "256Mi", "paging": "64Mi", "largeMessages": "64Mi"}
    volumes = {volume: {"size": size} for volume, size in sizes.items()}
    return {
        "apiVersion": API_VERSION,
        "kind": kinds.BROKER.name,
        "metadata": {"name": name},
        "spec": {"storage": {"volumes": volumes}, "config": {"journalMinFiles": 2}, **spec},
    }


def wait_ready(api: Api, namespace: str, name: str) -> float:
    """Wait until a Broker is Ready; return how many seconds it took.

    Raises:
        OperatorError: It does not get ready; says what its conditions say.
    """
    begun = time.monotonic()
    path = path_of(kinds.BROKER, namespace, name)
    while True:
        found = api.find(path)
        if found is not None and is_ready(found):
            return time.monotonic() - begun
        if time.monotonic() - begun > _LIMIT_S:
            said = ((found or {}).get("status") or {}).get("conditions")
            raise OperatorError(f"{name} is not Ready after {_LIMIT_S:.0f} s: {said}")
        time.sleep(0.05)


def measure(api: Api, namespace: str, *, rounds: int) -> list[float]:
    """Make Brokers one after the other; return the seconds until each was Ready.

    Args:
        api: The API server.
        namespace: An empty namespace.
        rounds: How many.
    """
    found = []
    for number in range(rounds):
        name = f"first-{number}"
        api.call("POST", path_of(kinds.BROKER, namespace), broker(name))
        found.append(wait_ready(api, namespace, name))
    return found
