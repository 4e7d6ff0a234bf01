"""What a consumer gets ahead, by the settings of its address."""

from __future__ import annotations

import msgspec
import pytest

from vespiary_spec.consumers import prefetch_of
from vespiary_spec.settings import ADDRESS_DEFAULTS


@pytest.mark.parametrize(
    ("prefetch", "window_bytes", "expected"),
    [(1000, 1 << 20, 1000), (1000, 100 * 1024, 100), (50, -1, 50), (50, 0, 1), (5, 1 << 20, 5)],
)
def test_the_smaller_of_both_holds(prefetch: int, window_bytes: int, expected: int) -> None:
    settings = msgspec.structs.replace(
        ADDRESS_DEFAULTS, queue_prefetch=prefetch, default_consumer_window_size=window_bytes
    )
    assert prefetch_of(settings) == expected


def test_the_defaults_are_those_of_the_reference_system() -> None:
    assert prefetch_of(ADDRESS_DEFAULTS) == 1000
