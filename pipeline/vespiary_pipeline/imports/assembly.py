"""From what the tasks wrote to a broker's data folder.

Owns: which numbers queues, places and large bodies get, by the order of partitions and of rows in
them; and the bindings. Must never change what a task wrote but through `settling`. Called by
`writer`, on the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vespiary_codec.journal.file_forms import BINDINGS_FORM, MESSAGE_FORM
from vespiary_codec.journal.large_reference import body_name
from vespiary_codec.journal.record import (
    PutRecord,
    QueuesRecord,
    QueueState,
    encode_record,
)
from vespiary_pipeline.imports.import_options import ImportOptions
from vespiary_pipeline.imports.rows import QueueName, two_addresses
from vespiary_pipeline.imports.settling import JournalChain, Numbering, flush_file, flush_folder
from vespiary_pipeline.imports.staged import (
    body_path,
    file_path,
    read_index,
)
from vespiary_pipeline.sources.keys import read_values
from vespiary_pipeline.targets import disk_errors
from vespiary_spec import limits
from vespiary_spec.errors import ImportRefused, StorageError

_QUEUE_ID_END: Final = 2**31
_COUNTER: Final = "counter/queue-id"
_STATES_PER_RECORD: Final = 1024
_TAKEN_OVER: Final = ("address/", "queue/", _COUNTER)


class Task(NamedTuple):
    """What one task wrote.

    Attributes:
        partition: Number of its partition.
        folder: Name of its folder.
        files: Number of its files.
        bodies: Number of its large bodies.
        queues: Its queues, by its numbers for them.
        counts: Messages of each of them.
        is_numbered: Its rows say their sequences.
    """

    partition: int
    folder: str
    files: int
    bodies: int
    queues: Sequence[QueueName]
    counts: Sequence[int]
    is_numbered: bool


class Assembly:
    """Puts one data folder together. Owner: the thread that made it; used once.

    Args:
        tasks: Where tasks wrote.
        data: The folder to fill, empty.
        options: What was asked for.
    """

    def __init__(self, tasks: Path, data: Path, options: ImportOptions) -> None:
        self._tasks = tasks
        self._data = data
        self._options = options
        self._large = data / "large-messages"
        self._queues = QueueTable(_given_bindings(options))
        self._sequences: dict[int, list[npt.NDArray[np.uint64]]] = {}

    def run(self, tasks: Iterable[Task]) -> None:
        """Fill the folder.

        Args:
            tasks: Those that count, in any order.

        Raises:
            ImportRefused: Two rows cannot be in one broker, or bindings cannot be understood.
            DiskFull: There is no room.
            NativeError: A call failed.

        Durability: on return all of it survives a power cut, but for the folder's own name.
        """
        for name in ("journal", "bindings", "large-messages"):
            (self._data / name).mkdir(mode=0o750)
        chain = JournalChain(self._data / "journal", MESSAGE_FORM, self._options.file_bytes)
        try:
            bodies = 0
            for task in sorted(tasks):
                self._settle(chain, task, bodies)
                self._move_bodies(self._tasks / task.folder, task.bodies, bodies)
                bodies += task.bodies
            chain.write(_state_records(self._states()))
            chain.finish()
        finally:
            chain.close()
        self._write_bindings()
        flush_folder(self._large)

    def _settle(self, chain: JournalChain, task: Task, bodies: int) -> None:
        ids = [self._queues.id_of(queue) for queue in task.queues]
        first = [0 if task.is_numbered else self._queues.next_sequence(number) for number in ids]
        numbers = Numbering(np.array(ids, np.uint64), np.array(first, np.uint64), bodies + 1)
        for number in range(task.files):
            path = file_path(self._tasks / task.folder, number)
            index = read_index(self._tasks / task.folder, number)
            places = chain.settle(path, index, numbers)
            if task.is_numbered:
                self._note(places)
        for number, count in zip(ids, task.counts, strict=True):
            self._queues.count(number, count)

    def _note(self, places: npt.NDArray[np.uint64]) -> None:
        for number in np.unique(places[:, 0]):
            own = places[places[:, 0] == number, 1]
            self._sequences.setdefault(int(number), []).append(own)

    def _move_bodies(self, folder: Path, count: int, first: int) -> None:
        for number in range(count):
            path = body_path(folder, number)
            with disk_errors("a large body can't get its name", path):
                flush_file(path)
                path.rename(self._large / body_name(first + number + 1))

    def _states(self) -> list[QueueState]:
        """Return head and tail of each queue with messages.

        Raises:
            ImportRefused: Two messages of a queue have one sequence.
        """
        states = []
        for number, count in self._queues.counts.items():
            first, last = 1, count
            if number in self._sequences:
                own = np.sort(np.concatenate(self._sequences[number]))
                twice = np.flatnonzero(own[1:] == own[:-1])
                if len(twice):
                    raise ImportRefused(
                        "two messages of a queue have one sequence",
                        where=str(self._options.path),
                        measured=f"queue {self._queues.name_of(number)}, sequence {own[twice[0]]}",
                        cure="leave the column sequences out: rows are numbered in order",
                    )
                first, last = int(own[0]), int(own[-1])
            if count:
                states.append(QueueState(number, first, last + 1))
        return states

    def _write_bindings(self) -> None:
        values = self._queues.values()
        records = [
            encode_record(PutRecord(key, json.dumps(value).encode()))
            for key, value in values.items()
        ]
        chain = JournalChain(self._data / "bindings", BINDINGS_FORM, limits.BINDINGS_FILE_BYTES)
        try:
            chain.write(records)
            chain.finish()
        finally:
            chain.close()


class QueueTable:
    """Addresses and queues of the broker that is made. Owner: `Assembly`.

    Attributes:
        counts: Messages of each queue, by its id.

    Args:
        given: Bindings that are taken over, by key.
    """

    def __init__(self, given: Mapping[str, dict[str, Any]]) -> None:
        self.counts: dict[int, int] = {}
        self._values = dict(given)
        self._ids: dict[str, int] = {}
        self._made: set[str] = set()
        self._next = int(self._values.get(_COUNTER, {}).get("next", 1))
        for key, value in given.items():
            if key.startswith("queue/"):
                number = int(key.removeprefix("queue/"))
                self._ids[value["name"]] = number
                self._next = max(self._next, number + 1)

    def id_of(self, queue: QueueName) -> int:
        """Return the id of a queue, or make it.

        Raises:
            ImportRefused: It belongs to another address already.
        """
        number = self._ids.get(queue.name)
        if number is None:
            return self._make(queue)
        known = self._values[f"queue/{number}"]["address"]
        if queue.name in self._made:
            for address in (queue.address, queue.other):
                if address not in ("", known):
                    raise two_addresses(queue.name, known, address)
        return number

    def _make(self, queue: QueueName) -> int:
        if queue.other:
            raise two_addresses(queue.name, queue.address, queue.other)
        number, self._next = self._next, self._next + 1
        if number >= _QUEUE_ID_END:
            raise ImportRefused("there are too many queues", measured=f"{number}")
        routing_type = queue.routing_type or "ANYCAST"
        address = self._values.setdefault(
            f"address/{queue.address}", {"routing-types": [], "auto-created": False}
        )
        if routing_type not in address["routing-types"]:
            address["routing-types"] = sorted([*address["routing-types"], routing_type])
        self._values[f"queue/{number}"] = {
            "name": queue.name, "address": queue.address, "routing-type": routing_type,
            "auto-created": False,
        }  # fmt: skip
        self._ids[queue.name] = number
        self._made.add(queue.name)
        return number

    def next_sequence(self, number: int) -> int:
        """Return the sequence of the next message of a queue."""
        return self.counts.get(number, 0) + 1

    def count(self, number: int, messages: int) -> None:
        """Note that a queue has so many messages more."""
        self.counts[number] = self.counts.get(number, 0) + messages

    def name_of(self, number: int) -> str:
        """Return the name of a queue."""
        return str(self._values[f"queue/{number}"]["name"])

    def values(self) -> dict[str, dict[str, Any]]:
        """Return the bindings by key."""
        return {**self._values, _COUNTER: {"next": self._next}}


def _given_bindings(options: ImportOptions) -> dict[str, dict[str, Any]]:
    """Return what is taken over from another broker's bindings.

    Raises:
        StorageError: None are there.
        ImportRefused: They are not what this version writes.
        CorruptRecord: They are damaged.
        NativeError: They can't be read.
    """
    if not options.bindings:
        return {}
    folder = Path(options.bindings)
    folder = folder / "bindings" if (folder / "bindings").is_dir() else folder
    found = read_values(folder)
    if not found:
        raise StorageError("no bindings lie here", where=str(folder), cure="name their folder")
    values = {}
    for key, text in found.items():
        if key.startswith(_TAKEN_OVER):
            try:
                values[key] = json.loads(text)
                if key.startswith("queue/"):
                    int(key.removeprefix("queue/")), values[key]["name"], values[key]["address"]
            except (ValueError, KeyError, TypeError) as error:
                raise ImportRefused(
                    "a binding cannot be understood", where=str(folder), measured=key
                ) from error
    return values


def _state_records(states: Sequence[QueueState]) -> list[bytes]:
    return [
        encode_record(QueuesRecord(tuple(states[at : at + _STATES_PER_RECORD])))
        for at in range(0, len(states), _STATES_PER_RECORD)
    ]
