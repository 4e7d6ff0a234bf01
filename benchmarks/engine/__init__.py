"""Loads that Python decides about: selectors, priorities, message groups, filters.

Owns: these loads; `benchmarks.scenarios` names them and holds them against their floors. Must
never: measure. Each is the plain pipeline with one header more, so its figures stand beside it.
"""

from typing import Any, Final

import msgspec

from benchmarks.generator import Load

_PIPES: Final = 8


def _pipeline(send_header: str, selector: str = "", **others: Any) -> Load:
    load = Load(
        producers=_PIPES,
        consumers=_PIPES,
        queues=_PIPES,
        window=100,
        send_header=send_header,
        selector=selector,
    )
    return msgspec.structs.replace(load, **others)


SELECTOR: Final = _pipeline("colour:red", "colour = 'red' AND JMSPriority > 3")
"""Every message matches."""

PRIORITIES: Final = _pipeline("priority:%v", variants=10)
"""All priorities at random in each queue."""

GROUPS: Final = _pipeline("JMSXGroupID:group-%v", variants=1000, queues=1)
"""A thousand groups in one queue with eight consumers."""

FILTERS: Final = _pipeline(
    "colour:red", "colour = 'red' AND JMSPriority > 3", destination_type="MULTICAST"
)
"""A topic for each pipe, with a subscription that has a filter: every message matches."""
