/* Consumers: opening, credit, who holds what. Delivery is in delivery.c, acknowledgement in publish.c. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

/* "MESSAGE\nsubscription:S\nmessage-id:Q-", cached: it stands before every message. */
static char *make_prefix(const uint8_t *subscription, uint32_t length, uint32_t queue_id, uint32_t *prefix_length)
{
    static const char start[] = "MESSAGE\nsubscription:";
    const size_t head = sizeof start - 1;
    char tail[32];
    int tail_length = snprintf(tail, sizeof tail, "\nmessage-id:%u-", queue_id);
    char *made = malloc(head + length + (size_t)tail_length);
    if (!made)
        return NULL;
    memcpy(made, start, head);
    memcpy(made + head, subscription, length);
    memcpy(made + head + length, tail, (size_t)tail_length);
    *prefix_length = (uint32_t)(head + length + (size_t)tail_length);
    return made;
}

int vespiary_core_open_consumer(vespiary_core *core, uint32_t connection_handle, uint32_t queue_id, uint32_t mode,
                                uint32_t credit, const uint8_t *subscription, uint32_t subscription_length,
                                uint32_t version)
{
    queue *q = queue_find(core, queue_id);
    if (!q || connection_handle >= core->connections_count || !core->connections[connection_handle].is_open ||
        mode > 2 || !credit || credit > INT32_MAX || subscription_length > UINT16_MAX)
        return -EINVAL;
    uint32_t handle = 0;
    while (handle < core->consumers_count && core->consumers[handle].is_open)
        handle++;
    int bad = grow_array((void **)&core->consumers, &core->consumers_capacity, handle, sizeof(consumer));
    if (bad)
        return bad;
    consumer made = {.is_open = true,
                     .mode = (uint8_t)mode,
                     .version = (uint8_t)version,
                     .connection = connection_handle,
                     .credit = credit,
                     .queue = q};
    made.prefix = make_prefix(subscription, subscription_length, queue_id, &made.prefix_length);
    if (!made.prefix)
        return -ENOMEM;
    core->consumers[handle] = made;
    if (handle == core->consumers_count)
        core->consumers_count++;
    q->consumers++;
    queue_ready(core, q);
    return (int)handle;
}

int vespiary_core_set_credit(vespiary_core *core, uint32_t handle, uint32_t credit)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open || !credit || credit > INT32_MAX)
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
