"""The dispatch of examined queues against a model of plain Python.

The model knows what every message is and where it is. It does not say which of several consumers
gets a message; it says what no dispatch may do: lose one, give it twice, give it to one that does
not want it or has no credit, give one before another that should come first, leave a group to two
consumers, or leave something lying that somebody could have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_rig import FakeOutput, Rig, sequence_of

COLOURS = ("red", "blue", "")
SELECTORS = {
    "": lambda message: True,
    "colour = 'red'": lambda message: message.colour == "red",
    "colour IS NOT NULL": lambda message: message.colour != "",
    "colour = 'blue' OR JMSPriority > 5": lambda message: (
        message.colour == "blue" or message.priority > 5
    ),
}


@dataclass
class Message:
    """A message of the model: where it is, and what decides about it."""

    sequence: int
    colour: str
    priority: int
    group: str

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the order of giving."""
        return -self.priority, self.sequence


@dataclass(eq=False)
class Client:
    """A consumer of the model, and the real one."""

    consumer: Consumer
    output: FakeOutput
    selector: str
    credit: int
    held: list[int] = field(default_factory=list)

    def wants(self, message: Message) -> bool:
        return SELECTORS[self.selector](message)

    @property
    def has_credit(self) -> bool:
        return self.consumer.mode is AckMode.AUTO or len(self.held) < self.credit


class ExaminedMachine(RuleBasedStateMachine):
    """Clients come and go, send, acknowledge and give back, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig({"#": AddressSettings(auto_delete_queues=False)})
        self.sent = 0
        self.waiting: dict[int, Message] = {}
        self.messages: dict[int, Message] = {}
        self.clients: list[Client] = []
        self.owners: dict[str, Client] = {}
        self.rig.send("/queue/q", b"first")
        self._note_sent("", 4, "")

    def _note_sent(self, colour: str, priority: int, group: str) -> None:
        self.sent += 1
        message = Message(self.sent, colour, priority, group)
        self.waiting[self.sent] = self.messages[self.sent] = message

    @rule(
        colour=st.sampled_from(COLOURS),
        priority=st.sampled_from((4, 4, 4, 0, 5, 9)),
        group=st.sampled_from(("", "", "g", "h")),
        count=st.integers(1, 5),
    )
    def send(self, colour: str, priority: int, group: str, count: int) -> None:
        properties = b"a:b\n"
        if colour:
            properties += b"colour:%b\n" % colour.encode()
        if group:
            properties += b"JMSXGroupID:%b\n" % group.encode()
        for _ in range(count):
            self.rig.send("/queue/q", b"x", properties=properties, priority=priority)
            self._note_sent(colour, priority, group)

    @rule(
        selector=st.sampled_from(sorted(SELECTORS)),
        mode=st.sampled_from(AckMode),
        credit=st.integers(1, 5),
    )
    def subscribe(self, selector: str, mode: AckMode, credit: int) -> None:
        if len(self.clients) == 4:
            return
        output = self.rig.output()
        consumer = self.rig.subscribe(output, "/queue/q", mode, credit=credit, selector=selector)
        self.rig.dispatcher.poke(consumer.queue.id)
        self.clients.append(Client(consumer, output, selector, credit))

    @rule(data=st.data())
    def close(self, data: Any) -> None:
        if not self.clients:
            return
        client = self.clients.pop(data.draw(st.integers(0, len(self.clients) - 1)))
        close_subscription(self.rig.core, self.rig.registry, client.consumer)
        self.rig.dispatcher.poke(client.consumer.queue.id)
        self._back(client.held)
        self.owners = {g: owner for g, owner in self.owners.items() if owner is not client}

    def _back(self, sequences: list[int]) -> None:
        for sequence in sequences:
            self.waiting[sequence] = self.messages[sequence]

    @rule(data=st.data(), is_negative=st.booleans())
    def answer(self, data: Any, is_negative: bool) -> None:
        clients = [client for client in self.clients if client.held]
        if not clients:
            return
        client = data.draw(st.sampled_from(clients))
        sequence = data.draw(st.sampled_from(client.held))
        covered = [sequence]
        if client.consumer.mode is AckMode.CLIENT:
            covered = client.held[: client.held.index(sequence) + 1]
        client.held = [held for held in client.held if held not in covered]
        if is_negative:
            count = self.rig.core.give_back(client.consumer.handle, sequence)
            self.rig.dispatcher.poke(client.consumer.queue.id)
            self._back(covered)
        else:
            count = self.rig.core.acknowledge(client.consumer.handle, sequence)
        assert count == len(covered)

    @rule(room=st.sampled_from((0, 150, 1 << 20)), data=st.data())
    def set_room(self, room: int, data: Any) -> None:
        if self.clients:
            client = data.draw(st.sampled_from(self.clients))
            client.output.room = room
            self.rig.dispatcher.output_ready(client.output)

    @rule()
    def turn(self) -> None:
        self.rig.turns()
        given: dict[int, Client] = {}
        for client in self.clients:
            self._take_frames(client, given)
        for client in self.clients:
            self._check_order(client, given)
        for sequence, client in given.items():
            message = self.waiting.pop(sequence)
            if message.group:
                assert self.owners.setdefault(message.group, client) is client
        for client in self.clients:
            self._check_nothing_left(client)

    def _take_frames(self, client: Client, given: dict[int, Client]) -> None:
        places = []
        for frame in client.output.frames():
            sequence = sequence_of(frame)
            message = self.waiting[sequence]
            assert sequence not in given, "given twice"
            assert client.wants(message)
            assert client.has_credit
            given[sequence] = client
            places.append(message.place)
            if client.consumer.mode is not AckMode.AUTO:
                client.held.append(sequence)
        assert places == sorted(places)

    def _check_order(self, client: Client, given: dict[int, Client]) -> None:
        """Nothing that the client wants was left while it got what comes behind it."""
        mine = [self.waiting[sequence].place for sequence, to in given.items() if to is client]
        if not mine:
            return
        owners = dict(self.owners)
        for sequence, to in given.items():
            if group := self.waiting[sequence].group:
                owners.setdefault(group, to)
        for sequence, message in self.waiting.items():
            is_free = owners.get(message.group, client) is client
            if sequence not in given and is_free and client.wants(message):
                assert message.place > max(mine)

    def _check_nothing_left(self, client: Client) -> None:
        if not client.has_credit or client.output.room <= 0:
            return
        for message in self.waiting.values():
            owner = self.owners.get(message.group) if message.group else None
            assert not client.wants(message) or (owner is not None and owner is not client)

    @invariant()
    def counters_agree(self) -> None:
        queue = self.rig.registry.queues["q"]
        delivering = self.rig.core.queue_statistics(queue.id).delivering
        assert delivering == sum(len(client.held) for client in self.clients) or any(
            client.output.data for client in self.clients
        )

    def teardown(self) -> None:
        for client in list(self.clients):
            close_subscription(self.rig.core, self.rig.registry, client.consumer)
            self._back(client.held)
        if not self.waiting:
            return
        output = self.rig.output()
        self.rig.subscribe(output, "/queue/q", AckMode.AUTO)
        self.rig.turns()
        sequences = [sequence_of(frame) for frame in output.frames()]
        assert sequences == [
            m.sequence for m in sorted(self.waiting.values(), key=lambda m: m.place)
        ]


TestExamined = ExaminedMachine.TestCase
TestExamined.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
