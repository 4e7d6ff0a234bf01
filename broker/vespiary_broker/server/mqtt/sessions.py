"""MQTT sessions: what the broker knows of a client beyond its connection.

Owns the table by client id, its form in the bindings, and when a session ends. A session that
outlives its connection is written down before its client is told so, and its subscriptions are
durable queues. Must never send anything. Called by the clients' handlers; owner: the event loop.

Source: MQTT 5.0 §3.1.2.4, §3.1.2.11.2 and §4.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

from vespiary_broker.engine.limits import Limits
from vespiary_broker.engine.ports import Bindings, JsonObject
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.usage import DROPPED_MAX
from vespiary_broker.server.mqtt.options import Options
from vespiary_broker.server.mqtt.subscription_queues import PROTOCOL, SubscriptionQueues
from vespiary_codec.wire.mqtt.topics import split_share

if TYPE_CHECKING:
    from vespiary_broker.server.mqtt.in_flight import Resumed

NEVER_S: Final = 0xFFFFFFFF
"""Session expiry interval of a session that does not expire."""
KEY_PREFIX: Final = "mqtt-session/"


class Client(Protocol):
    """The connection that has a session now."""

    def taken_over(self) -> None:
        """End the connection: another one of the same client id has come."""

    def session_deleted(self) -> None:
        """End the connection: an administrator has deleted its session."""


@dataclass(eq=False, slots=True)
class MqttSession:
    """One session.

    Attributes:
        client_id: Its client.
        user: Whose it is: no other user can have it.
        expiry_s: Seconds that it outlives its connection; `NEVER_S` without end.
        is_durable: Whether it is written down, and its queues are durable.
        subscriptions: What it wants, by topic filter.
        retired: Subscriptions that ended while their queues had messages for others of the
            session, or on their way to the client: these queues take nothing, and go when they are
            empty.
        client: Who has it now; None: nobody is connected.
        away_since_ms: When the last connection went, milliseconds since 1970; 0: unknown or never.
            Only the next run of the broker reads it: within one run expiry is `expires_at_s`.
        expires_at_s: When it ends if nobody comes, on a monotonic clock; 0: never, or its client is
            connected.
        resumed: What was on its way to the client when its connection went.
        received: Messages of QoS 2 that came and were not released, by packet id: the sequence of
            the note, 0 without one.
        is_ended: Whether it is gone: nothing of it is written down any more.
    """

    client_id: str
    user: str
    expiry_s: int
    is_durable: bool
    subscriptions: dict[str, Options] = field(default_factory=dict)
    retired: dict[str, Options] = field(default_factory=dict)
    client: Client | None = None
    away_since_ms: int = 0
    expires_at_s: float = 0.0
    resumed: Resumed | None = None
    received: dict[int, int] | None = None
    is_ended: bool = False

    @property
    def key(self) -> str:
        """Its key in the bindings."""
        return KEY_PREFIX + self.client_id

    def to_json(self) -> JsonObject:
        """Return its form in the bindings."""
        value: JsonObject = {
            "user": self.user,
            "expiry": self.expiry_s,
            "subscriptions": {name: each.to_json() for name, each in self.subscriptions.items()},
        }
        if self.retired:
            value["retired"] = {name: each.to_json() for name, each in self.retired.items()}
        if self.away_since_ms:
            value["away-since"] = self.away_since_ms
        return value

    def left_s(self, now_ms: int) -> float:
        """Return how many seconds are left by the wall clock until it ends, if it can end.

        Args:
            now_ms: Milliseconds since 1970.

        Returns:
            0 to its expiry interval, even if the clock was set back.
        """
        away_s = max(0, now_ms - self.away_since_ms) / 1000
        return max(0.0, self.expiry_s - away_s)


def read_session(client_id: str, value: JsonObject, now_ms: int) -> MqttSession:
    """Return a session that stands in the bindings; its client is away.

    Args:
        client_id: Its client.
        value: What stands there.
        now_ms: Milliseconds since 1970: a session whose client was connected when the broker went
            counts as left alone since then.
    """
    subscriptions: dict[str, Any] = value.get("subscriptions", {})
    retired: dict[str, Any] = value.get("retired", {})
    return MqttSession(
        client_id,
        value["user"],
        int(value["expiry"]),
        is_durable=True,
        subscriptions={name: Options.from_json(each) for name, each in subscriptions.items()},
        retired={name: Options.from_json(each) for name, each in retired.items()},
        away_since_ms=int(value.get("away-since", now_ms)),
    )


class MqttSessions:
    """All sessions.

    Attributes:
        expired: Sessions that ended because nobody came in time.

    Args:
        bindings: Where durable ones stand.
        queues: Their subscriptions' queues.
        limits: Counts those that outlive their connection; who begins one asks it first.
        clock_ms: Milliseconds since 1970; what the next run of the broker will compare with.
        clock_s: Seconds of a monotonic clock, by which sessions end.
        forget: Called with a session that ends, once its queues are gone; returns keys of the
            bindings whose removal has to be waited for.
    """

    def __init__(
        self,
        bindings: Bindings,
        queues: SubscriptionQueues,
        limits: Limits,
        clock_ms: Callable[[], int],
        clock_s: Callable[[], float],
        forget: Callable[[MqttSession], list[str]],
    ) -> None:
        self.expired = 0
        self._bindings = bindings
        self._queues = queues
        self._limits = limits
        self._clock_ms = clock_ms
        self._clock_s = clock_s
        self._forget = forget
        self._by_client: dict[str, MqttSession] = {}
        self._shares: dict[str, dict[MqttSession, None]] = {}  # sessions by shared queue
        self._due: list[tuple[float, str]] = []
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._by_client)

    @property
    def durable(self) -> int:
        """Sessions that outlive their connection."""
        return self._limits.durable_sessions

    @property
    def connected(self) -> int:
        """Sessions that have a connection."""
        return sum(session.client is not None for session in self._by_client.values())

    def get(self, client_id: str) -> MqttSession | None:
        """Return the session of a client; None if it has none."""
        return self._by_client.get(client_id)

    def lock(self, client_id: str) -> asyncio.Lock:
        """Return what is held while the session of a client begins or ends."""
        lock = self._locks.get(client_id)
        if lock is None:
            lock = self._locks[client_id] = asyncio.Lock()
        return lock

    def restore(self) -> None:
        """Take the sessions from the bindings.

        Raises:
            ValueError: One is not what this version writes; names its key.
        """
        now_ms = self._clock_ms()
        for key, value in self._bindings.snapshot().items():
            if not key.startswith(KEY_PREFIX):
                continue
            client_id = key.removeprefix(KEY_PREFIX)
            try:
                session = read_session(client_id, value, now_ms)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"the binding {key} is no session: {error!r}") from error
            self._limits.durable_session_made(session.user)
            for topic_filter in (*session.subscriptions, *session.retired):
                self._queues.restore(client_id, topic_filter)
            self._enter(session)
            self._watch(session, session.left_s(now_ms))
        self._queues.drop_abandoned(self._shares)

    def _enter(self, session: MqttSession) -> None:
        self._by_client[session.client_id] = session
        for topic_filter in session.subscriptions:
            self._share(session, topic_filter)

    def _share(self, session: MqttSession, topic_filter: str) -> None:
        if split_share(topic_filter).name:
            name = self._queues.name(session.client_id, topic_filter)
            self._shares.setdefault(name, {})[session] = None

    def _unshare(self, session: MqttSession, topic_filter: str) -> None:
        if split_share(topic_filter).name:
            name = self._queues.name(session.client_id, topic_filter)
            sharers = self._shares.get(name, {})
            sharers.pop(session, None)
            if not sharers:
                self._shares.pop(name, None)

    # --- beginning and ending -----------------------------------------------------------------

    async def begin(self, client_id: str, user: str, expiry_s: int) -> MqttSession:
        """Make a session for a client that has none; hold its lock.

        Durability: on return one that outlives its connection survives a power loss.
        """
        session = MqttSession(client_id, user, expiry_s, is_durable=expiry_s > 0)
        if session.is_durable:
            # Before anything is waited for: many may come within one flush.
            self._limits.durable_session_made(user)
            try:
                await self.save(session)
            except BaseException:
                self._limits.durable_session_gone(user)
                raise
        self._enter(session)
        return session

    def adopt(self, session: MqttSession, user: str) -> None:
        """Let a session that nobody owns be a user's; `save` writes it down.

        Args:
            session: The session.
            user: Whose it is from now on.
        """
        if session.is_durable:
            self._limits.durable_session_gone(session.user)
            self._limits.durable_session_made(user)
        session.user = user

    async def save(self, session: MqttSession) -> None:
        """Write a durable session down as it is now.

        Durability: on return it survives a power loss.
        """
        if session.is_durable and not session.is_ended:
            await self._bindings.put(session.key, session.to_json())

    async def end(self, session: MqttSession) -> None:
        """Delete a session and its subscriptions; hold its lock, and have nobody connected.

        Durability: on return it is not back after a power loss.
        """
        if self._by_client.get(session.client_id) is not session:
            return
        del self._by_client[session.client_id]
        session.is_ended = True
        removing = None
        if session.is_durable:
            # First: after a power loss in between, it must not be back without its queues.
            removing = asyncio.create_task(self._bindings.remove(session.key))
        for topic_filter in session.subscriptions:
            self._unshare(session, topic_filter)
        keys = []
        # There may be thousands. The first one has taken what the others might have taken as well:
        # without it each would stand in for the one before.
        names = reversed([*session.subscriptions, *session.retired])
        for count, topic_filter in enumerate(names, 1):
            keys += await self._queues.in_time(partial(self._drop, session, topic_filter))
            if count % DROPPED_MAX == 0:
                await asyncio.sleep(0)
        keys += self._forget(session)
        if removing is not None:
            self._limits.durable_session_gone(session.user)
            await removing
        await self._queues.wait_removed(keys)

    def with_queues(self, queues: Iterable[Queue]) -> list[MqttSession]:
        """Return the sessions that have a subscription with one of these queues.

        Several sessions may share a queue. A temporary queue goes with its consumer, as does its
        session: nobody counts on it. The names of a session's queues are made once, however many of
        them are asked for.
        """
        names = {
            queue.name: queue.client_id
            for queue in queues
            if not queue.is_temporary and (queue.traits.protocol == PROTOCOL or not queue.client_id)
        }
        found = {session: None for name in names for session in self._shares.get(name, ())}
        for owner in map(self._by_client.get, dict.fromkeys(names.values())):
            if owner is not None and any(
                not names.keys().isdisjoint(self._queues.names(owner.client_id, topic_filter))
                for topic_filter in (*owner.subscriptions, *owner.retired)
            ):
                found[owner] = None
        return list(found)

    def subscribed(self, session: MqttSession, topic_filter: str, options: Options) -> bool:
        """Note a subscription; return whether it is new. `save` writes it down."""
        is_new = topic_filter not in session.subscriptions
        session.subscriptions[topic_filter] = options
        session.retired.pop(topic_filter, None)
        if is_new and not session.is_ended:
            self._share(session, topic_filter)
        return is_new

    def unsubscribed(self, session: MqttSession, topic_filter: str) -> list[str]:
        """Forget a subscription and its queue, which has no consumer of the session any more.

        Returns:
            Keys of the bindings whose removal `wait_removed` of the queues waits for.
        """
        del session.subscriptions[topic_filter]
        self._unshare(session, topic_filter)
        return self._drop(session, topic_filter)

    def retire(self, session: MqttSession, topic_filter: str, begun_below: int) -> Options:
        """Forget a subscription whose queue has messages that the client is to get.

        `save` writes it down.

        Args:
            session: Whose it is.
            topic_filter: Its filter.
            begun_below: Sequence below which messages are on their way.

        Returns:
            Its options from now on.
        """
        options = replace(session.subscriptions.pop(topic_filter), begun_below=begun_below)
        session.retired[topic_filter] = options
        return options

    def drained(self, session: MqttSession, topic_filter: str) -> list[str]:
        """Drop the queue of a retired subscription, which has no consumer any more.

        Returns:
            Keys of the bindings whose removal `wait_removed` of the queues waits for.
        """
        del session.retired[topic_filter]
        return self._drop(session, topic_filter)

    def _drop(self, session: MqttSession, topic_filter: str) -> list[str]:
        is_shared = bool(split_share(topic_filter).name)
        if is_shared and self._queues.name(session.client_id, topic_filter) in self._shares:
            return []
        return self._queues.drop(session.client_id, topic_filter)

    # --- who is away ----------------------------------------------------------------------------

    def left(self, session: MqttSession) -> None:
        """Note that the connection of a session is gone: its expiry begins."""
        session.client = None
        session.away_since_ms = self._clock_ms()
        self._watch(session, session.expiry_s)

    def _watch(self, session: MqttSession, left_s: float) -> None:
        """Let a session end after some time, unless its expiry interval has no end."""
        session.expires_at_s = 0.0
        if session.expiry_s != NEVER_S:
            session.expires_at_s = self._clock_s() + left_s
            heappush(self._due, (session.expires_at_s, session.client_id))

    def take_due(self) -> list[MqttSession]:
        """Return the sessions whose time is over, and forget to watch them."""
        now_s, due = self._clock_s(), []
        while self._due and self._due[0][0] <= now_s:
            when_s, client_id = heappop(self._due)
            session = self._by_client.get(client_id)
            if session is not None and session.client is None and session.expires_at_s == when_s:
                due.append(session)
        return due
