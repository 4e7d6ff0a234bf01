"""Sizes and durations: parsing what people write, printing what they read.

Owns: the meaning of every suffix. The letters K, M, G mean two things in this
world, and the file they stand in decides which:

- In `broker.yaml` and `--set` (`parse_size`), K, KB, M, MB, … are powers of
  **1024**, as in the reference system whose files people bring along.
- In Kubernetes resources (`parse_quantity`), k, M, G, … are powers of **1000**
  and Ki, Mi, Gi powers of 1024, as in every other quantity of a manifest.

Ki, Mi, Gi (with or without B) mean 1024 in both, so write those. `format_size`
prints only them.
Never: rounds. A fraction that is not a whole number of bytes is refused.
Called by: `vespiary_spec.conversion`, CLIs, the pipeline; runs under `python -S`.
"""

from __future__ import annotations

import re
from fractions import Fraction

from vespiary_spec.errors import QuantityError

SIZE_BYTES_MAX = 2**63 - 1
DURATION_NS_MAX = 2**63 - 1

_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_SIZE = re.compile(
    r"(\d{1,19})(?:\.(\d{1,9}))?\s*(?:([kmgtpe])(i?))?(b?)", re.IGNORECASE | re.ASCII
)
_QUANTITY = re.compile(r"(\d{1,19})(?:\.(\d{1,9}))?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)
_DURATION_PART = re.compile(r"(\d{1,19})(?:\.(\d{1,9}))?(ns|us|µs|ms|s|m|h|d)", re.ASCII)
_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}

QUANTITY_PATTERN = r"^[0-9]{1,19}(\.[0-9]{1,9})?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
"""What `parse_quantity` accepts, for schemas."""

DURATION_PATTERN = r"^([0-9]{1,19}(\.[0-9]{1,9})?(ns|us|ms|s|m|h|d))+$"
"""What `parse_duration_ns` accepts as text, for schemas."""


def _whole_bytes(text: object, digits: str, fraction: str | None, factor: int) -> int:
    exact = Fraction(f"{digits}.{fraction or '0'}") * factor
    if exact.denominator != 1:
        raise QuantityError("the size is not a whole number of bytes", measured=text)
    size_bytes = exact.numerator
    if size_bytes > SIZE_BYTES_MAX:
        raise QuantityError("the size is too large", measured=text, allowed="less than 8EiB")
    return size_bytes


def _plain_number(value: int) -> int:
    if isinstance(value, bool) or value < 0 or value > SIZE_BYTES_MAX:
        raise QuantityError("this is no size", measured=value, allowed="0 up to 8EiB")
    return value


def parse_size(value: int | str) -> int:
    """Parse a size as `broker.yaml` and `--set` mean it; K is 1024.

    Args:
        value: Bytes as a number, or text: `10485760`, `490KiB`, `10Mi`, `10M`, `10 MB`,
            `1.5GiB`. Case does not matter, a space before the suffix neither.

    Returns:
        Bytes, 0 up to 2**63 - 1.

    Raises:
        QuantityError: Not a size, negative, too large, or not a whole number of bytes.
    """
    if isinstance(value, int):
        return _plain_number(value)
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise QuantityError(
            "this is no size",
            measured=value,
            allowed="a number with B, K, KB, Ki, KiB and so on up to E; all are powers of 1024",
        )
    digits, fraction, letter, _, _ = match.groups()
    return _whole_bytes(value, digits, fraction, 1024 ** _POWER[(letter or "").lower()])


def parse_quantity(value: int | str) -> int:
    """Parse a Kubernetes quantity of bytes; k and M are decimal, Ki and Mi binary.

    Args:
        value: Bytes as a number, or text: `10485760`, `10Mi`, `10M` (ten million), `1.5Gi`.

    Returns:
        Bytes, 0 up to 2**63 - 1.

    Raises:
        QuantityError: Not such a quantity, too large, or not a whole number of bytes.
    """
    if isinstance(value, int):
        return _plain_number(value)
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise QuantityError(
            "this is no Kubernetes quantity of bytes",
            measured=value,
            allowed="a number with Ki, Mi, Gi, Ti, Pi, Ei (1024) or k, M, G, T, P, E (1000)",
        )
    digits, fraction, suffix = match.groups()
    base = 1024 if suffix and suffix.endswith("i") else 1000
    return _whole_bytes(value, digits, fraction, base ** _POWER[(suffix or "")[:1].lower()])


def format_size(size_bytes: int) -> str:
    """Print a size exactly, in the largest binary unit that divides it.

    Args:
        size_bytes: Bytes, 0 or more.

    Returns:
        Text that `parse_size` reads back to the same number: `490KiB`, `10MiB`, `1025`.
    """
    for power, letter in ((6, "E"), (5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{letter}iB"
    return str(size_bytes)


def format_quantity(size_bytes: int) -> str:
    """Print a size exactly as a Kubernetes quantity: `490Ki`, `10Mi`, `1025`."""
    return format_size(size_bytes).removesuffix("B")


def format_size_rounded(size_bytes: int) -> str:
    """Print a size for people with three digits: `9.54 MiB`. Not for reading back."""
    size = float(size_bytes)
    for letter in ("", "Ki", "Mi", "Gi", "Ti", "Pi"):
        if size < 1024:
            if not letter:
                return f"{size_bytes} B"
            return f"{size:.0f} {letter}B" if size >= 999.5 else f"{size:.3g} {letter}B"
        size /= 1024
    return f"{size:.3g} EiB"


def parse_duration_ns(value: float | str, *, unit: str = "s") -> int:
    """Parse a duration.

    Args:
        value: A bare number, taken in `unit`; or text such as `500ms`, `1.5s`, `1h30m`.
            Units: ns, us (or µs), ms, s, m, h, d.
        unit: Unit of a bare number (also of text that holds digits alone).

    Returns:
        Nanoseconds, 0 up to 2**63 - 1.

    Raises:
        QuantityError: Not a duration, negative, too long, or finer than a nanosecond.
    """
    text = str(value).strip() if not isinstance(value, bool) else "?"
    if re.fullmatch(r"\d{1,19}(\.\d{1,9})?", text, re.ASCII):
        text += unit
    total = Fraction(0)
    position = 0
    while match := _DURATION_PART.match(text, position):
        digits, fraction, suffix = match.groups()
        total += Fraction(f"{digits}.{fraction or '0'}") * _NS[suffix]
        position = match.end()
    if position != len(text) or position == 0:
        raise QuantityError(
            "this is no duration",
            measured=value,
            allowed=f"a number in {unit}, or one with ns, us, ms, s, m, h, d",
        )
    if total.denominator != 1 or total > DURATION_NS_MAX:
        raise QuantityError(
            "the duration is too fine or too long", measured=value, allowed="1ns up to 292 years"
        )
    return total.numerator


def parse_duration(value: float | str, *, unit: str) -> int:
    """Parse a duration to a whole number of `unit`, as `parse_duration_ns` does.

    Raises:
        QuantityError: Also when the duration is not a whole number of `unit`.
    """
    duration_ns = parse_duration_ns(value, unit=unit)
    if duration_ns % _NS[unit]:
        raise QuantityError(f"the duration is not a whole number of {unit}", measured=value)
    return duration_ns // _NS[unit]


def format_duration(duration_ns: int) -> str:
    """Print a duration exactly, in the largest unit that divides it: `500ms`, `90s`.

    Args:
        duration_ns: Nanoseconds, 0 or more.
    """
    for suffix in ("d", "h", "m", "s", "ms", "us"):
        if duration_ns and duration_ns % _NS[suffix] == 0:
            return f"{duration_ns // _NS[suffix]}{suffix}"
    return f"{duration_ns}ns"
