/* Consumers: opening, credit, who holds what and in which order it came. Delivery is in delivery.c, acknowledgement in publish.c. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

/* "MESSAGE\nsubscription:S\nmessage-id:Q-", cached: it stands before every message. */
static bool make_prefix(consumer *of, const uint8_t *subscription, uint32_t length, uint32_t queue_id)
{
    static const char start[] = "MESSAGE\nsubscription:";
    const size_t head = sizeof start - 1;
    char tail[32];
    int tail_length = snprintf(tail, sizeof tail, "\nmessage-id:%u-", queue_id);
    char *made = malloc(head + length + (size_t)tail_length);
    if (!made)
        return false;
    memcpy(made, start, head);
    memcpy(made + head, subscription, length);
    memcpy(made + head + length, tail, (size_t)tail_length);
    of->prefix = made;
    of->prefix_length = (uint32_t)(head + length + (size_t)tail_length);
    of->subscription_at = (uint32_t)head;
    of->subscription_length = length;
    return true;
}

int vespiary_core_open_consumer(vespiary_core *core, uint32_t connection_handle, uint32_t queue_id, uint32_t mode,
                                uint32_t credit, const uint8_t *subscription, uint32_t subscription_length,
                                uint32_t version)
{
    queue *q = queue_find(core, queue_id);
    if (!q || connection_handle >= core->connections_count || !core->connections[connection_handle].is_open ||
        mode > 2 || !credit || credit > INT32_MAX || subscription_length > UINT16_MAX)
        return -EINVAL;
    uint32_t handle = handle_next(&core->consumers_free, core->consumers_count);
    int bad = grow_array((void **)&core->consumers, &core->consumers_capacity, handle, sizeof(consumer));
    if (!bad)
        bad = handles_reserve(&core->consumers_free, core->consumers_capacity);
    if (bad)
        return bad;
    consumer made = {.is_open = true,
                     .mode = (uint8_t)mode,
                     .version = (uint8_t)version,
                     .connection = connection_handle,
                     .credit = credit,
                     .queue = q};
    if (!make_prefix(&made, subscription, subscription_length, queue_id))
        return -ENOMEM;
    core->consumers[handle] = made;
    if (handle == core->consumers_count)
        core->consumers_count++;
    else
        handle_taken(&core->consumers_free);
    q->consumers++;
    queue_ready(core, q);
    return (int)handle;
}

int vespiary_core_set_credit(vespiary_core *core, uint32_t handle, uint32_t credit)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open || credit > INT32_MAX)
        return -EINVAL;
    core->consumers[handle].credit = credit;
    queue_ready(core, core->consumers[handle].queue);
    return 0;
}

int vespiary_core_holder(const vespiary_core *core, uint32_t connection_handle, uint32_t queue_id, uint64_t sequence)
{
    const queue *q = queue_find(core, queue_id);
    const entry *item = q ? queue_entry(q, sequence) : NULL;
    if (!item || item->state != ENTRY_DELIVERED || item->owner >= core->consumers_count)
        return -1;
    const consumer *by = &core->consumers[item->owner];
    return by->is_open && by->connection == connection_handle ? (int)item->owner : -1;
}

/* --- the order of giving --------------------------------------------------------------------------------------------
 * A cumulative ACK means everything that was given to the subscription before that message. Mostly that is everything
 * with a lower sequence. Once a message is given behind a higher one that is still held (it came back, from this or
 * from another consumer), what is held stands in a list, until nothing is held. */
static int order_reserve(consumer *by)
{
    if (by->order_end < by->order_capacity)
        return 0;
    if (by->order_first > by->order_capacity / 2) {
        by->order_end -= by->order_first;
        memmove(by->order, by->order + by->order_first, by->order_end * sizeof *by->order);
        by->order_first = 0;
        return 0;
    }
    return grow_array((void **)&by->order, &by->order_capacity, by->order_end, sizeof *by->order);
}

static int order_begin(consumer *by, uint32_t handle)
{
    by->order_first = by->order_end = 0;
    for (uint64_t at = by->held_from; at <= by->given_last;) {
        const entry *item = queue_entry(by->queue, at);
        if (is_held(item, handle)) {
            int bad = order_reserve(by);
            if (bad)
                return bad;
            by->order[by->order_end++] = at;
        }
        at = item ? at + 1 : queue_next_segment(by->queue, at);
    }
    by->is_listed = true;
    return 0;
}

/* Make sure that order_given can note this message. 0 or -ENOMEM. */
int order_prepare(consumer *by, uint32_t handle, uint64_t sequence)
{
    if (!by->held)
        by->is_listed = false;
    if (!by->is_listed) {
        if (!by->held || sequence > by->given_last)
            return 0;
        int bad = order_begin(by, handle);
        if (bad)
            return bad;
    }
    return order_reserve(by);
}

void order_forget(consumer *by, uint64_t sequence)
{
    if (!by->is_listed)
        return;
    for (uint32_t i = by->order_first; i < by->order_end; i++)
        if (by->order[i] == sequence) {
            by->order_end--;
            memmove(by->order + i, by->order + i + 1, (by->order_end - i) * sizeof *by->order);
            return;
        }
}

uint32_t order_find(const consumer *by, uint64_t sequence)
{
    for (uint32_t i = by->order_first; by->is_listed && i < by->order_end; i++)
        if (by->order[i] == sequence)
            return i;
    return UINT32_MAX;
}

void order_restore(consumer *by, uint64_t sequence, uint32_t at)
{
    by->held++;
    if (sequence < by->held_from)
        by->held_from = sequence;
    if (at == UINT32_MAX)
        return;
    if (at < by->order_first) { /* the first one was taken off */
        by->order_first = at;
    } else { /* one between others was: the room that it had is there */
        memmove(by->order + at + 1, by->order + at, (by->order_end - at) * sizeof *by->order);
        by->order_end++;
    }
    by->order[at] = sequence;
}

void order_given(consumer *by, uint64_t sequence)
{
    by->given_last = sequence;
    if (by->is_listed)
        by->order[by->order_end++] = sequence;
}
