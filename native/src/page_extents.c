/* Extents: what one queue has in one page, while it does not stand in the queue's ring.
 *
 * At most 64 bytes and a bit for each sequence, which is there only once a place between others is done. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pages.h"

uint64_t extent_words(const extent *e) { return (e->last - e->first + 64) / 64; }

static bool bit_at(const uint64_t *bits, uint64_t number) { return bits[number / 64] >> (number % 64) & 1; }

bool extent_has(const extent *e, uint64_t sequence)
{
    if (!e->live || sequence < e->first || sequence > e->last)
        return false;
    return !e->bits || bit_at(e->bits, sequence - e->first);
}

bool extent_is_volatile(const extent *e, uint64_t sequence)
{
    return e->volatile_bits && sequence >= e->first && sequence <= e->last &&
           bit_at(e->volatile_bits, sequence - e->first);
}

int extent_make_bits(extent *e, uint64_t **bits, bool are_set)
{
    if (*bits)
        return 0;
    uint64_t words = extent_words(e), tail = (e->last - e->first + 1) % 64;
    uint64_t *made = calloc(words, sizeof *made);
    if (!made)
        return -ENOMEM;
    if (are_set) {
        memset(made, 0xFF, words * sizeof *made);
        if (tail)
            made[words - 1] = ((uint64_t)1 << tail) - 1;
    }
    *bits = made;
    return 0;
}

uint64_t extent_next(const extent *e, uint64_t from)
{
    uint64_t at = from > e->first ? from : e->first;
    if (!e->live || at > e->last)
        return UINT64_MAX;
    if (!e->bits)
        return at;
    uint64_t number = at - e->first, words = extent_words(e);
    uint64_t word = e->bits[number / 64] >> (number % 64) << (number % 64);
    for (uint64_t i = number / 64;;) {
        if (word)
            return e->first + i * 64 + (uint64_t)__builtin_ctzll(word);
        if (++i == words)
            return UINT64_MAX;
        word = e->bits[i];
    }
}

uint32_t extent_note(const extent *e, uint64_t sequence)
{
    return (uint32_t)(uintptr_t)map_get(&e->notes, sequence);
}

int extent_set_note(extent *e, uint64_t sequence, uint32_t value)
{
    map_remove(&e->notes, sequence);
    return value ? map_put(&e->notes, sequence, (void *)(uintptr_t)value) : 0;
}

extent *extent_of(const queue *q, uint32_t slot)
{
    for (uint32_t i = 0; i < q->extents_count; i++)
        if (q->extents[i].slot == slot)
            return &q->extents[i];
    return NULL;
}

uint32_t extents_before(const queue *q, uint64_t sequence)
{
    uint32_t low = 0, high = q->extents_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (q->extents_reach[middle] < sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

extent *extent_holding(const queue *q, uint64_t sequence)
{
    for (uint32_t i = extents_before(q, sequence); i < q->extents_count && q->extents[i].first <= sequence; i++)
        if (!q->extents[i].is_open && extent_has(&q->extents[i], sequence))
            return &q->extents[i];
    return NULL;
}

int extent_reserve(queue *q)
{
    int bad = grow_array((void **)&q->extents_reach, &q->reach_capacity, q->extents_count, sizeof(uint64_t));
    return bad ? bad : grow_array((void **)&q->extents, &q->extents_capacity, q->extents_count, sizeof(extent));
}

void extent_insert(const vespiary_core *core, queue *q, extent made)
{
    uint64_t id = core->slots[made.slot]->file_id;
    uint32_t at = q->extents_count++;
    while (at && (q->extents[at - 1].first > made.first || (q->extents[at - 1].first == made.first &&
                                                           core->slots[q->extents[at - 1].slot]->file_id > id))) {
        q->extents[at] = q->extents[at - 1];
        at--;
    }
    q->extents[at] = made;
    extents_update(q);
}

void extent_clear(extent *e)
{
    free(e->bits);
    free(e->volatile_bits);
    map_free(&e->notes);
    *e = (extent){0};
}

void extent_remove(queue *q, extent *e)
{
    uint32_t at = (uint32_t)(e - q->extents);
    extent_clear(e);
    q->extents_count--;
    memmove(e, e + 1, (q->extents_count - at) * sizeof *e);
    extents_update(q);
}

void extents_update(queue *q)
{
    q->paged_next = UINT64_MAX;
    q->paged = 0;
    uint64_t reach = 0;
    for (uint32_t i = 0; i < q->extents_count; i++) {
        const extent *e = &q->extents[i];
        reach = e->last > reach ? e->last : reach;
        q->extents_reach[i] = reach;
        if (e->is_open)
            continue;
        q->paged += e->live;
        if (e->first < q->paged_next) {
            uint64_t at = extent_next(e, e->first);
            q->paged_next = at < q->paged_next ? at : q->paged_next;
        }
    }
}

void extent_end(vespiary_core *core, queue *q, extent *e, uint64_t sequence)
{
    uint64_t number = sequence - e->first;
    e->bits[number / 64] &= ~((uint64_t)1 << (number % 64));
    e->live--;
    if (extent_note(e, sequence) & NOTE_LOCKED)
        q->paged_locked--;
    map_remove(&e->notes, sequence);
    core->slots[e->slot]->live--;
    if (q->large.count)
        large_done(core, q, sequence);
}

entry *open_place(const queue *q, const extent *e, uint64_t sequence)
{
    entry *item = queue_entry(q, sequence);
    return item && item->slot == e->slot && item->state != ENTRY_NONE && item->state != ENTRY_DONE ? item : NULL;
}

uint32_t extent_places(const queue *q, const extent *e)
{
    if (!e->is_open)
        return e->live;
    uint32_t count = 0;
    for (uint64_t at = e->first; at <= e->last;) {
        if (!queue_entry(q, at)) {
            at = queue_next_segment(q, at);
            continue;
        }
        count += open_place(q, e, at) != NULL;
        at++;
    }
    return count;
}

void extents_drop(queue *q)
{
    for (uint32_t i = 0; i < q->extents_count; i++)
        extent_clear(&q->extents[i]);
    free(q->extents);
    free(q->extents_reach);
    q->extents = NULL;
    q->extents_reach = NULL;
    q->extents_count = q->extents_capacity = q->reach_capacity = 0;
}

void extents_free(vespiary_core *core, queue *q)
{
    for (uint32_t i = 0; i < q->extents_count; i++)
        if (!q->extents[i].is_open)
            core->slots[q->extents[i].slot]->live -= q->extents[i].live;
    extents_drop(q);
    pages_forget_queue(core, q->id);
}

/* --- coming back -------------------------------------------------------------------------------------------- */

int index_open(const file *f, const uint8_t *footer, uint32_t length, page_index *out)
{
    if (length < TRAILER || length > f->size)
        return -EINVAL;
    const uint8_t *trailer = footer + length - TRAILER;
    out->queues_count = get32(trailer + 32);
    out->places_count = get32(trailer + 36);
    out->records_count = get32(trailer + 40);
    uint64_t places_at = (uint64_t)out->queues_count * INDEX_QUEUE;
    uint64_t records_at = places_at + (uint64_t)out->places_count * INDEX_PLACE;
    uint64_t end = records_at + (uint64_t)out->records_count * INDEX_RECORD;
    out->data_end = f->size - length;
    if (end > length - TRAILER || out->data_end < PAGE)
        return -EINVAL;
    out->queues = footer;
    out->places = footer + places_at;
    out->records = footer + records_at;
    return 0;
}

bool index_record_fits(const vespiary_core *core, const page_index *in, const uint8_t *at)
{
    uint64_t offset = get32(at), places = get16(at + 10);
    uint64_t length = ADD_HEADER + places * PLACE_BYTES + get16(at + 8) + (uint64_t)get32(at + 4);
    return places && offset >= PAGE && !(offset & 7) && offset + length <= in->data_end &&
           (offset & (core->slab_bytes - 1)) + length <= core->slab_bytes;
}

int place_enter(vespiary_core *core, queue *q, const extent *e, uint64_t sequence, const uint8_t *record)
{
    entry *made = queue_place(core, q, sequence);
    if (!made)
        return -ENOMEM;
    uint32_t known = extent_note(e, sequence);
    *made = (entry){.slot = e->slot,
                    .offset = get32(record),
                    .body_length = get32(record + 4),
                    .properties_length = get16(record + 8),
                    .deliveries = (uint16_t)known,
                    .state = ENTRY_READY,
                    .flags = record[12] & (FLAG_ESCAPED | FLAG_LARGE | FLAG_SPECIAL | FLAG_VOLATILE),
                    .places = get16(record + 10)};
    if (extent_is_volatile(e, sequence))
        made->flags |= FLAG_VOLATILE;
    q->live_bytes += (uint64_t)made->body_length + made->properties_length;
    core->slots[e->slot]->live--;
    record_pin(core, q, made);
    if (known & NOTE_LOCKED) {
        made->state = ENTRY_LOCKED;
        q->locked++;
        q->paged_locked--;
    } else if (sequence < q->next) {
        entry_put_first(q, sequence, made);
    }
    if (sequence < q->head)
        q->head = sequence;
    q->has_special |= (made->flags & FLAG_SPECIAL) != 0;
    return 0;
}

int index_walk(vespiary_core *core, const page_index *in, queue *q, const extent *e, bool is_made,
                      uint32_t *found)
{
    *found = 0;
    for (uint32_t i = 0; i < in->queues_count; i++) {
        const uint8_t *row = in->queues + (uint64_t)i * INDEX_QUEUE;
        if (get32(row) != q->id)
            continue;
        uint32_t count = get32(row + 4), index = get32(row + 24);
        uint64_t first = get64(row + 8), last = 0;
        if ((uint64_t)index + count > in->places_count)
            return -EINVAL;
        for (uint32_t k = index; k < index + count; k++) {
            const uint8_t *place = in->places + (uint64_t)k * INDEX_PLACE;
            uint64_t sequence = first + get32(place);
            uint32_t number = get32(place + 4);
            if (!extent_has(e, sequence) || sequence <= last)
                continue;
            last = sequence;
            const uint8_t *record = in->records + (uint64_t)number * INDEX_RECORD;
            if (number >= in->records_count || !index_record_fits(core, in, record))
                return -EINVAL;
            int bad = is_made ? place_enter(core, q, e, sequence, record) : 0;
            if (bad)
                return bad;
            ++*found;
        }
        break;
    }
    return 0;
}

/* Take the places of an extent that it has by its bits out of the ring; notes keep what the entries knew. */
static void ring_leave(vespiary_core *core, queue *q, extent *e)
{
    for (uint64_t at = e->first; at <= e->last;) {
        entry *item = queue_entry(q, at);
        if (!item) {
            at = queue_next_segment(q, at);
            continue;
        }
        if ((!e->bits || bit_at(e->bits, at - e->first)) && open_place(q, e, at)) {
            uint32_t known = item->deliveries | (item->state == ENTRY_LOCKED ? NOTE_LOCKED : 0);
            q->paged_locked += item->state == ENTRY_LOCKED;
            (void)extent_set_note(e, at, known); /* a lost count is no lost message */
            entry_forget(core, q, at, item);
            core->slots[e->slot]->live++;
        }
        at++;
    }
}

int64_t vespiary_core_page_enter(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                                 uint32_t length)
{
    file *f = page_find(core, page_id);
    queue *q = queue_find(core, queue_id);
    extent *e = f && f->page->state == PAGE_LIVE && q ? extent_of(q, f->slot) : NULL;
    page_index in;
    uint32_t found;
    if (!e)
        return -EINVAL;
    if (e->is_open)
        return 0;
    int bad = index_open(f, footer, length, &in);
    if (!bad)
        bad = index_walk(core, &in, q, e, false, &found);
    if (bad || found != e->live)
        return -EINVAL;
    bad = index_walk(core, &in, q, e, true, &found);
    if (bad) { /* no memory for a segment */
        ring_leave(core, q, e);
        return bad;
    }
    map_free(&e->notes);
    e->is_open = true;
    extents_update(q);
    queue_ready(core, q);
    return found;
}

int vespiary_core_page_leave(vespiary_core *core, uint64_t page_id, uint32_t queue_id)
{
    file *f = page_find(core, page_id);
    queue *q = queue_find(core, queue_id);
    extent *e = f && f->page->state == PAGE_LIVE && q ? extent_of(q, f->slot) : NULL;
    if (!e || core->transaction)
        return -EINVAL;
    if (!e->is_open)
        return 1;
    extent made = {.first = e->first, .last = e->last};
    int bad = extent_make_bits(&made, &made.bits, false);
    if (bad)
        return bad;
    for (uint64_t at = e->first; at <= e->last; at++) {
        const entry *item = open_place(q, e, at);
        if (item && item->state != ENTRY_READY && item->state != ENTRY_RETURNED) {
            free(made.bits);
            return 0;
        }
        if (item) {
            made.bits[(at - e->first) / 64] |= (uint64_t)1 << ((at - e->first) % 64);
            made.live++;
        }
    }
    free(e->bits);
    e->bits = made.bits;
    ring_leave(core, q, e);
    e->live = made.live;
    e->is_open = false;
    extents_update(q);
    return 1;
}

/* --- ending ---------------------------------------------------------------------------------------------------- */
typedef struct {
    uint64_t end, left; /* one above the last sequence that ends; how many more may */
} bound;

/* The next run of places to end from *at on: journalled ones, or with `is_volatile` the others. */
static uint64_t run_of(const queue *q, const extent *e, uint64_t *at, bool is_volatile, const bound *to)
{
    uint64_t from = *at, count = 0;
    while (count < to->left) {
        uint64_t next = extent_next(e, from);
        if (next >= to->end || (count && next != from))
            break;
        bool is_other = !q->is_durable || extent_is_volatile(e, next);
        bool is_wanted = is_other == is_volatile && !(extent_note(e, next) & NOTE_LOCKED);
        if (!is_wanted && count)
            break;
        if (is_wanted && !count)
            *at = next;
        count += is_wanted;
        from = next + 1;
    }
    return count;
}

static void run_end(vespiary_core *core, queue *q, extent *e, uint64_t first, uint64_t count)
{
    for (uint64_t at = first; at < first + count; at++)
        extent_end(core, q, e, at);
    q->acknowledged += count;
}

/* Stage one ACK record of at most PURGE_RANGES runs, and end what it names. Returns how many, or -errno. */
static int64_t finish_runs(vespiary_core *core, queue *q, extent *e, const bound *to)
{
    uint64_t runs[PURGE_RANGES][2];
    uint32_t count = 0;
    uint64_t at = e->first;
    bound rest = *to;
    while (count < PURGE_RANGES && (runs[count][1] = run_of(q, e, &at, false, &rest))) {
        runs[count][0] = at;
        rest.left -= runs[count][1];
        at += runs[count++][1];
    }
    if (!count)
        return 0;
    uint8_t body[8 + sizeof runs];
    memcpy(body, &q->id, 4);
    memcpy(body + 4, &count, 4);
    memcpy(body + 8, runs, count * sizeof runs[0]);
    int64_t block = vespiary_core_append_record(core, RECORD_ACK, 0, body, 8 + count * (uint32_t)sizeof runs[0], 0);
    if (block < 0)
        return block;
    int64_t done = add_cancel(core->slots[core->filling.slot], e->slot);
    for (uint32_t i = 0; i < count && done >= 0; i++) {
        run_end(core, q, e, runs[i][0], runs[i][1]);
        done += (int64_t)runs[i][1];
    }
    return done;
}

static int64_t finish_extent(vespiary_core *core, queue *q, extent *e, bound *to)
{
    int64_t all = 0, done = extent_make_bits(e, &e->bits, true);
    while (done >= 0 && (done = finish_runs(core, q, e, to)) > 0) {
        all += done;
        to->left -= (uint64_t)done;
    }
    uint64_t at = e->first, count;
    while (done >= 0 && (count = run_of(q, e, &at, true, to))) {
        run_end(core, q, e, at, count);
        all += (int64_t)count;
        to->left -= count;
        at += count;
    }
    return done < 0 ? done : all;
}

int64_t extents_finish(vespiary_core *core, queue *q, uint64_t end, uint64_t most)
{
    bound to = {end, most};
    int64_t all = 0, done = 0;
    for (uint32_t i = 0; i < q->extents_count && q->extents[i].first < end && to.left && done >= 0; i++) {
        extent *e = &q->extents[i];
        if (e->is_open || !e->live)
            continue;
        done = finish_extent(core, q, e, &to);
        all += done;
    }
    extents_update(q);
    return done < 0 ? done : all;
}
