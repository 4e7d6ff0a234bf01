"""What clients have sent and not settled, over broken connections, restarts and power cuts.

Owns the table of durable sending links: those whose target asks for durability `unsettled-state`,
and whose receiver, the broker, settles last (`rcv-settle-mode` second). For each, the tags of the
deliveries that were accepted and that its client has not settled. Must never send anything. Called
by `attaching` and `recovering`; owner: the event loop.

Each tag is a note in a queue of the broker's own (`note_queues`), staged in one transaction with
its message, so a crash leaves both or neither (decision 0048). A message that need not survive a
crash has no note: its tag is known until then. Of what was not accepted nothing is known, so a
client sends it anew.

The table is bounded by user: the links that were left longest ago go first.

Source: AMQP 1.0 (OASIS, 2012) §2.6.13, §2.7.3 and §3.5.5.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.joint_staging import Note, stage_jointly
from vespiary_broker.engine.names import OWN_PREFIX
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.engine.publishing import Target
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.transactions import Outgoing
from vespiary_broker.server.amqp.conditions import Condition, Refused, told
from vespiary_broker.server.note_queues import NoteQueues
from vespiary_spec.errors import WriterFailed

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.recovering import DurableIncomingLink
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.message_sender import Stage

LEFT_TAGS_MAX: Final = 100_000
"""Tags in memory of all links of one user that nobody has attached."""
_PREFIX: Final = "amqp."
_KEY: Final = "tag"
_WORD_DIGITS: Final = 40
_WAIT_S: Final = 0.01


def _name_of(user: str, container: str, link: str) -> str:
    """Return the name of a link's queue; the user's part of it comes first."""
    names = f"{len(container)}.{container}{link}"
    words = [sha256(text.encode()).hexdigest()[:_WORD_DIGITS] for text in (user, names)]
    return _PREFIX + ".".join(words)


def _user_of(name: str) -> str:
    return name.rpartition(".")[0]


class DurableLink:
    """What is known of one link.

    Attributes:
        name: The name of its queue, without the prefix.
        tags: Tags that were accepted and not settled, with the sequences of their notes; 0: there
            is none. None: they were not read yet.
        queue_id: The queue that the notes stand in; 0: none yet.
        link: The link, while it is attached.
        idle_tags: Tags that it counts for while it is not.
        lock: Held while it is being attached.

    Args:
        name: As above.
        links: The table.
    """

    def __init__(self, name: str, links: DurableLinks) -> None:
        self.name = name
        self.tags: dict[bytes, int] | None = None
        self.queue_id = 0
        self.link: DurableIncomingLink | None = None
        self.idle_tags = 0
        self.lock = asyncio.Lock()
        self._links = links

    @property
    def known(self) -> dict[bytes, int]:
        """The tags, which have been read."""
        assert self.tags is not None
        return self.tags

    def stage(self, tag: bytes, message: Outgoing, target: Target, stage: Stage) -> int:
        """Stage a message with the note that it was accepted; return the number of its places.

        Args:
            tag: Of its delivery. If it is known, its delivery is settled with that.
            message: The message.
            target: Where it goes.
            stage: Stages it as any message.

        Raises:
            NoRoom: There is no room; no note was staged.
            Refused: Somebody has deleted the queue of the notes.

        Durability: staged, the note not before the message: what is confirmed behind it is released
            when both are durable.
        """
        before = self.known.get(tag, 0)
        places, self.known[tag] = self._stage(tag, message, target, stage)
        self._links.finish(self, [before] if before else [])
        return places

    def _stage(
        self, tag: bytes, message: Outgoing, target: Target, stage: Stage
    ) -> tuple[int, int]:
        """Stage a message with its note; return the number of its places, and the note."""
        if not message.is_persistent:
            return stage(message, target), 0
        text = b"tag:%b\n" % tag.hex().encode()
        note = Note(self._links.queue_of(self), text)
        if message.duplicate_id:
            # One that came before is not staged; a crash in between is found out by its id.
            places = stage(message, target)
            _, sequences = self._links.stage(None, note)
        else:
            places, sequences = self._links.stage((message, target), note)
        return places, sequences[0]

    def settle(self, tag: bytes) -> None:
        """Forget a delivery that its sender has settled.

        Durability: staged as soon as there is room; nobody waits for it. Until it is durable, a
            crash brings the tag back.
        """
        note = self.known.pop(tag, 0)
        self._links.finish(self, [note] if note else [])

    @property
    def is_idle(self) -> bool:
        """Whether nobody has attached it, or is about to."""
        return self.link is None and not self.lock.locked()

    def attached(self, link: DurableIncomingLink) -> None:
        """Note who has attached it."""
        self.link = link
        self._links.attached(self)

    def left(self, link: DurableIncomingLink) -> None:
        """Note that a link is not attached any more."""
        if self.link is link:
            self.link = None
            self._links.left(self)


class DurableLinks:
    """The table.

    Args:
        cycle: What all connections share.
    """

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._core, self._registry = cycle.core, cycle.engine.registry
        self._notes = NoteQueues(self._core, self._registry, self._load, self._wait)
        # By user; those left longest ago come first.
        self._users: dict[str, dict[str, DurableLink]] | None = None
        self._idle_tags: Counter[str] = Counter()

    def _load(self, file_id: int, slab: int) -> None:
        self._cycle.engine.dispatcher.load((file_id, slab), 0)

    async def _wait(self) -> None:
        self._cycle.touch()
        await asyncio.sleep(_WAIT_S)

    def _of(self, user: str) -> dict[str, DurableLink]:
        """Return the links of a user, those of former runs too: they are found by their queues."""
        if self._users is None:
            self._users = {}
            for full in self._registry.queues:
                name = full.removeprefix(OWN_PREFIX)
                if name.startswith(_PREFIX):
                    own = self._users.setdefault(_user_of(name), {})
                    own[name] = DurableLink(name, self)
        return self._users.setdefault(user, {})

    def _is_known(self, link: DurableLink) -> bool:
        return self._of(_user_of(link.name)).get(link.name) is link

    # --- attaching --------------------------------------------------------------------------------

    async def open(
        self, user: str, container: str, name: str, unsettled: Collection[Any] | None, most: int
    ) -> DurableLink:
        """Return a link that its client attaches; whoever had attached it is detached.

        Args:
            user: Its user.
            container: The client's container id.
            name: The link's name.
            unsettled: Tags that its client has not settled: all others are forgotten. None: it is
                not said which those are, so nothing is.
            most: Links that one user may have.

        Raises:
            Refused: The user has as many, and all of them are attached.
            VespiaryError: Its queue cannot be made.

        Durability: on return its tags, and that others are forgotten, survive a power loss.
        """
        key = _name_of(user, container, name)
        own = self._of(_user_of(key))
        while True:
            link = own.get(key)
            if link is None:
                self._make_room(own, most)
                link = own[key] = DurableLink(key, self)
            async with link.lock:
                if own.get(key) is not link:
                    continue  # it went meanwhile
                if await self._open(link, name, unsettled):
                    return link

    async def _open(self, link: DurableLink, name: str, unsettled: Collection[Any] | None) -> bool:
        """Have a link be ready; False: its queue was deleted meanwhile."""
        if link.link is not None:
            sentence = f"the link {name[:100]!a} was attached again"
            link.link.detach_for(told(Condition.STOLEN, sentence))
        try:
            queue = await self._notes.make(link.name, _KEY)
        except BaseException:
            self.drop(link)  # there is no queue of it
            raise
        if link.tags is None or link.queue_id != queue.id:  # somebody may have deleted the notes
            tags: dict[bytes, int] = {}
            async for view in self._notes.notes(queue):
                tags[bytes.fromhex(value_of(view.properties, _KEY.encode()) or "")] = view.sequence
            link.tags, link.queue_id = tags, queue.id
        if link.tags:
            await self._cycle.durable()
            if unsettled is not None:
                gone = [tag for tag in link.tags if tag not in unsettled]
                await self._finish(queue, [note for tag in gone if (note := link.tags.pop(tag))])
            await self._cycle.durable()
        return not queue.is_deleted

    def _make_room(self, own: dict[str, DurableLink], most: int) -> None:
        """Forget the links of a user that were left longest ago, for one more.

        Raises:
            Refused: All of them are attached.
        """
        while len(own) >= most:
            oldest = next((link for link in own.values() if link.is_idle), None)
            if oldest is None:
                raise Refused(
                    Condition.RESOURCE_LIMIT_EXCEEDED,
                    "the user has too many links whose unsettled deliveries are remembered",
                    measured=f"{len(own) + 1} links",
                    allowed=f"at most {most} (max-durable-links)",
                    cure="close some of them, or attach with a target of another durability",
                )
            self._forget(oldest, f"for another one of its user: max-durable-links is {most}")

    def _forget(self, link: DurableLink, why: str) -> None:
        name = OWN_PREFIX + link.name
        self._cycle.client_lines.note(
            *("unsettled deliveries of a link are forgotten queue=%s %s", name, why),
            listener="amqp",
            now_s=self._cycle.loop.time(),
            level=logging.WARNING,
        )
        self.drop(link)

    def drop(self, link: DurableLink) -> str:
        """Forget a link and its tags; return a key for `Registry.wait_removed`."""
        if not self._is_known(link):
            return ""
        self.attached(link)
        del self._of(_user_of(link.name))[link.name]
        return self._notes.drop(link.name)

    def attached(self, link: DurableLink) -> None:
        """Take note that the tags of a link are not idle."""
        self._idle_tags[_user_of(link.name)] -= link.idle_tags
        link.idle_tags = 0

    def left(self, link: DurableLink) -> None:
        """Note that a link is not attached any more, and keep to the bound of tags."""
        if not self._is_known(link):
            return
        user = _user_of(link.name)
        own = self._of(user)
        own[link.name] = own.pop(link.name)
        link.idle_tags = len(link.known)
        self._idle_tags[user] += link.idle_tags
        if self._idle_tags[user] <= LEFT_TAGS_MAX:
            return
        for one in list(own.values()):
            if one.is_idle and one.idle_tags:
                self._forget(one, f"since those of its user are too many: above {LEFT_TAGS_MAX}")
            if self._idle_tags[user] <= LEFT_TAGS_MAX:
                return

    # --- notes ------------------------------------------------------------------------------------

    def queue_of(self, link: DurableLink) -> Queue:
        """Return the queue of a link's notes.

        Raises:
            Refused: Somebody has deleted it.
        """
        queue = self._notes.find(link.name)
        if queue is None:
            raise Refused(
                Condition.RESOURCE_DELETED,
                "what was remembered of the link was deleted",
                cure="attach it again",
            )
        return queue

    def stage(self, message: tuple[Outgoing, Target] | None, note: Note) -> tuple[int, list[int]]:
        """Stage a message and a note, both or neither; see `stage_jointly`."""
        return stage_jointly(self._core, self._registry, message, [note])

    def finish(self, link: DurableLink, notes: list[int]) -> None:
        """End notes of a link: now, or as soon as they are durable and there is room."""
        queue = self._notes.find(link.name) if notes else None
        if queue is None:
            return
        if max(notes) >= self._core.queue_statistics(queue.id).available:
            self._cycle.spawn(self._finish_later(queue, notes))
            return
        try:
            self._core.finish(queue.id, notes)
        except NoRoom:
            self._cycle.spawn(self._finish_later(queue, notes))

    async def _finish_later(self, queue: Queue, notes: list[int]) -> None:
        with contextlib.suppress(WriterFailed):  # nothing ends any more
            await self._cycle.durable()
            await self._finish(queue, notes)

    async def _finish(self, queue: Queue, notes: list[int]) -> None:
        while notes and not queue.is_deleted:
            try:
                self._core.finish(queue.id, notes)
            except NoRoom:
                await self._cycle.space()
                continue
            return
