/* Closed extents without opening them: their messages are looked at where they stand in the page, and single ones come
 * into the ring (contract: vespiary_native/abc_pages.py). What nobody wants costs no memory. */
#include <errno.h>
#include <string.h>

#include "pages.h"
#include "ranges.h"

enum { LOOK_LIVE_MAX = 16384, LOOK_BYTES_MAX = 1024 * 1024 }; /* values_inspection.py has both */

/* A walk over the live places of a closed extent, by the page's index. */
typedef struct {
    vespiary_core *core;
    file *f;
    queue *q;
    extent *e; /* NULL: it is open, and there is nothing to walk over */
    page_index in;
    uint64_t first, last; /* of the queue's places; the last one that was met */
    uint32_t at, end;     /* in the table of places */
} place_walk;

/* Begin. -EINVAL: the page is not live, or has nothing of the queue, or its index is not what the journal says. */
static int walk_begin(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer, uint32_t length,
                      place_walk *out)
{
    file *f = page_find(core, page_id);
    queue *q = queue_find(core, queue_id);
    extent *e = f && f->page->state == PAGE_LIVE && q ? extent_of(q, f->slot) : NULL;
    uint32_t found;
    if (!e)
        return -EINVAL;
    *out = (place_walk){.core = core, .f = f, .q = q, .e = e->is_open ? NULL : e};
    if (e->is_open)
        return 0;
    int bad = index_open(f, footer, length, &out->in);
    if (!bad)
        bad = index_walk(core, &out->in, q, e, false, &found);
    if (bad || found != e->live)
        return -EINVAL;
    for (uint32_t i = 0; i < out->in.queues_count; i++) {
        const uint8_t *row = out->in.queues + (uint64_t)i * INDEX_QUEUE;
        if (get32(row) != queue_id)
            continue;
        out->first = get64(row + 8);
        out->at = get32(row + 24);
        out->end = out->at + get32(row + 4);
        break;
    }
    return 0;
}

/* The index row of the next live place that no branch holds, from `from` on; NULL at the end. */
static const uint8_t *walk_next(place_walk *w, uint64_t from, uint64_t *sequence)
{
    while (w->e && w->at < w->end) {
        const uint8_t *place = w->in.places + (uint64_t)w->at++ * INDEX_PLACE;
        uint64_t one = w->first + get32(place);
        if (one <= w->last || !extent_has(w->e, one))
            continue;
        w->last = one;
        if (one < from || (w->e->notes.count && extent_note(w->e, one) & NOTE_LOCKED))
            continue;
        *sequence = one;
        return w->in.records + (uint64_t)get32(place + 4) * INDEX_RECORD;
    }
    return NULL;
}

/* The record that a row tells of; NULL if it is not in memory. */
static const uint8_t *row_memory(const place_walk *w, const uint8_t *row)
{
    const entry at = {.slot = w->f->slot, .offset = get32(row)};
    return record_memory(w->core, &at);
}

static const uint8_t *row_properties(const uint8_t *row, const uint8_t *record)
{
    const entry item = {.places = get16(row + 10)};
    return properties_of(&item, record);
}

static void note_absent(const place_walk *w, const uint8_t *row, uint64_t *file_id, uint32_t *index)
{
    w->q->waits_for_slab = true;
    *file_id = w->f->file_id;
    *index = get32(row) >> w->core->slab_shift;
}

static vespiary_view view_of(const place_walk *w, uint64_t sequence, const uint8_t *row, const uint8_t *record)
{
    vespiary_view out = {
        .sequence = sequence,
        .deliveries = (uint16_t)extent_note(w->e, sequence),
        .priority = record[7],
        .protocol = record[6],
        .is_journalled = !(row[12] & FLAG_VOLATILE),
        .is_special = (row[12] & FLAG_SPECIAL) != 0,
        .is_large = (row[12] & FLAG_LARGE) != 0,
        .is_escaped = (row[12] & FLAG_ESCAPED) != 0,
        .body_length = get32(row + 4),
    };
    memcpy(&out.time_ms, record + 8, 8);
    return out;
}

/* Put views at the start of `scratch`, and the properties behind the room for all of them; returns how many, or -errno. */
static int64_t gather(place_walk *w, uint64_t from, uint32_t max_messages, uint32_t min_priority, vespiary_look *out)
{
    vespiary_core *core = w->core;
    uint64_t base = (uint64_t)max_messages * sizeof(vespiary_view), used = base, sequence;
    uint32_t count = 0;
    const uint8_t *row;
    while ((row = walk_next(w, from, &sequence))) {
        if (row[13] < min_priority)
            continue;
        const uint8_t *record = row_memory(w, row);
        uint16_t length = get16(row + 8);
        if (!record)
            note_absent(w, row, &out->absent_file, &out->absent_slab);
        if (!record || count == max_messages || (count && used - base + length > LOOK_BYTES_MAX)) {
            out->next_sequence = sequence;
            break;
        }
        int bad = scratch_room(core, used, length);
        if (bad)
            return bad;
        vespiary_view *view = (vespiary_view *)(void *)core->scratch + count++;
        *view = view_of(w, sequence, row, record);
        view->properties_at = (uint32_t)(used - base);
        memcpy(core->scratch + used, row_properties(row, record), length);
        used += length;
        view->properties_end = (uint32_t)(used - base);
    }
    out->length = used - base;
    return count;
}

int vespiary_core_page_look(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                            uint32_t footer_length, uint64_t sequence, uint32_t max_messages, uint32_t min_priority,
                            vespiary_look *out, const uint8_t **data)
{
    *out = (vespiary_look){0};
    place_walk w;
    int bad = max_messages ? walk_begin(core, page_id, queue_id, footer, footer_length, &w) : -EINVAL;
    if (bad)
        return bad;
    max_messages = max_messages < LOOK_LIVE_MAX ? max_messages : LOOK_LIVE_MAX;
    uint64_t room = (uint64_t)max_messages * sizeof(vespiary_view);
    bad = scratch_room(core, 0, room);
    if (bad)
        return bad;
    const extent *e = extent_of(w.q, w.f->slot);
    out->next_sequence = e->last + 1;
    w.f->page->is_looked_at = true;
    int64_t count = gather(&w, sequence, max_messages, min_priority, out);
    if (count < 0)
        return (int)count;
    if (!count && out->next_sequence > e->last) {
        w.f->page->is_looked_at = false;
        slabs_release_unused(core, w.f);
    }
    /* The properties move up to the views that there are. */
    uint64_t views = (uint64_t)count * sizeof(vespiary_view);
    memmove(core->scratch + views, core->scratch + room, out->length);
    for (int64_t i = 0; i < count; i++) {
        vespiary_view *view = (vespiary_view *)(void *)core->scratch + i;
        view->properties_at += (uint32_t)views;
        view->properties_end += (uint32_t)views;
    }
    out->length += views;
    out->count = (uint32_t)count;
    *data = core->scratch;
    return (int)count;
}

int vespiary_core_page_copy(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                            uint32_t footer_length, uint64_t sequence, uint64_t end, uint64_t max_bytes,
                            int is_first_whole, uint64_t *runs, uint32_t runs_room, vespiary_range *out,
                            const uint8_t **data)
{
    *out = (vespiary_range){0};
    place_walk w;
    int bad = walk_begin(core, page_id, queue_id, footer, footer_length, &w);
    if (bad)
        return bad;
    const range_room room = {max_bytes, is_first_whole, runs, runs_room};
    const extent *e = extent_of(w.q, w.f->slot);
    uint64_t limit = end <= e->last ? end : e->last + 1, found;
    const uint8_t *row;
    int put = 0;
    out->next_sequence = limit;
    w.f->page->is_looked_at = true;
    while (!put && (row = walk_next(&w, sequence, &found)) && found < limit) {
        const entry item = {.properties_length = get16(row + 8),
                            .body_length = get32(row + 4),
                            .flags = row[12],
                            .places = get16(row + 10)};
        const uint8_t *record = row_memory(&w, row);
        if (!record)
            note_absent(&w, row, &out->absent_file, &out->absent_slab);
        put = record ? range_put(core, w.q, found, &item, record, &room, out) : 1;
        if (put)
            out->next_sequence = found;
    }
    if (put < 0)
        return put;
    if (!out->records && out->next_sequence > e->last) {
        w.f->page->is_looked_at = false;
        slabs_release_unused(core, w.f);
    }
    *data = core->scratch;
    return 0;
}

int vespiary_core_page_bodies(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                              uint32_t footer_length, const uint64_t *sequences, uint32_t count, uint32_t max_bytes,
                              uint32_t *lengths, const uint8_t **data)
{
    place_walk w;
    int bad = walk_begin(core, page_id, queue_id, footer, footer_length, &w);
    if (bad)
        return bad;
    uint64_t used = 0, found;
    uint32_t done = 0;
    for (; done < count; done++) {
        const uint8_t *row = walk_next(&w, sequences[done], &found);
        const uint8_t *record = row && found == sequences[done] ? row_memory(&w, row) : NULL;
        uint32_t length = record ? get32(row + 4) : 0;
        if (!record || (done && used + length > max_bytes))
            break;
        bad = scratch_room(core, used, length);
        if (bad)
            return bad;
        memcpy(core->scratch + used, row_properties(row, record) + get16(row + 8), length);
        used += length;
        lengths[done] = length;
    }
    *data = core->scratch;
    return (int)done;
}

/* One place of a closed extent, the bits of which are its own, comes into the ring. */
static int pick_place(place_walk *w, uint64_t sequence, const uint8_t *row)
{
    extent *e = w->e;
    int bad = place_enter(w->core, w->q, e, sequence, row);
    if (bad)
        return bad;
    uint64_t number = sequence - e->first;
    e->bits[number / 64] &= ~((uint64_t)1 << (number % 64));
    e->live--;
    map_remove(&e->notes, sequence);
    return 0;
}

int vespiary_core_page_pick(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                            uint32_t footer_length, const uint64_t *sequences, uint32_t count)
{
    place_walk w;
    int bad = walk_begin(core, page_id, queue_id, footer, footer_length, &w), picked = 0;
    if (!bad && w.e)
        bad = extent_make_bits(w.e, &w.e->bits, true);
    uint32_t i = 0;
    uint64_t found;
    const uint8_t *row;
    while (!bad && i < count && (row = walk_next(&w, sequences[i], &found))) {
        while (i < count && sequences[i] < found)
            i++; /* it is done, or was picked before */
        if (i == count || sequences[i] != found)
            continue;
        bad = pick_place(&w, found, row);
        picked += !bad;
        i++;
    }
    if (picked) {
        extents_update(w.q);
        queue_ready(core, w.q);
    }
    return bad && !picked ? bad : picked;
}

int vespiary_core_page_keep(vespiary_core *core, uint32_t queue_id, const uint64_t *sequences, uint32_t count,
                            int is_kept)
{
    const queue *q = queue_find(core, queue_id);
    if (!q)
        return -EINVAL;
    for (uint32_t i = 0; i < count; i++) {
        entry *item = queue_entry(q, sequences[i]);
        if (item)
            item->flags = (uint8_t)((item->flags & ~FLAG_KEPT) | (is_kept ? FLAG_KEPT : 0));
    }
    return 0;
}
