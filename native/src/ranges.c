/* What a reader of ranges of a queue needs (vespiary_native/abc_ranges.py): copies of records, without taking
 * a message, and the end of all messages below a sequence.
 *
 * Each call costs what it touches; nothing here is on the plain path. */
#include <errno.h>
#include <string.h>

#include "ranges.h"

/* A message that a reader may be given: nobody but a prepared branch keeps it from him. */
static bool is_readable(const entry *item)
{
    return is_free(item) || item->state == ENTRY_DELIVERED || item->state == ENTRY_ASIDE;
}

/* The first sequence from `sequence` on that may be live. */
static uint64_t begin_of(queue *q, uint64_t sequence)
{
    queue_advance_head(q);
    uint64_t from = q->head;
    if (q->returned && q->returned_from < from)
        from = q->returned_from;
    return sequence > from ? sequence : from;
}

/* An ADD record with this one place, as if the message had been published alone, to this queue. */
static void copy_record(uint8_t *out, const queue *q, uint64_t sequence, const entry *item, const uint8_t *record)
{
    uint32_t content = item->properties_length + item->body_length;
    uint32_t length = ADD_HEADER + PLACE_BYTES + content;
    memcpy(out, record, ADD_HEADER); /* type, protocol, priority, time, lengths */
    put32(out, length);
    out[5] = item->flags & (FLAG_ESCAPED | FLAG_LARGE | FLAG_SPECIAL);
    put16(out + 22, 1);
    put64(out + ADD_HEADER, q->id);
    put64(out + ADD_HEADER + 8, sequence);
    memcpy(out + ADD_HEADER + PLACE_BYTES, properties_of(item, record), content);
    memset(out + length, 0, (size_t)(align8(length) - length));
}

/* Add a sequence to the runs; false: there is no room for another run. */
static bool note_run(vespiary_range *out, const range_room *room, uint64_t sequence)
{
    uint64_t *runs = room->runs;
    if (out->runs && runs[2 * out->runs - 1] == sequence - 1) {
        runs[2 * out->runs - 1] = sequence;
        return true;
    }
    if (out->runs == room->runs_room)
        return false;
    runs[2 * out->runs] = runs[2 * out->runs + 1] = sequence;
    out->runs++;
    return true;
}

int range_put(vespiary_core *core, const queue *q, uint64_t sequence, const entry *item, const uint8_t *record,
              const range_room *room, vespiary_range *out)
{
    uint64_t length = align8((uint64_t)ADD_HEADER + PLACE_BYTES + item->properties_length + item->body_length);
    bool is_whole = room->is_first_whole && !out->records;
    if (out->length + length > room->max_bytes && !is_whole) {
        out->is_full = 1;
        return 1;
    }
    int bad = scratch_room(core, out->length, length);
    if (bad)
        return bad;
    if (!note_run(out, room, sequence))
        return 1;
    copy_record(core->scratch + out->length, q, sequence, item, record);
    out->length += length;
    out->records++;
    return 0;
}

int vespiary_core_copy_range(vespiary_core *core, uint32_t queue_id, uint64_t sequence, uint64_t end,
                             uint64_t max_bytes, int is_first_whole, uint64_t *runs, uint32_t runs_room,
                             vespiary_range *out, const uint8_t **data)
{
    *out = (vespiary_range){0};
    queue *q = queue_find(core, queue_id);
    if (!q)
        return -EINVAL;
    const range_room room = {max_bytes, is_first_whole, runs, runs_room};
    uint64_t limit = end < q->available ? end : q->available;
    uint64_t at = begin_of(q, sequence);
    while (at < limit) {
        const entry *item = queue_entry(q, at);
        if (!item) {
            at = queue_next_segment(q, at);
            continue;
        }
        if (!is_readable(item)) {
            at++;
            continue;
        }
        const uint8_t *record = record_memory(core, item);
        if (!record) {
            q->waits_for_slab = true;
            out->absent_file = core->slots[item->slot]->file_id;
            out->absent_slab = item->offset >> core->slab_shift;
            break;
        }
        int put = range_put(core, q, at, item, record, &room, out);
        if (put < 0)
            return put;
        if (put)
            break;
        at++;
    }
    out->next_sequence = at < limit ? at : limit;
    *data = core->scratch;
    return 0;
}

/* End what stands in the ring below a sequence; returns how many, or -errno. */
static int64_t finish_in_ring(vespiary_core *core, queue *q, uint64_t end, uint64_t most)
{
    uint64_t limit = end < q->available ? end : q->available;
    uint64_t at = begin_of(q, 0), block;
    int64_t done = 0;
    int bad = 0;
    while (at < limit && (uint64_t)done < most && !bad) {
        entry *item = queue_entry(q, at);
        if (!item) {
            at = queue_next_segment(q, at);
            continue;
        }
        if (is_free(item) || item->state == ENTRY_ASIDE) {
            bad = message_finish(core, q, at, item, &block);
            done += !bad;
        }
        at++;
    }
    queue_skip(q);
    queue_advance_head(q);
    return bad ? bad : done;
}

int vespiary_core_finish_below(vespiary_core *core, uint32_t queue_id, uint64_t end, uint32_t max_messages)
{
    queue *q = queue_find(core, queue_id);
    if (!q || core->transaction || max_messages > INT32_MAX)
        return -EINVAL;
    int64_t paged = q->paged ? extents_finish(core, q, end, max_messages) : 0;
    if (paged < 0)
        return (int)paged;
    int64_t done = finish_in_ring(core, q, end, max_messages - (uint64_t)paged);
    return (int)(done < 0 ? done : done + paged);
}
