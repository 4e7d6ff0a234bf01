"""Checksums of members put together to those of transactions, many at once.

Owns the arithmetic: the CRC-32C of two strings one behind the other follows from theirs and from
the length of the second one. Must never see the strings. Called by `outcomes`.

Source of the method: `crc32_combine` of zlib 1.2.12 (operators for runs of zeros, by powers of
two), with the polynomial of CRC-32C.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
"""0x1EDC6F41, reflected."""

Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]


def combine_crcs(
    crcs: npt.NDArray[Any], lengths: npt.NDArray[Any], offsets: npt.NDArray[Any]
) -> Words:
    """Return the CRC-32C of each list of strings put one behind the other.

    Args:
        crcs: CRC-32C of each string.
        lengths: Bytes of each string; 0 with a CRC of 0 changes nothing.
        offsets: Where each list begins in these two, and where the last one ends.
    """
    values = np.asarray(crcs).astype(np.uint32)
    sizes = np.asarray(lengths).astype(np.int64)
    counts = np.diff(np.asarray(offsets)).astype(np.int64)
    result = np.zeros(len(counts), np.uint32)  # a list of none
    there = np.flatnonzero(counts)
    counts = counts[there]
    while counts.size and counts.max() > 1:
        # Neighbours are put together, in all lists at once: a list of n takes log n rounds.
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        within = np.arange(len(values)) - starts
        left = np.flatnonzero(within % 2 == 0)
        pairs = within[left] + 1 < np.repeat(counts, counts)[left]
        second = left[pairs] + 1
        merged, merged_sizes = values[left], sizes[left]
        merged[pairs] = _behind(merged[pairs], sizes[second]) ^ values[second]
        merged_sizes[pairs] += sizes[second]
        values, sizes, counts = merged, merged_sizes, (counts + 1) // 2
    result[there] = values
    return result


def _behind(crcs: Words, lengths: Numbers) -> Words:
    """Return CRCs as they are carried over so many bytes, without what those bytes say."""
    carried = crcs.copy()
    rest = lengths.copy()
    power = 0
    while rest.any():
        odd = np.flatnonzero(rest & 1)
        carried[odd] = _apply(_operator(power), carried[odd])
        rest >>= 1
        power += 1
    return carried


def _apply(tables: Words, values: Words) -> Words:
    """Multiply values with a matrix over GF(2) that is laid out as a table for each byte."""
    product = np.zeros_like(values)
    for byte in range(4):
        product ^= tables[byte][(values >> np.uint32(8 * byte)) & np.uint32(255)]
    return product


@cache
def _operator(power: int) -> Words:
    """Return the tables of what 2**power zero bytes do to a CRC."""
    if power:
        half = _operator(power - 1)
        return np.stack([_apply(half, half[byte]) for byte in range(4)])
    octets = np.arange(256, dtype=np.uint32)
    values: Words = np.stack([octets << np.uint32(shift) for shift in (0, 8, 16, 24)])
    for _ in range(8):
        values = (values >> np.uint32(1)) ^ (values & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return values
