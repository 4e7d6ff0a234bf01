"""Topic names and filters: which are valid, and which filter matches which name.

Owns the rules for the text of topics. Must never know an address of the broker: that is the
session's mapping. Called by the decoder and by the broker's sessions.

Source: MQTT 5.0 (OASIS, 2019) §4.7 and §4.8.2; MQTT 3.1.1 has the same without shares.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vespiary_codec.wire.mqtt.errors import LimitExceeded, RemoteProtocolError, Violation
from vespiary_codec.wire.mqtt.limits import MqttLimits
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode

SHARE: Final = "$share/"
_SHOWN_CHARACTERS: Final = 60


class Share(NamedTuple):
    """A shared subscription.

    Attributes:
        name: Of the group; empty: it is not shared.
        topic_filter: What its members get.
    """

    name: str
    topic_filter: str


def check_topic(topic: str, limits: MqttLimits) -> None:
    """Refuse what is no topic name.

    Args:
        topic: The name; NUL and bytes that are not UTF-8 were refused before.
        limits: How long it may be.

    Raises:
        LimitExceeded: It is too long or too deep.
        RemoteProtocolError: It is empty, or has a wildcard.
    """
    if not topic:
        raise _bad_name("a topic name has at least one character")
    if "+" in topic or "#" in topic:
        raise _bad_name(f"a topic name has no wildcard: {_shown(topic)}")
    _check_size(topic, limits, "topic name", ReasonCode.TOPIC_NAME_INVALID)


def check_filter(topic_filter: str, limits: MqttLimits) -> None:
    """Refuse what is no topic filter, of a shared subscription or not.

    Args:
        topic_filter: The filter.
        limits: How long it may be.

    Raises:
        LimitExceeded: It is too long or too deep.
        RemoteProtocolError: It is empty, a wildcard shares its level with something else, `#` is
            not the last level, or a share has no name or no filter.
    """
    _check_size(topic_filter, limits, "topic filter", ReasonCode.TOPIC_FILTER_INVALID)
    name, own = split_share(topic_filter)
    if topic_filter.startswith(SHARE) and (not name or set(name) & set("+#")):
        raise _bad_filter(
            f"a share has a name without wildcards and a filter: {_shown(topic_filter)}"
        )
    if not own:
        raise _bad_filter("a topic filter has at least one character")
    levels = own.split("/")
    for level in levels:
        if len(level) > 1 and ("+" in level or "#" in level):
            raise _bad_filter(f"a wildcard has a level of its own: {_shown(topic_filter)}")
    if "#" in levels[:-1]:
        raise _bad_filter(f"# is the last level of a topic filter: {_shown(topic_filter)}")


def split_share(topic_filter: str) -> Share:
    """Return the group of a shared subscription and the filter behind it.

    Args:
        topic_filter: As in the SUBSCRIBE; what lacks a name or a filter gives empty ones.
    """
    if not topic_filter.startswith(SHARE):
        return Share("", topic_filter)
    name, _, own = topic_filter[len(SHARE) :].partition("/")
    return Share(name, own)


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a filter takes a topic.

    A filter that begins with a wildcard takes no topic that begins with `$`.

    Args:
        topic_filter: A valid one, without `$share/NAME/`.
        topic: A valid topic name.
    """
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted.pop()
        if len(levels) < len(wanted):
            return False
        levels = levels[: len(wanted)]  # also none: `a/#` takes `a`
    return len(levels) == len(wanted) and all(
        one in ("+", level) for one, level in zip(wanted, levels, strict=True)
    )


def can_both_match(one: str, other: str) -> bool:
    """Return whether there is a topic that two filters take.

    What `matches` says of topics that begin with `$` is not looked at.

    Args:
        one: A valid filter, without `$share/NAME/`.
        other: Likewise.
    """
    levels, others = one.split("/"), other.split("/")
    for level, own in zip(levels, others, strict=False):
        if "#" in (level, own):
            return True
        if level != own and "+" not in (level, own):
            return False
    rest = levels[len(others) :] or others[len(levels) :]
    return rest in ([], ["#"])


def _check_size(text: str, limits: MqttLimits, what: str, code: ReasonCode) -> None:
    size, levels = len(text.encode()), text.count("/") + 1
    if size > limits.topic_bytes:
        raise LimitExceeded(
            Violation.TOPIC_BYTES,
            f"a {what} has {size} bytes; at most {limits.topic_bytes} are allowed",
            code,
        )
    if levels > limits.topic_levels:
        raise LimitExceeded(
            Violation.TOPIC_LEVELS,
            f"a {what} has {levels} levels; at most {limits.topic_levels} are allowed",
            code,
        )


def _bad_name(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(Violation.TOPIC_NAME, reason, ReasonCode.TOPIC_NAME_INVALID)


def _bad_filter(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(Violation.TOPIC_FILTER, reason, ReasonCode.TOPIC_FILTER_INVALID)


def _shown(text: str) -> str:
    cut = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return repr(cut)
