/* Compaction: what is live in an old file is written again at the journal's end, and the queues' entries point there.
 * Which file, when, and how fast is decided in Python (store/compaction.py); docs/internals/compaction.md has the rules.
 *
 * Never writes to the old file, and never frees it: that is the checkpoint's (journal-format.md, section 5). */
#include <errno.h>
#include <string.h>

#include "counts.h"
#include "state.h"

typedef struct {
    vespiary_core *core;
    file *from;
    slab *in;
    uint32_t offset;        /* of the record in the file */
    const uint8_t *at;      /* the record: in the slab, then the copy of it */
    uint32_t length;
    uint64_t moved_bytes;
    uint32_t moved_places;
    uint32_t looked, max_places; /* records and places looked at, and how many will do for one call */
} walk;

/* The entry of a place if this record is what it points at, and if it may be moved: durable, and no part of something
 * that is not decided yet. Its queue goes to *q. */
static entry *movable(const walk *w, const uint8_t *place, queue **q)
{
    *q = queue_find(w->core, get32(place));
    uint64_t sequence = get64(place + 8);
    entry *item = *q && sequence < (*q)->available ? queue_entry(*q, sequence) : NULL;
    bool is_here = item && item->slot == w->from->slot && item->offset == w->offset;
    bool is_settled = is_here && (item->state == ENTRY_READY || item->state == ENTRY_DELIVERED ||
                                  item->state == ENTRY_RETURNED || item->state == ENTRY_ASIDE);
    return is_settled ? item : NULL;
}

/* Room for the copy and its counts in one block, so that they are there together or not at all; a record so large that
 * only itself fits has its counts behind it. The file that it will stand in must not go before the old one. */
static int make_room(const walk *w, uint32_t length, uint32_t counts)
{
    int bad = reserve_record(w->core, (uint32_t)align8(length) + counts * COUNT_BYTES, true);
    if (bad == -EMSGSIZE && counts)
        bad = reserve_record(w->core, (uint32_t)align8(length), true);
    return bad ? bad : add_cancel(w->core->slots[w->core->filling.slot], w->from->slot);
}

static void write_places(walk *w, const placed *to, uint32_t places, uint16_t kept)
{
    uint8_t *out = to->memory + ADD_HEADER;
    for (uint32_t i = 0; i < places; i++) {
        const uint8_t *place = w->at + ADD_HEADER + (uint64_t)i * PLACE_BYTES;
        queue *q;
        entry *item = movable(w, place, &q);
        if (!item)
            continue;
        memcpy(out, place, PLACE_BYTES);
        out += PLACE_BYTES;
        record_unpin(w->core, q, item); /* the slab's memory may go with it: w->at is a copy */
        item->slot = to->slot;
        item->offset = to->offset;
        item->places = kept;
        record_pin(w->core, q, item);
        q->ack_block = 0; /* an ACK record before the copy must not be extended by it */
    }
}

/* How often the moved messages were given out: the count stands behind the copy that it belongs to. */
static void write_counts(walk *w, const placed *to, uint32_t places)
{
    walk moved = *w;
    moved.from = w->core->slots[to->slot];
    moved.offset = to->offset;
    for (uint32_t i = 0; i < places; i++) {
        const uint8_t *place = to->memory + ADD_HEADER + (uint64_t)i * PLACE_BYTES;
        queue *q;
        entry *item = movable(&moved, place, &q);
        if (item && journalled_deliveries(w->core, item) && q->is_durable && stage_count(w->core, q, get64(place + 8), item) == 0)
            w->moved_bytes += COUNT_BYTES;
    }
}

/* Move one ADD record if a place of it is live, and if today's files can hold it: those made before journal-file-size
 * became smaller may have larger ones, which stay. 0, or -ENOSPC, -ENOMEM and nothing is changed. */
static int move_record(walk *w)
{
    vespiary_core *core = w->core;
    uint32_t places = get16(w->at + 22), kept = 0, counts = 0;
    for (uint32_t i = 0; i < places; i++) {
        queue *q;
        const entry *item = movable(w, w->at + ADD_HEADER + (uint64_t)i * PLACE_BYTES, &q);
        kept += item != NULL;
        counts += item && journalled_deliveries(core, item) && q->is_durable;
    }
    if (!kept)
        return 0;
    uint32_t member = w->at[5] & FLAG_TRANSACTIONAL ? 8 : 0;
    uint32_t content = get32(w->at + 16) + get16(w->at + 20);
    uint32_t length = ADD_HEADER + kept * PLACE_BYTES + content;
    int bad = scratch_room(core, 0, w->length); /* making room may drop the slab that is read */
    if (bad)
        return bad;
    memcpy(core->scratch, w->at, w->length);
    w->at = core->scratch;
    placed to;
    bad = make_room(w, length, counts);
    if (!bad)
        bad = place_record(core, length, true, &to);
    if (bad)
        return bad == -EMSGSIZE ? 0 : bad;
    memcpy(to.memory, w->at, ADD_HEADER);
    memcpy(to.memory, &length, 4);
    to.memory[5] = (uint8_t)((w->at[5] & ~FLAG_TRANSACTIONAL) | FLAG_MOVED);
    uint16_t kept16 = (uint16_t)kept;
    memcpy(to.memory + 22, &kept16, 2);
    memcpy(to.memory + ADD_HEADER + kept * PLACE_BYTES, w->at + ADD_HEADER + places * PLACE_BYTES + member, content);
    write_places(w, &to, places, kept16);
    w->moved_bytes += length;
    w->moved_places += kept;
    if (counts)
        write_counts(w, &to, kept);
    return 0;
}

static bool is_present(const slab *s) { return s->state == SLAB_CLOSED || s->state == SLAB_LOADED; }

/* Move what is live in the block at `b`, from a record on. The block is good: it was written or loaded by us.
 * 0, IS_ENOUGH or -errno; unless it is 0, *record is where to go on. */
#define IS_ENOUGH 1
static int move_block(walk *w, uint32_t block, uint32_t *record, uint32_t *length)
{
    uint32_t mask = w->core->slab_bytes - 1;
    const uint8_t *b = w->in->memory + (block & mask);
    uint32_t at = BLOCK_HEADER, end = BLOCK_HEADER + get32(b + 32), records = get32(b + 36);
    if (get32(b) != BLOCK_MAGIC || get64(b + 16) != w->from->file_id)
        return -EBADMSG;
    *length = b[6] & BLOCK_IS_SEAL ? UINT32_MAX : (uint32_t)align_page(end);
    uint32_t first = *record;
    for (uint32_t i = 0; i < records && at + 8 <= end && w->in->live; i++) {
        w->at = w->in->memory + ((block + at) & mask);
        w->offset = block + at;
        w->length = get32(w->at);
        if (w->length < 8 || w->length > end - at)
            return -EBADMSG;
        at += (uint32_t)align8(w->length);
        if (i < first)
            continue;
        *record = i;
        if (w->looked >= w->max_places)
            return IS_ENOUGH;
        bool is_add = w->at[4] == RECORD_ADD;
        w->looked += 1u + (is_add ? get16(w->at + 22) : 0u);
        int bad = is_add ? move_record(w) : 0;
        if (bad)
            return bad;
        if (w->in->live && !is_present(w->in)) {
            *record = i + 1;
            return -ENOENT;
        }
    }
    *record = 0;
    return 0;
}

/* Whether nothing is added to a file any more. */
static bool is_closed(const vespiary_core *core, uint64_t file_id)
{
    if (core->current)
        return file_id < core->current->file_id;
    return !core->files_ahead || file_id < core->files[core->files_count - core->files_ahead]->file_id;
}

int vespiary_core_relocate(vespiary_core *core, uint64_t file_id, uint32_t index, uint64_t offset, uint32_t record,
                           uint64_t max_bytes, uint32_t max_places, vespiary_relocation *out)
{
    *out = (vespiary_relocation){0};
    file *from = file_find(core, file_id);
    if (!from || index >= from->slab_count || core->transaction)
        return -EINVAL;
    uint64_t begin = (uint64_t)index << core->slab_shift, end = begin + core->slab_bytes;
    uint64_t limit = from->size - PAGE < end ? from->size - PAGE : end; /* a block has a page at least */
    uint64_t at = offset ? offset : begin + (index ? 0 : FILE_HEADER);
    if (!is_closed(core, file_id) || at % PAGE || at < begin || at > end)
        return -EINVAL;
    walk w = {.core = core, .from = from, .in = &from->slabs[index], .max_places = max_places};
    bool is_waiting = w.in->memory && w.in->last_sequence > core->durable_sequence;
    uint64_t walked = is_waiting ? max_bytes : 0;
    int bad = 0;
    while (w.in->live && at <= limit && at < end && walked < max_bytes) {
        uint32_t length;
        bad = is_present(w.in) ? move_block(&w, (uint32_t)at, &record, &length) : -ENOENT;
        if (bad)
            break;
        walked += length;
        at += length;
    }
    out->bytes = w.moved_bytes;
    out->places = w.moved_places;
    out->next = bad || (w.in->live && at <= limit && at < end) ? at : 0;
    out->next_record = out->next ? record : 0;
    bool is_excused = bad == IS_ENOUGH || bad == -ENOENT || (w.moved_places && (bad == -ENOSPC || bad == -ENOMEM));
    out->is_absent = bad == -ENOENT;
    return is_excused ? 0 : bad;
}
