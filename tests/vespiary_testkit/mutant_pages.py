"""Seeded faults of pages: messages that would be lost, or come back.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_PAGES: Final = "tests/unit/vespiary_native/test_core_pages.py::"

_CALLS: Final = "tests/unit/vespiary_native/test_core_pages_calls.py::"

_CUTS: Final = "tests/crash/test_power_cuts.py::test_every_power_cut_keeps_what_was_confirmed[0]"
_VOLATILE: Final = _PAGES + "test_what_need_not_survive_is_marked_in_its_page"
_STORE: Final = "broker/vespiary_broker/store/paging/"

PYTHON_PAGES: Final[tuple[Mutant, ...]] = (
    Mutant(
        "page named before its flush",
        "The journal names a page of which parts may be missing after a power cut.",
        _STORE + "page_files.py",
        "            file.flush()\n        except BaseException:\n",
        "        except BaseException:\n",
        _CUTS,
    ),
    Mutant(
        "page named before its name is durable",
        "The journal names a page whose file a power cut may leave without a name.",
        _STORE + "page_files.py",
        "            self.disk.flush_folder(folder)\n        except BaseException as error:\n",
        "        except BaseException as error:\n",
        _CUTS,
    ),
    Mutant(
        "page goes before its end is durable",
        "A page's file is removed while the record that ends it may still be lost.",
        _STORE + "pager.py",
        "        await self._journal.wait_sequence(max(staged.values()))\n",
        "",
        "tests/unit/vespiary_broker/store/paging/test_pager_order.py",
    ),
    Mutant(
        "page goes with live messages (twin)",
        "A page is taken for done while messages stand in it.",
        "native/vespiary_native/twin/pages.py",
        "page.state is not PageState.LIVE or page.live or ",
        "page.state is not PageState.LIVE or ",
        _PAGES + "test_a_page_ends_when_all_of_it_is_acknowledged_durably",
    ),
    Mutant(
        "page's record does not keep its file (twin)",
        "The journal's file with the PAGE record may go while the page is needed.",
        "native/vespiary_native/twin/image.py",
        "        own.live += 1\n",
        "",
        _PAGES + "test_what_waits_moves_and_comes_back_in_order",
    ),
    Mutant(
        "restaged while a branch ends (twin)",
        "A PAGE record names as live what a COMMIT before it ended.",
        "native/vespiary_native/twin/pages.py",
        "        if page.pins and self._branches.is_ending:\n",
        "        if False:\n",
        _CALLS + "test_a_branch_holds_a_place_in_a_page",
    ),
    Mutant(
        "page without the volatile flag (twin)",
        "A message that need not survive is taken for one of the journal in its page.",
        "native/vespiary_native/twin/pages.py",
        " | (VOLATILE if is_volatile else 0)",
        "",
        _VOLATILE,
    ),
)

NATIVE_PAGES: Final[tuple[Mutant, ...]] = (
    Mutant(
        "page goes with live messages",
        "A page is taken for done while messages stand in it.",
        "native/src/pages.c",
        "p->state != PAGE_LIVE || f->live || core->transaction",
        "p->state != PAGE_LIVE || core->transaction",
        _CUTS,
    ),
    Mutant(
        "acknowledgement in a page forgotten",
        "A recovery passes over acknowledgements of messages in pages: they come back.",
        "native/src/page_recovery.c",
        "            extent_end(core, q, e, at);\n        is_changed = true;\n",
        "            (void)core;\n        is_changed = true;\n",
        _CUTS,
    ),
    Mutant(
        "page named anew without one of its queues",
        "The PAGE record of later forgets an extent: its messages are lost.",
        "native/src/pages.c",
        "        if (!e)\n            continue;\n        r->items[r->count].q = q;\n",
        "        if (!e || r->count)\n            continue;\n        r->items[r->count].q = q;\n",
        _CUTS,
    ),
    Mutant(
        "count goes before the page",
        "After a restart the file of a COUNT on a page may go: its message passes for new.",
        "native/src/page_recovery.c",
        "    return bad ? bad : add_cancel(in, e->slot);\n",
        "    return bad;\n",
        _PAGES + "test_a_count_stays_as_long_as_the_page_needs_it",
    ),
    Mutant(
        "page's record goes before what it voids",
        "The file of a PAGE record may go before those with the old records: they count again.",
        "native/src/pages.c",
        "            bad |= add_cancel(own, item->slot);",
        "            bad |= 0;",
        _PAGES + "test_journal_files_go_once_their_messages_are_in_pages",
    ),
    Mutant(
        "acknowledgement extended across a move",
        "An ACK record before the PAGE is extended by a place of the page, which comes back.",
        "native/src/pages.c",
        "    of->q->ack_block = 0;",
        "    (void)0;",
        _PAGES + "test_an_acknowledgement_is_not_extended_across_the_page_record",
    ),
    Mutant(
        "page done before its ends are durable",
        "A page's file goes while a crash would bring its messages back.",
        "native/src/pages.c",
        "    return p->block <= core->durable_sequence;",
        "    return true;",
        _PAGES + "test_a_page_ends_when_all_of_it_is_acknowledged_durably",
    ),
    Mutant(
        "end of a page goes before its record",
        "The file of PAGE_DONE may go before that of PAGE: the page counts again, and is gone.",
        "native/src/page_records.c",
        "    return add_cancel(own, in->slot);\n",
        "    return own ? 0 : 0;\n",
        _PAGES + "test_the_end_of_a_page_depends_on_its_record",
    ),
    Mutant(
        "acknowledgement goes before the page",
        "After a restart the file of an ACK on a page may go: its places come back.",
        "native/src/page_recovery.c",
        "            bad = add_cancel(in, e->slot);\n"
        "        if (!bad)\n            bad = add_cancel(commit, e->slot);\n",
        "            bad = 0;\n",
        _PAGES + "test_an_acknowledgement_stays_as_long_as_the_page_needs_it",
    ),
    Mutant(
        "moved what was given out",
        "A place that a consumer holds is moved: it is delivered twice.",
        "native/src/pages.c",
        "return item && item->state == ENTRY_READY && !(item->flags & FLAG_KEPT) ? item : NULL;",
        "return item && item->state != ENTRY_DONE && !(item->flags & FLAG_KEPT) ? item : NULL;",
        _PAGES + "test_only_what_still_waits_at_the_commit_moves",
    ),
    Mutant(
        "restaged without what was picked",
        "A place that was taken out of a page alone is not named any more: a crash loses it.",
        "native/src/pages.c",
        "        if (!is_closed && !open_place(out->q, e, at))",
        "        if (e->is_open ? !open_place(out->q, e, at) : !is_closed)",
        "tests/unit/vespiary_native/test_core_pages_looking.py::"
        "test_a_page_named_anew_has_what_was_picked_too",
    ),
    Mutant(
        "delivered past a page",
        "Consumers get what came later while earlier messages stand in a page.",
        "native/src/delivery.c",
        "    uint64_t end = q->available < q->paged_next ? q->available : q->paged_next;\n",
        "    uint64_t end = q->available;\n",
        _PAGES + "test_what_waits_moves_and_comes_back_in_order",
    ),
    Mutant(
        "page without the volatile flag",
        "A message that need not survive is taken for one of the journal in its page.",
        "native/src/page_writer.c",
        "                      (is_volatile ? FLAG_VOLATILE : 0));",
        "                      0);",
        _VOLATILE,
    ),
)
