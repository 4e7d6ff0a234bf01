"""Records are made of states, whatever kind of class those are."""

import dataclasses

from vespiary_broker.admin import records
from vespiary_broker.admin.handlers import shown
from vespiary_native.values import ImageStatistics


@dataclasses.dataclass
class State:
    slabs_total: int = 3
    slabs_free: int = 2
    slabs_max: int = 9


def test_a_named_tuple_is_shown_like_an_object():
    statistics = ImageStatistics(3, 2, 9, *[0] * (len(ImageStatistics._fields) - 3))
    expected = records.Image(slabs_total=3, slabs_free=2, slabs_max=9)
    assert shown(statistics, records.Image) == expected
    assert shown(State(), records.Image) == expected
