"""Filters of a configuration that is read while clients are served."""

from __future__ import annotations

import pytest

from vespiary_broker.app.filters import compile_filters
from vespiary_broker.engine.queue_traits import configured_traits
from vespiary_broker.engine.selection import selector
from vespiary_broker.engine.turn_time import TurnTime
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import Address, Configuration, Queue
from vespiary_testkit import product_loop


def _configuration(*filters: str) -> Configuration:
    queues = tuple(Queue(name=f"q{n}", filter_string=text) for n, text in enumerate(filters))
    return Configuration(addresses=(Address(name="a", queues=queues),))


def test_the_filters_of_a_configuration_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_one = selector._compile

    def counted(text: str, *, is_new: bool) -> selector.Selector:
        compiled.append(text)
        return compile_one(text, is_new=is_new)

    selector.prepare_parser()
    monkeypatch.setattr(selector, "_compile", counted)
    configuration = _configuration(*(f"once = {number}" for number in range(40)), "")
    found = product_loop.run(compile_filters(configuration, TurnTime()))
    assert len(compiled) == len(found) == 40
    for _ in range(3):
        for queue in configuration.addresses[0].queues:
            configured_traits(queue, "a")
    assert len(compiled) == 40


def test_a_filter_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match=r"addresses\[0\].queues\[1\].filter-string"):
        product_loop.run(compile_filters(_configuration("a = 1", "a ="), TurnTime()))
