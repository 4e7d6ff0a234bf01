/* MQTT's fast path out: PUBLISH packets of QoS 0 and 1 (MQTT 3.1.1 and 5.0 specifications), their packet ids, and what
 * PUBACKs say (contract: CoreMqtt in vespiary_native/abc_mqtt.py). Who gets how many: delivery.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt.h"
#include "state.h"

enum { SLOTS = 65536, SENT_FIRST = 64, PRIORITY_USUAL = 4, PROTOCOL_MQTT = 2 };
enum { SENT_FREE = 0, SENT_HELD, SENT_ORPHANED, SENT_RESERVED };

/* --- packet ids ------------------------------------------------------------------------------------------------- */
static int sent_grow(connection *c, uint32_t slots)
{
    uint32_t wider = c->sent_capacity ? c->sent_capacity : SENT_FIRST;
    while (wider < slots)
        wider *= 2;
    if (wider == c->sent_capacity)
        return 0;
    sent_message *made = realloc(c->sent, wider * sizeof *made);
    if (!made)
        return -ENOMEM;
    memset(made + c->sent_capacity, 0, (wider - c->sent_capacity) * sizeof *made);
    made[0].state = SENT_RESERVED; /* 0 is not a packet id */
    c->sent = made;
    c->sent_capacity = wider;
    return 0;
}

/* The next free packet id; 0: there is none; or -ENOMEM. */
static int sent_free(connection *c)
{
    if (c->sent_used == SLOTS - 1)
        return 0;
    if (c->sent_used * 2 >= c->sent_capacity && c->sent_capacity < SLOTS) {
        int bad = sent_grow(c, c->sent_capacity * 2);
        if (bad)
            return bad;
    }
    while (c->sent[c->sent_at].state != SENT_FREE)
        c->sent_at = (c->sent_at + 1) & (c->sent_capacity - 1);
    return (int)c->sent_at;
}

/* The next free packet id; 0: there is none, or the window is full; or -ENOMEM. */
int sent_next(connection *c) { return c->sent_out >= c->window ? 0 : sent_free(c); }

/* Take the id that sent_next said. */
void sent_put(connection *c, uint32_t by, uint64_t sequence)
{
    c->sent[c->sent_at] = (sent_message){.sequence = sequence, .consumer = by, .state = SENT_HELD};
    c->sent_at = (c->sent_at + 1) & (c->sent_capacity - 1);
    c->sent_used++;
    c->sent_out++;
}

static sent_message *sent_find(const connection *c, uint32_t id)
{
    return id && id < c->sent_capacity ? &c->sent[id] : NULL;
}

/* A consumer closes: its messages are no more the client's, but it will acknowledge them. */
void sent_orphan(connection *c, uint32_t by)
{
    for (uint32_t i = 0; c->sent_out && i < c->sent_capacity; i++)
        if (c->sent[i].state == SENT_HELD && c->sent[i].consumer == by)
            c->sent[i].state = SENT_ORPHANED;
}

/* Take a PUBACK: 1 taken, 0 the id is not one of these, else -errno, and nothing is changed. */
int sent_acknowledge(vespiary_core *core, connection *c, uint32_t id)
{
    sent_message *s = sent_find(c, id);
    if (!s || s->state == SENT_FREE || s->state == SENT_RESERVED)
        return 0;
    if (s->state == SENT_HELD) {
        uint64_t block = 0;
        int done = acknowledge(core, &core->consumers[s->consumer], s->sequence, &block);
        if (done < 0)
            return done;
        if (block)
            c->last_block = block;
    }
    s->state = SENT_FREE;
    c->sent_used--;
    c->sent_out--;
    return 1;
}

static connection *connection_of(vespiary_core *core, uint32_t handle)
{
    bool is_there = handle < core->connections_count && core->connections[handle].is_open;
    return is_there && core->connections[handle].is_mqtt ? &core->connections[handle] : NULL;
}

int vespiary_core_take_puback(vespiary_core *core, uint32_t handle, uint32_t id)
{
    connection *c = connection_of(core, handle);
    return c ? sent_acknowledge(core, c, id) : -EINVAL;
}

int vespiary_core_set_window(vespiary_core *core, uint32_t handle, uint32_t messages)
{
    connection *c = connection_of(core, handle);
    if (!c)
        return -EINVAL;
    c->window = messages;
    return 0;
}

int64_t vespiary_core_sent_count(vespiary_core *core, uint32_t handle)
{
    const connection *c = connection_of(core, handle);
    return c ? (int64_t)c->sent_out : -EINVAL;
}

int vespiary_core_reserve_packet_id(vespiary_core *core, uint32_t handle, uint32_t id, int is_reserved)
{
    connection *c = connection_of(core, handle);
    if (!c || !id || id >= SLOTS)
        return -EINVAL;
    int bad = is_reserved ? sent_grow(c, id + 1) : 0;
    sent_message *s = bad ? NULL : sent_find(c, id);
    if (!s || s->state != (is_reserved ? SENT_FREE : SENT_RESERVED))
        return bad ? bad : -EINVAL;
    s->state = is_reserved ? SENT_RESERVED : SENT_FREE;
    c->sent_used += is_reserved ? 1U : -1U;
    return 0;
}

int vespiary_core_take_packet_id(vespiary_core *core, uint32_t handle)
{
    connection *c = connection_of(core, handle);
    int id = c ? sent_free(c) : -EINVAL;
    if (id > 0) {
        c->sent[id].state = SENT_RESERVED;
        c->sent_used++;
        c->sent_at = ((uint32_t)id + 1) & (c->sent_capacity - 1);
    }
    return id;
}

int64_t vespiary_core_sent(vespiary_core *core, uint32_t handle, vespiary_sent *out, uint64_t room)
{
    const connection *c = connection_of(core, handle);
    if (!c)
        return -EINVAL;
    uint64_t count = 0;
    for (uint32_t i = 0; i < c->sent_capacity; i++) {
        const sent_message *s = &c->sent[i];
        if (s->state != SENT_HELD)
            continue;
        if (count < room)
            out[count] = (vespiary_sent){.sequence = s->sequence,
                                         .queue_id = core->consumers[s->consumer].queue->id,
                                         .packet_id = i};
        count++;
    }
    return (int64_t)count;
}

/* --- what a consumer's messages look like ------------------------------------------------------------------------ */
int vespiary_core_encode_mqtt(vespiary_core *core, uint32_t handle, uint32_t qos, uint32_t packet_bytes,
                              uint64_t stored_below, const uint8_t *topic, uint32_t topic_length,
                              const uint8_t *prefixes, uint32_t prefixes_length)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open || qos > 2 || topic_length > UINT16_MAX ||
        prefixes_length > UINT16_MAX)
        return -EINVAL;
    consumer *by = &core->consumers[handle];
    if (by->version != 0 || by->mode != 2 || !core->connections[by->connection].is_mqtt)
        return -EINVAL;
    mqtt_encoding *made = malloc(sizeof *made + topic_length + prefixes_length);
    if (!made)
        return -ENOMEM;
    *made = (mqtt_encoding){.stored_below = stored_below,
                            .packet_max = packet_bytes,
                            .topic_length = (uint16_t)topic_length,
                            .prefixes_length = (uint16_t)prefixes_length,
                            .qos = (uint8_t)qos,
                            .version = core->connections[by->connection].version};
    if (topic_length)
        memcpy(made->topic, topic, topic_length);
    if (prefixes_length)
        memcpy(made->topic + topic_length, prefixes, prefixes_length);
    free(by->mqtt);
    by->mqtt = made;
    return 0;
}

int vespiary_core_stop_encoding(vespiary_core *core, uint32_t handle)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open)
        return -EINVAL;
    free(core->consumers[handle].mqtt);
    core->consumers[handle].mqtt = NULL;
    return 0;
}

/* Whether an address means the topic that has its dots and slashes the other way round. */
static bool is_swapped(const uint8_t *at, uint32_t length)
{
    for (uint32_t i = 0; i < length; i++)
        if (at[i] == '%' || at[i] == '+' || at[i] == '#' || (at[i] == ':' && i + 1 < length && at[i + 1] == ':'))
            return false;
    return length && *at != '$'; /* not for every filter (MQTT 5.0, 4.7.2) */
}

static uint32_t length_bytes(uint64_t length) { return length < 128 ? 1 : length < 16384 ? 2 : length < 2097152 ? 3 : 4; }

/* Plan a message that a client of MQTT has sent. */
static bool plan_own(const mqtt_encoding *by, const entry *item, const uint8_t *properties, mqtt_packet *plan)
{
    static const char start[] = "destination:", persistent[] = "\npersistent:true";
    const uint32_t head = sizeof start - 1, tail = sizeof persistent - 1;
    uint32_t length = item->properties_length;
    if (item->flags & FLAG_ESCAPED || length <= head || properties[length - 1] != '\n' || memcmp(properties, start, head))
        return false;
    const uint8_t *line_end = memchr(properties, '\n', length);
    uint32_t line = (uint32_t)(line_end - properties);
    bool is_persistent = line + 1 != length;
    if (is_persistent && (line + tail + 1 != length || memcmp(line_end, persistent, tail)))
        return false;
    plan->qos = is_persistent && by->qos;
    if (!by->topic_length)
        plan->topic = (piece){properties + head, line - head};
    return true;
}

/* Plan a message of another protocol: persistent ones have QoS 2. */
static bool plan_other(const mqtt_encoding *by, const entry *item, const uint8_t *properties, mqtt_packet *plan)
{
    const uint8_t *end = item->properties_length ? memchr(properties, 0, item->properties_length) : NULL;
    piece lines = {properties, end ? (uint32_t)(end - properties) : item->properties_length};
    mqtt_said *said = &plan->said;
    if (!mqtt_read_lines(lines, item->flags & FLAG_ESCAPED, by->version, said) || (said->is_persistent && by->qos == 2))
        return false;
    plan->qos = said->is_persistent && by->qos;
    return by->topic_length || (said->destination.data && mqtt_topic_of(by, said->destination, &plan->topic));
}

bool mqtt_plan(const mqtt_encoding *by, const entry *item, uint64_t sequence, const uint8_t *record, mqtt_packet *plan)
{
    if (sequence < by->stored_below || record[7] != PRIORITY_USUAL || item->flags & (FLAG_LARGE | FLAG_SPECIAL))
        return false;
    const uint8_t *properties = properties_of(item, record);
    *plan = (mqtt_packet){.topic = {by->topic, by->topic_length}, .is_address = !by->topic_length};
    if (!(record[6] == PROTOCOL_MQTT ? plan_own : plan_other)(by, item, properties, plan))
        return false;
    if (plan->is_address && !is_swapped(plan->topic.data, plan->topic.length))
        return false;
    plan->is_dup = plan->qos && item->deliveries;
    uint32_t said = plan->said.properties_length;
    plan->rest = 2 + plan->topic.length + (plan->qos ? 2U : 0) + (uint64_t)item->body_length;
    if (by->version == 5)
        plan->rest += length_bytes(said) + said;
    plan->length = 1 + length_bytes(plan->rest) + plan->rest;
    plan->body = properties + item->properties_length;
    plan->body_length = item->body_length;
    return plan->length <= by->packet_max;
}

static uint8_t *put_length(uint8_t *at, uint64_t length)
{
    for (; length > 127; length >>= 7)
        *at++ = (uint8_t)(length | 0x80);
    *at++ = (uint8_t)length;
    return at;
}

uint8_t *mqtt_encode(uint8_t *at, const mqtt_encoding *by, const mqtt_packet *plan, uint32_t id)
{
    *at++ = (uint8_t)(0x30 | plan->qos << 1 | (plan->is_dup ? 8 : 0));
    at = put_length(at, plan->rest);
    *at++ = (uint8_t)(plan->topic.length >> 8);
    *at++ = (uint8_t)plan->topic.length;
    memcpy(at, plan->topic.data, plan->topic.length);
    for (uint32_t i = 0; plan->is_address && i < plan->topic.length; i++)
        at[i] = at[i] == '.' ? '/' : at[i] == '/' ? '.' : at[i];
    at += plan->topic.length;
    if (plan->qos) {
        *at++ = (uint8_t)(id >> 8);
        *at++ = (uint8_t)id;
    }
    if (by->version == 5) {
        at = put_length(at, plan->said.properties_length);
        at = mqtt_put_properties(at, &plan->said);
    }
    memcpy(at, plan->body, plan->body_length);
    return at + plan->body_length;
}
