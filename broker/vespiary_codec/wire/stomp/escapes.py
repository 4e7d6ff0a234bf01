r"""Header escapes, per version.

Owns the only place that knows them:

    version                1.0    1.1                1.2
    escapes                none   \\  \n  \c         \\  \n  \c  \r
    any other after a \    data   fatal error        fatal error

CONNECT, CONNECTED and STOMP are never escaped, whatever the version ("Value Encoding" in STOMP
1.1 and 1.2). Called by the decoder, the encoder and the properties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from vespiary_codec.wire.stomp.errors import RemoteProtocolError, Violation
from vespiary_codec.wire.stomp.frames import Version

_ESCAPES: Final[dict[Version, dict[str, str]]] = {
    "1.0": {},
    "1.1": {"\\": "\\\\", "\n": "\\n", ":": "\\c"},
    "1.2": {"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r"},
}
_ESCAPING: Final = {
    version: str.maketrans(escapes) for version, escapes in _ESCAPES.items() if escapes
}
_UNESCAPING: Final[dict[Version, Mapping[str, str]]] = {
    version: {escape: character for character, escape in escapes.items()}
    for version, escapes in _ESCAPES.items()
}
_TO_ESCAPE: Final = re.compile(r"[\\\n\r:]")
_ESCAPE: Final = re.compile(r"\\.?", re.DOTALL)


def escape(text: str, version: Version) -> str:
    """Return a header's name or value with the escapes of `version`; STOMP 1.0 has none.

    Args:
        text: Name or value, unescaped.
        version: The version of the reader.
    """
    table = _ESCAPING.get(version)
    if table is None or _TO_ESCAPE.search(text) is None:
        return text
    return text.translate(table)


def unescape(text: str, version: Version) -> str:
    r"""Return a header's name or value without the escapes of `version`; STOMP 1.0 has none.

    Args:
        text: Name or value as it stands on the wire.
        version: The version of the writer.

    Raises:
        RemoteProtocolError: An escape that the version does not define, such as `\t`, or a `\` at
            the end.
    """
    if version == "1.0" or "\\" not in text:
        return text
    table = _UNESCAPING[version]

    def replace(match: re.Match[str]) -> str:
        character = table.get(match[0])
        if character is None:
            follower = f"before {match[0][1:]!a}" if match[0][1:] else "at the end"
            raise RemoteProtocolError(
                Violation.UNDEFINED_ESCAPE,
                f"undefined escape in a header: a backslash {follower};"
                f" STOMP {version} defines {' '.join(sorted(table))}",
            )
        return character

    return _ESCAPE.sub(replace, text)
