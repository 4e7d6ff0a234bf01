/* How often messages were given out: what of it stands in the journal, and when (contract: vespiary_native/abc_counts.py). */
#include <errno.h>
#include <string.h>

#include "counts.h"
#include "state.h"

void vespiary_core_count_deliveries(vespiary_core *core, int ahead, uint32_t records_max)
{
    core->counts_ahead = ahead != 0;
    core->counts_max = records_max;
}

int vespiary_core_limit_deliveries(vespiary_core *core, uint32_t queue_id, uint32_t attempts)
{
    queue *q = queue_find(core, queue_id);
    if (!q)
        return -EINVAL;
    q->attempts_max = attempts;
    queue_ready(core, q);
    return 0;
}

int64_t vespiary_core_output_waiting(const vespiary_core *core, uint32_t handle)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open)
        return -EINVAL;
    const connection *c = &core->connections[handle];
    return (int64_t)(c->output_base + c->output_end - c->released);
}

static uint32_t deliveries_after(const entry *item)
{
    return item->deliveries < UINT16_MAX ? item->deliveries + 1U : item->deliveries;
}

uint32_t journalled_deliveries(const vespiary_core *core, const entry *item)
{
    bool is_ahead = core->counts_ahead && item->state == ENTRY_DELIVERED && deliveries_after(item) <= core->counts_max;
    return is_ahead ? deliveries_after(item) : item->deliveries;
}

int stage_count_of(vespiary_core *core, const queue *q, uint64_t sequence, uint32_t deliveries, uint32_t slot)
{
    placed at;
    int bad = place_record(core, COUNT_BYTES, false, &at);
    if (bad)
        return bad;
    put32(at.memory, COUNT_BYTES);
    at.memory[4] = RECORD_COUNT;
    at.memory[5] = 0;
    put16(at.memory + 6, 0);
    put32(at.memory + 8, q->id);
    put32(at.memory + 12, deliveries);
    put64(at.memory + 16, sequence);
    return add_cancel(core->slots[at.slot], slot); /* the count stays as long as the message's record does */
}

int stage_count(vespiary_core *core, const queue *q, uint64_t sequence, const entry *item)
{
    return stage_count_of(core, q, sequence, journalled_deliveries(core, item), item->slot);
}

int count_ahead(vespiary_core *core, const queue *q, uint64_t sequence, const entry *item)
{
    if (!core->counts_ahead || deliveries_after(item) > core->counts_max || !is_ack_journalled(core, q, item))
        return 0;
    return stage_count_of(core, q, sequence, deliveries_after(item), item->slot);
}

void count_delivery(vespiary_core *core, queue *q, uint64_t sequence, entry *item)
{
    item->deliveries = (uint16_t)deliveries_after(item);
    if (item->deliveries <= core->counts_max && is_ack_journalled(core, q, item))
        (void)stage_count_of(core, q, sequence, item->deliveries, item->slot); /* a lost count is no lost message */
}

void count_back(vespiary_core *core, queue *q, uint64_t sequence, entry *item, bool is_counted)
{
    if (!core->counts_ahead) {
        if (is_counted)
            count_delivery(core, q, sequence, item);
        return;
    }
    if (is_counted) { /* the journal has it since the message was given */
        item->deliveries = (uint16_t)deliveries_after(item);
        return;
    }
    if (deliveries_after(item) <= core->counts_max && is_ack_journalled(core, q, item))
        (void)stage_count_of(core, q, sequence, item->deliveries, item->slot);
}
