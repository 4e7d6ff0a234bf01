"""Both implementations of the core behind one: each call goes to both, and must give the same.

Owns `Both`. Used by the fuzz tests of the core.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from vespiary_native.abc import Core, NoRoom
from vespiary_native.core import NativeCore
from vespiary_native.twin import TwinCore

PAIRS = ("seal_write", "load_begin", "page_close")
"""What is answered by both: it has addresses."""


class MismatchError(AssertionError):
    """The two cores disagree."""


class Both:
    """Calls both cores and compares what comes back, errors included."""

    def __init__(self, **sizes: int) -> None:
        self.cores: tuple[Core, Core] = (TwinCore(**sizes), NativeCore(**sizes))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            twin, native = (outcome(getattr(core, name), arguments, named) for core in self.cores)
            if comparable(name, twin) != comparable(name, native):
                raise MismatchError(f"{name}{arguments}{named}: twin {twin!r}, native {native!r}")
            if isinstance(twin, Raised):
                raise twin.error
            return (twin, native) if name in PAIRS else twin

        return call


class Raised:
    """An error as a result, compared by its class."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raised) and self.kind == other.kind

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.error!r}"

    @property
    def kind(self) -> type[Exception]:
        return NoRoom if isinstance(self.error, NoRoom) else ValueError


def outcome(method: Callable[..., Any], arguments: Any, named: Any) -> Any:
    try:
        return method(*arguments, **named)
    except (NoRoom, ValueError) as error:
        return Raised(error)


def comparable(name: str, result: Any) -> Any:
    if isinstance(result, Raised) or result is None:
        return result
    if name == "seal_write":
        data = ctypes.string_at(result.address, result.length)
        return result.file_id, result.offset, result.length, result.sequence, data
    if name == "load_begin":
        return result[1:]
    if name == "page_close":
        return [(one.offset, ctypes.string_at(one.address, one.length)) for one in result]
    if name == "page_wanted":
        return sorted(result)
    if name in ("live_large", "take_done_large"):
        return sorted(result, key=str)
    if name in ("take_receipts", "take_ready_queues"):
        return sorted(result)
    return result
