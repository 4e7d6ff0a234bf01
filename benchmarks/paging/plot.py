"""A picture of a backlog: messages a second, in and out, as SVG.

Owns: the drawing. Must never: measure. Called by `benchmarks.paging`.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 55, 35
# Middle tones: they stand out on a white page and on a dark one, and the picture has no ground.
_COLOURS = ("#2f9cc3", "#e0674c")
_TEXT, _GRID = "#808890", "#80889055"


def _points(counts: Sequence[int], most: int, seconds: int) -> str:
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    return " ".join(
        f"{_LEFT + width * at / max(seconds - 1, 1):.1f},{_TOP + height * (1 - count / most):.1f}"
        for at, count in enumerate(counts)
    )


def draw(title: str, lines: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Return an SVG document.

    Args:
        title: Above the picture.
        lines: Names and counts of each second, at most two.
    """
    most = max((count for _, counts in lines for count in counts), default=1) or 1
    seconds = max(len(counts) for _, counts in lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="{_LEFT}" y="20" font-size="14" fill="{_TEXT}">{escape(title)}</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - share)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{_GRID}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{_TEXT}">'
            f"{most * share:,.0f}</text>"
        )
    for (name, counts), colour in zip(lines, _COLOURS, strict=False):
        at = [name for name, _ in lines].index(name)
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" '
            f'points="{_points(counts, most, seconds)}"/>'
            f'<text x="{_LEFT + 150 * at}" y="40" fill="{colour}">'
            f"{escape(name)}</text>"
        )
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 12}" text-anchor="end" '
        f'fill="{_TEXT}">second {seconds}</text>'
        "</svg>"
    )
    return "\n".join(parts) + "\n"
