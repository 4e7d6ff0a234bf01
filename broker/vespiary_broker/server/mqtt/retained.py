"""Retained messages: the latest of each topic that was published to be kept.

Owns the queue in which they stand, and the tree in which they are found by topic filter. A retained
message replaces the one before it in the transaction that stores it, so after any crash a topic has
the one or the other. One that has expired leaves the queue and the tree together: what stood in the
queue alone would be back after a restart, whatever was published since. Called by `publishing`,
`subscribing` and `hub`; owner: the event loop.

Source: MQTT 5.0 §3.3.1.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.joint_staging import End, Note
from vespiary_broker.engine.message_times import read_times
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.transactions import Outgoing
from vespiary_broker.engine.turn_time import Stint
from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_broker.server.note_queues import NoteQueues

_NAME: Final = "retained"
_KEY: Final = "destination"
_TURN: Final = 256
"""Messages that expire before others have their turn."""
_STEP_US: Final = 2.0
_COPY_US: Final = 100.0
_STALE_MAX: Final = 1024
"""Expiry times of messages that were replaced, beyond as many as there are messages."""


@dataclass(slots=True)
class _Node:
    """A level of topics.

    Attributes:
        children: Deeper levels.
        sequence: Of the message that is retained for the topic that ends here; 0: there is none.
    """

    children: dict[str, _Node] = field(default_factory=dict)
    sequence: int = 0


class RetainedMessage(NamedTuple):
    """A message that is retained.

    Attributes:
        properties: Its header lines.
        body: Its payload.
        priority: 0 to 9.
        is_special: Whether it expires.
        topic: Its topic.
        sequence: Of its note.
    """

    properties: bytes
    body: bytes
    priority: int
    is_special: bool
    topic: str
    sequence: int


class Retained:
    """The retained messages.

    Attributes:
        count: How many there are.

    Args:
        notes: Where they stand.
        topics: Says which topic an address is.
    """

    def __init__(self, notes: NoteQueues, topics: TopicMapping) -> None:
        self.count = 0
        self._notes = notes
        self._topics = topics
        self._root = _Node()
        self._expiring: list[tuple[int, int, str]] = []  # when, sequence, topic
        self._is_loaded = False
        self._loading = asyncio.Lock()

    async def ready(self) -> Queue:
        """Return the queue, made and read if need be.

        Raises:
            VespiaryError: It cannot be made.

        Durability: on return it survives a power loss.
        """
        queue = await self._notes.make(_NAME, _KEY)
        await self._load(queue)
        return queue

    @property
    def queue(self) -> Queue | None:
        """The queue, if it is there and was read."""
        return self._notes.find(_NAME) if self._is_loaded else None

    async def _load(self, queue: Queue) -> None:
        """Find the topics of what was retained before the broker's start, the first time."""
        async with self._loading:
            if self._is_loaded:
                return
            async for view in self._notes.notes(queue):
                address = value_of(view.properties, _KEY.encode())
                if address:
                    topic = self._topics.topic_of(address)
                    self._put(topic, view.sequence, only_newer=True)
                    self._watch(topic, view.sequence, view.properties)
            self._is_loaded = True

    def acts(self, topic: str, message: Outgoing) -> list[Note | End]:
        """Return what is to be staged with a message that is published to be retained.

        An empty one is not kept, and ends the one before it. `staged` has to follow.

        Args:
            topic: Its topic.
            message: The message; `ready` was awaited.

        Raises:
            NoRoom: It ends one that is not written yet; to be tried again behind that write.
        """
        queue = self.queue
        assert queue is not None
        acts: list[Note | End] = []
        before = self._sequence(topic)
        is_cleared = before and not message.body  # what is replaced goes by the key of its note
        if is_cleared and before >= self._notes.core.queue_statistics(queue.id).available:
            raise NoRoom("what is retained there is not written yet")
        if before:
            acts.append(End(queue, [before]))
        if message.body:
            note = Note(
                queue, message.properties, message.body, message.is_special, message.protocol
            )
            acts.append(note)
        return acts

    def staged(self, topic: str, sequence: int, properties: bytes) -> None:
        """Note that a message was staged with what `acts` returned.

        Args:
            topic: Its topic.
            sequence: Of its note; 0: it was empty.
            properties: Its header lines.
        """
        self._put(topic, sequence)
        if sequence:
            self._watch(topic, sequence, properties)

    # --- expiry ---------------------------------------------------------------------------------

    def _watch(self, topic: str, sequence: int, properties: bytes) -> None:
        expires_ms = read_times(properties).expires_ms
        if not expires_ms:
            return
        heappush(self._expiring, (expires_ms, sequence, topic))
        if len(self._expiring) > 2 * self.count + _STALE_MAX:
            self._expiring = [each for each in self._expiring if self._sequence(each[2]) == each[1]]
            heapify(self._expiring)

    def expire(self, now_ms: int) -> bool:
        """End what has expired, a bounded part of it; return whether there is more to do now.

        What finds no room in the journal stays, for the next call.

        Args:
            now_ms: Milliseconds since 1970.

        Durability: staged; after a crash before that it is back, and expires again.
        """
        queue = self.queue
        for _ in range(_TURN):
            if queue is None or not self._expiring or self._expiring[0][0] > now_ms:
                return False
            _, sequence, topic = self._expiring[0]
            if self._sequence(topic) == sequence:
                try:
                    self._notes.core.finish(queue.id, [sequence])
                except NoRoom:
                    return False
                self._put(topic, 0)
            heappop(self._expiring)
        return True

    # --- the tree -------------------------------------------------------------------------------

    def _sequence(self, topic: str) -> int:
        node: _Node | None = self._root
        for level in topic.split("/"):
            node = node.children.get(level) if node is not None else None
        return 0 if node is None else node.sequence

    def _put(self, topic: str, sequence: int, *, only_newer: bool = False) -> None:
        """Set what a topic has; 0: nothing."""
        node = self._root
        path = [node]
        levels = topic.split("/")
        for level in levels:
            child = node.children.get(level)
            if child is None:
                if not sequence:
                    return
                child = node.children[level] = _Node()
            node = child
            path.append(node)
        if only_newer and sequence < node.sequence:
            return
        self.count += bool(sequence) - bool(node.sequence)
        node.sequence = sequence
        for parent, level in zip(path[-2::-1], reversed(levels), strict=True):
            child = parent.children[level]
            if child.sequence or child.children:
                return
            del parent.children[level]

    def _matching(self, levels: list[str]) -> Iterator[tuple[str, int] | None]:
        """Yield topics and sequences that a filter takes, and None for each other step.

        The tree may change between two steps: what goes is not found, what comes may be.
        """
        stack: list[tuple[_Node, Iterator[str], tuple[str, ...], int]] = []
        found = self._enter(stack, self._root, (), levels, 0)
        while True:
            yield found
            if not stack:
                return
            node, names, path, at = stack[-1]
            level = next(names, None)
            if level is None:
                stack.pop()
                found = None
                continue
            child = node.children.get(level)
            found = None
            # §4.7.2: no wildcard takes $SYS
            if child is not None and (path or levels[0] == level or not level.startswith("$")):
                found = self._enter(stack, child, (*path, level), levels, at)

    @staticmethod
    def _enter(
        stack: list[tuple[_Node, Iterator[str], tuple[str, ...], int]],
        node: _Node,
        path: tuple[str, ...],
        levels: list[str],
        at: int,
    ) -> tuple[str, int] | None:
        """Note which children of a node are to be looked at; return it if the filter takes it."""
        is_end = at == len(levels)
        wanted = "" if is_end else levels[at]
        if not is_end:
            names = list(node.children) if wanted in ("+", "#") else [wanted]
            stack.append((node, iter(names), path, at if wanted == "#" else at + 1))
        if (is_end or wanted == "#") and node.sequence:
            return "/".join(path), node.sequence
        return None

    async def matching(
        self, topic_filter: str, may_have: Callable[[str], bool], stint: Stint
    ) -> AsyncIterator[RetainedMessage]:
        """Yield what is retained for a filter, over as many turns as that needs.

        Args:
            topic_filter: A filter without `$share/NAME/`.
            may_have: Says of a topic whether the subscriber may have what is retained for it.
            stint: The subscriber's: takes in what is done with each message as well.
        """
        queue = self._notes.find(_NAME)
        if queue is None:
            return
        # What is published from now on comes by the subscription.
        end = self._notes.core.queue_statistics(queue.id).tail
        stint.end()
        await self._load(queue)
        for found in self._matching(topic_filter.split("/")):
            await stint.time()
            stint.did(_STEP_US)
            if found is None or found[1] >= end:
                continue
            topic, sequence = found
            if not may_have(topic):
                continue
            stint.did(_COPY_US)
            message = await self._message(queue, topic, sequence, stint)
            if message is not None:
                yield message
            elif self._sequence(topic) == sequence:
                self._put(topic, 0)  # it has expired

    def is_there(self, message: RetainedMessage) -> bool:
        """Return whether a message that `matching` yielded is still what its topic has."""
        return self._sequence(message.topic) == message.sequence

    async def _message(
        self, queue: Queue, topic: str, sequence: int, stint: Stint
    ) -> RetainedMessage | None:
        body = await self._notes.body(queue, sequence, stint)
        found = self._notes.core.look(queue.id, sequence, 1, everything=True)
        if body is None or not found.messages or found.messages[0].sequence != sequence:
            return None
        view = found.messages[0]
        return RetainedMessage(
            view.properties, body, view.priority, view.is_special, topic, sequence
        )
