"""Filters of the configuration, looked at before anything is opened.

Owns this check. Must never change anything. Called by `app.broker` at the start.
"""

from __future__ import annotations

from collections.abc import Iterator

from vespiary_broker.engine.selection.selector import compile_filter
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
            raise ConfigError(
                f"this filter is no selector: {error}",
                path=path,
                value=text,
                cure="correct it; docs/howto/selectors.md has the language",
            ) from error


def _filters(configuration: Configuration) -> Iterator[tuple[str, str]]:
    for index, address in enumerate(configuration.addresses):
        for place, queue in enumerate(address.queues):
            yield f"addresses[{index}].queues[{place}].filter-string", queue.filter_string
    for index, divert in enumerate(configuration.diverts):
        yield f"diverts[{index}].filter-string", divert.filter_string
