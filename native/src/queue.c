/* Queues: rings of entries in segments, under a sequence of their own. head <= next <= available <= tail.
 *
 * A segment goes when everything in it is done, so one old message that nobody acknowledges holds one segment, however many
 * messages came after it. Segments are small, so that ten thousand queues with a few messages each cost little. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

queue *queue_find(const vespiary_core *core, uint32_t id) { return map_get(&core->queues, id); }

static segment *segment_at(const queue *q, uint64_t sequence)
{
    return segments_find(&q->segments, sequence / SEGMENT_ENTRIES);
}

uint64_t queue_next_segment(const queue *q, uint64_t sequence)
{
    const segment *next = segments_from(&q->segments, sequence / SEGMENT_ENTRIES + 1);
    return next ? next->number * SEGMENT_ENTRIES : UINT64_MAX;
}

entry *queue_entry(const queue *q, uint64_t sequence)
{
    if (sequence >= q->tail)
        return NULL;
    segment *s = segment_at(q, sequence);
    return s ? &s->entries[sequence % SEGMENT_ENTRIES] : NULL;
}

static segment *segment_new(vespiary_core *core)
{
    segment *made = core->spare_segment;
    core->spare_segment = NULL;
    if (made)
        memset(made, 0, sizeof *made);
    return made ? made : calloc(1, sizeof *made);
}

static void segment_free(vespiary_core *core, segment *s)
{
    if (core->spare_segment)
        free(s);
    else
        core->spare_segment = s;
}

entry *queue_place(vespiary_core *core, queue *q, uint64_t sequence)
{
    segment *s = segment_at(q, sequence);
    if (!s) {
        s = segment_new(core);
        if (!s)
            return NULL;
        s->number = sequence / SEGMENT_ENTRIES;
        if (segments_put(&q->segments, s)) {
            segment_free(core, s);
            return NULL;
        }
    }
    s->live++;
    q->live++;
    return &s->entries[sequence % SEGMENT_ENTRIES];
}

entry *queue_append(vespiary_core *core, queue *q)
{
    entry *made = queue_place(core, q, q->tail);
    if (made) {
        q->tail++;
        q->added++;
    }
    return made;
}

/* *before: the slot of the file with the record that counted until now, UINT32_MAX if there is none. */
entry *queue_restore(vespiary_core *core, queue *q, uint64_t sequence, uint32_t *before)
{
    *before = UINT32_MAX;
    if (sequence >= q->tail)
        q->tail = sequence + 1;
    entry *old = queue_entry(q, sequence);
    if (old && old->state == ENTRY_READY) { /* moved to a newer file: the later record counts */
        *before = old->slot;
        q->live_bytes -= (uint64_t)old->body_length + old->properties_length;
        record_unpin(core, q, old);
        return old;
    }
    return queue_place(core, q, sequence);
}

void queue_advance_head(queue *q)
{
    while (q->head < q->next) {
        const segment *s = segment_at(q, q->head);
        if (!s) { /* all done: jump to the next segment */
            uint64_t start = queue_next_segment(q, q->head);
            q->head = start < q->next ? start : q->next;
            continue;
        }
        uint8_t state = s->entries[q->head % SEGMENT_ENTRIES].state;
        if (state != ENTRY_DONE && state != ENTRY_NONE)
            return;
        q->head++;
    }
}

void entry_leave(queue *q, uint64_t sequence, const entry *item)
{
    if (item->state == ENTRY_DELIVERED) {
        q->delivering--;
    } else if (item->state == ENTRY_RETURNED) {
        q->returned--;
        segment_at(q, sequence)->returned--;
        if (sequence == q->returned_from)
            q->returned_from++;
    } else if (item->state == ENTRY_RESERVED) {
        q->reserved--;
    } else if (item->state == ENTRY_LOCKED) {
        q->locked--;
    } else if (item->state == ENTRY_ASIDE) {
        q->aside--;
    }
}

void entry_done(vespiary_core *core, queue *q, uint64_t sequence, entry *item)
{
    if (item->flags & FLAG_LARGE)
        large_done(core, q, sequence);
    q->acknowledged++;
    entry_forget(core, q, sequence, item);
}

void entry_forget(vespiary_core *core, queue *q, uint64_t sequence, entry *item)
{
    entry_leave(q, sequence, item);
    item->state = ENTRY_DONE;
    q->live--;
    q->live_bytes -= (uint64_t)item->body_length + item->properties_length;
    record_unpin(core, q, item);
    segment *s = segment_at(q, sequence);
    if (!--s->live && (s->number + 1) * SEGMENT_ENTRIES <= q->tail) {
        segments_remove(&q->segments, s->number);
        segment_free(core, s);
    }
    if (sequence == q->head)
        queue_advance_head(q);
}

/* Make a message deliverable that was passed by, or stands where `next` would not look. */
void entry_put_first(queue *q, uint64_t sequence, entry *item)
{
    item->state = ENTRY_RETURNED;
    q->has_special |= (item->flags & FLAG_SPECIAL) != 0;
    if (!q->returned || sequence < q->returned_from)
        q->returned_from = sequence;
    q->returned++;
    segment_at(q, sequence)->returned++;
}

uint64_t queue_next_returned(const queue *q, uint64_t from)
{
    uint64_t at = from > q->returned_from ? from : q->returned_from;
    while (q->returned && at < q->available) {
        const segment *s = segment_at(q, at);
        if (!s || !s->returned)
            at = queue_next_segment(q, at);
        else if (s->entries[at % SEGMENT_ENTRIES].state == ENTRY_RETURNED)
            return at;
        else
            at++;
    }
    return q->available;
}

void queue_skip(queue *q)
{
    uint64_t at = q->next;
    uint64_t end = q->available < q->paged_next ? q->available : q->paged_next;
    while (at < end) {
        const entry *item = queue_entry(q, at);
        if (item && item->state == ENTRY_READY)
            break;
        at = item ? at + 1 : queue_next_segment(q, at);
    }
    at = at < end ? at : end;
    if (at <= q->next)
        return;
    q->next = at;
    queue_advance_head(q); /* what was skipped is done: it may have been all that held the head */
}

void entry_returned(queue *q, uint64_t sequence, entry *item)
{
    entry_put_first(q, sequence, item);
    q->delivering--;
    q->redelivered++;
}

static bool is_deliverable(const queue *q)
{
    return q->returned || q->next < q->available || q->paged_next != UINT64_MAX;
}

void queue_ready(vespiary_core *core, queue *q)
{
    if (q->is_listed || !is_deliverable(q))
        return;
    /* The list has room for every queue: vespiary_core_open_queue grows it. */
    core->ready[core->ready_count++] = q->id;
    q->is_listed = true;
}

int vespiary_core_take_ready_queues(vespiary_core *core, uint32_t *out, uint32_t room)
{
    uint32_t given = 0;
    while (core->ready_count && given < room) {
        uint32_t id = core->ready[--core->ready_count];
        queue *q = queue_find(core, id);
        if (!q)
            continue;
        q->is_listed = false;
        if (is_deliverable(q))
            out[given++] = id;
    }
    return (int)given;
}

/* --- opening and closing ------------------------------------------------------------------------------------ */
int vespiary_core_open_queue(vespiary_core *core, uint32_t id, uint64_t tail, int durable)
{
    if (id > INT32_MAX || !tail || tail > SEQUENCE_MAX + 1 || queue_find(core, id))
        return -EINVAL;
    while (core->ready_capacity <= core->queues.count) {
        int bad = grow_array((void **)&core->ready, &core->ready_capacity, core->ready_capacity, sizeof(uint32_t));
        if (bad)
            return bad;
    }
    while (core->wanted_capacity <= core->queues.count) {
        int bad = grow_array((void **)&core->wanted, &core->wanted_capacity, core->wanted_capacity, sizeof(uint32_t));
        if (bad)
            return bad;
    }
    queue *q = calloc(1, sizeof *q);
    if (!q || map_put(&core->queues, id, q)) {
        free(q);
        return -ENOMEM;
    }
    q->id = id;
    q->is_durable = durable != 0;
    core->accounts[0].queues++;
    q->head = q->next = q->available = q->tail = tail;
    q->paged_next = UINT64_MAX;
    return 0;
}

void queue_free(vespiary_core *core, queue *q)
{
    large_drop(core, q);
    extents_free(core, q);
    for (const segment *s = segments_from(&q->segments, 0); s; s = segments_from(&q->segments, s->number + 1))
        for (uint32_t k = 0; k < SEGMENT_ENTRIES; k++)
            if (s->entries[k].state != ENTRY_NONE && s->entries[k].state != ENTRY_DONE)
                record_unpin(core, q, &s->entries[k]);
    core->accounts[q->account].queues--;
    segments_free(&q->segments);
    free(q);
}

/* Have a route lead to a queue no more. */
static void route_forget(route *from, queue *q)
{
    uint32_t kept = 0;
    while (kept < from->count && from->queues[kept] != q)
        kept++;
    uint32_t after = kept;
    for (; after < from->count; after++)
        if (from->queues[after] != q)
            from->queues[kept++] = from->queues[after];
    uint32_t times = from->count - kept;
    q->routes -= times;
    from->durable -= q->is_durable ? times : 0;
    from->count = kept;
}

static void routes_forget(vespiary_core *core, queue *q)
{
    for (uint32_t i = 0; i < 2 && q->routes; i++)
        if (q->led_by[i] < core->routes_count)
            route_forget(&core->routes[q->led_by[i]], q);
    for (uint32_t r = 0; q->routes && r < core->routes_count; r++)
        route_forget(&core->routes[r], q);
}

int vespiary_core_drop_queue(vespiary_core *core, uint32_t id)
{
    queue *q = queue_find(core, id);
    if (!q || q->consumers || core->transaction || (q->is_durable && (q->reserved || q->locked || q->paged_locked)))
        return -EINVAL;
    for (uint64_t i = core->notes.first; i < core->notes.end; i++) {
        note *n = &core->notes.items[i & (core->notes.capacity - 1)];
        if (n->queue == q)
            *n = (note){.block = n->block, .connection = UINT32_MAX};
    }
    routes_forget(core, q);
    for (uint32_t i = 0; i < core->ready_count; i++)
        if (core->ready[i] == id) {
            core->ready[i] = core->ready[--core->ready_count];
            break;
        }
    for (uint32_t i = 0; i < core->wanted_count; i++)
        if (core->wanted[i] == id) {
            core->wanted[i] = core->wanted[--core->wanted_count];
            break;
        }
    map_remove(&core->queues, id);
    queue_free(core, q);
    return 0;
}

/* The oldest unacknowledged below `next`, else `next`; queue_advance_head was called. */
static uint64_t queue_head(const queue *q) { return q->head < q->paged_next ? q->head : q->paged_next; }

/* Places of branches below `available`; those behind it wait for their flush like all others there. */
static uint64_t prepared_places(const queue *q)
{
    uint64_t count = q->locked + q->reserved;
    for (uint64_t at = q->available; q->reserved && at < q->tail; at++) {
        const entry *item = queue_entry(q, at);
        count -= item && item->state == ENTRY_RESERVED;
    }
    return count;
}

int vespiary_core_queue_statistics(const vespiary_core *core, uint32_t id, vespiary_queue_statistics *out)
{
    queue *q = queue_find(core, id);
    if (!q)
        return -EINVAL;
    queue_advance_head(q);
    uint64_t prepared = prepared_places(q);
    *out = (vespiary_queue_statistics){
        .head = queue_head(q),
        .next = q->next,
        .available = q->available,
        .tail = q->tail,
        .ready = q->live - q->delivering - prepared - q->aside - (q->tail - q->available),
        .delivering = q->delivering,
        .prepared = prepared,
        .aside = q->aside,
        .added = q->added,
        .acknowledged = q->acknowledged,
        .redelivered = q->redelivered,
        .put_back = q->put_back,
        .resolved = q->resolved,
        .live_bytes = q->live_bytes,
        .paged = q->paged,
        .paged_prepared = q->paged_locked,
    };
    return 0;
}

void vespiary_core_queue_totals(const vespiary_core *core, uint64_t *added, uint64_t *acknowledged)
{
    *added = *acknowledged = 0;
    for (uint32_t i = 0; i < core->queues.capacity; i++) {
        const queue *q = core->queues.values[i];
        *added += q ? q->added : 0;
        *acknowledged += q ? q->acknowledged : 0;
    }
}

static int compare_ids(const void *left, const void *right)
{
    const queue *a = *(queue *const *)left, *b = *(queue *const *)right;
    return a->id < b->id ? -1 : a->id > b->id;
}

int64_t vespiary_core_queue_states(const vespiary_core *core, uint8_t *out, uint64_t room)
{
    uint64_t needed = 0;
    for (uint32_t i = 0; i < core->queues.capacity; i++) {
        const queue *q = core->queues.values[i];
        needed += q && q->is_durable ? 24 : 0;
    }
    if (needed > room || !needed)
        return (int64_t)needed;
    queue **sorted = malloc(needed / 24 * sizeof *sorted);
    if (!sorted)
        return -ENOMEM;
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->queues.capacity; i++) {
        queue *q = core->queues.values[i];
        if (q && q->is_durable) {
            queue_advance_head(q);
            sorted[count++] = q;
        }
    }
    qsort(sorted, count, sizeof *sorted, compare_ids);
    for (uint32_t i = 0; i < count; i++, out += 24) {
        memset(out, 0, 8);
        memcpy(out, &sorted[i]->id, 4);
        uint64_t head = queue_head(sorted[i]);
        memcpy(out + 8, &head, 8);
        memcpy(out + 16, &sorted[i]->tail, 8);
    }
    free(sorted);
    return (int64_t)needed;
}
