"""Seeded faults of streams: an answer leaves before what it promises is durable.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_STREAMING: Final = "broker/vespiary_broker/app/streaming.py"
_TESTS: Final = "tests/unit/vespiary_broker/app/test_streaming.py::"
_RANGES: Final = "tests/unit/vespiary_native/test_core_ranges.py::"

PYTHON_STREAMS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "acknowledged before it is durable",
        "An acknowledgement of a stream is answered while the ends of its messages are under way.",
        _STREAMING,
        "            await self._cycle.durable()\n            stream.settled = through\n",
        "            stream.settled = through\n",
        _TESTS + "test_an_acknowledgement_is_answered_when_its_ends_are_durable",
    ),
    Mutant(
        "ended before the position",
        "Messages of a stream end before its position is durable: a crash leaves gaps behind it.",
        _STREAMING,
        "                await self._streams.acknowledge(stream, sequence)\n"
        "        await self._settle(stream)\n",
        "                stream.acknowledged = sequence\n"
        "        await self._settle(stream)\n"
        "        await self._streams.acknowledge(stream, sequence)\n",
        _TESTS + "test_nothing_ends_before_its_position_is_durable",
    ),
    Mutant(
        "head without a fence",
        "A head is told while a crash could have its sequences used again.",
        _STREAMING,
        "        await self._cycle.durable()\n        stream.fenced_tail",
        "        stream.fenced_tail",
        _TESTS + "test_a_head_is_told_when_no_later_message_can_have_its_sequence",
    ),
    Mutant(
        "epoch counted by stream",
        "Epochs begin anew: a run of a stream that was deleted acknowledges in its successor.",
        "broker/vespiary_broker/engine/streams.py",
        '        await self._bindings.put(EPOCH_COUNTER, {"next": epoch + 1})\n',
        "",
        "tests/unit/vespiary_broker/engine/test_streams.py::"
        "test_each_claim_has_a_higher_epoch_and_ends_the_run_before_it",
    ),
    Mutant(
        "pages passed over",
        "A range leaves out what stands in a page between messages that are in memory.",
        "broker/vespiary_broker/app/queue_walk.py",
        "        if there.is_one_run and copied.next_sequence > behind:\n",
        "        if there.is_one_run and copied.next_sequence < behind:\n",
        "tests/unit/vespiary_broker/app/test_stream_ranges.py::test_pages_are_copied_as_they_stand",
    ),
)

NATIVE_STREAMS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "range beyond what is durable",
        "A stream reads messages whose records may still be lost.",
        "native/src/ranges.c",
        "    uint64_t limit = end < q->available ? end : q->available;\n"
        "    uint64_t at = begin_of(q, sequence);\n",
        "    uint64_t limit = end < q->tail ? end : q->tail;\n"
        "    uint64_t at = begin_of(q, sequence);\n",
        _RANGES + "test_only_durable_messages_that_no_branch_holds_are_read",
    ),
    Mutant(
        "page ended whole",
        "Messages of a page end that a stream has not acknowledged.",
        "native/src/page_extents.c",
        "        if (next >= to->end || (count && next != from))\n",
        "        if (next == UINT64_MAX || (count && next != from))\n",
        _RANGES + "test_what_stands_in_a_page_ends_there",
    ),
)
