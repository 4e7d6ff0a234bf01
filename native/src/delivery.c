/* The way out: the order of delivery, and MESSAGE frames (STOMP 1.2 specification), or messages as they are stored for
 * those who encode them elsewhere. Who gets how many is decided in Python; who holds what is in consumer.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "amqp_send.h"
#include "counts.h"
#include "mqtt.h"
#include "state.h"

enum { VERSION_RAW = 0, RAW_HEADER = 28, PROTOCOL_STOMP = 1 };
#ifndef SCRATCH_BYTES
#define SCRATCH_BYTES ((uint64_t)512 * 1024) /* to begin with; fuzzers, which make a core for each input, have less */
#endif
enum { DRAINED = 0, LIMIT = 1, ABSENT = 2, LARGE = 3, SPECIAL = 4, PAGED = 5, WORN = 6, STORED = 7 };

/* --- MESSAGE --------------------------------------------------------------------------------------------------- */
static uint8_t *put_text(uint8_t *at, const char *text, size_t length)
{
    memcpy(at, text, length);
    return at + length;
}
#define PUT(at, text) put_text(at, text, sizeof(text) - 1)

static uint8_t *put_number(uint8_t *at, uint64_t value)
{
    uint8_t digits[20];
    uint32_t count = 0;
    do
        digits[count++] = (uint8_t)('0' + value % 10);
    while (value /= 10);
    while (count)
        *at++ = digits[--count];
    return at;
}

/* Properties with escapes for an older version (vespiary_codec.wire.stomp.properties, properties_for_version). 1.1 has no
 * escape for a carriage return: it is data there. 1.0 has no escapes: values go out plain, with a space for what
 * cannot be said, and names keep `\c`, `\n` and `\r`, so that no producer forges headers. */
static uint8_t *put_for_version(uint8_t *at, const uint8_t *from, uint32_t length, uint8_t version)
{
    bool is_name = true;
    for (uint32_t i = 0; i < length; i++) {
        /* A backslash that ends its line is no escape: the next line stays a line of its own. */
        if (from[i] != '\\' || i + 1 == length || from[i + 1] == '\n') {
            if (from[i] == ':')
                is_name = false;
            else if (from[i] == '\n')
                is_name = true;
            *at++ = from[i];
            continue;
        }
        uint8_t code = from[++i];
        if (version == 11 ? code == 'r' : (!is_name && code != 'c' && code != '\\'))
            *at++ = version == 11 ? '\r' : ' ';
        else if (version == 10 && (!is_name || code == '\\'))
            *at++ = code == 'c' ? ':' : '\\';
        else
            *at++ = '\\', *at++ = code;
    }
    return at;
}

static uint64_t frame_room(const consumer *by, const entry *item)
{
    /* The shortest line, of one byte, becomes a property of five. */
    uint64_t start = by->prefix_length * 2U + (by->mqtt ? by->mqtt->topic_length + 4ULL * item->properties_length : 0U);
    return start + item->properties_length + (uint64_t)item->body_length + 160;
}

const uint8_t *properties_of(const entry *item, const uint8_t *record)
{
    return record + ADD_HEADER + (uint32_t)item->places * PLACE_BYTES + (record[5] & FLAG_TRANSACTIONAL ? 8 : 0);
}

/* Length of the header lines: behind a NUL stands what another protocol than STOMP keeps for itself. */
static uint32_t lines_length(const entry *item, const uint8_t *record, const uint8_t *properties)
{
    uint32_t length = item->properties_length;
    const uint8_t *end = record[6] != PROTOCOL_STOMP && length ? memchr(properties, 0, length) : NULL;
    return end ? (uint32_t)(end - properties) : length;
}

/* A message as it is stored, up to its body (contract: abc.Core.deliver). */
static uint8_t *encode_raw_head(uint8_t *at, const entry *item, uint64_t sequence, const uint8_t *record)
{
    put64(at, sequence);
    memcpy(at + 8, record + 8, 8); /* the time of arrival */
    put32(at + 16, item->flags & FLAG_LARGE ? 0 : item->body_length);
    put16(at + 20, item->properties_length);
    put16(at + 22, item->deliveries);
    at[24] = record[7]; /* priority */
    at[25] = record[6]; /* protocol */
    at[26] = item->flags & FLAG_ESCAPED;
    at[27] = 0;
    return put_text(at + RAW_HEADER, (const char *)properties_of(item, record), item->properties_length);
}

/* A MESSAGE frame up to its body. */
static uint8_t *encode_head(uint8_t *at, const consumer *by, const entry *item, uint64_t sequence,
                            const uint8_t *record, uint64_t body_length)
{
    if (by->version == VERSION_RAW)
        return encode_raw_head(at, item, sequence, record);
    const uint8_t *properties = properties_of(item, record);
    uint32_t length = lines_length(item, record, properties);
    at = put_text(at, by->prefix, by->prefix_length);
    at = put_number(at, sequence);
    if (by->version == 12 && by->mode != 0) {
        at = PUT(at, "\nack:");
        at = put_number(at, by->queue->id);
        *at++ = '-';
        at = put_number(at, sequence);
    }
    if (item->deliveries) {
        at = PUT(at, "\nredelivered:true\ndelivery-count:");
        at = put_number(at, item->deliveries);
    }
    at = PUT(at, "\ncontent-length:");
    at = put_number(at, body_length);
    *at++ = '\n';
    if (item->flags & FLAG_ESCAPED && by->version != 12)
        at = put_for_version(at, properties, length, by->version);
    else
        at = put_text(at, (const char *)properties, length);
    *at++ = '\n';
    return at;
}

static uint8_t *encode_message(uint8_t *at, const consumer *by, const entry *item, uint64_t sequence,
                               const uint8_t *record)
{
    const uint8_t *properties = properties_of(item, record);
    at = encode_head(at, by, item, sequence, record, item->body_length);
    at = put_text(at, (const char *)properties + item->properties_length, item->body_length);
    if (by->version != VERSION_RAW)
        *at++ = 0;
    return at;
}

/* --- delivery -------------------------------------------------------------------------------------------------- */
/* The next message for anybody: the lowest that is deliverable, returned ones and those from `next` on. NULL: none, or one
 * with a lower sequence stands in a closed extent of a page. */
static entry *next_entry(queue *q, uint64_t *sequence)
{
    uint64_t end = q->available < q->paged_next ? q->available : q->paged_next;
    entry *item = q->next < end ? queue_entry(q, q->next) : NULL;
    if (!item || item->state != ENTRY_READY) {
        queue_skip(q);
        item = q->next < end ? queue_entry(q, q->next) : NULL;
    }
    *sequence = q->next;
    if (!q->returned)
        return item;
    q->returned_from = queue_next_returned(q, q->returned_from);
    if (q->returned_from >= end || (item && q->next < q->returned_from))
        return item;
    *sequence = q->returned_from;
    return queue_entry(q, q->returned_from);
}

static void entry_given(queue *q, consumer *by, uint32_t handle, entry *item, uint64_t sequence)
{
    if (item->state == ENTRY_RETURNED)
        entry_leave(q, sequence, item);
    else if (sequence == q->next)
        q->next = sequence + 1;
    item->state = ENTRY_DELIVERED;
    item->owner = handle;
    q->delivering++;
    if (!by->held || sequence < by->held_from)
        by->held_from = sequence;
    by->held++;
    if (by->mode == 1)
        order_given(by, sequence);
}

int scratch_room(vespiary_core *core, uint64_t used, uint64_t more)
{
    if (used + more <= core->scratch_capacity)
        return 0;
    uint64_t wider = core->scratch_capacity ? core->scratch_capacity * 2 : SCRATCH_BYTES;
    while (wider < used + more)
        wider *= 2;
    uint8_t *made = realloc(core->scratch, wider);
    if (!made)
        return -ENOMEM;
    core->scratch = made;
    core->scratch_capacity = wider;
    return 0;
}

/* Whether Python looks at a message because of its deliveries: it came with them, from a recovery or a page. One that came
 * back since then was looked at. */
static bool is_worn(const queue *q, const entry *item)
{
    return item->deliveries && q->attempts_max && item->deliveries >= q->attempts_max && item->state == ENTRY_READY;
}

/* Why there is no next message in the ring. */
static int32_t nothing(vespiary_core *core, queue *q)
{
    if (q->paged_next == UINT64_MAX)
        return DRAINED;
    page_want(core, q);
    return PAGED;
}

/* How a message goes out. */
typedef struct {
    mqtt_packet packet;
    amqp_transfer transfer;
    bool is_mqtt, is_amqp;
    bool is_settled; /* it is acknowledged when it is given */
    int packet_id;   /* 0: it needs none */
} outgoing;

enum { TO_GIVE = 0, NOT_NOW = 1 };

/* Plan how a message goes out by a link of AMQP, as plan_message does. */
static int plan_transfer(consumer *by, amqp_outgoing *of, const entry *item, const uint8_t *record, bool is_stored,
                         int32_t *status, outgoing *plan)
{
    plan->is_mqtt = false;
    plan->packet_id = 0;
    plan->is_amqp = amqp_plan(by->amqp, item, record, &plan->transfer);
    plan->is_settled = plan->is_amqp && by->amqp->is_settled;
    if (!by->amqp->is_stored && plan->is_amqp == is_stored) {
        *status = is_stored ? LIMIT : STORED;
        return NOT_NOW;
    }
    return plan->is_amqp ? amqp_next_id(of) : TO_GIVE;
}

/* Plan how a message goes out. NOT_NOW: it does not, and *status says why; or -ENOMEM. */
static int plan_message(vespiary_core *core, consumer *by, amqp_outgoing *of, const entry *item, uint64_t sequence,
                        const uint8_t *record, bool is_stored, int32_t *status, outgoing *plan)
{
    if (by->amqp)
        return plan_transfer(by, of, item, record, is_stored, status, plan);
    plan->is_amqp = false;
    plan->is_mqtt = by->mqtt && mqtt_plan(by->mqtt, item, sequence, record, &plan->packet);
    plan->is_settled = by->mode == 0 || (plan->is_mqtt && !plan->packet.qos);
    plan->packet_id = 0;
    if (by->mqtt && plan->is_mqtt == is_stored) {
        *status = is_stored ? LIMIT : STORED;
        return NOT_NOW;
    }
    if (!plan->is_mqtt || plan->is_settled)
        return TO_GIVE;
    plan->packet_id = sent_next(&core->connections[by->connection]);
    return plan->packet_id > 0 ? TO_GIVE : plan->packet_id < 0 ? plan->packet_id : NOT_NOW;
}

/* The next message, if it can be given to a consumer now; else NULL, and *status says why, LIMIT untouched. */
static entry *next_to_give(vespiary_core *core, queue *q, uint64_t *sequence, const uint8_t **record, int32_t *status)
{
    entry *item = next_entry(q, sequence);
    if (!item) {
        *status = nothing(core, q);
        return NULL;
    }
    if (is_worn(q, item)) {
        *status = WORN;
        return NULL;
    }
    *record = record_memory(core, item);
    if (!*record) {
        *status = ABSENT;
        q->waits_for_slab = true;
        return NULL;
    }
    if (item->flags & (FLAG_LARGE | FLAG_SPECIAL)) {
        *status = item->flags & FLAG_SPECIAL ? SPECIAL : LARGE;
        return NULL;
    }
    return item;
}

/* Hand a message over that was encoded; false: there is no room for what has to be journalled with that. */
static bool hand_over(vespiary_core *core, consumer *by, amqp_outgoing *of, entry *item, uint64_t sequence,
                      const outgoing *plan)
{
    uint32_t handle = (uint32_t)(by - core->consumers);
    queue *q = by->queue;
    if (!plan->is_settled && count_ahead(core, q, sequence, item))
        return false; /* no room for the count: it is not given */
    entry_given(q, by, handle, item, sequence);
    if (plan->packet_id)
        sent_put(&core->connections[by->connection], handle, sequence);
    uint64_t block = 0;
    if (!plan->is_settled || acknowledge(core, by, sequence, &block) >= 0) {
        if (plan->is_amqp && plan->is_settled)
            of->next_id++;
        else if (plan->is_amqp)
            amqp_sent(of, handle, sequence);
        amqp_gave(by, of);
        return true;
    }
    by->held--; /* no room for the acknowledgement: the message is given when there is */
    q->delivering--;
    entry_put_first(q, sequence, item);
    return false;
}

/* Whether a consumer may be given one more. */
static bool has_credit(const consumer *by, const amqp_outgoing *of)
{
    return by->mode == 0 || (by->held < by->credit && amqp_takes(by, of));
}

static int deliver(vespiary_core *core, uint32_t handle, uint32_t max_messages, uint64_t max_bytes, bool is_stored,
                   vespiary_result *out, const uint8_t **frames)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open)
        return -EINVAL;
    consumer *by = &core->consumers[handle];
    queue *q = by->queue;
    amqp_outgoing *of = amqp_outgoing_of(core, by);
    uint64_t used = 0, sequence = 0;
    uint32_t count = 0;
    out->status = LIMIT;
    if (q->has_special) { /* what is next may not be what is to be given first */
        out->status = next_entry(q, &sequence) ? SPECIAL : nothing(core, q);
        max_messages = 0;
    }
    while (count < max_messages && has_credit(by, of)) {
        const uint8_t *record;
        entry *item = next_to_give(core, q, &sequence, &record, &out->status);
        if (!item)
            break;
        outgoing plan;
        int bad = plan_message(core, by, of, item, sequence, record, is_stored, &out->status, &plan);
        if (bad == NOT_NOW)
            break;
        if (!bad)
            bad = scratch_room(core, used, frame_room(by, item));
        if (!bad && by->mode == 1)
            bad = order_prepare(by, handle, sequence);
        if (bad && count)
            break; /* those that were given must leave */
        if (bad)
            return bad;
        uint8_t *at = core->scratch + used;
        uint8_t *end = plan.is_mqtt   ? mqtt_encode(at, by->mqtt, &plan.packet, (uint32_t)plan.packet_id)
                       : plan.is_amqp ? amqp_encode(at, by->amqp, &plan.transfer, of->next_id, sequence)
                                      : encode_message(at, by, item, sequence, record);
        uint64_t length = (uint64_t)(end - at);
        if (count && used + length > max_bytes)
            break;
        if (!hand_over(core, by, of, item, sequence, &plan))
            break;
        used += length;
        count++;
    }
    out->detail = count;
    out->position = used;
    *frames = core->scratch;
    return (int)count;
}

int vespiary_core_deliver(vespiary_core *core, uint32_t handle, uint32_t max_messages, uint64_t max_bytes,
                          vespiary_result *out, const uint8_t **frames)
{
    return deliver(core, handle, max_messages, max_bytes, false, out, frames);
}

int vespiary_core_deliver_stored(vespiary_core *core, uint32_t handle, uint32_t max_messages, uint64_t max_bytes,
                                 vespiary_result *out, const uint8_t **frames)
{
    return deliver(core, handle, max_messages, max_bytes, true, out, frames);
}

/* --- delivery of what Python chose ------------------------------------------------------------------------------- */
int vespiary_core_give(vespiary_core *core, uint32_t handle, const uint64_t *sequences, uint32_t sequences_count,
                       uint64_t max_bytes, vespiary_result *out, uint32_t *passed, const uint8_t **frames)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open)
        return -EINVAL;
    consumer *by = &core->consumers[handle];
    queue *q = by->queue;
    amqp_outgoing *of = amqp_outgoing_of(core, by);
    uint64_t used = 0, block = 0;
    uint32_t count = 0, at = 0;
    int bad = 0;
    out->status = DRAINED;
    for (; at < sequences_count; at++) {
        uint64_t sequence = sequences[at];
        entry *item = sequence < q->available ? queue_entry(q, sequence) : NULL;
        if (!is_free(item))
            continue;
        out->status = LIMIT;
        if (!has_credit(by, of))
            break;
        const uint8_t *record = record_memory(core, item);
        if (!record) {
            out->status = ABSENT;
            q->waits_for_slab = true;
            break;
        }
        if (item->flags & FLAG_LARGE) {
            out->status = LARGE;
            break;
        }
        bad = scratch_room(core, used, frame_room(by, item));
        if (!bad && by->mode == 1)
            bad = order_prepare(by, handle, sequence);
        if (bad)
            break;
        uint64_t length =
            (uint64_t)(encode_message(core->scratch + used, by, item, sequence, record) - (core->scratch + used));
        if (count && used + length > max_bytes)
            break;
        if (by->mode != 0) {
            if (count_ahead(core, q, sequence, item))
                break; /* no room for the count */
            entry_given(q, by, handle, item, sequence);
            amqp_gave(by, of);
        } else if (message_finish(core, q, sequence, item, &block)) {
            break; /* no room for the acknowledgement: it stays where it is */
        }
        out->status = DRAINED;
        used += length;
        count++;
    }
    queue_skip(q);
    out->detail = count;
    out->position = used;
    *passed = at;
    *frames = core->scratch;
    return bad && !count ? bad : (int)count; /* those that were given must leave */
}

int vespiary_core_next_large(const vespiary_core *core, uint32_t handle, vespiary_large *out)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open)
        return -EINVAL;
    queue *q = core->consumers[handle].queue;
    uint64_t sequence;
    const entry *item = next_entry(q, &sequence);
    const large_message *body = item ? map_get(&q->large, sequence) : NULL;
    if (!body)
        return 0;
    *out = (vespiary_large){.id = body->id, .size = body->size, .sequence = sequence, .crc = body->crc};
    return 1;
}

/* Give a large message: its frame up to the body goes to *head. 1 given, 0 not now. */
static int give_body(vespiary_core *core, uint32_t handle, vespiary_large *out, const uint8_t **head)
{
    consumer *by = &core->consumers[handle];
    amqp_outgoing *of = amqp_outgoing_of(core, by);
    entry *item = queue_entry(by->queue, out->sequence);
    const uint8_t *record = record_memory(core, item);
    if (!record || !has_credit(by, of))
        return 0;
    int bad = scratch_room(core, 0, frame_room(by, item));
    if (!bad && by->mode == 1)
        bad = order_prepare(by, handle, out->sequence);
    if (bad)
        return bad;
    uint8_t *end = encode_head(core->scratch, by, item, out->sequence, record, out->size);
    out->head_length = (uint32_t)(end - core->scratch);
    *head = core->scratch;
    if (count_ahead(core, by->queue, out->sequence, item))
        return 0;
    entry_given(by->queue, by, handle, item, out->sequence);
    amqp_gave(by, of);
    return 1;
}

int vespiary_core_take_large(vespiary_core *core, uint32_t handle, vespiary_large *out, const uint8_t **head)
{
    int found = vespiary_core_next_large(core, handle, out);
    return found > 0 ? give_body(core, handle, out, head) : found;
}

int vespiary_core_give_large(vespiary_core *core, uint32_t handle, uint64_t sequence, vespiary_large *out,
                             const uint8_t **head)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open)
        return -EINVAL;
    queue *q = core->consumers[handle].queue;
    const large_message *body =
        sequence < q->available && is_free(queue_entry(q, sequence)) ? map_get(&q->large, sequence) : NULL;
    if (!body)
        return 0;
    *out = (vespiary_large){.id = body->id, .size = body->size, .sequence = sequence, .crc = body->crc};
    int given = give_body(core, handle, out, head);
    queue_skip(q);
    return given;
}
int64_t vespiary_core_next_deliverable(vespiary_core *core, uint32_t queue_id)
{
    queue *q = queue_find(core, queue_id);
    uint64_t sequence;
    if (!q)
        return -EINVAL;
    return next_entry(q, &sequence) ? (int64_t)sequence : 0;
}

void vespiary_core_absent_slab(const vespiary_core *core, uint32_t handle, uint64_t *file_id, uint32_t *index)
{
    *file_id = 0;
    if (handle >= core->consumers_count || !core->consumers[handle].is_open)
        return;
    uint64_t sequence;
    const entry *item = next_entry(core->consumers[handle].queue, &sequence);
    if (!item)
        return;
    *file_id = core->slots[item->slot]->file_id;
    *index = item->offset >> core->slab_shift;
}
