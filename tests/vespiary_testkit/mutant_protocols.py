"""Seeded faults of MQTT and AMQP: an answer leaves before what it promises is durable.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_SERVER: Final = "broker/vespiary_broker/server/"
_MQTT: Final = "tests/unit/vespiary_broker/server/mqtt/"
_AMQP: Final = "tests/unit/vespiary_broker/server/amqp/"
_BODIES: Final = "tests/unit/vespiary_broker/server/test_transaction_bodies.py::"
_CORE_AMQP: Final = "tests/unit/vespiary_native/test_core_amqp.py::"
_SENDING: Final = "tests/unit/vespiary_native/test_core_amqp_sending.py::"

PYTHON_PROTOCOLS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "PUBACK before the flush",
        "An MQTT client is told that its message is safe before it is.",
        _SERVER + "mqtt/publishing.py",
        "        self._connection.confirm(data)\n",
        "        self._connection.write(data)\n",
        _MQTT + "test_mqtt_publishing.py::test_puback_leaves_behind_the_flush",
    ),
    Mutant(
        "PUBLISH of QoS 2 before its note",
        "A message of QoS 2 leaves with a packet id that a crash forgets.",
        _SERVER + "mqtt/delivering.py",
        "            self._connection.confirm(data)\n",
        "            self._connection.write(data)\n",
        _MQTT + "test_mqtt_delivering.py::test_qos_2_leaves_once_its_id_is_durable",
    ),
    Mutant(
        "accepted before the flush",
        "An AMQP sender is told that its message is accepted before it is durable.",
        _SERVER + "amqp/handler.py",
        "        self.connection.confirm(encode_frame(Frame(channel, body)))\n",
        "        self.connection.write(encode_frame(Frame(channel, body)))\n",
        _AMQP + "test_receiving.py::test_accepted_comes_behind_the_flush",
    ),
    Mutant(
        "accepted after the link is gone",
        "An AMQP sender that detaches is answered before it is told what was accepted.",
        _SERVER + "amqp/session.py",
        "        self.flush()\n        return link.detach(asked)\n",
        "        return link.detach(asked)\n",
        _AMQP + "test_receiving.py::test_what_was_taken_is_accepted_before_the_end[detach]",
    ),
    Mutant(
        "lessons outlive their link",
        "A link of AMQP whose handle is used again sends to the address of the one before.",
        _SERVER + "amqp/receiving.py",
        "        if self._is_taught:\n            self._is_taught = False\n",
        "        if False:\n            self._is_taught = False\n",
        _AMQP + "test_teaching.py::test_a_handle_that_is_used_again_has_no_lessons",
    ),
    Mutant(
        "deliveries of the core that nobody takes over",
        "What an AMQP client releases or rejects of what the core has sent is not given back.",
        _SERVER + "amqp/outcomes.py",
        "    session.take_over(int(asked.first), int(asked.first if asked.last is None else "
        "asked.last))\n",
        "",
        _AMQP + "test_amqp_core_sending.py::test_no_more_than_may_be_unsettled",
    ),
    Mutant(
        "annotations lost in the core",
        "The core goes on encoding messages of a queue whose annotations a client has changed.",
        _SERVER + "amqp/sending.py",
        "        is_stored = session.cycle.annotations.has_any_in(consumer.queue.id)\n",
        "        is_stored = False\n",
        _AMQP + "test_amqp_core_sending.py::test_annotations_are_not_lost_on_another_link",
    ),
    Mutant(
        "told accepted before the flush",
        "A durable link that is attached again is told that a message was accepted before it is "
        "durable.",
        _SERVER + "amqp/unsettled.py",
        "            await self._cycle.durable()\n        return not",
        "            pass\n        return not",
        _AMQP + "test_recovering.py::test_the_answer_waits_for_what_it_says_to_be_durable",
    ),
    Mutant(
        "a note apart from its message",
        "A crash leaves a message of a durable link of AMQP without the note that it was accepted.",
        _SERVER + "amqp/unsettled.py",
        "            places, sequences = self._links.stage((message, target), note)\n",
        "            places = stage(message, target)\n"
        "            _, sequences = self._links.stage(None, note)\n",
        _AMQP + "test_recovering.py::test_message_and_note_are_one_transaction_of_the_journal",
    ),
    Mutant(
        "larger than a link takes",
        "The core sends a client of AMQP messages that are larger than it takes.",
        _SERVER + "amqp/sending.py",
        "            frame_bytes = min(frame_bytes, most + HEAD_BYTES_MAX)\n",
        "            pass\n",
        _AMQP + "test_message_sizes.py::test_the_largest_that_fits_is_given_to_the_byte",
    ),
    Mutant(
        "release of an id that is in use again",
        "After a restart an MQTT client is told to forget the id of a message that it was sent "
        "since: it takes it twice.",
        _SERVER + "mqtt/exactly_once.py",
        "            resumed.released.pop(packet_id, None)\n",
        "",
        _MQTT + "test_mqtt_delivering.py::"
        "test_a_stale_release_does_not_outlive_the_next_message_with_its_id",
    ),
    Mutant(
        "place of an id that is released",
        "After a restart a message is sent to an MQTT client under an id that waits for PUBCOMP.",
        _SERVER + "mqtt/exactly_once.py",
        "            sent.pop(packet_id, None)\n",
        "",
        _MQTT + "test_mqtt_delivering.py::"
        "test_a_stale_place_does_not_outlive_the_release_of_its_id",
    ),
    Mutant(
        "bodies of a refused transaction stay",
        "A transaction of AMQP that is not committed leaves its bodies in files on the disk.",
        _SERVER + "amqp/transacting.py",
        "                self._cycle.drop_bodies(transaction.large_ids)\n",
        "                pass\n",
        _BODIES + "test_a_commit_that_is_refused_drops_them",
    ),
    Mutant(
        "bodies of a lost connection stay",
        "A client of AMQP that goes within a transaction leaves its bodies in files on the disk.",
        _SERVER + "amqp/transacting.py",
        "        self._cycle.drop_bodies(self._open.large_ids)\n",
        "",
        _BODIES + "test_a_lost_connection_drops_them",
    ),
    Mutant(
        "waits for room for nobody",
        "What a client sent that is gone keeps its body in a file while the disk is full.",
        _SERVER + "cycle.py",
        "        # What waits holds bodies in files, which may be what fills the disk.\n"
        "        self._release_waiters(connection)\n",
        "",
        _BODIES + "test_a_connection_that_is_lost_in_its_commit_drops_them",
    ),
)

NATIVE_PROTOCOLS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "PUBACK of the core before the flush",
        "The core answers a PUBLISH as if nothing of its connection were unwritten.",
        "native/src/stomp_scan.c",
        "    if (block)\n        core->connections[handle].last_block = block;\n"
        "    if (!receipt.data)",
        "    if (!receipt.data)",
        "tests/unit/vespiary_native/test_core_mqtt.py::test_pubacks_leave_behind_the_flush_in_order",
    ),
    Mutant(
        "accepted by the core before the flush",
        "The core accepts a message of AMQP as if nothing of its connection were unwritten.",
        "native/src/amqp_scan.c",
        "    if (block)\n        c->last_block = block;\n    s->window--;",
        "    s->window--;",
        _CORE_AMQP + "test_dispositions_leave_behind_the_flush_by_run",
    ),
    Mutant(
        "dispositions that wait for nothing",
        "What the core has accepted never leaves, as nobody notes what it waits for.",
        "native/src/amqp_scan.c",
        "        worse = output_waits(core, handle, false);\n",
        "        worse = 0;\n",
        _CORE_AMQP + "test_dispositions_leave_behind_the_flush_by_run",
    ),
    Mutant(
        "a lesson outlives its route",
        "A message of AMQP goes where a route leads that got the number of a closed one.",
        "native/src/amqp_scan.c",
        "to->generation != known->generation || ",
        "",
        _CORE_AMQP + "test_a_closed_route_is_not_used_nor_what_has_its_handle_then",
    ),
    Mutant(
        "a run over a gap",
        "The core accepts deliveries of AMQP that it has not taken, between two that it has.",
        "native/src/amqp_scan.c",
        " && of->first + of->count == delivery) {\n        of->count++;",
        ") {\n        of->count = delivery - of->first + 1;",
        _CORE_AMQP + "test_dispositions_leave_behind_the_flush_by_run",
    ),
    Mutant(
        "accepted without an acknowledgement",
        "The core forgets a delivery that an AMQP client accepts, and acknowledges nothing.",
        "native/src/amqp_send.c",
        "        int done = acknowledge(core, &core->consumers[which->consumer], which->sequence, "
        "&block);\n",
        "        int done = which->sequence ? 0 : -1;\n",
        _SENDING + "test_what_is_accepted_is_acknowledged",
    ),
    Mutant(
        "accepted and forgotten without room",
        "The core forgets a delivery for whose acknowledgement the journal has no room.",
        "native/src/amqp_send.c",
        "        if (done < 0)\n            return done;\n        if (block)\n"
        "            c->last_block = block;\n        sent_remove(of, which);\n",
        "        sent_remove(of, which);\n        if (done < 0)\n            return done;\n"
        "        if (block)\n            c->last_block = block;\n",
        _SENDING + "test_what_is_accepted_without_room_can_come_again",
    ),
    Mutant(
        "settled deliveries that stay",
        "The core sends a settled delivery to an AMQP client, and does not acknowledge it.",
        "native/src/delivery.c",
        "    plan->is_settled = plan->is_amqp && by->amqp->is_settled;\n",
        "    plan->is_settled = false;\n",
        _SENDING + "test_what_is_settled_as_it_leaves_is_acknowledged",
    ),
)
