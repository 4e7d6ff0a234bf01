"""Subscriptions of one client that take the same message: how it is sent once for all of them.

Owns what their options come to. That one queue alone takes the message is the engine's doing
(`QueueTraits.rank`): the one of the subscription with the highest QoS. A subscription with No Local
takes part in none of this, as it does not get what the client itself sends, and a shared one
neither; these give a copy of their own, as the standard allows. Called by `delivering` and
`subscribing`; owner: the connection.

Source: MQTT 5.0 §3.3.4 (MQTT-3.3.4-2 to MQTT-3.3.4-4); MQTT 3.1.1 [MQTT-3.3.5-1].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vespiary_broker.server.mqtt.options import Options, is_alone
from vespiary_broker.server.mqtt.sessions import MqttSession
from vespiary_codec.wire.mqtt.topics import can_both_match, matches

_TOPICS_MAX: Final = 1024
"""Topics of which it is remembered who takes them."""


class Wanted(NamedTuple):
    """What all the subscriptions that take a message want of it.

    Attributes:
        qos: The highest QoS of them.
        retain_as_published: Whether one of them wants the retain flag as it was published.
        identifiers: Their subscription identifiers.
    """

    qos: int
    retain_as_published: bool
    identifiers: list[int]


def wanted_by(options: list[Options]) -> Wanted:
    """Return what subscriptions want together.

    Args:
        options: Theirs; at least one.
    """
    return Wanted(
        max(each.qos for each in options),
        any(each.retain_as_published for each in options),
        [each.identifier for each in options if each.identifier],
    )


class Overlaps:
    """The subscriptions of one session, as far as they stand in for one another.

    Args:
        session: The session.
    """

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._takers: dict[str, list[Options]] = {}
        # Those that stand in for one another: filters without wildcards are found by name.
        self._plain: dict[str, Options] = {}
        self._wild: dict[str, Options] = {}
        for topic_filter in session.subscriptions:
            self.changed(topic_filter)

    def changed(self, topic_filter: str) -> None:
        """Take note that a subscription of the session is new, another one, or gone."""
        self._takers.clear()
        options = self._session.subscriptions.get(topic_filter)
        own = self._wild if _is_wild(topic_filter) else self._plain
        if options is None or is_alone(topic_filter, options):
            own.pop(topic_filter, None)
        else:
            own[topic_filter] = options

    def _find(self, topic: str) -> list[Options]:
        takers = [options for name, options in self._wild.items() if matches(name, topic)]
        plain = self._plain.get(topic)
        return takers if plain is None else [*takers, plain]

    def _others(self, topic_filter: str) -> Iterator[tuple[str, Options]]:
        """Yield the subscriptions that may take what a filter takes; who asks looks closer."""
        others = [self._wild, self._plain] if _is_wild(topic_filter) else [self._wild]
        for each in others:
            for other, options in each.items():
                if other != topic_filter:
                    yield other, options

    def wanted(self, topic: str, own: Options | None) -> Wanted | None:
        """Return what is wanted of a message; None: no subscription takes it any more.

        Args:
            topic: Its topic.
            own: Options of the subscription in whose queue it stands, which takes it whatever its
                filter says; None: that one does not.
        """
        takers = self._takers.get(topic)
        if takers is None:
            if len(self._takers) >= _TOPICS_MAX:
                self._takers.clear()
            takers = self._takers[topic] = self._find(topic)
        if own is not None and not any(own is each for each in takers):
            takers = [*takers, own]
        return wanted_by(takers) if takers else None

    def is_own(self, topic_filter: str, options: Options) -> bool:
        """Return whether what a subscription itself wants is all that is wanted of its messages."""
        if is_alone(topic_filter, options):
            return True
        return not any(
            (each.identifier or each.qos > options.qos) and can_both_match(topic_filter, other)
            for other, each in self._others(topic_filter)
        )

    def poorer(self, topic_filter: str, options: Options) -> Iterator[str]:
        """Yield the filters of whose messages more is wanted because of a subscription."""
        if is_alone(topic_filter, options):
            return
        for other, each in self._others(topic_filter):
            is_richer = options.identifier or options.qos > each.qos
            if is_richer and can_both_match(topic_filter, other):
                yield other

    def are_there(self, topic_filter: str, options: Options) -> bool:
        """Return whether other subscriptions may take what stands in the queue of one."""
        return not is_alone(topic_filter, options) and any(
            can_both_match(topic_filter, other) for other, _ in self._others(topic_filter)
        )


def _is_wild(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter
