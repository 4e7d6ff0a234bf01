/* What Python sees of queues whose order or fate it decides, and what it does to single messages
 * (vespiary_native/abc_inspection.py). Giving them is in delivery.c.
 *
 * Each call costs what it touches; nothing here is on the plain path. */
#include <errno.h>
#include <string.h>

#include "state.h"

enum { LOOK_LIVE_MAX = 16384, LOOK_BYTES_MAX = 1024 * 1024 }; /* values_inspection.py has both */

_Static_assert(sizeof(vespiary_view) == 40, "Python unpacks views without padding");

/* A message that Python may know of: live, available, and not held by a branch. */
static entry *known_entry(const queue *q, uint64_t sequence)
{
    entry *item = sequence < q->available ? queue_entry(q, sequence) : NULL;
    bool is_known = is_free(item) || (item && (item->state == ENTRY_DELIVERED || item->state == ENTRY_ASIDE));
    return is_known ? item : NULL;
}

/* --- looking -------------------------------------------------------------------------------------------------- */
typedef struct {
    vespiary_core *core;
    queue *q;
    uint32_t max_messages, looked, min_priority;
    bool is_everything, is_returned_only, is_special_only;
    uint64_t properties_bytes;
} search;

/* The first live message from `at` on that may be wanted, or `available`. */
static uint64_t next_live(const search *s, uint64_t at)
{
    const queue *q = s->q;
    if (s->is_returned_only)
        return queue_next_returned(q, at);
    while (at < q->available) {
        const entry *item = queue_entry(q, at);
        if (item && item->state != ENTRY_NONE && item->state != ENTRY_DONE)
            return at;
        at = item ? at + 1 : queue_next_segment(q, at);
    }
    return q->available;
}

/* Where messages that are wanted begin at the earliest. */
static uint64_t begin_of(const search *s, uint64_t sequence)
{
    queue *q = s->q;
    uint64_t from = q->next;
    if (s->is_everything) {
        queue_advance_head(q);
        from = q->head;
    }
    if (q->returned) {
        q->returned_from = queue_next_returned(q, q->returned_from);
        from = q->returned_from < from ? q->returned_from : from;
    }
    return sequence > from ? sequence : from;
}

static void fill_view(const search *s, vespiary_view *out, uint64_t sequence, const entry *item, const uint8_t *record)
{
    *out = (vespiary_view){
        .sequence = sequence,
        .is_returned = item->state == ENTRY_RETURNED,
        .is_held = item->state == ENTRY_DELIVERED,
        .is_aside = item->state == ENTRY_ASIDE,
        .deliveries = item->deliveries,
        .priority = record[7],
        .protocol = record[6],
        .is_journalled = !s->core->slots[item->slot]->is_volatile,
        .is_special = (item->flags & FLAG_SPECIAL) != 0,
        .is_large = (item->flags & FLAG_LARGE) != 0,
        .is_escaped = (item->flags & FLAG_ESCAPED) != 0,
        .body_length = item->body_length,
    };
    memcpy(&out->time_ms, record + 8, 8);
}

/* Put views at the start of `scratch`, and the properties behind the room for all of them; returns how many, or -errno. */
static int64_t gather(search *s, uint64_t *at, vespiary_look *out)
{
    vespiary_core *core = s->core;
    uint64_t base = (uint64_t)s->max_messages * sizeof(vespiary_view), used = base;
    uint32_t count = 0;
    while (count < s->max_messages && s->looked < LOOK_LIVE_MAX && (*at = next_live(s, *at)) < s->q->available) {
        const entry *item = queue_entry(s->q, *at);
        s->looked++;
        bool is_wanted = is_free(item) || (s->is_everything && known_entry(s->q, *at));
        if (!is_wanted || (s->is_special_only && !(item->flags & FLAG_SPECIAL))) {
            ++*at;
            continue;
        }
        const uint8_t *record = record_memory(core, item);
        if (!record) {
            s->q->waits_for_slab = true;
            out->absent_file = core->slots[item->slot]->file_id;
            out->absent_slab = item->offset >> core->slab_shift;
            break;
        }
        if (record[7] < s->min_priority) {
            ++*at;
            continue;
        }
        if (count && used - base + item->properties_length > LOOK_BYTES_MAX)
            break;
        int bad = scratch_room(core, used, item->properties_length);
        if (bad)
            return bad;
        vespiary_view *view = (vespiary_view *)(void *)core->scratch + count++;
        fill_view(s, view, *at, item, record);
        view->properties_at = (uint32_t)(used - base);
        memcpy(core->scratch + used, properties_of(item, record), item->properties_length);
        used += item->properties_length;
        view->properties_end = (uint32_t)(used - base);
        ++*at;
    }
    out->length = used - base;
    return count;
}

int vespiary_core_look(vespiary_core *core, uint32_t queue_id, uint64_t sequence, uint32_t max_messages,
                       int everything, int returned_only, int special_only, uint32_t min_priority,
                       vespiary_look *out, const uint8_t **data)
{
    *out = (vespiary_look){0};
    search s = {.core = core,
                .q = queue_find(core, queue_id),
                .max_messages = max_messages < LOOK_LIVE_MAX ? max_messages : LOOK_LIVE_MAX,
                .min_priority = min_priority,
                .is_everything = everything && !returned_only,
                .is_returned_only = returned_only != 0,
                .is_special_only = special_only != 0};
    if (!s.q || !max_messages)
        return -EINVAL;
    uint64_t room = (uint64_t)s.max_messages * sizeof(vespiary_view);
    int bad = scratch_room(core, 0, room);
    if (bad)
        return bad;
    uint64_t at = begin_of(&s, sequence);
    int64_t count = gather(&s, &at, out);
    if (count < 0)
        return (int)count;
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
    out->next_sequence = at < s.q->available ? at : s.q->available;
    *data = core->scratch;
    return (int)count;
}

int64_t vespiary_core_body(vespiary_core *core, uint32_t queue_id, uint64_t sequence, const uint8_t **data)
{
    const queue *q = queue_find(core, queue_id);
    if (!q)
        return -EINVAL;
    const entry *item = known_entry(q, sequence);
    const uint8_t *record = item ? record_memory(core, item) : NULL;
    if (!record) {
        *data = NULL;
        return 0;
    }
    *data = properties_of(item, record) + item->properties_length;
    return item->body_length;
}

int vespiary_core_absent_for(vespiary_core *core, uint32_t queue_id, uint64_t sequence, uint64_t *file_id,
                             uint32_t *index)
{
    *file_id = 0;
    *index = 0;
    queue *q = queue_find(core, queue_id);
    if (!q)
        return -EINVAL;
    const entry *item = known_entry(q, sequence);
    if (!item || record_memory(core, item))
        return 0;
    q->waits_for_slab = true;
    *file_id = core->slots[item->slot]->file_id;
    *index = item->offset >> core->slab_shift;
    return 0;
}

/* How many messages a consumer holds. */
int64_t vespiary_core_held_count(const vespiary_core *core, uint32_t handle)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open)
        return -EINVAL;
    return (int64_t)core->consumers[handle].held;
}

/* Held messages that give_back (close_consumer for sequence 0) would return, in any order. */
int64_t vespiary_core_held(const vespiary_core *core, uint32_t handle, uint64_t sequence, uint32_t deliveries,
                           uint64_t *out, uint64_t room)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open)
        return -EINVAL;
    const consumer *by = &core->consumers[handle];
    const queue *q = by->queue;
    if (!by->held || (sequence && !is_held(queue_entry(q, sequence), handle)))
        return 0;
    uint64_t at = by->held_from, to = sequence ? sequence : q->tail;
    if (sequence && by->mode != 1)
        at = sequence;
    bool is_listed = sequence && by->is_listed;
    uint64_t count = 0;
    for (uint32_t i = by->order_first; is_listed ? i < by->order_end : at <= to; i++) {
        uint64_t one = is_listed ? by->order[i] : at;
        const entry *item = queue_entry(q, one);
        if (is_held(item, handle) && item->deliveries >= deliveries) {
            if (count < room) {
                out[2 * count] = one;
                out[2 * count + 1] = item->deliveries;
            }
            count++;
        }
        if (is_listed && one == sequence)
            break;
        at = item ? at + 1 : queue_next_segment(q, at);
    }
    return (int64_t)count;
}

/* --- ending, setting aside -------------------------------------------------------------------------------------- */
int vespiary_core_finish(vespiary_core *core, uint32_t queue_id, const uint64_t *sequences, uint32_t count,
                         uint64_t transaction)
{
    queue *q = queue_find(core, queue_id);
    if (!q || transaction != core->transaction || count > INT32_MAX)
        return -EINVAL;
    int done = 0, bad = 0;
    uint64_t block;
    for (uint32_t i = 0; i < count && !bad; i++) {
        entry *item = known_entry(q, sequences[i]);
        if (!item || item->state == ENTRY_DELIVERED)
            continue;
        bad = message_finish(core, q, sequences[i], item, &block);
        done += !bad;
    }
    queue_skip(q);
    return bad ? bad : done;
}

int vespiary_core_finish_held(vespiary_core *core, uint32_t handle, uint64_t sequence, uint64_t transaction)
{
    bool is_open = handle < core->consumers_count && core->consumers[handle].is_open;
    if (!is_open || transaction != core->transaction)
        return -EINVAL;
    consumer *by = &core->consumers[handle];
    entry *item = queue_entry(by->queue, sequence);
    if (!is_held(item, handle))
        return 0;
    uint64_t block;
    int bad = message_finish(core, by->queue, sequence, item, &block);
    if (bad)
        return bad;
    order_forget(by, sequence);
    by->held--;
    queue_ready(core, by->queue);
    return 1;
}

int vespiary_core_specials_seen(vespiary_core *core, uint32_t queue_id)
{
    queue *q = queue_find(core, queue_id);
    if (!q)
        return -EINVAL;
    q->has_special = false;
    return 0;
}

int vespiary_core_set_aside(vespiary_core *core, uint32_t queue_id, uint64_t sequence)
{
    queue *q = queue_find(core, queue_id);
    if (!q)
        return -EINVAL;
    entry *item = sequence < q->available ? queue_entry(q, sequence) : NULL;
    if (!is_free(item))
        return 0;
    entry_leave(q, sequence, item);
    item->state = ENTRY_ASIDE;
    q->aside++;
    queue_skip(q);
    return 1;
}

int vespiary_core_put_back(vespiary_core *core, uint32_t queue_id, uint64_t sequence)
{
    queue *q = queue_find(core, queue_id);
    if (!q)
        return -EINVAL;
    entry *item = queue_entry(q, sequence);
    if (!item || item->state != ENTRY_ASIDE)
        return 0;
    entry_leave(q, sequence, item);
    entry_put_first(q, sequence, item);
    q->put_back++;
    queue_ready(core, q);
    return 1;
}
