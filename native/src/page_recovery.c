/* PAGE and PAGE_DONE records become extents again (journal-format.md §3.8), and what is said of places in them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pages.h"

/* One queue of a PAGE record; `end` is where it ends, NULL: malformed. */
typedef struct {
    uint32_t queue_id, places, large, counts;
    uint64_t first, last;
    const uint8_t *bitmap, *large_at, *counts_at, *end; /* bitmap NULL: all places */
} paged_part;

static paged_part part_at(const uint8_t *at, const uint8_t *end)
{
    paged_part part = {0};
    if (end - at < PAGED_QUEUE)
        return part;
    uint32_t bitmap = get32(at + 4);
    part.queue_id = get32(at);
    part.first = get64(at + 8);
    part.last = get64(at + 16);
    part.places = get32(at + 24);
    part.large = get32(at + 28);
    part.counts = get32(at + 32);
    uint64_t span = part.last - part.first + 1;
    bool is_whole = !bitmap && part.places == span;
    if (!part.first || part.last < part.first || part.last >> 63 || span > PAGED_SPAN_MAX ||
        (!is_whole && bitmap != (span + 63) / 64 * 8))
        return part;
    uint64_t length = PAGED_QUEUE + bitmap + (uint64_t)part.large * PAGED_LARGE + (uint64_t)part.counts * PAGED_COUNT;
    if (length > (uint64_t)(end - at))
        return part;
    part.bitmap = bitmap ? at + PAGED_QUEUE : NULL;
    part.large_at = at + PAGED_QUEUE + bitmap;
    part.counts_at = part.large_at + (uint64_t)part.large * PAGED_LARGE;
    part.end = at + length;
    return part;
}

/* Whether its bits are as many as it says, and its first and last sequence among them. */
static bool is_good(const paged_part *part)
{
    uint64_t span = part->last - part->first + 1, words = (span + 63) / 64, count = 0, tail = span % 64;
    if (!part->bitmap)
        return true;
    for (uint64_t i = 0; i < words; i++)
        count += (uint64_t)__builtin_popcountll(get64(part->bitmap + i * 8));
    uint64_t last = get64(part->bitmap + (words - 1) * 8);
    return count == part->places && (part->bitmap[0] & 1) && last >> ((span - 1) % 64) & 1 &&
           !(tail && last >> tail);
}

static int record_check(const uint8_t *record, uint32_t length)
{
    uint64_t page_id = get64(record + 8), size = get64(record + 24);
    const uint8_t *at = record + PAGED_HEAD, *end = record + length;
    uint32_t count = get32(record + 32);
    uint64_t places = 0; /* those of a whole part are named by two numbers: what they cost is bounded here */
    int64_t before = -1;
    if (!page_id || page_id >= PAGE_BIT || size % PAGE || size < 4 * (uint64_t)PAGE || size > UINT32_MAX)
        return -EBADMSG;
    for (uint32_t i = 0; i < count; i++) {
        paged_part part = part_at(at, end);
        if (!part.end || !is_good(&part) || (int64_t)part.queue_id <= before)
            return -EBADMSG;
        before = part.queue_id;
        places += part.places;
        if (places > PAGE_PLACES_MAX)
            return -EBADMSG;
        at = part.end;
    }
    return at == end ? 0 : -EBADMSG;
}

/* The page's latest record counts no more. */
static int page_detach(vespiary_core *core, file *in, file *f)
{
    int bad = page_unrecord(core, f, in);
    page_forget_cancels(core, f);
    return bad;
}

/* Drop a queue's extent; large messages end there unless the new one has them. */
static void extent_replace(vespiary_core *core, queue *q, extent *e, const extent *now)
{
    for (uint64_t at = extent_next(e, e->first); q->large.count && at != UINT64_MAX; at = extent_next(e, at + 1))
        if (!now || !extent_has(now, at))
            large_done(core, q, at);
    core->slots[e->slot]->live -= e->live;
    extent_remove(q, e);
}

/* What stood in the journal stands in the page now; its record would count again without this one. */
static int ring_to_page(vespiary_core *core, queue *q, const extent *e, file *in)
{
    int bad = 0;
    for (uint64_t at = extent_next(e, e->first); at != UINT64_MAX; at = extent_next(e, at + 1)) {
        entry *item = queue_entry(q, at);
        if (!item || item->state != ENTRY_READY)
            continue;
        bad |= add_cancel(in, item->slot);
        entry_forget(core, q, at, item);
    }
    return bad;
}

static int part_apply(vespiary_core *core, queue *q, file *f, file *in, const paged_part *part)
{
    extent made = {.first = part->first, .last = part->last, .slot = f->slot, .live = part->places & EXTENT_LIVE_MAX};
    int bad = 0;
    if (part->bitmap) {
        bad = extent_make_bits(&made, &made.bits, false);
        if (!bad)
            memcpy(made.bits, part->bitmap, extent_words(&made) * 8);
    }
    extent *before = extent_of(q, f->slot);
    if (!bad && before)
        extent_replace(core, q, before, &made);
    if (!bad)
        bad = extent_reserve(q);
    if (!bad)
        bad = ring_to_page(core, q, &made, in);
    for (uint32_t i = 0; i < part->large && !bad; i++) {
        const uint8_t *at = part->large_at + (uint64_t)i * PAGED_LARGE;
        bad = large_place(core, q, get64(at), at + 8);
    }
    for (uint32_t i = 0; i < part->counts && !bad; i++) {
        const uint8_t *at = part->counts_at + (uint64_t)i * PAGED_COUNT;
        uint32_t deliveries = get32(at + 8);
        bad = extent_set_note(&made, get64(at), deliveries < UINT16_MAX ? deliveries : UINT16_MAX);
    }
    if (bad) {
        extent_clear(&made);
        return bad;
    }
    f->live += made.live;
    if (part->last >= q->tail)
        q->tail = part->last + 1;
    extent_insert(core, q, made);
    return 0;
}

int apply_paged(vespiary_core *core, file *in, const uint8_t *record, uint32_t length)
{
    int bad = length < PAGED_HEAD ? -EBADMSG : record_check(record, length);
    if (bad)
        return bad;
    file *f = page_find(core, get64(record + 8));
    bad = f ? page_detach(core, in, f)
            : page_register(core, get64(record + 8), get64(record + 16), get64(record + 24), PAGE_LIVE, &f);
    if (bad)
        return bad;
    const uint8_t *at = record + PAGED_HEAD;
    for (uint32_t i = 0; i < core->queues.capacity; i++) {
        queue *q = core->queues.values[i];
        extent *e = q ? extent_of(q, f->slot) : NULL;
        if (e)
            e->is_open = true; /* those that are named take its place; the others end below */
    }
    for (uint32_t i = 0; i < get32(record + 32) && !bad; i++) {
        paged_part part = part_at(at, record + length);
        queue *q = queue_find(core, part.queue_id);
        bad = q ? part_apply(core, q, f, in, &part) : 0; /* a queue that was deleted: the bindings decide */
        at = part.end;
    }
    for (uint32_t i = 0; i < core->queues.capacity && !bad; i++) {
        queue *q = core->queues.values[i];
        extent *e = q ? extent_of(q, f->slot) : NULL;
        if (e && e->is_open)
            extent_replace(core, q, e, NULL);
    }
    return bad ? bad : page_recorded(core, f, in, length);
}

int apply_page_done(vespiary_core *core, file *in, uint64_t page_id)
{
    file *f = page_find(core, page_id);
    if (!f)
        return 0;
    int bad = page_detach(core, in, f);
    for (uint32_t i = 0; i < core->queues.capacity; i++) {
        queue *q = core->queues.values[i];
        extent *e = q ? extent_of(q, f->slot) : NULL;
        if (e)
            extent_replace(core, q, e, NULL);
    }
    page_drop(core, f);
    return bad;
}

/* `in` holds the acknowledgement, `commit` the COMMIT of its transaction; the same file outside of one. */
int extents_ack(vespiary_core *core, queue *q, file *in, file *commit, uint64_t first, uint64_t end)
{
    bool is_changed = false;
    int bad = 0;
    for (uint32_t i = 0; i < q->extents_count && !bad; i++) {
        extent *e = &q->extents[i];
        uint64_t at = extent_next(e, first);
        if (at >= end)
            continue;
        bad = extent_make_bits(e, &e->bits, true);
        if (!bad)
            bad = add_cancel(in, e->slot);
        if (!bad)
            bad = add_cancel(commit, e->slot);
        for (; !bad && at < end; at = extent_next(e, at + 1))
            extent_end(core, q, e, at);
        is_changed = true;
    }
    if (is_changed)
        extents_update(q);
    return bad;
}

int extents_count(queue *q, file *in, uint64_t sequence, uint32_t deliveries)
{
    extent *e = extent_holding(q, sequence);
    if (!e)
        return 0;
    int bad = extent_set_note(e, sequence, deliveries < UINT16_MAX ? deliveries : UINT16_MAX);
    return bad ? bad : add_cancel(in, e->slot);
}

/* --- branches ------------------------------------------------------------------------------------------------- */
bool paged_is_locked(const queue *q, uint64_t sequence, uint32_t *slot)
{
    const extent *e = q->extents_count ? extent_holding(q, sequence) : NULL;
    if (!e || !(extent_note(e, sequence) & NOTE_LOCKED))
        return false;
    *slot = e->slot;
    return true;
}

int paged_lock(queue *q, uint64_t sequence, uint32_t *slot)
{
    extent *e = q->extents_count ? extent_holding(q, sequence) : NULL;
    uint32_t known = e ? extent_note(e, sequence) : 0;
    if (!e || known & NOTE_LOCKED)
        return 0;
    *slot = e->slot;
    q->paged_locked++;
    int bad = extent_set_note(e, sequence, known | NOTE_LOCKED);
    return bad ? bad : 1;
}

uint32_t paged_count_delivery(queue *q, uint64_t sequence)
{
    extent *e = extent_holding(q, sequence);
    uint32_t known = extent_note(e, sequence), deliveries = known & 0xFFFF;
    if (deliveries < UINT16_MAX)
        deliveries++;
    (void)extent_set_note(e, sequence, (known & ~0xFFFFU) | deliveries);
    return deliveries;
}

void paged_let_go(vespiary_core *core, queue *q, uint64_t sequence, bool is_commit)
{
    extent *e = extent_holding(q, sequence);
    if (is_commit && extent_make_bits(e, &e->bits, true) == 0) {
        extent_end(core, q, e, sequence);
        q->acknowledged++;
        extents_update(q);
        return;
    }
    q->paged_locked--;
    q->redelivered += !is_commit;
    q->resolved += !is_commit;
    (void)extent_set_note(e, sequence, extent_note(e, sequence) & 0xFFFF);
    queue_ready(core, q);
}
