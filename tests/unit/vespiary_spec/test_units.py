"""Sizes, quantities and durations: what they mean, and that printing reads back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_spec import units
from vespiary_spec.errors import QuantityError

SIZES = st.integers(min_value=0, max_value=units.SIZE_BYTES_MAX)
DURATIONS = st.integers(min_value=0, max_value=units.DURATION_NS_MAX)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("10MiB", 10485760),
        ("10Mi", 10485760),
        ("10M", 10485760),
        ("10MB", 10485760),
        ("10mb", 10485760),
        (" 10 MB ", 10485760),
        ("490KiB", 501760),
        ("1.5GiB", 1610612736),
        ("100B", 100),
        ("0", 0),
        (4096, 4096),
    ],
)
def test_a_size_in_the_configuration_counts_in_1024(text: int | str, size_bytes: int) -> None:
    assert units.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("10Mi", 10485760),
        ("10M", 10_000_000),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 1610612736),
        ("0.5k", 500),
        (10, 10),
    ],
)
def test_a_quantity_in_a_resource_counts_as_kubernetes_does(
    text: int | str, size_bytes: int
) -> None:
    assert units.parse_quantity(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1 0",
        "10MiBs",
        "M",
        "1e3",
        "0x10",
        "1.5",
        "1,5K",
        "9E",
        "٣",
        "1\n1",
        True,
        -1,
        2**63,
    ],
)
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(QuantityError):
        units.parse_size(text)


@pytest.mark.parametrize("text", ["10MiB", "10KB", "1K", "10 Mi", "1m", "", "1.5", "10Mi\n", -1])
def test_what_is_no_quantity_is_refused(text: int | str) -> None:
    with pytest.raises(QuantityError):
        units.parse_quantity(text)


@settings(deadline=None)  # the machine may be busy
@given(SIZES)
def test_a_printed_size_reads_back(size_bytes: int) -> None:
    assert units.parse_size(units.format_size(size_bytes)) == size_bytes
    assert units.parse_quantity(units.format_quantity(size_bytes)) == size_bytes
    assert units.parse_size(str(size_bytes)) == size_bytes


@settings(deadline=None)  # the machine may be busy
@given(SIZES)
def test_binary_suffixes_mean_the_same_in_both_places(size_bytes: int) -> None:
    text = units.format_quantity(size_bytes)
    assert units.parse_size(text) == units.parse_quantity(text)


@settings(deadline=None)  # the machine may be busy
@given(st.text(max_size=20))
def test_any_text_is_a_size_or_a_quantity_error(text: str) -> None:
    for parse in (units.parse_size, units.parse_quantity):
        try:
            size_bytes = parse(text)
        except QuantityError:
            continue  # the only error there may be
        assert 0 <= size_bytes <= units.SIZE_BYTES_MAX


@settings(deadline=None)  # the machine may be busy
@given(SIZES)
def test_a_rounded_size_is_short(size_bytes: int) -> None:
    assert len(units.format_size_rounded(size_bytes)) <= 13


@pytest.mark.parametrize(
    ("value", "unit", "duration_ns"),
    [
        ("500ms", "s", 500_000_000),
        ("1h30m", "s", 5_400_000_000_000),
        ("1.5s", "s", 1_500_000_000),
        (10, "s", 10_000_000_000),
        ("10", "ms", 10_000_000),
        (0.5, "s", 500_000_000),
        ("2d", "s", 172_800_000_000_000),
        ("3µs", "s", 3000),
        ("0", "ns", 0),
    ],
)
def test_durations(value: float | str, unit: str, duration_ns: int) -> None:
    assert units.parse_duration_ns(value, unit=unit) == duration_ns


@pytest.mark.parametrize("value", ["", "-1s", "1 s", "s", "1x", "0.1ns", "1s1", True, -1, "300y"])
def test_what_is_no_duration_is_refused(value: float | str) -> None:
    with pytest.raises(QuantityError):
        units.parse_duration_ns(value)


def test_a_duration_has_to_fit_its_unit() -> None:
    assert units.parse_duration("2s", unit="ms") == 2000
    with pytest.raises(QuantityError, match="not a whole number of s"):
        units.parse_duration("1500ms", unit="s")


@settings(deadline=None)  # the machine may be busy
@given(DURATIONS)
def test_a_printed_duration_reads_back(duration_ns: int) -> None:
    assert units.parse_duration_ns(units.format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1024 * 1000, "1000 KiB"),
        (1024 * 1024 - 1, "1024 KiB"),
        (10 * 1024 * 1024, "10 MiB"),
    ],
)
def test_a_rounded_size_is_a_plain_number(size_bytes: int, text: str) -> None:
    assert units.format_size_rounded(size_bytes) == text
