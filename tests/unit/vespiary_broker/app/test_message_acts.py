"""What administrators do to messages that wait: what is chosen, what becomes of it, what stays."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from vespiary_broker.app.message_acts import MessageActs
from vespiary_broker.app.states import queue_state
from vespiary_broker.app.tasks import RUNNING_MAX, Task, Tasks, TaskState
from vespiary_broker.app.transfers import Transfers
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.departures import ORIGINS_MAX
from vespiary_broker.engine.original_headers import (
    ORIGINAL_ADDRESS,
    ORIGINAL_QUEUE,
    ORIGINAL_TYPE,
)
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.subscription_names import last_name
from vespiary_broker.engine.transfers import Origin
from vespiary_broker.engine.users import make_user
from vespiary_broker.engine.wanted import Act, Wanted
from vespiary_codec.journal.transfer import TransferFlag, TransferMessage, encode_batch
from vespiary_spec.errors import (
    AddressFull,
    InvalidSelector,
    JournalError,
    NotPermitted,
    RemoteProtocolError,
)
from vespiary_spec.settings import (
    AddressFullPolicy,
    AddressSettings,
    Divert,
    Permission,
    RoutingType,
    SecuritySettings,
)
from vespiary_testkit import product_loop
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import ServerRig


class LoadingJournal(MemoryJournal):
    """A journal that has everything in memory."""

    async def load_slab(self, file_id: int, slab: int) -> bool:
        raise AssertionError(f"slab {slab} of file {file_id} is in memory")


class ActsRig(ServerRig):
    """A server, and the acts on it."""

    def __init__(self, *, files: int = 8, **settings: Any) -> None:
        journal = LoadingJournal(is_automatic=True, files=files)
        super().__init__(journal=journal, settings={"#": AddressSettings(**settings)})
        self.acts_tasks = Tasks(self._spawn, lambda: 1000)
        self.acts = MessageActs(self.engine, self.cycle, journal, None, self.acts_tasks)  # type: ignore[arg-type]

    async def queue(self, name: str, filter_text: str = "") -> Queue:
        traits = QueueTraits(selector=compile_filter(filter_text))
        return await self.engine.registry.create_queue(
            name, f"address.{name}", RoutingType.ANYCAST, traits=traits
        )

    def put(self, queue: Queue, body: bytes, properties: bytes = b"", **options: Any) -> None:
        route = self.engine.registry.queue_route(queue).next_handle()
        head = b"destination:" + queue.address.name.encode() + b"\n"
        self.core.publish(route, head + properties, body, persistent=True, **options)

    async def act(self, queue: str, act: Act, **more: Any) -> Task:
        await self.flush()
        task = self.acts.start(Wanted(queue=queue, act=act, **more))
        await task.wait(10)
        assert task.state is not TaskState.RUNNING
        await self.flush()
        return task

    def bodies(self, queue: Queue) -> list[bytes | None]:
        looked = self.core.look(queue.id, 0, 10_000, everything=True).messages
        return [self.core.body(queue.id, view.sequence) for view in looked]

    def properties(self, queue: Queue) -> list[list[str]]:
        looked = self.core.look(queue.id, 0, 10_000).messages
        return [sorted(view.properties.decode().splitlines()) for view in looked]


def on_rig(test: Callable[[ActsRig], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def run() -> None:
        rig = ActsRig(**options)
        await test(rig)
        await rig.close()

    product_loop.run(run())


def test_messages_move_in_order_and_say_where_they_were():
    async def check(rig: ActsRig) -> None:
        first, second = await rig.queue("first"), await rig.queue("second")
        for number in range(300):
            rig.put(first, b"%d" % number, b"n:%d\n" % number)
        task = await rig.act("first", Act.MOVE, to="second")
        assert (task.state, task.messages, task.kept) == (TaskState.DONE, 300, 0)
        assert (task.looked, task.total) == (300, 300)
        assert rig.bodies(first) == []
        assert rig.bodies(second) == [b"%d" % number for number in range(300)]
        assert rig.properties(second)[0] == [
            "_AMQ_ORIG_ADDRESS:address.first", f"_AMQ_ORIG_MESSAGE_ID:{first.id}-1",
            "_AMQ_ORIG_QUEUE:first", "_AMQ_ORIG_ROUTING_TYPE:ANYCAST",
            "destination:address.second", "n:0",
        ]  # fmt: skip
        task = await rig.act("second", Act.RETRY)
        assert (task.messages, rig.bodies(second)) == (300, [])
        assert rig.properties(first)[0] == ["destination:address.first", "n:0"]

    on_rig(check)


def test_copies_leave_the_messages_where_they_are():
    async def check(rig: ActsRig) -> None:
        first, second = await rig.queue("first"), await rig.queue("second")
        for number in range(100):
            rig.put(first, b"%d" % number, b"n:%d\n" % number)
        await rig.flush()
        before = rig.properties(first)
        task = await rig.act("first", Act.COPY, to="second", filter_text="n >= 95", limit=3)
        assert task.messages == 3
        assert rig.properties(first) == before
        assert rig.bodies(second) == [b"95", b"96", b"97"]
        assert rig.properties(second)[0] == ["destination:address.second", "n:95"]

    on_rig(check)


def test_selectors_ids_and_limits_choose():
    async def check(rig: ActsRig) -> None:
        queue = await rig.queue("q")
        for number in range(1000):
            rig.put(queue, b"%d" % number, b"n:%d\n" % number)
        ids = tuple(f"{queue.id}-{sequence}" for sequence in (4, 2, 4, 5000))
        task = await rig.act("q", Act.REMOVE, ids=ids)
        assert (task.messages, task.kept) == (2, 0)
        assert (await rig.act("q", Act.REMOVE, ids=(f"{queue.id}-5000",))).messages == 0
        task = await rig.act("q", Act.REMOVE, filter_text="n BETWEEN 10 AND 989")
        assert (task.messages, task.looked) == (980, 998)
        task = await rig.act("q", Act.REMOVE, limit=2)
        assert task.messages == 2
        left = [0, 2, *range(4, 10), *range(990, 1000)][2:]
        assert rig.bodies(queue) == [b"%d" % number for number in left]
        assert rig.core.queue_statistics(queue.id).ready == len(left)

    on_rig(check)


def test_what_changes_goes_to_the_end_and_keeps_the_rest():
    async def check(rig: ActsRig) -> None:
        queue = await rig.queue("q")
        old = b"expires:99999999999999\nAMQ_SCHEDULED_TIME:5\npriority:7\nn:1\n"
        rig.put(queue, b"old", old, priority=7, special=True)
        rig.put(queue, b"other", b"n:2\n")
        rig.put(queue, b"plain", b"n:3\n")
        assert (await rig.act("q", Act.CHANGE_PRIORITY, priority=9, limit=1)).messages == 1
        assert rig.bodies(queue) == [b"other", b"plain", b"old"]
        view = rig.core.look(queue.id, 4, 1).messages[0]
        assert (view.priority, view.is_special) == (9, True)
        assert rig.properties(queue)[2] == [
            "AMQ_SCHEDULED_TIME:5", "destination:address.q", "expires:99999999999999", "n:1",
            "priority:9",
        ]  # fmt: skip
        await rig.act("q", Act.CHANGE_PRIORITY, priority=4, filter_text="n = 1")
        view = rig.core.look(queue.id, 5, 1).messages[0]
        assert (view.priority, b"priority" in view.properties) == (4, False)
        await rig.act("q", Act.CHANGE_EXPIRY, expires_ms=77777777777777, filter_text="n > 1")
        assert rig.bodies(queue) == [b"old", b"other", b"plain"]
        assert rig.properties(queue)[1] == [
            "destination:address.q",
            "expires:77777777777777",
            "n:2",
        ]
        await rig.act("q", Act.CHANGE_EXPIRY, expires_ms=0)
        assert [len(lines) for lines in rig.properties(queue)] == [3, 2, 2]
        assert [v.is_special for v in rig.core.look(queue.id, 0, 9).messages] == [
            *(True, False, False)
        ]

    on_rig(check)


def test_a_changed_expiry_takes_effect_without_consumers():
    async def check(rig: ActsRig) -> None:
        queue, dead = await rig.queue("q"), await rig.queue("EXPIRED")
        rig.put(queue, b"x")
        task = await rig.act("q", Act.CHANGE_EXPIRY, expires_ms=1)
        await rig.flush()
        assert (task.messages, rig.bodies(queue)) == (1, [])
        assert rig.bodies(dead) == [b"x"]
        assert queue.departed("expired") == 1

    on_rig(check, expiry_address="address.EXPIRED")


def test_what_the_target_does_not_take_stays():
    async def check(rig: ActsRig) -> None:
        first, second = await rig.queue("first"), await rig.queue("second", "n > 1")
        for number in range(4):
            rig.put(first, b"%d" % number, b"n:%d\n" % number)
        task = await rig.act("first", Act.MOVE, to="second")
        assert (task.messages, task.kept) == (2, 2)
        assert rig.bodies(first) == [b"0", b"1"]
        assert rig.bodies(second) == [b"2", b"3"]

    on_rig(check)


def test_what_consumers_hold_stays():
    async def check(rig: ActsRig) -> None:
        first, second = await rig.queue("first"), await rig.queue("second")
        peer = rig.peer()
        await peer.login()
        where = b"destination:address.first::first\nack:client-individual\nprefetch:1\n"
        peer.send(b"SUBSCRIBE\nid:1\nactivemq.prefetchSize:1\n" + where + b"\n\0")
        await rig.flush()
        for number in range(3):
            rig.put(first, b"%d" % number)
        await rig.flush()
        held = rig.core.queue_statistics(first.id).delivering
        assert held
        task = await rig.act("first", Act.MOVE, to="second")
        assert task.messages == 3 - held
        assert len(rig.bodies(first)) == held
        assert len(rig.bodies(second)) == 3 - held
        assert AckMode.INDIVIDUAL is first.consumers[0].mode

    on_rig(check)


def test_dead_letters_that_have_nowhere_to_go_back_are_told_apart():
    async def check(rig: ActsRig) -> None:
        first, dead = await rig.queue("first"), await rig.queue("dead")
        rig.put(first, b"gone")
        rig.put(dead, b"never moved")
        assert (await rig.act("first", Act.DEAD_LETTER)).messages == 1
        rig.engine.registry.drop_queue(first)
        task = await rig.act("dead", Act.RETRY)
        assert (task.messages, task.kept) == (0, 2)
        assert sorted(body or b"" for body in rig.bodies(dead)) == [b"gone", b"never moved"]

    on_rig(check, dead_letter_address="address.dead", auto_create_queues=False)


def test_more_leave_than_may_be_on_their_way_at_a_time():
    async def check(rig: ActsRig) -> None:
        first, dead = await rig.queue("first"), await rig.queue("dead")
        for number in range(1500):
            rig.put(first, b"%d" % number, b"n:%d\n" % (number % 2))
        task = await rig.act("first", Act.DEAD_LETTER, filter_text="n = 1", limit=600)
        assert task.messages == 600
        assert len(rig.bodies(dead)) == 600
        assert len(rig.bodies(first)) == 900

    on_rig(check, dead_letter_address="address.dead")


def test_a_full_journal_is_waited_for_and_nothing_is_done_twice():
    async def check(rig: ActsRig) -> None:
        first, second = await rig.queue("first"), await rig.queue("second")
        count = 0
        while rig.core.files_ahead():
            rig.put(first, b"x" * 50_000, b"n:%d\n" % count)
            count += 1
            rig.journal.flush()
        rig.core.hold_adds(held=True)
        task = rig.acts.start(Wanted(queue="first", act=Act.MOVE, to="second"))
        await rig.settle(100)
        assert (task.messages, task.state) == (0, TaskState.RUNNING)
        assert rig.journal.space_requests
        rig.core.hold_adds(held=False)
        for _ in range(8):
            rig.journal.add_file()
        await task.wait(10)
        assert (task.messages, task.state) == (count, TaskState.DONE)
        assert rig.core.queue_statistics(first.id).ready == 0
        assert rig.core.queue_statistics(second.id).ready == count

    on_rig(check, files=3)


@pytest.mark.parametrize("act", [Act.MOVE, Act.REMOVE, Act.DEAD_LETTER])
def test_a_task_is_done_only_when_all_of_it_is_durable(act: Act):
    async def check(rig: ActsRig) -> None:
        first, _ = await rig.queue("first"), await rig.queue("second")
        rig.put(first, b"x")
        await rig.flush()
        rig.journal.is_automatic = False  # from now on writes are done when the test says so
        task = rig.acts.start(Wanted(queue="first", act=act, to="second"))
        for _ in range(5):
            await asyncio.sleep(0.01)  # what leaves by the mover is looked at every 10 ms
            await rig.settle()
        assert rig.core.queue_statistics(first.id).ready == 0
        assert task.state is TaskState.RUNNING
        rig.journal.is_automatic = True
        rig.journal.flush()
        await task.wait(10)
        assert (task.state, task.messages) == (TaskState.DONE, 1)

    on_rig(check, dead_letter_address="address.second")


def test_a_task_is_cancelled_between_two_steps():
    async def check(rig: ActsRig) -> None:
        first, second = await rig.queue("first"), await rig.queue("second")
        for number in range(1000):
            rig.put(first, b"%d" % number)
        await rig.flush()
        task = rig.acts.start(Wanted(queue="first", act=Act.MOVE, to="second"))
        await rig.settle(3)
        rig.acts_tasks.cancel(task)
        await task.wait(10)
        assert task.state is TaskState.CANCELLED
        assert task.reason == "it was cancelled by an administrator"
        assert 0 < task.messages < 1000
        await rig.flush()
        assert rig.bodies(second) == [b"%d" % number for number in range(task.messages)]
        assert len(rig.bodies(first)) == 1000 - task.messages

    on_rig(check)


def test_a_queue_that_is_deleted_meanwhile_ends_the_task():
    async def check(rig: ActsRig) -> None:
        first, second = await rig.queue("first"), await rig.queue("second")
        for number in range(1000):
            rig.put(first, b"%d" % number)
        await rig.flush()
        for gone in (second, first):
            task = rig.acts.start(Wanted(queue="first", act=Act.MOVE, to="second"))
            await rig.settle(3)
            rig.engine.registry.drop_queue(gone)
            await task.wait(10)
            assert task.state is TaskState.FAILED
            assert f"the queue {gone.name} was deleted meanwhile" in task.reason
            second = await rig.queue("second") if gone is second else second

    on_rig(check)


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        (Wanted(queue="x", act=Act.REMOVE), RemoteProtocolError, "there is no queue x"),
        (Wanted(queue="q", act=Act.MOVE, to="x"), RemoteProtocolError, "no queue x to move"),
        (Wanted(queue="q", act=Act.COPY, to="q"), RemoteProtocolError, "the queue that they are"),
        (Wanted(queue="q", act=Act.REMOVE, ids=("7-1",)), RemoteProtocolError, "no message-id of"),
        (Wanted(queue="q", act=Act.REMOVE, ids=("1-",)), RemoteProtocolError, "NUMBER, as vesp"),
        (Wanted(queue="q", act=Act.REMOVE, filter_text="n ="), InvalidSelector, "selector"),
        (Wanted(queue="q", act=Act.DEAD_LETTER), RemoteProtocolError, "no dead letter address"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(wanted: Wanted, error: type, says: str):
    async def check(rig: ActsRig) -> None:
        queue = await rig.queue("q")
        rig.put(queue, b"x")
        await rig.flush()
        with pytest.raises(error, match=says):
            rig.acts.start(wanted)
        assert rig.acts_tasks.all() == []

    on_rig(check, dead_letter_address="")


def test_so_many_tasks_may_run_and_so_many_are_remembered():
    async def check(rig: ActsRig) -> None:
        queue = await rig.queue("q")
        rig.put(queue, b"x" * 100)
        await rig.flush()
        for _ in range(RUNNING_MAX):
            rig.acts.start(Wanted(queue="q", act=Act.CHANGE_PRIORITY, priority=1))
        with pytest.raises(RemoteProtocolError, match="too many tasks are running"):
            rig.acts.start(Wanted(queue="q", act=Act.REMOVE))
        for task in rig.acts_tasks.all():
            await task.wait(10)
        for _ in range(300):
            await rig.act("q", Act.REMOVE)
        known = rig.acts_tasks.all()
        assert (len(known), known[-1].id) == (200, 316)
        assert rig.acts_tasks.get(1) is None

    on_rig(check)


def test_two_tasks_of_one_kind_on_a_queue_count_their_own_messages():
    async def check(rig: ActsRig) -> None:
        queue = await rig.queue("q")
        for number in range(300):
            rig.put(queue, b"%d" % number, b"n:%d\n" % number)
        await rig.flush()
        tasks = [
            rig.acts.start(Wanted(queue="q", act=Act.EXPIRE, filter_text=text))
            for text in ("n < 100", "n >= 100")
        ]
        for task in tasks:
            await task.wait(10)
        assert [(task.messages, task.kept) for task in tasks] == [(100, 0), (200, 0)]
        assert rig.bodies(queue) == []

    on_rig(check)


@pytest.mark.parametrize("act", [Act.MOVE, Act.COPY])
@pytest.mark.parametrize("policy", [each for each in AddressFullPolicy if each.value != "PAGE"])
def test_a_full_address_takes_no_more_and_nothing_is_lost(policy: AddressFullPolicy, act: Act):
    async def check(rig: ActsRig) -> None:
        first, second = await rig.queue("first"), await rig.queue("second")
        for number in range(300):
            rig.put(first, b"%d" % number)
        await rig.flush()
        task = rig.acts.start(Wanted(queue="first", act=act, to="second"))
        if policy is not AddressFullPolicy.BLOCK:
            await task.wait(10)
        await rig.settle(50)
        arrived = rig.core.queue_statistics(second.id).ready
        left = rig.core.queue_statistics(first.id).ready
        assert 100 <= arrived < 200
        assert left == (300 if act is Act.COPY else 300 - arrived)
        if policy is AddressFullPolicy.FAIL:
            assert task.state is TaskState.FAILED
            assert isinstance(task.failure, AddressFull)
        elif policy is AddressFullPolicy.DROP:
            assert (task.state, task.messages, task.kept) == (
                TaskState.DONE, arrived, 300 - arrived,
            )  # fmt: skip
        else:
            assert task.state is TaskState.RUNNING
            while task.state is TaskState.RUNNING:  # it looks again every 10 ms
                rig.core.purge_queue(second.id)
                await rig.flush()
                await task.wait(0.02)
            assert (task.state, task.messages) == (TaskState.DONE, 300)

    on_rig(check, max_size_messages=100, address_full_policy=policy)


async def ordinary(rig: ActsRig, name: str) -> Queue:
    """Make a queue as auto-creation does: its address has the same name."""
    return await rig.engine.registry.create_queue(name, name, RoutingType.ANYCAST)


async def retried(rig: ActsRig, queue: Queue) -> Task:
    """Move two messages of a queue away, delete it, and bring them back."""
    other = await rig.queue("other")
    for number in range(2):
        rig.put(queue, b"%d" % number)
    await rig.act(queue.name, Act.MOVE, to="other")
    rig.engine.registry.drop_queue(queue)
    task = await rig.act("other", Act.RETRY)
    assert rig.core.queue_statistics(other.id).ready == task.kept
    return task


AUTO: dict[str, Any] = {"auto_create_queues": True, "auto_create_addresses": True}


def test_retry_makes_queues_that_are_gone_where_sending_would():
    async def test(rig: ActsRig) -> None:
        for queue in (await ordinary(rig, "gone"), await rig.queue("second")):
            task = await retried(rig, queue)
            assert (task.messages, task.kept, task.kept_reason) == (2, 0, "")
            made = rig.engine.registry.queues[queue.name]
            assert made is not queue
            assert made.address.name == queue.address.name
            assert made.is_auto_created
            assert made.key in rig.bindings.values, "it is written before messages go there"
            assert rig.bodies(made) == [b"0", b"1"]
            rig.engine.registry.drop_queue(rig.engine.registry.queues["other"])

    on_rig(test, **AUTO)


def test_retry_names_queues_that_may_not_be_made():
    async def test(rig: ActsRig) -> None:
        task = await retried(rig, await ordinary(rig, "gone"))
        assert (task.messages, task.kept) == (0, 2)
        assert task.kept_reason == (
            "there is no queue gone: make it with `vespiary queue create gone --address gone "
            "--routing-type ANYCAST`, then retry"
        )
        assert set(rig.engine.registry.queues) == {"other"}
        assert "gone" not in rig.engine.registry.addresses
        await ordinary(rig, "gone")
        task = await rig.act("other", Act.RETRY)
        assert (task.messages, task.kept, task.kept_reason) == (2, 0, "")

    on_rig(test, auto_create_queues=False)


def test_retry_makes_no_subscription():
    async def test(rig: ActsRig) -> None:
        queue = await rig.engine.registry.create_queue("sub", "topic", RoutingType.MULTICAST)
        task = await retried(rig, queue)
        assert (task.messages, task.kept) == (0, 2)
        assert "--address topic --routing-type MULTICAST" in task.kept_reason

    on_rig(test, **AUTO)


@pytest.mark.parametrize(
    ("queue", "address", "command"),
    [
        ("gone", "", "`vespiary queue create gone`"),
        ("a;reboot", "$(id)", "`vespiary queue create 'a;reboot' --address '$(id)'`"),
        ("--api=x", "a", "`vespiary queue create --address a -- --api=x`"),
        ("two words", "a", "`vespiary queue create 'two words' --address a`"),
        ("a\tb", "a", "a queue that cannot exist"),
        ("$mqtt.notes", "$mqtt.notes", "a queue that cannot exist"),
    ],
)
def test_retry_prints_no_command_that_a_client_has_made_up(queue: str, address: str, command: str):
    async def test(rig: ActsRig) -> None:
        other = await rig.queue("other")
        rig.put(other, b"forged", forged(queue, address))
        task = await rig.act("other", Act.RETRY)
        assert (task.messages, task.kept) == (0, 1)
        assert command in task.kept_reason
        assert task.kept_reason.endswith(", then retry") == command.startswith("`")

    on_rig(test, **AUTO)


@pytest.mark.parametrize("count", [ORIGINS_MAX, ORIGINS_MAX + 1])
def test_retry_names_so_many_queues_in_order(count: int):
    async def test(rig: ActsRig) -> None:
        other = await rig.queue("other")
        for number in reversed(range(10, 10 + count)):
            for _ in range(2):
                rig.put(other, b"forged", forged(f"gone{number}", "a"))
        task = await rig.act("other", Act.RETRY)
        assert (task.messages, task.kept) == (0, 2 * count)
        parts = [
            f"there is no queue gone{number}: make it with "
            f"`vespiary queue create gone{number} --address a`"
            for number in range(10, 10 + ORIGINS_MAX)
        ]
        parts += ["others are missing too"] * (count > ORIGINS_MAX)
        assert task.kept_reason == "; ".join(parts) + ", then retry"
        assert set(rig.engine.registry.queues) == {"other"}

    on_rig(test, **AUTO)


def forged(queue: str, address: str) -> bytes:
    lines = f"{ORIGINAL_QUEUE}:{queue}\n" + f"{ORIGINAL_ADDRESS}:{address}\n" * bool(address)
    kind = "UNKNOWN" if queue != address else RoutingType.ANYCAST
    return (lines + f"{ORIGINAL_TYPE}:{kind}\n").encode()


@pytest.mark.parametrize("act", [Act.CHANGE_PRIORITY, Act.CHANGE_EXPIRY, Act.MOVE, Act.DELIVER])
def test_what_administrators_change_is_not_acknowledged(act: Act):
    async def test(rig: ActsRig) -> None:
        queue, other = await rig.queue("q"), await rig.queue("other")
        later = b"AMQ_SCHEDULED_DELAY:0\n" if act is not Act.DELIVER else b""
        for number in range(3):
            rig.put(queue, b"%d" % number, later)
        more: dict[str, Any] = {"priority": 7} if act is Act.CHANGE_PRIORITY else {}
        more |= {"expires_ms": 0} if act is Act.CHANGE_EXPIRY else {}
        more |= {"to": "other"} if act is Act.MOVE else {}
        await rig.act("q", act, **more)
        states = [queue_state(rig.engine, each) for each in (queue, other)]
        assert [each.acknowledged for each in states] == [0, 0]
        assert states[0].added == 3, "a change adds nothing"
        assert states[1].added == (3 if act is Act.MOVE else 0)
        for _ in range(2):  # queues that are gone count as well
            assert rig.engine.registry.message_totals() == (6 if act is Act.MOVE else 3, 0)
            if not queue.is_deleted:
                rig.engine.registry.drop_queue(queue)

    on_rig(test)


@pytest.mark.parametrize("address", ["", "EXPIRED"])
def test_a_task_that_expires_messages_says_where_they_went(address: str):
    async def test(rig: ActsRig) -> None:
        queue = await rig.queue("q")
        rig.put(queue, b"x")
        task = await rig.act("q", Act.EXPIRE)
        assert (task.messages, task.to) == (1, address)
        assert queue_state(rig.engine, queue).acknowledged == 0

    on_rig(test, expiry_address=address or None)


async def unwritten(rig: ActsRig, name: str, address: str) -> Queue:
    """Make the queue of a durable subscription; the bindings journal is held up before it."""
    await rig.engine.registry.configure([])  # reserves numbers of queues, as at the start
    made = rig.engine.registry.create_queue(name, address, RoutingType.MULTICAST, is_early=True)
    queue = await made
    rig.bindings.gate = asyncio.Event()
    return queue


@pytest.mark.parametrize("is_diverted", [False, True])
@pytest.mark.parametrize("act", [Act.EXPIRE, Act.DEAD_LETTER])
def test_messages_wait_for_the_only_queue_of_their_place_to_be_written(act: Act, is_diverted: bool):
    async def test(rig: ActsRig) -> None:
        registry = rig.engine.registry
        queue = await ordinary(rig, "q")
        if is_diverted:
            await ordinary(rig, "place")
            divert = Divert(name="d", address="place", forwarding_address="far", exclusive=True)
            await registry.diverts.create(divert)
        place = await unwritten(rig, "sub", "far" if is_diverted else "place")
        rig.put(queue, b"confirmed")
        await rig.flush()
        task = rig.acts.start(Wanted(queue="q", act=act))
        await rig.flush()
        assert rig.core.queue_statistics(queue.id).aside == 1, "it is still here"
        assert rig.bodies(place) == []
        assert rig.bindings.gate is not None
        rig.bindings.gate.set()
        await task.wait(10)
        assert (task.state, task.messages) == (TaskState.DONE, 1)
        assert rig.bodies(place) == [b"confirmed"]
        assert place.key in rig.bindings.values
        assert sorted(registry.queues) == ["place", "q", "sub"][not is_diverted :]

    on_rig(test, expiry_address="place", dead_letter_address="place")


def test_messages_find_another_queue_if_the_only_one_of_their_place_cannot_be_written():
    async def test(rig: ActsRig) -> None:
        registry = rig.engine.registry
        queue = await ordinary(rig, "q")
        place = await unwritten(rig, "sub", "place")
        rig.put(queue, b"confirmed")
        await rig.flush()
        rig.bindings.put_failure = JournalError("no room")
        task = rig.acts.start(Wanted(queue="q", act=Act.EXPIRE))
        await rig.flush()
        assert rig.bindings.gate is not None
        rig.bindings.gate.set()
        await rig.settle()
        assert place.is_deleted
        rig.bindings.put_failure = None
        await task.wait(10)
        assert task.messages == 1
        assert rig.bodies(registry.queues["place"]) == [b"confirmed"]

    on_rig(test, expiry_address="place")


@pytest.mark.parametrize("act", [Act.MOVE, Act.COPY, Act.RETRY])
@pytest.mark.parametrize("is_failing", [False, True])
def test_messages_go_to_a_queue_only_when_it_is_written(act: Act, is_failing: bool):
    async def test(rig: ActsRig) -> None:
        queue = await ordinary(rig, "q")
        target = await unwritten(rig, "sub", "topic")
        rig.put(queue, b"confirmed", forged("sub", "topic"))
        await rig.flush()
        to = "" if act is Act.RETRY else "sub"
        task = rig.acts.start(Wanted(queue="q", act=act, to=to))
        await rig.flush()
        assert rig.bodies(target) == []
        rig.bindings.put_failure = JournalError("no room") if is_failing else None
        assert rig.bindings.gate is not None
        rig.bindings.gate.set()
        await task.wait(10)
        is_kept = is_failing or act is Act.COPY
        assert rig.core.queue_statistics(queue.id).ready == is_kept
        assert target.is_deleted == is_failing
        if not is_failing:
            assert rig.bodies(target) == [b"confirmed"]
            assert target.key in rig.bindings.values

    on_rig(test)


def test_what_another_broker_hands_over_waits_until_its_queue_is_written():
    async def test(rig: ActsRig) -> None:
        target = await unwritten(rig, "sub", "topic")
        transfers = Transfers(rig.engine, rig.cycle, rig.journal)  # type: ignore[arg-type]
        message = TransferMessage(1, b"", b"confirmed", TransferFlag.JOURNALLED, 0, 4, 0)
        making = asyncio.ensure_future(transfers.make_queue(target.to_binding(), is_durable=True))
        taking = asyncio.ensure_future(
            transfers.take(Origin("other", 7), "sub", encode_batch([message]))
        )
        await rig.flush()
        assert not making.done()
        assert rig.bodies(target) == []
        assert rig.bindings.gate is not None
        rig.bindings.gate.set()
        assert await making is False
        assert (await taking).taken == 1
        assert rig.bodies(target) == [b"confirmed"]

    on_rig(test)


LAST = last_name("", "alice", "shop.prices")


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        (("shop", "alice"), ("shop", "alice"), ""),
        (("shop", "alice"), ("shop", "bob"), "belongs to another client or user"),
        (("shop", "alice"), ("shop", "anonymous"), ""),
        (("shop", "anonymous"), ("shop", "bob"), ""),
        (("shop", "alice"), ("other", "alice"), "belongs to another client or user"),
        (("", "alice"), ("", "bob"), ""),
    ],
)
def test_a_drain_does_not_mix_subscriptions(
    mine: tuple[str, str], theirs: tuple[str, str], why: str
) -> None:
    async def test(rig: ActsRig) -> None:
        registry = rig.engine.registry
        queue = await registry.create_queue(
            "shop.prices", "prices", RoutingType.MULTICAST, client_id=mine[0],
            traits=QueueTraits(user=mine[1]),
        )  # fmt: skip
        transfers = Transfers(rig.engine, rig.cycle, rig.journal)  # type: ignore[arg-type]
        client_id, user = theirs
        binding = {**queue.to_binding(), "client-id": client_id, "user": user}
        if not why:
            assert await transfers.make_queue(binding, is_durable=True) is False
            return
        with pytest.raises(RemoteProtocolError, match=why):
            await transfers.make_queue(binding, is_durable=True)

    on_rig(test)


def test_a_drain_does_not_give_a_subscription_a_second_queue():
    async def test(rig: ActsRig) -> None:
        registry = rig.engine.registry
        queue = await registry.create_queue(
            "shop.eu%2Eprices", "prices", RoutingType.MULTICAST, client_id="shop"
        )
        transfers = Transfers(rig.engine, rig.cycle, rig.journal)  # type: ignore[arg-type]
        binding = {**queue.to_binding(), "name": "shop.eu.prices"}
        with pytest.raises(RemoteProtocolError, match=r"has the queue shop\.eu%2Eprices"):
            await transfers.make_queue(binding, is_durable=True)
        assert list(registry.queues) == ["shop.eu%2Eprices"]
        registry.drop_queue(queue)
        assert await transfers.make_queue(binding, is_durable=True)

    on_rig(test)


@pytest.mark.parametrize(
    ("there", "comes", "user", "is_refused"),
    [
        ("shop.prices", LAST, "alice", True),
        ("shop=prices", LAST, "alice", True),
        (LAST, "shop.prices", "alice", True),
        ("shop.prices", LAST, "bob", False),
        ("shop.other", LAST, "alice", False),
    ],
)
def test_a_drain_brings_no_last_name_beside_a_usual_one(
    there: str, comes: str, user: str, is_refused: bool
) -> None:
    async def test(rig: ActsRig) -> None:
        registry = rig.engine.registry
        queue = await registry.create_queue(
            there, "prices", RoutingType.MULTICAST, client_id="shop",
            traits=QueueTraits(user=user), is_early=True,
        )  # fmt: skip
        transfers = Transfers(rig.engine, rig.cycle, rig.journal)  # type: ignore[arg-type]
        binding = {**queue.to_binding(), "name": comes, "user": "alice"}
        if not is_refused:
            assert await transfers.make_queue(binding, is_durable=True)
            return
        with pytest.raises(RemoteProtocolError, match=f"has the queue {re.escape(there)}"):
            await transfers.make_queue(binding, is_durable=True)

    on_rig(test)


ALL_PERMISSIONS = {permission.value: ("team",) for permission in Permission}


def let(rig: ActsRig, **matches: tuple[str, ...]) -> None:
    """Let the role `team` do everything but what is named, by match."""
    rig.users = {"alice": make_user("alice", "secret", roles=("team",), iterations=4096)}
    rules = {"#": (), **{match.replace("_", "."): but for match, but in matches.items()}}
    rig.engine.registry.permissions.replace(
        {
            match: SecuritySettings(**{n: r for n, r in ALL_PERMISSIONS.items() if n not in but})
            for match, but in rules.items()
        }
    )


@pytest.mark.parametrize("act", [Act.MOVE, Act.COPY, Act.DEAD_LETTER, Act.EXPIRE])
def test_messages_go_only_where_the_one_who_asks_may_send(act: Act):
    async def test(rig: ActsRig) -> None:
        queue, place = await rig.queue("q"), await ordinary(rig, "place")
        rig.put(queue, b"x")
        await rig.flush()
        let(rig, place=("send",))
        to = "place" if act in (Act.MOVE, Act.COPY) else ""
        wanted = Wanted(queue="q", act=act, to=to, user="alice")
        with pytest.raises(NotPermitted, match="alice has no permission send at the address place"):
            rig.acts.start(wanted)
        assert (rig.bodies(queue), rig.bodies(place)) == ([b"x"], [])
        let(rig)
        task = await rig.act("q", act, to=to, user="alice")
        assert (task.messages, rig.bodies(place)) == (1, [b"x"])

    on_rig(test, dead_letter_address="place", expiry_address="place")


def test_retry_sends_only_where_the_one_who_asks_may_send():
    async def test(rig: ActsRig) -> None:
        other = await rig.queue("other")
        for name in ("open", "secret", "gone.secret", "gone.unmade", "gone.open"):
            queue = await ordinary(rig, name)
            rig.put(queue, name.encode())
            await rig.act(name, Act.MOVE, to="other")
            if name.startswith("gone"):
                rig.engine.registry.drop_queue(queue)
        let(rig, secret=("send",), gone_secret=("send",), gone_unmade=("create_durable_queue",))
        task = await rig.act("other", Act.RETRY, user="alice")
        assert (task.messages, task.kept) == (2, 3)
        queues = rig.engine.registry.queues
        assert rig.bodies(queues["open"]) == [b"open"]
        assert rig.bodies(queues["gone.open"]) == [b"gone.open"]
        assert rig.bodies(queues["secret"]) == []
        assert queues["gone.open"].traits.user == "alice"
        assert sorted(rig.bodies(other), key=str) == [b"gone.secret", b"gone.unmade", b"secret"]
        reason = task.kept_reason
        assert "alice has no permission send" in reason
        assert reason.endswith("that messages came from: secret")
        assert "there is no queue gone.secret" in reason
        assert "there is no queue gone.unmade" in reason
        task = await rig.act("other", Act.RETRY)  # an administrator
        assert (task.messages, task.kept) == (3, 0)

    on_rig(test, **AUTO)
