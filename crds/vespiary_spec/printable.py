"""Text of others, made safe to show on a terminal and in a log.

Owns the set of characters that are escaped, and their form. Bodies, headers and names come from
clients; a terminal takes some of their characters as commands (change the title, clear the screen,
answer as if typed), and a log takes a line feed as the end of a line.

Never: imports anything but the standard library.
"""

from __future__ import annotations

import re
from typing import Final

_STEERING: Final = "\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
"""C0 and C1 control characters, DEL, and the characters that change the direction of text."""
_IN_LINES: Final = re.compile(f"[{_STEERING}]")
_IN_TEXT: Final = re.compile(f"(?![\n\t]|\r\n)[{_STEERING}]")


def printable_line(text: str) -> str:
    r"""Return text on one line, with control characters as in JSON (`\u001b`).

    Args:
        text: Any text.
    """
    return _IN_LINES.sub(_escaped, text)


def printable_text(text: str) -> str:
    """Return text with control characters escaped; line ends and tabs stay.

    Args:
        text: Any text, of any number of lines.
    """
    return _IN_TEXT.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
