/* Records of the message journal: a message and its places, acknowledgements, counts, transactions. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "amqp_send.h"
#include "crc32c.h"
#include "counts.h"
#include "mqtt.h"
#include "state.h"

/* --- the transaction being staged -------------------------------------------------------------------------- */
static void transaction_member(vespiary_core *core, const placed *at, uint32_t length)
{
    core->transaction_digest = vespiary_crc32c(core->transaction_digest, at->memory, length);
    core->transaction_records++;
}

int transaction_slot(vespiary_core *core, uint32_t slot)
{
    for (uint32_t i = core->transaction_slots_count; i-- > 0;)
        if (core->transaction_slots[i] == slot)
            return 0;
    int bad = grow_array((void **)&core->transaction_slots, &core->transaction_slots_capacity,
                         core->transaction_slots_count, sizeof(uint32_t));
    if (!bad)
        core->transaction_slots[core->transaction_slots_count++] = slot;
    return bad;
}

/* Whether a member of the general form ends with the id of the transaction being staged. */
bool is_own_transaction(const vespiary_core *core, const uint8_t *body, uint32_t length)
{
    uint64_t id;
    memcpy(&id, body + length - 8, 8);
    return core->transaction && id == core->transaction;
}

/* Count a record of the general form as a member. */
int join_transaction(vespiary_core *core, const placed *at, uint32_t length)
{
    transaction_member(core, at, length);
    return transaction_slot(core, at->slot);
}

static int transaction_queue(vespiary_core *core, queue *q)
{
    if (q->is_touched_by_transaction)
        return 0;
    int bad = grow_array((void **)&core->transaction_queues, &core->transaction_queues_capacity,
                         core->transaction_queues_count, sizeof(queue *));
    if (!bad) {
        core->transaction_queues[core->transaction_queues_count++] = q;
        q->is_touched_by_transaction = true;
    }
    return bad;
}

int vespiary_core_begin(vespiary_core *core, uint64_t transaction, uint64_t size, uint64_t records, int is_branch)
{
    if (core->transaction || !transaction || branch_find(core, transaction))
        return -EINVAL;
    /* Every record's start, place and padding, and a block's start for each 64 KiB: more than it will be. */
    uint64_t bytes = size + (records + 1) * 128 + (size / 65536 + 2) * 2 * PAGE;
    uint64_t room = 0;
    for (uint32_t i = core->files_count - core->files_ahead; i < core->files_count; i++)
        room += core->files[i]->size - FILE_HEADER - SEAL_ROOM;
    if (core->current)
        room += (uint64_t)core->current->size - SEAL_ROOM - core->position;
    uint64_t reserve = core->files_count ? core->files[core->files_count - 1]->size / 8 : 0;
    reserve = reserve < 1024 * 1024 ? reserve : 1024 * 1024;
    uint64_t slabs = (bytes >> core->slab_shift) + 2;
    if (core->are_adds_held || bytes + reserve + core->filling.used > room || slabs > UINT32_MAX ||
        !slabs_obtainable(core, (uint32_t)slabs))
        return -ENOSPC;
    core->transaction = transaction;
    core->transaction_digest = 0;
    core->transaction_records = 0;
    core->is_branch = is_branch != 0;
    return 0;
}

/* End the transaction behind its last record: queues go on when that is durable. */
int transaction_end(vespiary_core *core)
{
    int bad = 0;
    for (uint32_t i = 0; i < core->transaction_queues_count; i++) {
        queue *q = core->transaction_queues[i];
        q->is_touched_by_transaction = false;
        bad |= note_queue(core, q);
    }
    core->transaction_slots_count = 0;
    core->transaction_queues_count = 0;
    core->transaction = 0;
    core->is_branch = false;
    large_committed(core);
    return bad ? -ENOMEM : 0;
}

/* Forget the transaction. Members without COMMIT or PREPARE are void; what they did to queues is the caller's. */
void transaction_abandon(vespiary_core *core)
{
    core->transaction_slots_count = 0;
    core->transaction = 0;
    core->is_branch = false;
}

static int64_t stage_transaction_end(vespiary_core *core, uint32_t type)
{
    uint8_t body[16];
    put64(body, core->transaction);
    put32(body + 8, core->transaction_records);
    put32(body + 12, core->transaction_digest);
    return vespiary_core_append_record(core, type, 0, body, sizeof body, 1);
}

int vespiary_core_commit(vespiary_core *core, uint64_t transaction)
{
    if (!transaction || core->transaction != transaction || core->is_branch)
        return -EINVAL;
    int64_t block = stage_transaction_end(core, RECORD_COMMIT);
    if (block < 0)
        return (int)block;
    int bad = 0;
    for (uint32_t i = 0; i < core->transaction_slots_count; i++)
        bad |= add_cancel(core->slots[core->filling.slot], core->transaction_slots[i]);
    for (uint32_t i = 0; i < core->staged.count; i++) {
        const branch_member *m = &core->staged.members[i];
        queue *q = m->is_ack ? queue_find(core, m->queue_id) : NULL;
        if (q)
            entry_done(core, q, m->sequence, queue_entry(q, m->sequence));
    }
    core->staged.count = 0;
    bad |= transaction_end(core);
    return bad ? -ENOMEM : 0;
}

/* --- giving a transaction up ---------------------------------------------------------------------------------- */
/* An acknowledgement has not happened: its message is where it was. */
static void acknowledgement_undo(vespiary_core *core, queue *q, const branch_member *m)
{
    entry *item = queue_entry(q, m->sequence);
    q->locked--;
    item->state = m->state;
    if (m->state == ENTRY_DELIVERED) {
        q->delivering++;
        order_restore(&core->consumers[item->owner], m->sequence, m->order_at);
    } else if (m->state == ENTRY_ASIDE) {
        q->aside++;
    } else if (m->state == ENTRY_RETURNED || m->sequence < q->next) { /* `next` went past it */
        entry_put_first(q, m->sequence, item);
    }
}

/* A message is void, and the last one of its queue: its sequence is given again. */
static void add_undo(vespiary_core *core, queue *q, const branch_member *m, bool is_branch)
{
    entry *item = queue_entry(q, m->sequence);
    if (item->flags & FLAG_LARGE)
        large_void(core, q, m->sequence);
    q->added -= !is_branch;
    entry_forget(core, q, m->sequence, item);
    q->tail--;
}

/* Members without a COMMIT are void, so the ROLLBACK may be missing: it only spares a recovery to remember them. */
int vespiary_core_abort(vespiary_core *core, uint64_t transaction)
{
    if (!transaction || core->transaction != transaction)
        return -EINVAL;
    bool is_branch = core->is_branch;
    if (core->transaction_records)
        (void)stage_transaction_end(core, RECORD_ROLLBACK);
    transaction_abandon(core);
    for (uint32_t i = core->staged.count; i-- > 0;) {
        const branch_member *m = &core->staged.members[i];
        queue *q = queue_find(core, m->queue_id);
        if (m->is_ack)
            acknowledgement_undo(core, q, m);
        else
            add_undo(core, q, m, is_branch);
    }
    for (uint32_t i = 0; i < core->staged.count; i++)
        queue_ready(core, queue_find(core, core->staged.members[i].queue_id));
    core->staged.count = 0;
    for (uint32_t i = 0; i < core->transaction_queues_count; i++)
        core->transaction_queues[i]->is_touched_by_transaction = false;
    core->transaction_queues_count = 0;
    return 0;
}

/* --- ADD -------------------------------------------------------------------------------------------------------- */
static uint32_t properties_length(const message *m)
{
    uint32_t length = 0;
    for (size_t i = 0; i < sizeof m->properties / sizeof m->properties[0]; i++)
        length += m->properties[i].length;
    return length;
}

static void write_add(vespiary_core *core, uint8_t *at, uint32_t length, const route *to, const message *m,
                      uint32_t properties)
{
    put32(at, length);
    at[4] = RECORD_ADD;
    at[5] = (uint8_t)(m->flags | (core->transaction ? FLAG_TRANSACTIONAL : 0));
    at[6] = m->protocol;
    at[7] = m->priority;
    put64(at + 8, core->now_ms);
    put32(at + 16, m->body.length);
    put16(at + 20, properties);
    put16(at + 22, to->count);
    at += ADD_HEADER;
    for (uint32_t i = 0; i < to->count; i++, at += PLACE_BYTES) {
        put32(at, to->queues[i]->id);
        put32(at + 4, 0);
        put64(at + 8, to->queues[i]->tail);
    }
    if (core->transaction) {
        put64(at, core->transaction);
        at += 8;
    }
    for (size_t i = 0; i < sizeof m->properties / sizeof m->properties[0]; i++)
        if (m->properties[i].length) {
            memcpy(at, m->properties[i].data, m->properties[i].length);
            at += m->properties[i].length;
        }
    if (m->body.length)
        memcpy(at, m->body.data, m->body.length);
}

/* Keep in mind the last place of a queue, which the open transaction has added: its end or an abort sees to it. */
static int stage_place(vespiary_core *core, queue *q, entry *made, uint32_t slot)
{
    if (core->is_branch) {
        made->state = ENTRY_RESERVED;
        q->reserved++;
        q->added--; /* it counts when it is committed */
    }
    int bad = branch_add(&core->staged,
                         (branch_member){.sequence = q->tail - 1, .queue_id = q->id, .slot = slot});
    return bad | transaction_queue(core, q);
}

/* Stage a message to the queues of a route. *block: the sequence of its block, 0 if it is not journalled. */
int publish(vespiary_core *core, const route *to, const message *m, uint64_t *block)
{
    *block = 0;
    if (!to->count) {
        count_unrouted(core, to);
        core->withheld += to->withheld;
        return 0;
    }
    uint32_t properties = properties_length(m);
    uint64_t length = ADD_HEADER + (uint64_t)to->count * PLACE_BYTES + (core->transaction ? 8 : 0) + properties +
                      m->body.length;
    if (length > core->record_bytes_max || properties > UINT16_MAX || to->count > UINT16_MAX)
        return -EMSGSIZE;
    for (uint32_t i = 0; i < to->count; i++)
        if (to->queues[i]->tail > SEQUENCE_MAX)
            return -EOVERFLOW;
    if (core->transaction && branch_reserve(&core->staged, to->count))
        return -ENOMEM;
    bool is_journalled = m->is_persistent && to->durable;
    placed at;
    int bad = is_journalled ? place_record(core, (uint32_t)length, !core->transaction, &at)
                            : place_volatile(core, (uint32_t)length, &at);
    if (bad)
        return bad;
    write_add(core, at.memory, (uint32_t)length, to, m, properties);
    core->withheld += to->withheld;
    for (uint32_t i = 0; i < to->count && !bad; i++) {
        queue *q = to->queues[i];
        bool is_plain_volatile = !is_journalled && !core->transaction && q->available == q->tail;
        entry *made = queue_append(core, q);
        if (!made)
            return -ENOMEM;
        *made = (entry){.slot = at.slot,
                        .offset = at.offset,
                        .body_length = m->body.length,
                        .properties_length = (uint16_t)properties,
                        .state = ENTRY_READY,
                        .flags = m->flags,
                        .places = (uint16_t)to->count};
        q->live_bytes += (uint64_t)m->body.length + properties;
        record_pin(core, q, made);
        if (m->flags & FLAG_SPECIAL)
            q->has_special = true;
        if (m->flags & FLAG_LARGE)
            bad = large_place(core, q, q->tail - 1, m->body.data);
        if (is_plain_volatile) {
            q->available = q->tail;
            queue_ready(core, q);
        }
        if (core->transaction)
            bad |= stage_place(core, q, made, is_journalled ? at.slot : UINT32_MAX);
        else if (is_journalled)
            bad |= note_queue(core, q);
    }
    if (is_journalled) {
        *block = core->next_sequence;
        mark_urgent(core);
        if (core->transaction) {
            transaction_member(core, &at, (uint32_t)length);
            bad |= transaction_slot(core, at.slot);
        }
    }
    return bad ? -ENOMEM : (int)to->count;
}

int vespiary_core_publish(vespiary_core *core, uint32_t handle, const uint8_t *properties, uint32_t properties_bytes,
                          const uint8_t *body, uint32_t body_length, int persistent, uint32_t protocol,
                          uint32_t priority, int escaped, int large, int special, uint64_t transaction)
{
    if (large && body_length != LARGE_REFERENCE)
        return -EINVAL;
    if (handle >= core->routes_count || !core->routes[handle].is_open || transaction != core->transaction)
        return -EINVAL;
    if (core->routes[handle].is_switch)
        return -EINVAL;
    message m = {.properties = {{properties, properties_bytes}},
                 .body = {body, body_length},
                 .protocol = (uint8_t)protocol,
                 .priority = (uint8_t)priority,
                 .flags = (uint8_t)((escaped ? FLAG_ESCAPED : 0) | (large ? FLAG_LARGE : 0) |
                                    (special ? FLAG_SPECIAL : 0)),
                 .is_persistent = persistent != 0};
    uint64_t block;
    return publish(core, &core->routes[handle], &m, &block);
}

/* --- ACK ---------------------------------------------------------------------------------------------------------- */
int place_ack(vespiary_core *core, uint32_t queue_id, uint64_t sequence, placed *at)
{
    uint32_t length = 32 + (core->transaction ? 8 : 0);
    int bad = place_record(core, length, false, at);
    if (bad)
        return bad;
    put32(at->memory, length);
    at->memory[4] = RECORD_ACK;
    at->memory[5] = core->transaction ? FLAG_TRANSACTIONAL : 0;
    put16(at->memory + 6, 0);
    put32(at->memory + 8, queue_id);
    put32(at->memory + 12, 1);
    put64(at->memory + 16, sequence);
    put64(at->memory + 24, 1);
    if (!core->transaction)
        return 0;
    put64(at->memory + 32, core->transaction);
    return join_transaction(core, at, length);
}

static int stage_ack_record(vespiary_core *core, queue *q, uint64_t sequence, placed *at)
{
    int bad = place_ack(core, q->id, sequence, at);
    if (bad)
        return bad;
    if (!core->transaction) {
        q->ack_block = core->next_sequence;
        q->ack_offset = at->offset - core->filling.offset;
    }
    return 0;
}

/* Stage that one message is done, merged into the queue's latest ACK record where that is possible. */
static int stage_ack(vespiary_core *core, queue *q, uint64_t sequence, const entry *item)
{
    filling_block *b = &core->filling;
    placed at = {.slot = b->slot};
    if (!core->transaction && b->is_open && q->ack_block == core->next_sequence) {
        uint8_t *record = b->memory + q->ack_offset;
        uint32_t length, ranges;
        uint64_t first, count;
        memcpy(&length, record, 4);
        memcpy(&ranges, record + 12, 4);
        uint8_t *last = record + length - 16;
        memcpy(&first, last, 8);
        memcpy(&count, last + 8, 8);
        if (first + count == sequence) {
            put64(last + 8, count + 1);
            return add_cancel(core->slots[b->slot], item->slot);
        }
        if (q->ack_offset + length == b->used && b->used + 16 <= b->end) {
            put32(record, length + 16);
            put32(record + 12, ranges + 1);
            put64(record + length, sequence);
            put64(record + length + 8, 1);
            b->used += 16;
            core->payload_bytes += 16;
            return add_cancel(core->slots[b->slot], item->slot);
        }
    }
    int bad = stage_ack_record(core, q, sequence, &at);
    if (!bad && core->transaction)
        bad = transaction_slot(core, item->slot);
    return bad ? bad : add_cancel(core->slots[at.slot], item->slot);
}

bool is_ack_journalled(const vespiary_core *core, const queue *q, const entry *item)
{
    return q->is_durable && !(item->flags & FLAG_VOLATILE) && !core->slots[item->slot]->is_volatile;
}

int message_finish(vespiary_core *core, queue *q, uint64_t sequence, entry *item, uint64_t *block)
{
    if (core->transaction && branch_reserve(&core->staged, 1))
        return -ENOMEM;
    if (is_ack_journalled(core, q, item)) {
        int bad = stage_ack(core, q, sequence, item);
        if (bad)
            return bad;
        *block = core->next_sequence;
    }
    if (core->transaction) { /* it ends with the COMMIT */
        branch_member m = {.sequence = sequence,
                           .queue_id = q->id,
                           .slot = is_ack_journalled(core, q, item) ? core->filling.slot : UINT32_MAX,
                           .is_ack = true,
                           .state = item->state,
                           .order_at = UINT32_MAX};
        if (item->state == ENTRY_DELIVERED)
            m.order_at = order_find(&core->consumers[item->owner], sequence);
        (void)branch_add(&core->staged, m); /* there is room */
        entry_leave(q, sequence, item);
        q->locked++;
        item->state = ENTRY_LOCKED;
        return 0;
    }
    entry_done(core, q, sequence, item);
    return 0;
}

/* Acknowledge what a cumulative consumer was given up to a message that it holds, where that is not ascending. */
static int acknowledge_listed(vespiary_core *core, consumer *by, uint64_t sequence, uint64_t *block)
{
    queue *q = by->queue;
    uint64_t at;
    int done = 0;
    do {
        at = by->order[by->order_first];
        int bad = message_finish(core, q, at, queue_entry(q, at), block);
        if (bad)
            return bad;
        by->order_first++;
        by->held--;
        done++;
    } while (at != sequence);
    queue_ready(core, q);
    return done;
}

/* Acknowledge one held message (CLIENT: and all given before it). Returns how many, 0 if it is not held, or -errno;
 * with -ENOSPC those before it may be acknowledged, and the same call goes on where it stopped. */
int acknowledge(vespiary_core *core, consumer *by, uint64_t sequence, uint64_t *block)
{
    uint32_t handle = (uint32_t)(by - core->consumers);
    queue *q = by->queue;
    entry *item = queue_entry(q, sequence);
    if (!is_held(item, handle))
        return 0;
    if (by->is_listed)
        return acknowledge_listed(core, by, sequence, block);
    int done = 0;
    uint64_t from = by->mode == 1 ? by->held_from : sequence;
    for (uint64_t at = from; at <= sequence;) {
        item = queue_entry(q, at);
        if (!item) {
            at = queue_next_segment(q, at);
            continue;
        }
        if (is_held(item, handle)) {
            int bad = message_finish(core, q, at, item, block);
            if (bad)
                return bad;
            by->held--;
            done++;
        }
        at++;
        if (by->mode == 1)
            by->held_from = at;
    }
    if (done)
        queue_ready(core, q);
    return done;
}

static consumer *consumer_of(const vespiary_core *core, uint32_t handle)
{
    return handle < core->consumers_count && core->consumers[handle].is_open ? &core->consumers[handle] : NULL;
}

int64_t vespiary_core_acknowledge(vespiary_core *core, uint32_t handle, uint64_t sequence, uint64_t transaction)
{
    consumer *by = consumer_of(core, handle);
    if (!by || transaction != core->transaction)
        return -EINVAL;
    uint64_t block = 0;
    int done = acknowledge(core, by, sequence, &block);
    connection *c = &core->connections[by->connection];
    if (block > c->last_block)
        c->last_block = block;
    return done;
}

int64_t vespiary_core_purge_queue(vespiary_core *core, uint32_t id)
{
    queue *q = queue_find(core, id);
    if (!q || core->transaction)
        return -EINVAL;
    int64_t done = q->extents_count ? extents_finish(core, q, UINT64_MAX, UINT64_MAX) : 0;
    if (done < 0)
        return done;
    uint64_t block;
    int bad = 0;
    uint64_t at = q->head;
    while (at < q->available) {
        entry *item = queue_entry(q, at);
        if (!item) {
            at = queue_next_segment(q, at);
            continue;
        }
        if (is_free(item) || item->state == ENTRY_ASIDE) {
            bad = message_finish(core, q, at, item, &block);
            if (bad)
                break;
            done++;
        }
        at++;
    }
    queue_skip(q);
    queue_advance_head(q);
    return bad ? bad : done;
}

/* --- giving back --------------------------------------------------------------------------------------------------- */
static void give_one_back(vespiary_core *core, queue *q, uint64_t sequence, entry *item, bool is_counted)
{
    count_back(core, q, sequence, item, is_counted);
    entry_returned(q, sequence, item);
}

/* Give back what the consumer holds in [from, to]; returns how many. */
static int64_t give_range_back(vespiary_core *core, consumer *by, uint64_t from, uint64_t to, bool is_counted)
{
    uint32_t handle = (uint32_t)(by - core->consumers);
    int64_t done = 0;
    for (uint64_t at = from; at <= to && by->held;) {
        entry *item = queue_entry(by->queue, at);
        if (!item) {
            at = queue_next_segment(by->queue, at);
            continue;
        }
        if (is_held(item, handle)) {
            give_one_back(core, by->queue, at, item, is_counted);
            by->held--;
            done++;
        }
        at++;
    }
    if (done)
        queue_ready(core, by->queue);
    return done;
}

/* Give back what a cumulative consumer was given up to a message that it holds, where that is not ascending. */
static int64_t give_listed_back(vespiary_core *core, consumer *by, uint64_t sequence, bool is_counted)
{
    queue *q = by->queue;
    uint64_t at;
    int64_t done = 0;
    do {
        at = by->order[by->order_first++];
        give_one_back(core, q, at, queue_entry(q, at), is_counted);
        by->held--;
        done++;
    } while (at != sequence);
    queue_ready(core, q);
    return done;
}

int64_t vespiary_core_give_back(vespiary_core *core, uint32_t handle, uint64_t sequence, int counted)
{
    consumer *by = consumer_of(core, handle);
    if (!by)
        return -EINVAL;
    if (!is_held(queue_entry(by->queue, sequence), handle))
        return 0;
    if (by->is_listed)
        return give_listed_back(core, by, sequence, counted != 0);
    return give_range_back(core, by, by->mode == 1 ? by->held_from : sequence, sequence, counted != 0);
}

int64_t vespiary_core_close_consumer(vespiary_core *core, uint32_t handle, int counted)
{
    consumer *by = consumer_of(core, handle);
    if (!by)
        return -EINVAL;
    int64_t done = by->held ? give_range_back(core, by, by->held_from, by->queue->tail, counted != 0) : 0;
    by->queue->consumers--;
    sent_orphan(&core->connections[by->connection], handle);
    amqp_drop_sent(core, by);
    free(by->prefix);
    free(by->order);
    free(by->mqtt);
    free(by->amqp);
    *by = (consumer){.is_open = false};
    handle_freed(&core->consumers_free, handle);
    return done;
}
