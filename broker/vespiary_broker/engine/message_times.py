"""When a message may be delivered and when it expires: what senders and settings ask for.

Owns the meaning of the headers and of the settings `expiry-delay`, `min-expiry-delay`,
`max-expiry-delay` and `no-expiry`. Pure: the clock is an argument. Both times are stored in the
message as absolute ones, so they need nothing beside it, over restarts and moves:

    expires               milliseconds since 1970 when it expires (also taken: JMSExpiration)
    AMQ_SCHEDULED_TIME    milliseconds since 1970 before which it is not delivered
                          (also taken: _AMQ_SCHED_DELIVERY, and AMQ_SCHEDULED_DELAY from now)

Called by the server's sessions (`times_of_send`, `stamp`) and by `fates` (`read_times`).
Source: the reference system's headers, its `StompUtils` and `PostOfficeImpl.applyExpiryDelay`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vespiary_broker.engine.core import MessageView
from vespiary_broker.engine.property_lines import value_of, with_lines, without
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.fates import DELAY_MS_MAX
from vespiary_spec.settings import AddressSettings

EXPIRES: Final = "expires"
SCHEDULED_TIME: Final = "AMQ_SCHEDULED_TIME"
_JMS_EXPIRATION: Final = "JMSExpiration"
_SCHEDULED_DELIVERY: Final = "_AMQ_SCHED_DELIVERY"
_SCHEDULED_DELAY: Final = "AMQ_SCHEDULED_DELAY"
REPETITIONS: Final = ("AMQ_SCHEDULED_CRON", "AMQ_SCHEDULED_PERIOD", "AMQ_SCHEDULED_REPEAT")
"""Headers of ActiveMQ that ask for repeated delivery of a message."""
NO_REPETITION: Final = "is not supported: a message is delivered once"
REPETITION_CURE: Final = "send a message for each delivery, with AMQ_SCHEDULED_TIME"
_TIME_MS_MAX: Final = 2**53
_EXPIRES_LINE: Final = f"{EXPIRES}:".encode()
_SCHEDULED_LINE: Final = f"{SCHEDULED_TIME}:".encode()
TIME_HEADERS: Final = frozenset(
    name.encode()
    for name in (EXPIRES, _JMS_EXPIRATION, SCHEDULED_TIME, _SCHEDULED_DELIVERY, _SCHEDULED_DELAY)
)


class MessageTimes(NamedTuple):
    """The times of a message, in milliseconds since 1970.

    Attributes:
        expires_ms: When it expires; 0: never.
        deliver_at_ms: Before this it is not delivered; 0: at once.
    """

    expires_ms: int = 0
    deliver_at_ms: int = 0


NO_TIMES: Final = MessageTimes()


def _number(name: str, text: str, maximum: int) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 16 and int(digits) <= maximum):
        raise RemoteProtocolError(
            f"SEND has a wrong {name}",
            measured=ascii(text[:40]),
            allowed=f"0 to {maximum} milliseconds",
        )
    return int(digits)


def _first(get: Callable[[str], str | None], names: tuple[str, ...]) -> int:
    for name in names:
        text = get(name)
        if text is not None:
            return _number(name, text, _TIME_MS_MAX)
    return 0


def times_of_send(
    get: Callable[[str], str | None], settings: AddressSettings, now_ms: int
) -> MessageTimes:
    """Return the times of a message that is being sent.

    Args:
        get: Returns a header of the frame by its name.
        settings: Of its address; no field is None.
        now_ms: Milliseconds since 1970.

    Raises:
        RemoteProtocolError: A header is no number, or out of bounds; or it asks for repetition.
    """
    for name in REPETITIONS:
        if get(name) is not None:
            raise RemoteProtocolError(f"{name} {NO_REPETITION}", cure=REPETITION_CURE)
    expires_ms = _first(get, (EXPIRES, _JMS_EXPIRATION))
    deliver_at_ms = _first(get, (SCHEDULED_TIME, _SCHEDULED_DELIVERY))
    delay = get(_SCHEDULED_DELAY)
    if delay is not None and not deliver_at_ms:
        delay_ms = _number(_SCHEDULED_DELAY, delay, DELAY_MS_MAX)
        deliver_at_ms = now_ms + delay_ms if delay_ms else 0
    return MessageTimes(expiry(settings, expires_ms, now_ms), deliver_at_ms)


EXPIRY_RULES: Final = ("expiry_delay", "min_expiry_delay", "max_expiry_delay", "no_expiry")
"""Settings that say when messages of an address expire."""


def has_expiry_rules(settings: AddressSettings) -> bool:
    """Whether messages of an address may expire that were sent without a time to live."""
    delays = (settings.expiry_delay, settings.min_expiry_delay, settings.max_expiry_delay)
    return not settings.no_expiry and any(delay is not None and delay >= 0 for delay in delays)


def expiry(settings: AddressSettings, expires_ms: int, now_ms: int) -> int:
    """Return when a message expires, by the settings of its address; 0: never.

    Args:
        settings: Of its address; no field is None.
        expires_ms: What its sender asks for; 0: nothing.
        now_ms: Milliseconds since 1970.
    """
    delay_ms, least_ms = settings.expiry_delay, settings.min_expiry_delay
    most_ms = settings.max_expiry_delay
    assert delay_ms is not None and least_ms is not None and most_ms is not None  # noqa: PT018
    if settings.no_expiry:
        return 0
    if delay_ms >= 0:
        return expires_ms or now_ms + delay_ms
    if most_ms >= 0 and (not expires_ms or expires_ms > now_ms + most_ms):
        return now_ms + most_ms
    if least_ms >= 0 and expires_ms < now_ms + least_ms:
        return now_ms + least_ms
    return expires_ms


def stamp(properties: bytes, times: MessageTimes) -> bytes:
    """Return the properties of a message with its times in their stored form, and no others.

    Args:
        properties: Its header lines.
        times: Its times.
    """
    if times == NO_TIMES and not any(name + b":" in properties for name in TIME_HEADERS):
        return properties
    headers = []
    if times.expires_ms:
        headers.append((EXPIRES, str(times.expires_ms)))
    if times.deliver_at_ms:
        headers.append((SCHEDULED_TIME, str(times.deliver_at_ms)))
    return with_lines(without(properties, TIME_HEADERS), headers)


def is_scheduled(view: MessageView, now_ms: int) -> bool:
    """Whether a message may not be delivered yet, since its sender wants it so.

    Args:
        view: The message.
        now_ms: Milliseconds since 1970.
    """
    return view.is_special and read_times(view.properties).deliver_at_ms > now_ms


def read_times(properties: bytes) -> MessageTimes:
    """Return the times that stand in a stored message.

    Args:
        properties: Its header lines, as `stamp` left them. What is no number counts as nothing:
            it came into the journal by another way, and must not hold up its queue.
    """
    if _EXPIRES_LINE not in properties and _SCHEDULED_LINE not in properties:
        return NO_TIMES  # most are special for another reason, and are asked about one by one
    expires = value_of(properties, EXPIRES.encode()) or ""
    scheduled = value_of(properties, SCHEDULED_TIME.encode()) or ""
    return MessageTimes(
        int(expires) if expires.isdecimal() and expires.isascii() else 0,
        int(scheduled) if scheduled.isdecimal() and scheduled.isascii() else 0,
    )
