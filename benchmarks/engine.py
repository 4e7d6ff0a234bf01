"""Loads on queues whose order Python decides: selectors, priorities, message groups.

Owns: these loads; `benchmarks.scenarios` names them and holds them against their floors. Must
never: measure. Each is the plain pipeline with one header more, so its figures stand beside it.
"""

from typing import Final

from benchmarks.generator import Load

_PIPES: Final = 8


def _pipeline(send_header: str, selector: str = "") -> Load:
    return Load(
        producers=_PIPES,
        consumers=_PIPES,
        queues=_PIPES,
        window=100,
        send_header=send_header,
        selector=selector,
    )


SELECTOR: Final = _pipeline("colour:red", "colour = 'red' AND JMSPriority > 3")
"""Every message matches; SENDs stay on the fast path."""

PRIORITIES: Final = _pipeline("priority:%d")
"""Eight priorities, one for each queue: every SEND goes through Python too."""

GROUPS: Final = _pipeline("JMSXGroupID:group-%d")
"""A group in each queue: every SEND goes through Python too."""
