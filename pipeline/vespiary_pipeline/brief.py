"""Errors that cross into Spark: it shows a traceback with each, so that is made short.

Owns the cutting. With VESPIARY_DEBUG set, all of it is kept. Called by the classes that Spark
calls.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from vespiary_spec.errors import VespiaryError

C = TypeVar("C", bound=type)


def brief(cls: C) -> C:
    """Have the methods of a class raise our errors without the way to them, nor their causes.

    Spark hands a user the whole traceback of what was raised in one of its Python processes, and
    those of its causes: the sentence stood below fifty lines.

    Args:
        cls: A class of Spark's data sources; its own methods without a leading underscore.
    """
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _brief(method))
    return cls


def _brief(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: Any, **options: Any) -> Iterator[Any]:
            try:
                yield from method(*args, **options)
            except VespiaryError as error:
                raise _cut(error) from _cause(error)

        return generate

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return method(*args, **options)
        except VespiaryError as error:
            raise _cut(error) from _cause(error)

    return call


def _cut(error: VespiaryError) -> VespiaryError:
    return error if _keeps_all() else error.with_traceback(None)


def _cause(error: VespiaryError) -> BaseException | None:
    return error.__cause__ if _keeps_all() else None


def _keeps_all() -> bool:
    return bool(os.environ.get("VESPIARY_DEBUG"))
