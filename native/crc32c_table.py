"""Writes `native/src/crc32c_table.h`: the tables and constants that `crc32c.c` needs.

Run by hand (`python native/crc32c_table.py`); the result is kept under version control, and
`native/tests/test_crc32c.c` recomputes every entry bit by bit.
"""

from __future__ import annotations

from pathlib import Path

POLYNOMIAL = 0x82F63B78  # reflected: bit 31 is the coefficient of x^0
ONE = 1 << 31
# Bytes per stream; three streams run side by side. Long first. arm64 has only the long ones, since
# joining costs more there (multiplication by shifts instead of PCLMULQDQ).
STRIDES = (2048, 512, 128)


def times_x(value: int) -> int:
    """Multiply by x modulo the polynomial."""
    return (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)


def power_of_x(exponent: int) -> int:
    """Return x^exponent modulo the polynomial."""
    value = ONE
    for _ in range(exponent):
        value = times_x(value)
    return value


def slices() -> list[list[int]]:
    """Return the eight tables: entry [k][b] is byte b followed by k zero bytes."""
    first = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = times_x(value)
        first.append(value)
    tables = [first]
    for _ in range(7):
        tables.append([(value >> 8) ^ first[value & 0xFF] for value in tables[-1]])
    return tables


def header() -> str:
    """Return the text of the header."""
    lines = [
        "/* Written by native/crc32c_table.py; do not edit. */",
        "#ifndef VESPIARY_CRC32C_TABLE_H",
        "#define VESPIARY_CRC32C_TABLE_H",
        "",
        "#include <stdint.h>",
        "",
        "/* [k][b]: the remainder of byte b followed by k zero bytes (slicing by 8). */",
        "static const uint32_t vespiary_crc32c_slices[8][256] = {",
    ]
    for table in slices():
        lines.append("    {")
        lines += [
            "        " + ", ".join(f"0x{value:08x}" for value in table[i : i + 8]) + ","
            for i in range(0, 256, 8)
        ]
        lines.append("    },")
    lines += [
        "};",
        "",
        "/*",
        " * For streams of `stride` bytes: x^(8n) for a multiplication modulo the polynomial",
        " * (shift_*), and x^(8n - 33) for a carry-less product that one CRC32 instruction then",
        " * reduces: that multiplies by x^32 and, products of reflected values being one bit",
        " * short, by x (fold_*). n is one stride, then two.",
        " */",
        "typedef struct vespiary_crc32c_stride {",
        "    uint32_t stride, shift_one, shift_two, fold_one, fold_two;",
        "} vespiary_crc32c_stride;",
        "",
        f"static const vespiary_crc32c_stride vespiary_crc32c_strides[{len(STRIDES)}] = {{",
    ]
    for stride in STRIDES:
        one, two = 8 * stride, 16 * stride
        values = [power_of_x(n) for n in (one, two, one - 33, two - 33)]
        lines.append(f"    {{{stride}, {', '.join(f'0x{value:08x}' for value in values)}}},")
    lines += ["};", "", "#endif", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    target = Path(__file__).resolve().parent / "src" / "crc32c_table.h"
    target.write_text(header())
    print(f"wrote {target}")
