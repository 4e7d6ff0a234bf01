r"""Topics and addresses: which address a topic name or filter is, and back.

Owns the mapping, which is one to one, so that what comes from an address can be answered on the
topic that was seen. Must never know what exists. Called by the sessions, by retained messages and
by the encoders.

    topic               address             why
    sensors/kitchen     sensors.kitchen     levels are words
    sensors/+/#         sensors.*.#         wildcards, in filters alone
    v1.2/a              v1/2.a              a dot in a level stands as a slash, and back
    a\tb                a%09b               addresses have no control characters
    " a/b "             %20a.b%20           addresses have no space at the beginning or end
    a/*/b               a.%2A.b             a level that would be a wildcard of addresses
    a%20b               a%2520b             what looks like one of these
    a%2Bb, a%23b        a+b, a#b            addresses may have these; topic names may not

The delimiter and the wildcards are those of `wildcard-addresses`. Earlier versions wrote each space
as %20, so it is decoded wherever it stands. One thing differs from MQTT: the filter `a /#` does not
take the topic `a ` itself, since a word of an address ends in %20 only where the address ends.
Source: MQTT 5.0 §4.7; the reference system maps slash to dot likewise.
"""

from __future__ import annotations

import re
from typing import Final

from vespiary_broker.engine.names import QUEUE_SEPARATOR
from vespiary_broker.engine.wildcards import WildcardSyntax
from vespiary_codec.wire.mqtt.topics import split_share

_CODED: Final = re.compile(r"%(?:2B|23)|%(?=[0-9A-F]{2})|[\x00-\x1f\x7f]|:(?=:)")
_KEPT: Final = {"%2B": "+", "%23": "#"}
_EDGE: Final = re.compile(r"\A | \Z")
_PLAIN: Final = re.compile(r"%(?:[01][0-9A-F]|20|7F|25|2A|3A)|[+#]")


class TopicMapping:
    """The mapping for one broker.

    Args:
        syntax: What addresses look like.
        prefixes: What other protocols write in front of addresses (`/queue/`, `/topic/`).
    """

    def __init__(self, syntax: WildcardSyntax, prefixes: tuple[str, ...] = ()) -> None:
        self._syntax = syntax
        self._prefixes = tuple(prefix for prefix in prefixes if prefix)
        self._delimiter = syntax.delimiter
        self._swap = str.maketrans({"/": syntax.delimiter, syntax.delimiter: "/"})
        words = {syntax.any_words, syntax.single_word}
        self._wild = {word: "".join(f"%{ord(sign):02X}" for sign in word) for word in words}

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """What other protocols write in front of addresses."""
        return tuple(prefix.encode() for prefix in self._prefixes)

    @property
    def is_swapping(self) -> bool:
        """Whether slashes and dots stand for one another, which the core knows."""
        return self._delimiter == "."

    def address_of(self, topic: str) -> str:
        """Return the address of a topic name.

        Args:
            topic: A valid topic name.
        """
        if _CODED.search(topic) is None and not self._is_wild(topic):
            return _EDGE.sub("%20", topic.translate(self._swap))
        return _EDGE.sub("%20", self._delimiter.join(map(self._word_of, topic.split("/"))))

    def address_of_filter(self, topic_filter: str) -> str:
        """Return the address of a topic filter, with wildcards of addresses.

        Args:
            topic_filter: A valid filter; `$share/NAME/` in front of it says nothing here.
        """
        wild = {"+": self._syntax.single_word, "#": self._syntax.any_words}
        levels = split_share(topic_filter).topic_filter.split("/")
        words = (wild.get(level) or self._word_of(level) for level in levels)
        return _EDGE.sub("%20", self._delimiter.join(words))

    def topic_of(self, address: str) -> str:
        """Return the topic name of an address.

        Args:
            address: Name of an address without wildcards.
        """
        if _PLAIN.search(address) is None:
            return address.translate(self._swap)
        return _PLAIN.sub(_decoded, address.translate(self._swap))

    def topic_of_destination(self, destination: str) -> str:
        """Return the topic name of what a sender of any protocol has written.

        Args:
            destination: An address, maybe with a prefix before it or a queue behind it.
        """
        if destination.startswith(self._prefixes):
            prefix = next(each for each in self._prefixes if destination.startswith(each))
            destination = destination[len(prefix) :]
        return self.topic_of(destination.partition(QUEUE_SEPARATOR)[0])

    def _is_wild(self, topic: str) -> bool:
        return any(word in topic for word in self._wild)

    def _word_of(self, level: str) -> str:
        """Return a level as a word of an address."""
        word = self._wild.get(level)
        if word is not None:
            return word
        word = _CODED.sub(_coded, level).translate(self._swap)
        return f"%25{level[1:]}" if word in self._wild else word


def _coded(found: re.Match[str]) -> str:
    text = found[0]
    return _KEPT.get(text) or f"%{ord(text):02X}"


def _decoded(found: re.Match[str]) -> str:
    text = found[0]
    if len(text) == 1:
        return f"%{ord(text):02X}"
    return chr(int(text[1:], 16))
