/* Pages: messages that wait move out of the journal into files, and come back (docs/decisions/0009-paging-is-a-move.md).
 *
 * Here are the pages and the records of the journal that speak of them. Filling is in page_writer.c, extents and the way
 * back in page_extents.c. Nothing here does I/O. */
#include "pages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* --- the table of pages ------------------------------------------------------------------------------------ */
static uint32_t page_index_of(const vespiary_core *core, uint64_t file_id)
{
    uint32_t low = 0, high = core->pages_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (core->pages[middle]->file_id < file_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

file *page_file_find(const vespiary_core *core, uint64_t file_id)
{
    uint32_t at = page_index_of(core, file_id);
    return at < core->pages_count && core->pages[at]->file_id == file_id ? core->pages[at] : NULL;
}

file *page_find(const vespiary_core *core, uint64_t page_id)
{
    return page_id && page_id < PAGE_BIT ? page_file_find(core, page_id | PAGE_BIT) : NULL;
}

int page_register(vespiary_core *core, uint64_t page_id, uint64_t salt, uint64_t size, page_state state, file **out)
{
    uint64_t file_id = page_id | PAGE_BIT, room = size;
    if (state == PAGE_FILLING && room < 2 * (uint64_t)core->slab_bytes)
        room = 2 * (uint64_t)core->slab_bytes; /* one message fits, however small the page is to be */
    int bad = grow_array((void **)&core->pages, &core->pages_capacity, core->pages_count, sizeof(file *));
    struct page *p = bad ? NULL : calloc(1, sizeof *p);
    file *made = p ? file_new(core, file_id, salt, room) : NULL;
    if (!made) {
        free(p);
        return -ENOMEM;
    }
    *p = (struct page){.page_id = page_id,
                       .limit = size,
                       .state = state,
                       .record_bytes = PAGED_HEAD,
                       .offset = FILE_HEADER,
                       .sequence = 1,
                       .record_slot = UINT32_MAX};
    made->page = p;
    made->size = size;
    uint32_t at = page_index_of(core, file_id);
    memmove(core->pages + at + 1, core->pages + at, (core->pages_count - at) * sizeof(file *));
    core->pages[at] = made;
    core->pages_count++;
    *out = made;
    return 0;
}

void page_free(struct page *p)
{
    if (!p)
        return;
    free(p->queues);
    free(p->places);
    free(p->records);
    free(p->footer);
    free(p);
}

void page_release(vespiary_core *core, file *f)
{
    struct page *p = f->page;
    for (uint32_t i = 0; i < f->slab_count; i++)
        if (f->slabs[i].memory) {
            slab_give(core, f->slabs[i].memory);
            f->slabs[i].memory = NULL;
            f->slabs[i].state = SLAB_ABSENT;
        }
    f->slab_count = (uint32_t)((f->size + core->slab_bytes - 1) >> core->slab_shift);
    free(p->queues);
    free(p->places);
    free(p->records);
    free(p->footer);
    p->queues = NULL;
    p->places = NULL;
    p->records = p->footer = NULL;
    p->queues_count = p->places_count = p->places_capacity = p->records_count = p->records_capacity = 0;
}

void page_drop(vespiary_core *core, file *f)
{
    uint32_t at = page_index_of(core, f->file_id);
    core->pages_count--;
    memmove(core->pages + at, core->pages + at + 1, (core->pages_count - at) * sizeof(file *));
    page_free(f->page);
    file_free(core, f);
}

bool page_is_looked_at(const file *f) { return f->page && f->page->is_looked_at; }

void page_forget_cancels(vespiary_core *core, const file *f) { cancels_remove(core, f->slot); }

static file *page_in(const vespiary_core *core, uint64_t page_id, page_state state)
{
    file *f = page_find(core, page_id);
    return f && f->page->state == state ? f : NULL;
}

static int compare_ids(const void *left, const void *right)
{
    uint32_t a = ((const page_queue *)left)->id, b = ((const page_queue *)right)->id;
    return a < b ? -1 : a > b;
}

int vespiary_core_page_open(vespiary_core *core, uint64_t page_id, uint64_t salt, uint64_t size,
                            const uint32_t *queue_ids, uint32_t count)
{
    if (!page_id || page_id >= PAGE_BIT || page_find(core, page_id) || size % PAGE || size < 4 * (uint64_t)PAGE ||
        size > UINT32_MAX || !count)
        return -EINVAL;
    page_queue *queues = calloc(count, sizeof *queues);
    if (!queues)
        return -ENOMEM;
    int bad = 0;
    for (uint32_t i = 0; i < count; i++) {
        queues[i].id = queue_ids[i];
        bad |= queue_find(core, queue_ids[i]) ? 0 : -EINVAL;
    }
    qsort(queues, count, sizeof *queues, compare_ids);
    for (uint32_t i = 1; i < count; i++)
        bad |= queues[i].id == queues[i - 1].id ? -EINVAL : 0;
    file *f = NULL;
    if (!bad)
        bad = page_register(core, page_id, salt, size, PAGE_FILLING, &f);
    if (bad) {
        free(queues);
        return bad;
    }
    f->page->queues = queues;
    f->page->queues_count = count;
    return 0;
}

/* The places of a page are not being copied any more. */
static void unmark_places(vespiary_core *core, const struct page *p)
{
    const page_queue *of = NULL;
    queue *q = NULL;
    for (uint32_t i = 0; i < p->places_count; i++) {
        if (of != &p->queues[p->places[i].queue]) { /* mostly the same queue as before */
            of = &p->queues[p->places[i].queue];
            q = of->is_dropped ? NULL : queue_find(core, of->id);
        }
        entry *item = q ? queue_entry(q, p->places[i].sequence) : NULL;
        if (item)
            record_unmark(core, item);
    }
}

int vespiary_core_page_abandon(vespiary_core *core, uint64_t page_id)
{
    file *f = page_find(core, page_id);
    if (!f || (f->page->state != PAGE_FILLING && f->page->state != PAGE_CLOSED))
        return -EINVAL;
    unmark_places(core, f->page);
    page_release(core, f);
    page_drop(core, f);
    return 0;
}

void pages_forget_queue(vespiary_core *core, uint32_t id)
{
    for (uint32_t i = 0; i < core->pages_count; i++) {
        struct page *p = core->pages[i]->page;
        for (uint32_t k = 0; k < p->queues_count; k++)
            p->queues[k].is_dropped |= p->queues[k].id == id;
    }
}

/* --- the move ------------------------------------------------------------------------------------------------- */
static entry *ready_place(const queue *q, uint64_t sequence)
{
    entry *item = queue_entry(q, sequence);
    return item && item->state == ENTRY_READY && !(item->flags & FLAG_KEPT) ? item : NULL;
}

/* What is still to be moved of one queue's places, from `from` on. Its end goes to *end. 0 or -ENOMEM. */
static int ready_extent(vespiary_core *core, const file *f, uint32_t from, uint32_t *end, paged_queue *out)
{
    const struct page *p = f->page;
    const page_queue *of = &p->queues[p->places[from].queue];
    uint32_t to = from;
    while (to < p->places_count && p->places[to].queue == p->places[from].queue)
        to++;
    *end = to;
    *out = (paged_queue){.q = of->is_dropped ? NULL : queue_find(core, of->id), .e = {.slot = f->slot}};
    extent *e = &out->e;
    uint64_t places = 0;
    for (uint32_t i = from; i < to && out->q; i++) {
        uint64_t at = p->places[i].sequence;
        if (!ready_place(out->q, at))
            continue;
        e->first = places++ ? e->first : at;
        e->last = at;
    }
    e->live = (uint32_t)places & EXTENT_LIVE_MAX;
    if (!places)
        return 0;
    int bad = extent_reserve(out->q);
    if (!bad && places != e->last - e->first + 1)
        bad = extent_make_bits(e, &e->bits, false);
    for (uint32_t i = from; i < to && !bad; i++) {
        uint64_t at = p->places[i].sequence;
        const entry *item = ready_place(out->q, at);
        if (!item)
            continue;
        uint64_t number = at - e->first, bit = (uint64_t)1 << (number % 64);
        if (e->bits)
            e->bits[number / 64] |= bit;
        if (core->slots[item->slot]->is_volatile) {
            bad = extent_make_bits(e, &e->volatile_bits, false);
            if (!bad)
                e->volatile_bits[number / 64] |= bit;
        }
    }
    return bad;
}

static int ready_extents(vespiary_core *core, const file *f, paged_record *r)
{
    const struct page *p = f->page;
    int bad = 0;
    r->items = calloc(p->queues_count, sizeof *r->items);
    if (!r->items)
        return -ENOMEM;
    for (uint32_t from = 0; from < p->places_count && !bad;) {
        bad = ready_extent(core, f, from, &from, &r->items[r->count]);
        if (bad || r->items[r->count].e.live)
            r->count++;
        else
            extent_clear(&r->items[r->count].e);
    }
    return bad;
}

/* Take the places of a queue out of its ring: they stand in the extent from now on. */
static int move_places(vespiary_core *core, file *f, paged_queue *of, file *own)
{
    extent *e = &of->e;
    int bad = 0;
    uint32_t slot = UINT32_MAX;
    for (uint64_t at = extent_next(e, e->first); at != UINT64_MAX; at = extent_next(e, at + 1)) {
        entry *item = queue_entry(of->q, at);
        if (item->slot != slot && !core->slots[item->slot]->is_volatile)
            bad |= add_cancel(own, item->slot); /* the record would count again without the PAGE */
        slot = item->slot;
        if (item->deliveries)
            bad |= extent_set_note(e, at, item->deliveries);
        entry_forget(core, of->q, at, item);
    }
    of->q->ack_block = 0; /* an ACK record before the PAGE must not be extended by its places */
    f->live += e->live;
    extent_insert(core, of->q, *e);
    *e = (extent){0};
    return bad;
}

int64_t vespiary_core_page_commit(vespiary_core *core, uint64_t page_id)
{
    file *f = page_in(core, page_id, PAGE_CLOSED);
    paged_record r = {0};
    if (!f || core->transaction)
        return -EINVAL;
    int64_t block = ready_extents(core, f, &r);
    if (!block && !r.count) {
        paged_free(&r);
        return vespiary_core_page_abandon(core, page_id);
    }
    if (!block)
        block = stage_paged(core, f, &r);
    if (block > 0) {
        file *own = core->slots[core->filling.slot];
        int bad = page_recorded(core, f, own, 8 + (uint32_t)r.used);
        for (uint32_t i = 0; i < r.count; i++)
            bad |= move_places(core, f, &r.items[i], own);
        unmark_places(core, f->page);
        f->page->state = PAGE_LIVE;
        page_release(core, f);
        block = bad ? -ENOMEM : block;
    }
    paged_free(&r);
    return block;
}

/* What is left of an extent, as a PAGE record has it. */
static int live_extent(const extent *e, paged_queue *out)
{
    extent *made = &out->e;
    *made = (extent){.first = e->first, .last = e->last, .slot = e->slot};
    int bad = extent_make_bits(made, &made->bits, false);
    if (!bad && e->volatile_bits)
        bad = extent_make_bits(made, &made->volatile_bits, false);
    if (bad)
        return bad;
    for (uint64_t at = e->first; at <= e->last; at++) {
        bool is_closed = !e->is_open && extent_has(e, at);
        if (!is_closed && !open_place(out->q, e, at))
            continue;
        uint64_t number = at - e->first, bit = (uint64_t)1 << (number % 64);
        made->bits[number / 64] |= bit;
        made->live++;
        if (extent_is_volatile(e, at))
            made->volatile_bits[number / 64] |= bit;
    }
    return 0;
}

static int compare_queues(const void *left, const void *right)
{
    uint32_t a = ((const paged_queue *)left)->q->id, b = ((const paged_queue *)right)->q->id;
    return a < b ? -1 : a > b;
}

static int live_extents(const vespiary_core *core, const file *f, paged_record *r)
{
    int bad = 0;
    uint32_t most = core->queues.count;
    r->items = calloc(most ? most : 1, sizeof *r->items);
    if (!r->items)
        return -ENOMEM;
    for (uint32_t i = 0; i < core->queues.capacity && !bad; i++) {
        queue *q = core->queues.values[i];
        const extent *e = q ? extent_of(q, f->slot) : NULL;
        if (!e)
            continue;
        r->items[r->count].q = q;
        bad = live_extent(e, &r->items[r->count]);
        if (bad || r->items[r->count].e.live)
            r->count++;
        else
            extent_clear(&r->items[r->count].e);
    }
    qsort(r->items, r->count, sizeof *r->items, compare_queues);
    return bad;
}

int64_t vespiary_core_page_restage(vespiary_core *core, uint64_t page_id)
{
    file *f = page_in(core, page_id, PAGE_LIVE);
    paged_record r = {0};
    if (!f || core->transaction)
        return -EINVAL;
    if (f->pins && core->branches_ending)
        return -ENOSPC; /* what a branch acknowledged stands in the record as live until it is durable */
    int64_t block = live_extents(core, f, &r);
    if (!block)
        block = stage_paged(core, f, &r);
    if (block > 0) {
        int bad = page_recorded(core, f, core->slots[core->filling.slot], 8 + (uint32_t)r.used);
        for (uint32_t i = 0; i < r.count; i++)
            r.items[i].q->ack_block = 0;
        page_forget_cancels(core, f);
        block = bad ? -ENOMEM : block;
    }
    paged_free(&r);
    return block;
}

void page_want(vespiary_core *core, queue *q)
{
    if (q->is_page_wanted)
        return;
    /* The list has room for every queue: vespiary_core_open_queue grows it. */
    core->wanted[core->wanted_count++] = q->id;
    q->is_page_wanted = true;
}

int vespiary_core_page_wanted(vespiary_core *core, vespiary_page_wish *out, uint32_t room)
{
    uint32_t given = 0;
    while (core->wanted_count && given < room) {
        queue *q = queue_find(core, core->wanted[--core->wanted_count]);
        if (!q)
            continue;
        q->is_page_wanted = false;
        const extent *e = q->paged_next == UINT64_MAX ? NULL : extent_holding(q, q->paged_next);
        if (e)
            out[given++] = (vespiary_page_wish){core->slots[e->slot]->page->page_id, q->id};
    }
    return (int)given;
}

/* --- the end -------------------------------------------------------------------------------------------------- */
static bool is_done(const vespiary_core *core, file *f)
{
    struct page *p = f->page;
    if (p->state != PAGE_LIVE || f->live || core->transaction)
        return false;
    if (!p->has_block) {
        p->has_block = true;
        p->block = is_all_durable(core) ? 0 : core->filling.is_open ? core->next_sequence : core->next_sequence - 1;
    }
    return p->block <= core->durable_sequence;
}

int64_t vespiary_core_page_done(vespiary_core *core, uint64_t *out, uint64_t room)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < core->pages_count; i++)
        if (is_done(core, core->pages[i]) && count++ < room)
            out[count - 1] = core->pages[i]->page->page_id;
    return (int64_t)count;
}

static void drop_extents(vespiary_core *core, const file *f)
{
    for (uint32_t i = 0; i < core->queues.capacity; i++) {
        queue *q = core->queues.values[i];
        extent *e = q ? extent_of(q, f->slot) : NULL;
        if (e)
            extent_remove(q, e);
    }
}

int64_t vespiary_core_page_end(vespiary_core *core, uint64_t page_id)
{
    file *f = page_in(core, page_id, PAGE_LIVE);
    if (!f || !is_done(core, f))
        return -EINVAL;
    uint8_t body[8];
    put64(body, page_id);
    int64_t block = vespiary_core_append_record(core, RECORD_PAGE_DONE, 0, body, sizeof body, 1);
    if (block < 0)
        return block;
    struct page *p = f->page;
    int bad = page_unrecord(core, f, core->slots[core->filling.slot]);
    p->state = PAGE_ENDED;
    p->block = (uint64_t)block;
    drop_extents(core, f);
    return bad ? bad : block;
}

int vespiary_core_page_forget(vespiary_core *core, uint64_t page_id)
{
    file *f = page_in(core, page_id, PAGE_ENDED);
    if (!f || f->page->block > core->durable_sequence)
        return -EINVAL;
    slabs_release_unused(core, f);
    for (uint32_t i = 0; i < f->slab_count; i++)
        if (f->slabs[i].memory)
            return -EINVAL;
    page_forget_cancels(core, f);
    page_drop(core, f);
    return 0;
}

/* --- questions ------------------------------------------------------------------------------------------------ */
uint32_t vespiary_core_pages(const vespiary_core *core, vespiary_page_facts *out, uint32_t room)
{
    for (uint32_t i = 0; i < core->pages_count && i < room; i++) {
        const file *f = core->pages[i];
        const struct page *p = f->page;
        bool is_counted = p->state == PAGE_LIVE || p->state == PAGE_ENDED;
        out[i] = (vespiary_page_facts){
            .page_id = p->page_id,
            .salt = f->salt,
            .size = f->size,
            .places = is_counted ? f->live : p->places_count,
            .record_file = p->record_slot == UINT32_MAX ? 0 : core->slots[p->record_slot]->file_id,
            .state = p->state,
        };
    }
    return core->pages_count;
}

static vespiary_extent_facts extent_facts(const vespiary_core *core, const queue *q, const extent *e)
{
    return (vespiary_extent_facts){core->slots[e->slot]->page->page_id, e->first, e->last, extent_places(q, e),
                                   e->is_open};
}

int vespiary_core_extents(const vespiary_core *core, uint32_t queue_id, uint32_t begin, vespiary_extent_facts *out,
                          uint32_t room)
{
    const queue *q = queue_find(core, queue_id);
    if (!q)
        return -EINVAL;
    uint32_t count = q->extents_count > begin ? q->extents_count - begin : 0;
    for (uint32_t i = 0; i < count && i < room; i++)
        out[i] = extent_facts(core, q, &q->extents[begin + i]);
    return (int)count;
}

int vespiary_core_extent_index(const vespiary_core *core, uint32_t queue_id, uint64_t sequence)
{
    const queue *q = queue_find(core, queue_id);
    return q ? (int)extents_before(q, sequence) : -EINVAL;
}

int vespiary_core_extent(const vespiary_core *core, uint64_t page_id, uint32_t queue_id, vespiary_extent_facts *out)
{
    const file *f = page_find(core, page_id);
    const queue *q = queue_find(core, queue_id);
    const extent *e = f && q ? extent_of(q, f->slot) : NULL;
    if (e)
        *out = extent_facts(core, q, e);
    return e != NULL;
}

int64_t vespiary_core_page_record_bytes(const vespiary_core *core, uint64_t page_id)
{
    const file *f = page_find(core, page_id);
    return f ? f->page->latest_bytes : 0;
}

int vespiary_core_pages_in(const vespiary_core *core, uint64_t file_id, uint64_t *out, uint32_t room)
{
    const file *in = file_find(core, file_id);
    uint32_t count = 0;
    if (!in || in->page)
        return -EINVAL;
    for (uint32_t i = 0; i < core->pages_count; i++)
        if (core->pages[i]->page->record_slot == in->slot && count++ < room)
            out[count - 1] = core->pages[i]->page->page_id;
    return (int)count;
}
