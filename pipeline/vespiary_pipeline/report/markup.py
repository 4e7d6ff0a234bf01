"""Elements of HTML and SVG, escaped where they are made.

Owns: escaping. A plain `str` is text and is always escaped; `Markup` is what `tag` has made. So no
name of a stranger can become an element. Called by `charts`, `sections` and `page`.
"""

from __future__ import annotations

import html
from typing import Final

from vespiary_pipeline.report import measures

_VOID: Final = frozenset(("meta", "br"))


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        name: Its name.
        children: Text (escaped) and markup (as it is).
        attributes: Its attributes: `class_` is `class`, other `_` are `-`; None leaves one out.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{join(*children)}</{name}>")


def join(*parts: str) -> Markup:
    """Return parts one after another, text escaped."""
    return Markup("".join(p if isinstance(p, Markup) else html.escape(p) for p in parts))


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def named(name: str | None, *, otherwise: str = "(unknown)", width: int = 80) -> Markup:
    """Return a name of a stranger for a page: cleaned, shortened, its direction kept to itself."""
    if name is None:
        return tag("span", otherwise, class_="quiet")
    whole = measures.clean(name)
    short = measures.shorten(whole, width)
    return tag("bdi", short or "(empty)", title=whole if short != whole else None)


def isolated(name: str, width: int) -> str:
    """Return a name for the text of a picture: as `named`, with marks in place of an element."""
    return f"\u2068{measures.shorten(name, width) or '(empty)'}\u2069"
