"""Seeded faults of the durability path: what is broken, and the everyday test that must notice.

Data only: `mutant_runner` applies each to a copy and runs its killer. `old` stands in `path`
exactly once; a change of the source that takes it away is an error there, so the entry is brought
along.
A killer is a pytest node, or `C:NAME` for `native/tests/NAME.c`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_STORE: Final = "broker/vespiary_broker/store/"
_T: Final = "tests/unit/vespiary_broker/store/"
_CUTS: Final = "tests/crash/test_power_cuts.py::test_every_power_cut_keeps_what_was_confirmed[0]"
_WRITER: Final = _T + "test_writer.py::"
_CORE: Final = "tests/unit/vespiary_native/test_core_contract.py"
_RECOVERY: Final = "tests/unit/vespiary_native/test_core_recovery.py"
_PROOFS: Final = "tests/unit/vespiary_native/test_core_proofs.py"
_FUZZ: Final = "tests/fuzz/test_core_differential.py"


class Mutant(NamedTuple):
    """One seeded fault.

    Attributes:
        name: A few words, unique.
        fault: What the broken code does, as a sentence.
        path: The file.
        old: The text that is replaced.
        new: By this.
        killer: The test that must turn red.
    """

    name: str
    fault: str
    path: str
    old: str
    new: str
    killer: str

    @property
    def is_native(self) -> bool:
        """Whether C must be built again."""
        return self.path.endswith(".c")


PYTHON: Final[tuple[Mutant, ...]] = (
    Mutant(
        "write without flush",
        "The writer asks the ring for a plain write and confirms it.",
        _STORE + "writer.py",
        "durable=self._is_flushed,",
        "durable=False,",
        _CUTS,
    ),
    Mutant(
        "confirm at submission",
        "The writer tells the core that a write is durable when it has submitted it.",
        _STORE + "writer.py",
        "        self._in_flight = request\n",
        "        self._in_flight = request\n        self.core.write_done(request.sequence)\n",
        _T + "test_writer_proofs.py::test_what_is_under_way_is_not_confirmed",
    ),
    Mutant(
        "short write taken for whole",
        "A completion of fewer bytes than asked for confirms.",
        _STORE + "writer.py",
        "if result != request.length:",
        "if result < 0:",
        _WRITER + "test_a_short_write_fences",
    ),
    Mutant(
        "error of a write ignored",
        "A completion with -errno confirms.",
        _STORE + "writer.py",
        "if result != request.length:",
        "if 0 <= result != request.length:",
        _WRITER + "test_every_errno_fences",
    ),
    Mutant(
        "failed write tried again",
        "After a failed flush the same write is submitted once more, and its success confirms.",
        _STORE + "writer.py",
        "            self._fail_write(request, result)\n            return\n",
        "            self._in_flight = request\n            self._submit(request, 1)\n"
        "            return\n",
        _WRITER + "test_every_errno_fences",
    ),
    Mutant(
        "refusal for good tried again",
        "A submission that the kernel refuses with EIO is taken for a full ring.",
        _STORE + "writer.py",
        "(errno.EAGAIN, errno.EINTR)",
        "(errno.EAGAIN, errno.EINTR, errno.EIO)",
        _WRITER + "test_a_request_that_is_refused_for_good_fences",
    ),
    Mutant(
        "waiters woken by a failure",
        "Who waits for a write that failed is told that it is durable.",
        _STORE + "writer.py",
        "            future.set_exception(failure)\n            future.exception()",
        "            future.set_result(None)\n            future.exception()",
        _WRITER + "test_who_waits_for_the_failing_write_is_told",
    ),
    Mutant(
        "no covering block when idle",
        "The last confirms stay above every watermark when the journal falls idle.",
        _STORE + "writer.py",
        "        self.core.stage_empty_block()\n        self._write_next()\n",
        "        self._write_next()\n",
        _WRITER + "test_when_it_falls_quiet_one_empty_block_covers_the_confirms",
    ),
    Mutant(
        "file freed before its checkpoint",
        "The keeper frees files without waiting for the FILES record that no longer lists them.",
        _STORE + "keeper.py",
        "        await self._journal.wait_sequence(sequence)\n",
        "",
        _CUTS,
    ),
    Mutant(
        "checkpoint lists what goes",
        "The FILES record still lists the files that are freed behind it.",
        _STORE + "keeper.py",
        "kept = set(self._pool.active_ids) - set(chosen)",
        "kept = set(self._pool.active_ids)",
        _CUTS,
    ),
    Mutant(
        "no flush when a file is full under D1",
        "Without flushes of writes a full file is closed without its own flush.",
        _STORE + "files.py",
        "            if not is_flushed:\n                handle.flush()\n",
        "            del is_flushed\n",
        _WRITER + "test_under_d1_a_full_file_is_flushed",
    ),
    Mutant(
        "cancels ignored",
        "A file goes though its acknowledgements end messages of a file that stays.",
        _STORE + "reclaim.py",
        "all(other in gone or other == file_id for other in cancels(file_id))",
        "cancels(file_id) is not None",
        _T + "test_reclaim.py::test_acknowledgements_stay_as_long_as_what_they_end",
    ),
    Mutant(
        "file with live messages freed",
        "The choice of files to free does not look at live messages.",
        _STORE + "reclaim.py",
        "live_places(file_id)",
        "False",
        _T + "test_reclaim.py::test_a_file_with_live_messages_stays",
    ),
    Mutant(
        "header without flush",
        "File headers are written and not flushed.",
        _STORE + "files.py",
        "        handle.write(view, 0)\n        handle.flush()\n",
        "        handle.write(view, 0)\n",
        _CUTS,
    ),
    Mutant(
        "folder not flushed after making",
        "A new file is used before its name is durable.",
        _STORE + "files.py",
        "            self._disk.rename(unfinished, file.path)\n"
        "        self._disk.flush_folder(self._folder)\n",
        "            self._disk.rename(unfinished, file.path)\n",
        _CUTS,
    ),
    Mutant(
        "new file has its name at once",
        "A file is made under its final name: half of it passes for a journal file.",
        _STORE + "files.py",
        'unfinished = path.with_name(path.name + ".tmp")',
        'unfinished = path.with_name(path.name + "")',
        _T + "test_files.py::test_the_first_file",
    ),
    Mutant(
        "salt used again",
        "A file keeps its salt when it is activated again: blocks of its last life validate.",
        _STORE + "files.py",
        "salt = self._new_salt()",
        "salt = file.salt or self._new_salt()",
        _T + "test_files.py::test_ids_are_given_without_gaps_and_files_are_used_again",
    ),
    Mutant(
        "id used twice",
        "After a start the next file gets the highest id that is in use.",
        _STORE + "takeover.py",
        "survey.highest_id + 1",
        "survey.highest_id",
        _CUTS,
    ),
    Mutant(
        "leftovers stay",
        "Files of an interrupted reclaim stay in use: their messages rise again.",
        _STORE + "takeover.py",
        "        pool.release(file.file_id)\n",
        "        del file\n",
        _T + "test_recovery.py::test_leftovers_of_an_interrupted_reclaim_are_freed",
    ),
    Mutant(
        "seal without flush",
        "Recovery counts on a seal that is in no flush.",
        _STORE + "takeover.py",
        "        handle.write(buffer.memoryview, offset)\n        handle.flush()\n",
        "        handle.write(buffer.memoryview, offset)\n",
        _T + "test_recovery.py::test_what_was_read_is_flushed_before_it_counts",
    ),
    Mutant(
        "what was read is not flushed",
        "Recovery counts on blocks that may stand in the drive's cache alone.",
        _STORE + "takeover.py",
        "        try:\n            handle.flush()\n        finally:\n",
        "        try:\n            pass\n        finally:\n",
        _T + "test_recovery.py::test_what_was_read_is_flushed_before_it_counts",
    ),
    Mutant(
        "watermark off by one",
        "A hole at just the watermark passes for the torn tail.",
        _STORE + "recovery.py",
        "is_covered=expected is not None and covered >= expected,",
        "is_covered=expected is not None and covered > expected,",
        _T + "test_recovery_proofs.py::test_every_combination_of_a_place",
    ),
    Mutant(
        "watermark of a file header too high",
        "Headers say that the block after the last durable one is durable: torn tails are damage.",
        _STORE + "keeper.py",
        "durable = self._core.image_statistics().sequence_durable\n",
        "durable = self._core.image_statistics().sequence_durable + 1\n",
        _T + "test_header_watermarks.py::test_no_header_says_more_than_is_durable",
    ),
    Mutant(
        "watermarks of file headers ignored",
        "The newest file reads as zeros behind its header and passes for one never begun.",
        _STORE + "recovery.py",
        "return self._witness.watermark if self._witness else 0",
        "return 0",
        _T + "test_header_watermarks.py::test_the_newest_file_of_messages_reads_as_zeros",
    ),
    Mutant(
        "watermark of a file header off by one",
        "A hole at just the watermark of a file header passes for the torn tail.",
        _STORE + "recovery.py",
        "is_witnessed=expected is not None and self._witnessed >= expected,",
        "is_witnessed=expected is not None and self._witnessed > expected,",
        _T + "test_recovery_proofs.py::test_every_combination_of_a_place",
    ),
    Mutant(
        "watermarks of lost blocks stay",
        "After a loss under D1 headers still speak of blocks whose numbers are given again.",
        _STORE + "takeover.py",
        "    _lower_watermarks(found, disk, is_direct=is_direct)\n",
        "",
        _T + "test_header_watermarks.py::test_under_d1_a_loss_is_told_and_accuses_nothing_later",
    ),
    Mutant(
        "damage passes for the end",
        "Whatever is damaged ends the journal there: confirmed messages are cut off.",
        _STORE + "verdicts.py",
        "        return PlaceVerdict.CORRUPT if facts.is_flushed else PlaceVerdict.LOST\n",
        "        return PlaceVerdict.END\n",
        _T + "test_verdicts.py::test_places",
    ),
    Mutant(
        "chain not compared",
        "A block counts by its sequence alone, whatever block it was written behind.",
        _STORE + "recovery.py",
        "facts.sequence == sequence + 1 and facts.previous_crc == crc",
        "facts.sequence == sequence + 1",
        _T + "test_recovery_proofs.py::test_a_block_of_another_chain_is_not_taken",
    ),
    Mutant(
        "sequence not compared",
        "A block of another sequence is taken, as long as the chain of checksums fits.",
        _STORE + "recovery.py",
        "facts.sequence == sequence + 1 and facts.previous_crc == crc",
        "facts.previous_crc == crc",
        _T + "test_recovery_proofs.py::test_a_block_of_another_sequence_is_not_taken",
    ),
    Mutant(
        "missing file passes for reclaimed",
        "A file that the newest FILES record lists and that is not there is not missed.",
        _STORE + "verdicts.py",
        "return Role.MISSING if facts.is_listed or facts.is_above_checkpoint else Role.GONE",
        "return Role.GONE",
        _T + "test_verdicts.py::test_roles",
    ),
    Mutant(
        "checksum of a file header not compared",
        "A damaged file header is believed.",
        "broker/vespiary_codec/journal/file_header.py",
        "    if crc != computed:\n",
        "    if crc == -computed:\n",
        "tests/unit/vespiary_codec/test_journal_file_header.py",
    ),
    Mutant(
        "checksum without salt (codec)",
        "The codec's block checksum does not cover the file's salt and the block's offset.",
        "broker/vespiary_codec/journal/block.py",
        "SEED.pack(salt, offset)",
        "SEED.pack(0, 0)",
        "tests/unit/vespiary_codec/test_journal_block.py",
    ),
    Mutant(
        "short write on a file ignored",
        "Making or sealing a file goes on after a write that took only a part.",
        _STORE + "disk.py",
        "if done < len(data) and (count == 0 or done % 4096):",
        "if done < len(data) and (count == 0 or done % 4096):\n                return\n"
        "            if count < 0:",
        _T + "test_disk_faults.py::test_a_write_that_stops_within_a_page_is_an_error",
    ),
    Mutant(
        "result of a file's flush ignored",
        "An fsync that fails is passed over.",
        _STORE + "disk.py",
        '        _call("cannot flush", self._path, os.fsync, self._fd)\n',
        "        try:\n"
        '            _call("cannot flush", self._path, os.fsync, self._fd)\n'
        "        except NativeError:\n            return\n",
        _T + "test_disk_faults.py::test_a_flush_that_fails_is_an_error",
    ),
    Mutant(
        "file not flushed at all",
        "The real file's flush does nothing.",
        _STORE + "disk.py",
        '        _call("cannot flush", self._path, os.fsync, self._fd)\n',
        "        return\n",
        _T + "test_disk_faults.py::test_flushes_reach_the_kernel",
    ),
    Mutant(
        "folder not flushed at all",
        "The real folder's flush does nothing.",
        _STORE + "disk.py",
        '            _call("cannot flush the folder", folder, os.fsync, fd)\n',
        "            pass\n",
        _T + "test_disk_faults.py::test_flushes_reach_the_kernel",
    ),
    Mutant(
        "rename over another file",
        "A journal file may be replaced by a rename.",
        _STORE + "disk.py",
        "        if new.exists():\n",
        "        if new.is_symlink():\n",
        _T + "test_disk.py::test_a_name_that_is_taken_is_not_replaced",
    ),
    Mutant(
        "bindings written without flush",
        "A value is confirmed after a plain write.",
        _STORE + "bindings.py",
        "            durable=True,\n",
        "            durable=False,\n",
        _T + "test_bindings.py::test_every_power_cut_keeps_the_values",
    ),
    Mutant(
        "short write of the bindings ignored",
        "A write of the bindings that took only a part is taken for done.",
        _STORE + "bindings.py",
        "        if result != len(block):\n",
        "        if result > len(block):\n",
        _T + "test_bindings.py::test_a_failed_write_is_final",
    ),
    Mutant(
        "no flush on a thread",
        "The NIO ring's durable write returns after the write alone.",
        "native/vespiary_native/threads.py",
        "    if request.kind is RequestKind.DURABLE_WRITE:\n        os.fdatasync(request.fd)\n",
        "",
        "tests/unit/vespiary_native/test_threads.py",
    ),
    Mutant(
        "result of fdatasync ignored on a thread",
        "The NIO ring passes over an fdatasync that fails.",
        "native/vespiary_native/threads.py",
        "    if request.kind is RequestKind.DURABLE_WRITE:\n        os.fdatasync(request.fd)\n",
        "    if request.kind is RequestKind.DURABLE_WRITE:\n        with suppress(OSError):\n"
        "            os.fdatasync(request.fd)\n",
        "tests/unit/vespiary_native/test_threads.py",
    ),
    Mutant(
        "watermark too high (twin)",
        "The twin's blocks say that they are durable themselves.",
        "native/vespiary_native/twin/blocks.py",
        "            self._image.durable_sequence,\n",
        "            self.sequence,\n",
        _FUZZ,
    ),
    Mutant(
        "commit with fewer members (twin)",
        "The twin's recovery applies a transaction of which members are missing.",
        "native/vespiary_native/twin/recovery.py",
        "is_whole = found == commit.members and pending.digest == commit.digest",
        "is_whole = found <= commit.members",
        _PROOFS + "::test_a_commit_counts_with_just_its_members",
    ),
    Mutant(
        "no lock",
        "Two brokers write to one folder.",
        _STORE + "lock.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_UN | fcntl.LOCK_NB",
        _T + "test_lock.py::test_a_second_one_is_told_who_holds_it",
    ),
)

NATIVE: Final[tuple[Mutant, ...]] = (
    Mutant(
        "RWF_DSYNC left out",
        "The AIO ring's durable write is a plain write.",
        "native/src/aio.c",
        "        iocb->aio_rw_flags = RWF_DSYNC;\n",
        "        iocb->aio_rw_flags = 0;\n",
        "C:test_aio",
    ),
    Mutant(
        "result of fdatasync ignored",
        "The AIO ring passes over an fdatasync that fails.",
        "native/src/aio.c",
        "        if (result >= 0)\n            result = at->result;\n",
        "        result = at->result;\n",
        "C:test_aio",
    ),
    Mutant(
        "fdatasync after a short write",
        "A write that took only a part is flushed and reported as whole.",
        "native/src/aio.c",
        "        if (result == (int64_t)at->request.length) {\n            at->result = result;\n",
        "        if (result >= 0) {\n            at->result = (int64_t)at->request.length;\n",
        "C:test_aio",
    ),
    Mutant(
        "second status ignored",
        "An error that the driver reports in res2 is passed over.",
        "native/src/aio.c",
        "events[i].res2 < 0 ? events[i].res2 : events[i].res",
        "events[i].res",
        "C:test_aio",
    ),
    Mutant(
        "watermark too high",
        "Blocks say that they are durable themselves: every torn tail is damage.",
        "native/src/blocks.c",
        "put64(at + 24, core->durable_sequence);",
        "put64(at + 24, core->next_sequence);",
        _CUTS,
    ),
    Mutant(
        "watermark never moves",
        "Blocks prove nothing durable: damage passes for the torn tail.",
        "native/src/blocks.c",
        "put64(at + 24, core->durable_sequence);",
        "put64(at + 24, 0);",
        _CORE + "::test_an_empty_block_carries_the_watermark",
    ),
    Mutant(
        "chain left out",
        "Blocks do not carry the checksum of the block before.",
        "native/src/blocks.c",
        "put32(at + 40, core->previous_crc);",
        "put32(at + 40, 0);",
        _CORE + "::test_a_message_is_a_record_in_a_chained_block",
    ),
    Mutant(
        "checksum without salt",
        "Blocks of an earlier life of the file validate.",
        "native/src/blocks.c",
        "uint64_t seed[2] = {f->salt, offset};",
        "uint64_t seed[2] = {0, offset};",
        _CORE + "::test_a_message_is_a_record_in_a_chained_block",
    ),
    Mutant(
        "checksum not compared",
        "The walk takes blocks whatever their checksum says.",
        "native/src/blocks.c",
        "        if (vespiary_crc32c(sum, b + BLOCK_HEADER, payload) != crc)\n            break;\n",
        "        (void)sum;\n",
        _RECOVERY + "::test_verify_blocks_ends_where_blocks_do",
    ),
    Mutant(
        "payload not in the checksum",
        "The checksum covers the header alone: torn payloads validate.",
        "native/src/blocks.c",
        "    crc = vespiary_crc32c(crc, at, used);\n",
        "    crc = vespiary_crc32c(crc, at, BLOCK_HEADER);\n",
        _CORE + "::test_a_message_is_a_record_in_a_chained_block",
    ),
    Mutant(
        "no seal at a file's end",
        "A full file ends without the block that says so.",
        "native/src/blocks.c",
        "BLOCK_HEADER + 16, 1, BLOCK_IS_SEAL);",
        "BLOCK_HEADER + 16, 1, 0);",
        _CORE + "::test_gaps_close_slabs_and_seals_close_files",
    ),
    Mutant(
        "empty block never made",
        "The block that covers the last confirms is asked for and does not come.",
        "native/src/blocks.c",
        "{ core->is_empty_block_wanted = true; }",
        "{ core->is_empty_block_wanted = false; }",
        _CORE + "::test_an_empty_block_carries_the_watermark",
    ),
    Mutant(
        "last file not kept for acknowledgements",
        "Messages fill the last file to its end; nothing can be acknowledged then.",
        "native/src/blocks.c",
        "    return !ahead && end > data_end(f) - reserve;\n",
        "    return !ahead && end > data_end(f) && reserve;\n",
        _CORE + "::test_add_leaves_room_to_acknowledgements_in_the_last_file",
    ),
    Mutant(
        "confirm of what is not handed out",
        "`write_done` is believed for blocks that were never written.",
        "native/src/core.c",
        "if (sequence > core->handed_sequence || sequence < core->durable_sequence)",
        "if (sequence < core->durable_sequence)",
        _CORE + "::test_write_done_takes_only_what_was_handed_out",
    ),
    Mutant(
        "all receipts at the first completion",
        "One completion releases receipts and messages of blocks that are still under way.",
        "native/src/core.c",
        "        if (n->block > sequence)\n            break;\n        ring->first++;\n",
        "        ring->first++;\n",
        _PROOFS + "::test_a_completion_frees_the_receipts_of_its_own_write_alone",
    ),
    Mutant(
        "commit with fewer members",
        "Recovery applies a transaction of which members are missing.",
        "native/src/recovery.c",
        "bool is_whole = t->records == members && t->digest == get32(r->at + 20);",
        "bool is_whole = t->records <= members;",
        _PROOFS + "::test_a_commit_counts_with_just_its_members",
    ),
    Mutant(
        "transaction without its commit",
        "Members count as soon as they are read.",
        "native/src/recovery.c",
        "    bool is_member = at[5] & FLAG_TRANSACTIONAL;\n    uint32_t body",
        "    bool is_member = at[5] & FLAG_TRANSACTIONAL & 0x80;\n    uint32_t body",
        _RECOVERY,
    ),
    Mutant(
        "acknowledgement ranges off by one",
        "Recovery ends one message too few of each range.",
        "native/src/recovery.c",
        "uint64_t end = first + count < q->tail ? first + count : q->tail;",
        "uint64_t end = first + count < q->tail ? first + count - 1 : q->tail - 1;",
        _CUTS,
    ),
    Mutant(
        "cancels forgotten at recovery",
        "After a restart nothing keeps the acknowledgements of messages in older files.",
        "native/src/recovery.c",
        "            int bad = add_cancel(in, item->slot);\n            if (!bad)\n"
        "                bad = add_cancel(commit, item->slot);\n",
        "            int bad = 0;\n",
        _RECOVERY + "::test_acknowledgements_tie_files_also_after_a_restart",
    ),
    Mutant(
        "only the COMMIT's file waits",
        "The file of a transactional ACK may go before the file of the message that it ends.",
        "native/src/recovery.c",
        "            int bad = add_cancel(in, item->slot);\n",
        "            int bad = 0;\n",
        _PROOFS + "::test_the_file_of_a_transactional_acknowledgement_waits_for_what_it_ends",
    ),
    Mutant(
        "digest of a transaction not compared",
        "A transaction counts by the number of its members alone.",
        "native/src/recovery.c",
        "t->records == members && t->digest == get32(r->at + 20)",
        "t->records == members",
        _PROOFS + "::test_a_member_with_another_body_voids_its_transaction",
    ),
    Mutant(
        "sequences used twice",
        "A queue's next sequence forgets what QUEUES records say.",
        "native/src/recovery.c",
        "        if (q && get64(at + 16) > q->tail)\n            q->tail = get64(at + 16);\n",
        "        (void)q;\n",
        _RECOVERY + "::test_sequences_are_never_used_twice",
    ),
    Mutant(
        "commit does not keep its members' files",
        "The file of a COMMIT may go before the files of its members.",
        "native/src/publish.c",
        "        bad |= add_cancel(core->slots[core->filling.slot], core->transaction_slots[i]);\n",
        "        bad |= 0;\n",
        _RECOVERY + "::test_a_commit_keeps_the_files_of_its_members",
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = PYTHON + NATIVE
