"""Filters of the configuration, looked at before anything is opened or changed.

Owns this check. Must never change anything. Called by `preflight` at the start, and by `reloading`.
"""

from __future__ import annotations

from collections.abc import Iterator

from vespiary_broker.engine.selection.selector import Selector, compile_filter
from vespiary_broker.engine.turn_time import TurnTime
from vespiary_broker.server.compiling_in_time import compile_in_time
from vespiary_spec.errors import ConfigError, InvalidSelector
from vespiary_spec.settings import Configuration


def check_filters(configuration: Configuration) -> None:
    """Refuse a configuration with a filter that is no selector.

    Args:
        configuration: The configuration.

    Raises:
        ConfigError: With the path of the filter, and what is wrong with it.
    """
    for path, text in _filters(configuration):
        try:
            compile_filter(text)
        except InvalidSelector as error:
            raise _refusal(path, text, error) from error


async def compile_filters(configuration: Configuration, turn_time: TurnTime) -> list[Selector]:
    """Compile the filters of a configuration while clients are served.

    Args:
        configuration: The configuration.
        turn_time: What a turn of the loop has for them.

    Returns:
        The selectors; while the caller has them, none of the filters is compiled again.

    Raises:
        ConfigError: One is no selector; as of `check_filters`.
    """
    found = []
    for path, text in _filters(configuration):
        try:
            selector = await compile_in_time(text.strip(), turn_time)
        except InvalidSelector as error:
            raise _refusal(path, text, error) from error
        if selector is not None:
            found.append(selector)
    return found


def _refusal(path: str, text: str, error: InvalidSelector) -> ConfigError:
    return ConfigError(
        f"this filter is no selector: {error}",
        path=path,
        value=text,
        cure="correct it; docs/howto/selectors.md has the language",
    )


def _filters(configuration: Configuration) -> Iterator[tuple[str, str]]:
    for index, address in enumerate(configuration.addresses):
        for place, queue in enumerate(address.queues):
            yield f"addresses[{index}].queues[{place}].filter-string", queue.filter_string
    for index, divert in enumerate(configuration.diverts):
        yield f"diverts[{index}].filter-string", divert.filter_string
