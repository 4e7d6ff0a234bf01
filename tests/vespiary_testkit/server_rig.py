"""The server in one process without sockets: sessions over fake transports.

`ServerRig` runs on the test's event loop (a turn of the loop is a turn of the server); its
`FakeTransport` remembers what was written and what was asked of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from vespiary_broker.engine.address_memory import MemoryLimits
from vespiary_broker.engine.duplicates import DuplicateIds
from vespiary_broker.engine.engine import make_engine
from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.users import User
from vespiary_broker.server.connection import Connection
from vespiary_broker.server.cycle import Cycle
from vespiary_broker.server.listener import LargeLimits, Listener, Timing
from vespiary_broker.server.stomp.handler import StompHandler
from vespiary_broker.store.large_messages import LargeMessages
from vespiary_codec.wire.stomp import NEED_DATA, Frame, HeartBeat, StompDecoder
from vespiary_spec.settings import Acceptor, AddressSettings, SecuritySettings
from vespiary_testkit.memory_journal import MemoryBindings, MemoryJournal


class FakeTransport:
    """A transport whose peer reads when the test says so (`unsent` grows until `drain`).

    Like uvloop's transports it is no `asyncio.Transport`.
    """

    def __init__(self) -> None:
        self.protocol: Connection | None = None
        self.data = b""
        self.unsent = 0
        self.is_stuck = False  # the peer reads nothing
        self.is_reading_now = True
        self.is_eof = self.is_closed = self.is_aborted = False
        self.high = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 4711) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_eof, "written behind the end"
        self.data += bytes(data)
        if self.is_stuck:
            was = self.unsent
            self.unsent += len(data)
            if self.unsent > self.high >= was:
                assert self.protocol is not None
                self.protocol.pause_writing()

    def drain(self) -> None:
        """Let the peer read everything."""
        self.is_stuck = False
        was, self.unsent = self.unsent, 0
        if was > self.high:
            assert self.protocol is not None
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def is_reading(self) -> bool:
        return self.is_reading_now

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_eof = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = self.is_closed = True


class Peer:
    """One client of the rig."""

    def __init__(self, rig: ServerRig, listener: Listener) -> None:
        self.transport = FakeTransport()
        self.connection = Connection(rig.cycle, listener)
        self.transport.protocol = self.connection
        self.decoder = StompDecoder(role="client")
        self.heart_beats = 0
        self._rig = rig
        self._taken = 0
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        """Have bytes arrive."""
        while data:
            view = self.connection.get_buffer(-1)
            count = min(len(view), len(data))
            view[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    async def login(self, version: str = "1.2", **headers: str) -> Frame:
        lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
        self.send(f"CONNECT\naccept-version:{version}\nhost:x\n{lines}\n\0".encode())
        await self._rig.settle()
        (frame,) = self.frames()
        assert frame.command == "CONNECTED", frame
        self.decoder.set_version(version)  # type: ignore[arg-type]
        return frame

    def frames(self) -> list[Frame]:
        """Return the frames that came since the last call."""
        self.decoder.feed(self.transport.data[self._taken :])
        self._taken = len(self.transport.data)
        frames = []
        while (event := self.decoder.next_event()) is not NEED_DATA:
            if isinstance(event, HeartBeat):
                self.heart_beats += event.count
            else:
                frames.append(event)
        return frames

    @property
    def stomp(self) -> StompHandler:
        """The server's side of it, which its first bytes have made."""
        handler = self.connection.handler
        assert isinstance(handler, StompHandler)
        return handler

    def lose(self) -> None:
        """Have the connection break."""
        self.transport.is_closed = True
        self.connection.connection_lost(None)


async def _next_turn() -> None:
    await asyncio.sleep(0)


class ServerRig:
    """A server without sockets; make it on a running loop."""

    def __init__(
        self,
        *,
        acceptor: Acceptor | None = None,
        journal: MemoryJournal | None = None,
        users: Mapping[str, User] | None = None,
        settings: Mapping[str, AddressSettings] | None = None,
        security: Mapping[str, SecuritySettings] | None = None,
        duplicates: DuplicateIds | None = None,
        large: LargeMessages | None = None,
        large_limits: LargeLimits | None = None,
        global_max_bytes: int | None = None,
    ) -> None:
        self.users = users or {}
        self.journal = journal or MemoryJournal()
        self.core = self.journal.core
        self.bindings = MemoryBindings()
        self.tasks: set[asyncio.Task[None]] = set()
        self.duplicates = duplicates or DuplicateIds(lambda _: 100, is_persistent=True)
        self.engine = make_engine(
            self.core,
            self.bindings,
            lock=asyncio.Lock(),
            make_event=asyncio.Event,
            duplicates=self.duplicates,
            spawn=self._spawn,
            load_slab=lambda *_: None,
            users=lambda: self.users,
            address_settings=settings or {},
            memory_limits=MemoryLimits(global_max_bytes),
            transaction_bytes_max=100_000,
            transaction_room_bytes=self.journal.transaction_room_bytes,
            large_bodies=large,
            naming=NamingRules(pause=_next_turn),
        )
        self.engine.registry.permissions.replace(security or {})
        self.engine.dispatcher.clock_s = lambda: 0.0  # a turn takes as long as it takes
        self.engine.turn_time.clock_s = lambda: 0.0
        self.cycle = Cycle(self.engine, self.journal, self._spawn, large)
        # No share of a turn is over by chance: peers send on while reading is paused.
        self.cycle.turns.clock = lambda: 0.0
        self.journal.on_durable = self.cycle.on_durable
        self.journal.on_space = self.cycle.on_space
        self.listener = Listener(
            acceptor or Acceptor(name="all", port=0),
            490 * 1024,
            Timing(first_byte_s=60, slow_grace_s=5),
            large_limits,
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def peer(self) -> Peer:
        return Peer(self, self.listener)

    def registry_queues(self) -> dict[str, Any]:
        """Return the queues that exist, by name."""
        return {n: q for n, q in self.engine.registry.queues.items() if not q.is_durable}

    async def settle(self, turns: int = 20) -> None:
        """Let the loop turn until nothing more happens by itself; writes stay where they are."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Let the loop turn, have what is staged written, and let it turn again."""
        await self.settle()
        self.journal.flush()
        await self.settle()

    async def close(self) -> None:
        for connection in list(self.listener.connections):
            connection.connection_lost(None)
        await self.settle()
        self.cycle.close()
        for _ in range(2000):  # the queues of thousands of subscriptions go in so many turns
            await self.settle()
            if not self.tasks:
                break
        assert not self.tasks
        assert not self.cycle.connections
        assert not self.cycle.partial
