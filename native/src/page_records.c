/* The PAGE record: which places stand in a page now (journal-format.md §3.8). It is made from extents, staged, and then its
 * file is kept as long as it is the page's latest. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "counts.h"
#include "pages.h"

void paged_free(paged_record *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        extent_clear(&r->items[i].e);
    free(r->items);
    free(r->body);
}

static uint8_t *body_room(paged_record *r, uint64_t length)
{
    if (r->used + length > r->capacity) {
        uint64_t wider = (r->capacity + length) * 2;
        uint8_t *made = realloc(r->body, wider);
        if (!made)
            return NULL;
        r->body = made;
        r->capacity = wider;
    }
    uint8_t *at = r->body + r->used;
    r->used += length;
    return at;
}

/* The live places of a queue that must survive, as a record has them: whole, or with a bitmap from first to last. */
static int kept_places(const paged_queue *of, extent *out)
{
    const extent *e = &of->e;
    uint64_t count = 0;
    *out = (extent){0};
    if (!of->q->is_durable)
        return 0;
    if (!e->volatile_bits && extent_has(e, e->first) && extent_has(e, e->last)) { /* as it is, mostly */
        *out = (extent){.first = e->first, .last = e->last, .live = e->live};
        bool is_whole = e->live == e->last - e->first + 1;
        int made = is_whole ? 0 : extent_make_bits(out, &out->bits, false);
        if (out->bits)
            memcpy(out->bits, e->bits, extent_words(e) * sizeof *e->bits);
        return made;
    }
    for (uint64_t at = extent_next(e, e->first); at != UINT64_MAX; at = extent_next(e, at + 1)) {
        if (extent_is_volatile(e, at))
            continue;
        out->first = count++ ? out->first : at;
        out->last = at;
    }
    out->live = (uint32_t)count & EXTENT_LIVE_MAX;
    if (!count || count == out->last - out->first + 1)
        return 0;
    int bad = extent_make_bits(out, &out->bits, false);
    for (uint64_t at = extent_next(e, e->first); !bad && at != UINT64_MAX; at = extent_next(e, at + 1))
        if (!extent_is_volatile(e, at))
            out->bits[(at - out->first) / 64] |= (uint64_t)1 << ((at - out->first) % 64);
    return bad;
}

/* How often a place was given out, wherever it stands; `e` is what the queue has in the page, or NULL. */
static uint32_t deliveries_of(const vespiary_core *core, const queue *q, const extent *e, uint64_t sequence)
{
    if (e && !e->is_open && extent_has(e, sequence))
        return extent_note(e, sequence) & 0xFFFF;
    const entry *item = queue_entry(q, sequence);
    return item ? journalled_deliveries(core, item) : 0;
}

static int write_large(const queue *q, const extent *kept, paged_record *r, uint32_t *count)
{
    for (uint64_t at = extent_next(kept, kept->first); q->large.count && at != UINT64_MAX;
         at = extent_next(kept, at + 1)) {
        const large_message *body = map_get(&q->large, at);
        if (!body)
            continue;
        uint8_t *out = body_room(r, PAGED_LARGE);
        if (!out)
            return -ENOMEM;
        put64(out, at);
        put64(out + 8, body->id);
        put64(out + 16, body->size);
        put32(out + 24, body->crc);
        put32(out + 28, 0);
        ++*count;
    }
    return 0;
}

static int write_counts_of(const vespiary_core *core, const queue *q, uint32_t slot, const extent *kept, paged_record *r,
                           uint32_t *count)
{
    uint64_t limit = core->slab_bytes / 4 < PAGE_RECORD_MAX ? core->slab_bytes / 4 : PAGE_RECORD_MAX;
    const extent *e = extent_of(q, slot); /* once: it is looked for among all pages of the queue */
    for (uint64_t at = extent_next(kept, kept->first); at != UINT64_MAX; at = extent_next(kept, at + 1)) {
        uint32_t deliveries = deliveries_of(core, q, e, at);
        if (!deliveries || r->counted + PAGED_COUNT > limit + limit / 2)
            continue;
        uint8_t *out = body_room(r, PAGED_COUNT);
        if (!out)
            return -ENOMEM;
        put64(out, at);
        put32(out + 8, deliveries);
        put32(out + 12, 0);
        r->counted += PAGED_COUNT;
        ++*count;
    }
    return 0;
}

/* Returns 1 if the queue has a part in the record, 0 if not, or -errno. */
static int write_queue(const vespiary_core *core, const paged_queue *of, uint32_t slot, paged_record *r)
{
    extent kept;
    uint32_t large = 0, counts = 0;
    uint64_t head_at = r->used;
    int bad = kept_places(of, &kept);
    if (bad || !kept.live)
        return bad;
    uint64_t bitmap = kept.bits ? extent_words(&kept) * 8 : 0;
    uint8_t *head = body_room(r, PAGED_QUEUE + bitmap);
    if (!head) {
        extent_clear(&kept);
        return -ENOMEM;
    }
    if (bitmap)
        memcpy(head + PAGED_QUEUE, kept.bits, bitmap);
    bad = write_large(of->q, &kept, r, &large);
    r->counted += PAGED_QUEUE + bitmap + (uint64_t)large * PAGED_LARGE;
    if (!bad)
        bad = write_counts_of(core, of->q, slot, &kept, r, &counts);
    head = r->body + head_at;
    put32(head, of->q->id);
    put32(head + 4, (uint32_t)bitmap);
    put64(head + 8, kept.first);
    put64(head + 16, kept.last);
    put32(head + 24, kept.live);
    put32(head + 28, large);
    put32(head + 32, counts);
    put32(head + 36, 0);
    extent_clear(&kept);
    return bad ? bad : 1;
}

int64_t stage_paged(vespiary_core *core, const file *f, paged_record *r)
{
    uint32_t named = 0;
    uint8_t *head = body_room(r, PAGED_HEAD - 8);
    r->counted = PAGED_HEAD;
    if (!head)
        return -ENOMEM;
    for (uint32_t i = 0; i < r->count; i++) {
        int one = write_queue(core, &r->items[i], f->slot, r);
        if (one < 0)
            return one;
        named += (uint32_t)one;
    }
    head = r->body;
    put64(head, f->page->page_id);
    put64(head + 8, f->salt);
    put64(head + 16, f->size);
    put32(head + 24, named);
    put32(head + 28, 0);
    return vespiary_core_append_record(core, RECORD_PAGE, 0, r->body, (uint32_t)r->used, 1);
}

int page_unrecord(vespiary_core *core, file *f, file *own)
{
    struct page *p = f->page;
    file *in = core->slots[p->record_slot];
    in->live--;
    in->live_bytes -= p->latest_bytes;
    core->live_bytes -= p->latest_bytes;
    p->record_slot = UINT32_MAX;
    p->latest_bytes = 0;
    return add_cancel(own, in->slot);
}

int page_recorded(vespiary_core *core, file *f, file *own, uint32_t length)
{
    struct page *p = f->page;
    int bad = p->record_slot == UINT32_MAX ? 0 : page_unrecord(core, f, own);
    own->live++;
    own->live_bytes += length;
    core->live_bytes += length;
    p->record_slot = own->slot;
    p->latest_bytes = length;
    return bad;
}
