/* A page while it is filled: blocks in memory, then its index (journal-format.md §7). Its header is the store's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "pages.h"

typedef struct {
    queue *q;
    entry *item;
    uint64_t sequence;
    uint32_t of; /* index in the page's queues */
} chosen;

typedef struct {
    vespiary_core *core;
    file *to;
    const uint8_t *record; /* a copy: making room may drop the slab that it stood in */
    chosen *places;
    uint32_t count;
    uint64_t bytes; /* what the PAGE record may need with them */
} copying;

static page_queue *page_queue_of(const struct page *p, uint32_t id)
{
    uint32_t low = 0, high = p->queues_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->queues[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->queues_count && p->queues[low].id == id ? &p->queues[low] : NULL;
}

/* The entry of a place that may be copied: ready, available, and in no page. */
static entry *movable(const vespiary_core *core, const queue *q, uint64_t sequence)
{
    entry *item = sequence < q->available ? queue_entry(q, sequence) : NULL;
    bool is_ready = item && item->state == ENTRY_READY && !(item->flags & (FLAG_PAGING | FLAG_KEPT));
    return is_ready && !core->slots[item->slot]->page ? item : NULL;
}

/* What one place more of a queue adds to the PAGE record: its span in the bitmap. */
static uint64_t span_bytes(const page_queue *of, uint64_t sequence)
{
    if (!of->count)
        return PAGED_QUEUE + 8;
    uint64_t first = sequence < of->first ? sequence : of->first, last = sequence > of->last ? sequence : of->last;
    return ((last - first + 64) / 64 - (of->last - of->first + 64) / 64) * 8;
}

/* Choose the places that move with a record: all that may, within what a PAGE record holds. 0 or -ENOMEM. */
static int choose(copying *c, const entry *driver)
{
    struct page *p = c->to->page;
    uint32_t count = get16(c->record + 22), slot = driver->slot, offset = driver->offset;
    bool is_large = c->record[5] & FLAG_LARGE;
    c->places = malloc(count * sizeof *c->places);
    if (!c->places)
        return -ENOMEM;
    c->bytes = p->record_bytes;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *place = c->record + ADD_HEADER + (uint64_t)i * PLACE_BYTES;
        uint64_t sequence = get64(place + 8);
        page_queue *of = page_queue_of(p, get32(place));
        queue *q = of && !of->is_dropped ? queue_find(c->core, of->id) : NULL;
        entry *item = q ? movable(c->core, q, sequence) : NULL;
        if (!item || item->slot != slot || item->offset != offset)
            continue;
        uint64_t more = span_bytes(of, sequence) + (is_large ? PAGED_LARGE : 0) + (item->deliveries ? PAGED_COUNT : 0);
        uint64_t most = c->core->slab_bytes / 4 < PAGE_RECORD_MAX ? c->core->slab_bytes / 4 : PAGE_RECORD_MAX;
        if (p->places_count + c->count >= PAGE_PLACES_MAX || c->bytes + more > most)
            continue;
        c->bytes += more;
        c->places[c->count++] = (chosen){q, item, sequence, (uint32_t)(of - p->queues)};
    }
    return 0;
}

/* --- blocks --------------------------------------------------------------------------------------------------- */
static uint32_t next_offset(const struct page *p)
{
    return p->filling.is_open ? p->filling.offset + (uint32_t)align_page(p->filling.used) : p->offset;
}

static uint8_t *memory_at(const vespiary_core *core, const file *f, uint32_t offset)
{
    return f->slabs[offset >> core->slab_shift].memory + (offset & (core->slab_bytes - 1));
}

static uint32_t room_at(const vespiary_core *core, uint32_t offset)
{
    return core->slab_bytes - (offset & (core->slab_bytes - 1));
}

static void close_page_block(vespiary_core *core, file *f, uint32_t offset, uint32_t used, uint32_t records,
                             uint16_t flags)
{
    struct page *p = f->page;
    block_facts facts = {.sequence = p->sequence++,
                         .previous_crc = p->previous_crc,
                         .offset = offset,
                         .used = used,
                         .records = records,
                         .flags = flags};
    p->previous_crc = write_block_header(core, f, &facts, memory_at(core, f, offset));
    p->offset = offset + (uint32_t)align_page(used);
}

static void close_page_filling(vespiary_core *core, file *f)
{
    filling_block *b = &f->page->filling;
    if (!b->is_open)
        return;
    b->is_open = false;
    close_page_block(core, f, b->offset, b->used, b->records, 0);
}

/* Have memory for the slab at an offset, if that leaves so many to others. */
static int page_slab(vespiary_core *core, file *f, uint32_t offset, uint32_t left)
{
    slab *s = &f->slabs[offset >> core->slab_shift];
    if (s->memory)
        return 0;
    int bad = slabs_obtainable(core, 1 + left) ? slab_take(core, &s->memory) : -ENOSPC;
    if (!bad)
        s->state = SLAB_FILLING;
    return bad;
}

/* Where a block with room for so much would begin. */
static uint32_t block_target(const vespiary_core *core, const struct page *p, uint64_t padded)
{
    uint32_t at = next_offset(p), room = room_at(core, at);
    return align_page(BLOCK_HEADER + padded) <= room ? at : at + room;
}

static int open_page_block(vespiary_core *core, file *f, uint32_t padded)
{
    struct page *p = f->page;
    uint32_t at = next_offset(p), target = block_target(core, p, padded);
    int bad = page_slab(core, f, target, (slabs_left(core) + 1) / 2);
    if (bad)
        return bad;
    close_page_filling(core, f);
    if (target != at) { /* the rest of a slab is a block that holds nothing */
        memset(memory_at(core, f, at), 0, target - at);
        close_page_block(core, f, at, target - at, 0, 0);
    }
    uint32_t most = BLOCK_HEADER + padded > core->block_bytes ? BLOCK_HEADER + padded : core->block_bytes;
    uint32_t room = room_at(core, target);
    p->filling = (filling_block){
        .is_open = true, .offset = target, .used = BLOCK_HEADER, .end = most < room ? most : room};
    return 0;
}

static uint64_t footer_bytes(uint64_t queues, uint64_t places, uint64_t records)
{
    return align_page(queues * INDEX_QUEUE + places * INDEX_PLACE + records * INDEX_RECORD + TRAILER);
}

static bool fits_block(const struct page *p, uint32_t padded)
{
    return p->filling.is_open && p->filling.used + padded <= p->filling.end;
}

/* Whether a record does not fit any more; the first one always does. */
static bool is_full(const copying *c, uint32_t length)
{
    const struct page *p = c->to->page;
    uint32_t padded = (uint32_t)align8(length), queues = 0;
    if (!p->records_count)
        return false;
    uint64_t end = fits_block(p, padded)
                       ? p->filling.offset + align_page(p->filling.used + padded)
                       : block_target(c->core, p, padded) + align_page(BLOCK_HEADER + (uint64_t)padded);
    for (uint32_t i = 0; i < p->queues_count; i++)
        queues += p->queues[i].count > 0;
    for (uint32_t i = 0; i < c->count; i++)
        queues += !p->queues[c->places[i].of].count;
    return end + PAGE + footer_bytes(queues, p->places_count + c->count, p->records_count + 1U) > p->limit;
}

/* --- copying -------------------------------------------------------------------------------------------------- */
static int tables_reserve(struct page *p, uint32_t places)
{
    int bad = 0;
    while (!bad && p->places_count + places > p->places_capacity)
        bad = grow_array((void **)&p->places, &p->places_capacity, p->places_capacity, sizeof(page_place));
    if (!bad)
        bad = grow_array((void **)&p->records, &p->records_capacity, p->records_count, INDEX_RECORD);
    return bad;
}

static void note_places(copying *c)
{
    struct page *p = c->to->page;
    for (uint32_t i = 0; i < c->count; i++) {
        const chosen *one = &c->places[i];
        page_queue *of = &p->queues[one->of];
        if (!of->count++)
            of->first = of->last = one->sequence;
        of->first = one->sequence < of->first ? one->sequence : of->first;
        of->last = one->sequence > of->last ? one->sequence : of->last;
        p->places[p->places_count++] = (page_place){one->sequence, one->of, p->records_count};
        record_mark(c->core, one->item);
    }
    p->record_bytes = c->bytes;
}

static void write_copy(const copying *c, uint8_t *at, uint32_t length, uint32_t content)
{
    uint32_t places = get16(c->record + 22), member = c->record[5] & FLAG_TRANSACTIONAL ? 8 : 0;
    bool is_volatile = c->core->slots[c->places[0].item->slot]->is_volatile;
    memcpy(at, c->record, ADD_HEADER);
    put32(at, length);
    at[5] = (uint8_t)((c->record[5] & (FLAG_ESCAPED | FLAG_LARGE | FLAG_SPECIAL)) | FLAG_MOVED |
                      (is_volatile ? FLAG_VOLATILE : 0));
    put16(at + 22, (uint16_t)c->count);
    for (uint32_t i = 0; i < c->count; i++) {
        uint8_t *place = at + ADD_HEADER + (uint64_t)i * PLACE_BYTES;
        put32(place, c->places[i].q->id);
        put32(place + 4, 0);
        put64(place + 8, c->places[i].sequence);
    }
    memcpy(at + ADD_HEADER + c->count * PLACE_BYTES, c->record + ADD_HEADER + places * PLACE_BYTES + member, content);
}

/* Copy the chosen places' record. Its length, 0 if it does not fit any more, or -errno and nothing is changed. */
static int64_t append_copy(copying *c)
{
    struct page *p = c->to->page;
    uint32_t content = get32(c->record + 16) + get16(c->record + 20);
    uint32_t length = ADD_HEADER + c->count * PLACE_BYTES + content, padded = (uint32_t)align8(length);
    if (is_full(c, length))
        return 0;
    int bad = tables_reserve(p, c->count);
    if (!bad && !fits_block(p, padded))
        bad = open_page_block(c->core, c->to, padded);
    if (bad)
        return bad;
    uint32_t offset = p->filling.offset + p->filling.used;
    uint8_t *at = memory_at(c->core, c->to, offset);
    write_copy(c, at, length, content);
    memset(at + length, 0, padded - length);
    p->filling.used += padded;
    p->filling.records++;
    note_places(c);
    uint8_t *row = p->records + (uint64_t)p->records_count++ * INDEX_RECORD;
    put32(row, offset);
    put32(row + 4, get32(at + 16));
    put16(row + 8, get16(at + 20));
    put16(row + 10, (uint16_t)c->count);
    row[12] = at[5];
    row[13] = at[7];
    row[14] = at[6];
    row[15] = 0;
    return length;
}

/* Copy one message with all its places that may move. Its length, 0 if the page is full, or -errno. */
static int64_t copy_message(vespiary_core *core, file *to, const entry *driver, const uint8_t *record)
{
    uint32_t length = get32(record);
    copying c = {.core = core, .to = to};
    int64_t bad = scratch_room(core, 0, length);
    if (bad)
        return bad;
    memcpy(core->scratch, record, length);
    c.record = core->scratch;
    bad = choose(&c, driver);
    bool has_driver = false;
    for (uint32_t i = 0; i < c.count; i++)
        has_driver |= c.places[i].item == driver;
    int64_t copied = bad || !has_driver ? bad : append_copy(&c);
    free(c.places);
    return copied;
}

int vespiary_core_page_fill(vespiary_core *core, uint64_t page_id, uint32_t queue_id, uint64_t sequence,
                            uint64_t up_to, uint64_t max_bytes, uint64_t max_places, vespiary_page_fill *out)
{
    file *f = page_find(core, page_id);
    queue *q = queue_find(core, queue_id);
    const page_queue *of = f ? page_queue_of(f->page, queue_id) : NULL;
    *out = (vespiary_page_fill){0};
    if (!of || of->is_dropped || !q || f->page->state != PAGE_FILLING)
        return -EINVAL;
    uint64_t at = sequence > q->next ? sequence : q->next;
    uint64_t end = up_to < q->available ? up_to : q->available;
    end = end > at && end - at > max_places ? at + max_places : end;
    int64_t copied = 0;
    while (at < end && out->copied_bytes < max_bytes) {
        const entry *any = queue_entry(q, at);
        if (!any) {
            uint64_t skipped = queue_next_segment(q, at);
            at = skipped < end ? skipped : end;
            continue;
        }
        const entry *item = movable(core, q, at);
        if (!item) {
            at++;
            continue;
        }
        const uint8_t *record = record_memory(core, item);
        if (!record) {
            out->absent_file = core->slots[item->slot]->file_id;
            out->absent_slab = item->offset >> core->slab_shift;
            break;
        }
        copied = copy_message(core, f, item, record);
        if (copied <= 0)
            break;
        out->copied_bytes += (uint64_t)copied;
        out->copied_records++;
        at++;
    }
    out->is_full = at < end && !out->absent_file && copied == 0 && out->copied_bytes < max_bytes;
    out->next_sequence = at > sequence ? at : sequence;
    return copied < 0 && !(copied == -ENOSPC && out->copied_records) ? (int)copied : 0;
}

/* --- closing --------------------------------------------------------------------------------------------------- */
static int compare_places(const void *left, const void *right)
{
    const page_place *a = left, *b = right;
    if (a->queue != b->queue)
        return a->queue < b->queue ? -1 : 1;
    return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

/* Order places by queue and sequence. They came message by message, so each queue's are mostly in order: they are dealt
 * out to their queues, and only those that are not are sorted. */
static void sort_places(struct page *p)
{
    uint32_t ordered = 1;
    while (ordered < p->places_count && compare_places(&p->places[ordered - 1], &p->places[ordered]) < 0)
        ordered++;
    if (ordered >= p->places_count)
        return;
    page_place *sorted = malloc((uint64_t)p->places_capacity * sizeof *sorted);
    uint32_t *next = malloc((uint64_t)p->queues_count * sizeof *next);
    if (!sorted || !next) {
        qsort(p->places, p->places_count, sizeof *p->places, compare_places);
        free(sorted);
        free(next);
        return;
    }
    for (uint32_t i = 0, at = 0; i < p->queues_count; i++) {
        next[i] = at;
        at += p->queues[i].count;
    }
    for (uint32_t i = 0; i < p->places_count; i++)
        sorted[next[p->places[i].queue]++] = p->places[i];
    for (uint32_t i = 0, from = 0; i < p->queues_count; from = next[i++])
        for (uint32_t k = from + 1; k < next[i]; k++)
            if (sorted[k - 1].sequence > sorted[k].sequence) {
                qsort(sorted + from, next[i] - from, sizeof *sorted, compare_places);
                break;
            }
    free(p->places);
    free(next);
    p->places = sorted;
}

static uint32_t seeded(const file *f, uint64_t offset, const uint8_t *data, uint64_t length)
{
    uint64_t seed[2] = {f->salt, offset};
    return vespiary_crc32c(vespiary_crc32c(0, seed, sizeof seed), data, length);
}

/* The three tables; the places are sorted by queue and sequence. Returns the number of queues. */
static uint32_t write_tables(const struct page *p, uint8_t *at)
{
    uint32_t queues = 0, index = 0;
    for (uint32_t i = 0; i < p->queues_count; i++) {
        const page_queue *of = &p->queues[i];
        if (!of->count)
            continue;
        uint8_t *row = at + (uint64_t)queues++ * INDEX_QUEUE;
        put32(row, of->id);
        put32(row + 4, of->count);
        put64(row + 8, of->first);
        put64(row + 16, of->last);
        put32(row + 24, index);
        put32(row + 28, 0);
        index += of->count;
    }
    at += (uint64_t)queues * INDEX_QUEUE;
    for (uint32_t i = 0; i < p->places_count; i++, at += INDEX_PLACE) {
        put32(at, (uint32_t)(p->places[i].sequence - p->queues[p->places[i].queue].first));
        put32(at + 4, p->places[i].record);
    }
    memcpy(at, p->records, (uint64_t)p->records_count * INDEX_RECORD);
    return queues;
}

static void write_footer(file *f)
{
    struct page *p = f->page;
    uint32_t queues = write_tables(p, p->footer);
    uint8_t *at = p->footer + p->footer_length - TRAILER;
    uint64_t size = p->offset + (uint64_t)p->footer_length;
    put32(at, 0x54475056); /* "VPGT" */
    put16(at + 4, 1);
    put16(at + 6, 0);
    put64(at + 8, p->page_id);
    put64(at + 16, p->offset);
    put64(at + 24, size);
    put32(at + 32, queues);
    put32(at + 36, p->places_count);
    put32(at + 40, p->records_count);
    put32(at + 44, 0);
    put32(at + 48, (uint32_t)(p->sequence - 1));
    put32(at + 52, p->previous_crc);
    put32(at + 56, seeded(f, p->offset, p->footer, p->footer_length - TRAILER));
    put32(at + 60, seeded(f, size - TRAILER, at, TRAILER - 4));
    f->size = size;
}

static uint32_t write_pieces(const vespiary_core *core, const file *f, vespiary_write *out, uint32_t room)
{
    uint32_t count = 0, end = f->page->offset;
    for (uint32_t at = FILE_HEADER; at < end;) {
        uint32_t length = room_at(core, at) < end - at ? room_at(core, at) : end - at;
        if (count < room)
            out[count] = (vespiary_write){f->file_id, at, (uint64_t)(uintptr_t)memory_at(core, f, at), length, 0};
        count++;
        at += length;
    }
    if (count < room)
        out[count] =
            (vespiary_write){f->file_id, end, (uint64_t)(uintptr_t)f->page->footer, f->page->footer_length, 0};
    return count + 1;
}

int vespiary_core_page_close(vespiary_core *core, uint64_t page_id, vespiary_write *out, uint32_t room)
{
    file *f = page_find(core, page_id);
    if (!f || f->page->state != PAGE_FILLING)
        return -EINVAL;
    struct page *p = f->page;
    uint32_t at = next_offset(p), queues = 0;
    if (!p->records_count)
        return 0;
    if (room < f->slab_count + 1)
        return -EINVAL;
    for (uint32_t i = 0; i < p->queues_count; i++)
        queues += p->queues[i].count > 0;
    uint64_t length = footer_bytes(queues, p->places_count, p->records_count);
    uint8_t *footer = aligned_alloc(PAGE, length);
    int bad = footer ? page_slab(core, f, at, slabs_left(core) / 4) : -ENOMEM;
    if (bad) {
        free(footer);
        return bad;
    }
    close_page_filling(core, f);
    uint8_t *seal = memory_at(core, f, at) + BLOCK_HEADER;
    memset(seal, 0, 16);
    put32(seal, 16);
    seal[4] = RECORD_SEAL;
    close_page_block(core, f, at, BLOCK_HEADER + 16, 1, BLOCK_IS_SEAL);
    sort_places(p);
    memset(footer, 0, length);
    p->footer = footer;
    p->footer_length = (uint32_t)length;
    write_footer(f);
    p->state = PAGE_CLOSED;
    return (int)write_pieces(core, f, out, room);
}
