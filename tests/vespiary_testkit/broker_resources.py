"""A Broker as tests of the operator have it, and what its pods' verification found.

Called by tests/unit/vespiary_operator and the worlds of this package.
"""

from __future__ import annotations

from typing import Any

from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.verification import AioResult, VolumeResult, encode, summarise

UID = "u-1"

VOLUMES = ("bindings", "journal", "paging", "large-messages")

GOOD_ANSWER = encode(
    summarise(
        tuple(VolumeResult(name=name, filesystem="ext4") for name in VOLUMES),
        AioResult(max_nr=65536, nr=100, demand=500),
        engine="ASYNCIO",
    )
).decode()
"""The answer of a verification that found nothing wrong."""


def document(**spec: Any) -> dict[str, Any]:
    """Return the Broker `orders` as the API server has it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "ns", "uid": UID},
        "spec": spec,
    }


def broker(**spec: Any) -> Broker:
    """Return the Broker `orders`."""
    return Broker.from_dict(document(**spec))
