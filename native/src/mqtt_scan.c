/* MQTT's fast path in: plain PUBLISH and PUBACK packets (MQTT 3.1.1 and 5.0 specifications). What is plain stands at
 * CoreMqtt.scan_mqtt in vespiary_native/abc_mqtt.py; all else goes to the codec in Python, which also words all errors. */
#include <errno.h>
#include <string.h>

#include "mqtt.h"
#include "state.h"

enum {
    PROTOCOL_MQTT = 2,
    PRIORITY_USUAL = 4,
    PUBLISH = 3,
    PUBACK = 4,
    PUBREC = 5,
    IS_RETAINED = 1,
    IS_DUPLICATE = 8,
    PUBACK_BYTES = 4,
    LENGTH_BYTES = 4,
    LINES_MAX = 65000
};
enum { TAKEN = 0, LEFT = 1, KEPT = 2 };

static const char PERSISTENT[] = "persistent:true\n";
enum { PERSISTENT_BYTES = sizeof PERSISTENT - 1 };

typedef struct {
    const uint8_t *at;
    uint32_t header, length; /* bytes of the fixed header; of all */
} packet;

int vespiary_core_set_ready_mqtt(vespiary_core *core, uint32_t handle, uint32_t version, uint32_t packet_bytes,
                                 uint32_t body_bytes, uint32_t receive_maximum)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open || version < 3 || version > 5 ||
        !receive_maximum)
        return -EINVAL;
    connection *c = &core->connections[handle];
    c->is_mqtt = true;
    c->version = (uint8_t)version;
    c->packet_max = packet_bytes;
    c->body_max = body_bytes;
    c->unanswered_max = receive_maximum;
    return 0;
}

int vespiary_core_teach_mqtt(vespiary_core *core, uint32_t handle, const uint8_t *topic, uint32_t topic_length,
                             const uint8_t *line, uint32_t line_length, uint32_t to)
{
    if (topic_length > UINT16_MAX || !line_length || line_length > LINES_MAX || memchr(topic, 0, topic_length))
        return -EINVAL;
    uint8_t lines[LINES_MAX + PERSISTENT_BYTES];
    memcpy(lines, line, line_length);
    memcpy(lines + line_length, PERSISTENT, PERSISTENT_BYTES);
    return taught_put(core, handle, (piece){topic, topic_length}, (piece){lines, line_length + PERSISTENT_BYTES}, to);
}

/* --- finding packets ------------------------------------------------------------------------------------------- */
/* Whether a client may send a packet with this first byte behind CONNECT. */
static bool may_begin(const connection *c, uint8_t first)
{
    static const uint8_t flags_of[16] = {[6] = 2, [8] = 2, [10] = 2};
    uint32_t type = first >> 4;
    uint8_t flags = first & 15;
    if (type == PUBLISH)
        return true;
    if (c->version == 3 && (type == 6 || type == 8 || type == 10))
        flags &= (uint8_t)~IS_DUPLICATE;
    bool is_known = (type >= 4 && type <= 8) || type == 10 || type == 12 || type == 14 || (type == 15 && c->version == 5);
    return is_known && flags == flags_of[type];
}

/* Find one whole packet. Returns its length; 0: more data is needed (*need: how many, if known); -1: odd. */
static int64_t find_packet(const connection *c, packet *p, uint64_t left, uint32_t *need)
{
    *need = 0;
    if (!may_begin(c, p->at[0]))
        return -1;
    uint64_t length = 0;
    for (uint32_t i = 1;; i++) {
        if (i == left)
            return 0;
        length |= (uint64_t)(p->at[i] & 0x7F) << (7 * (i - 1));
        p->header = i + 1;
        if (!(p->at[i] & 0x80))
            break;
        if (i == LENGTH_BYTES)
            return -1;
    }
    uint64_t total = p->header + length;
    if (total > c->packet_max)
        return -1;
    p->length = (uint32_t)total;
    if (left >= total)
        return (int64_t)total;
    *need = (uint32_t)total;
    return 0;
}

/* --- PUBLISH ---------------------------------------------------------------------------------------------------- */
int stage_puback(vespiary_core *core, uint32_t handle, piece id)
{
    uint8_t *at = output_room(core, handle, PUBACK_BYTES);
    if (!at)
        return -ENOMEM;
    at[0] = PUBACK << 4;
    at[1] = 2;
    memcpy(at + 2, id.data, 2);
    return output_waits(core, handle, false);
}

/* How many answers to PUBLISHes wait: PUBACKs and PUBRECs among the packets in the output that may not leave yet. */
static uint32_t unanswered(const connection *c)
{
    uint64_t at = c->released > c->output_base ? c->released - c->output_base : 0;
    uint32_t count = 0;
    while (at + 1 < c->output_end) {
        uint32_t kind = c->output[at] >> 4, shift = 0;
        uint64_t rest = 0, next = at + 1;
        while (next < c->output_end && shift < 28) {
            rest |= (uint64_t)(c->output[next] & 127) << shift;
            shift += 7;
            if (c->output[next++] < 128)
                break;
        }
        count += kind == PUBACK || kind == PUBREC;
        at = next + rest;
    }
    return count;
}

int64_t vespiary_core_unanswered(const vespiary_core *core, uint32_t handle)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open || !core->connections[handle].is_mqtt)
        return -EINVAL;
    return unanswered(&core->connections[handle]);
}

/* Whether the client would have more that waits for an answer than it was told that it may: what is kept for a switch waits
 * as well. Counts only when it can be. */
static bool is_over_quota(const vespiary_core *core, const connection *c)
{
    uint64_t waiting = c->output_base + c->output_end - c->released;
    if (c->version != 5 || waiting / PUBACK_BYTES + core->switched_count < c->unanswered_max)
        return false;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < core->switched_count; i++)
        kept += core->switched[i].receipt.data != NULL;
    return unanswered(c) + kept >= c->unanswered_max;
}

/* Read a PUBLISH; false: it is left to Python. */
static bool read_publish(const connection *c, const packet *p, piece *topic, piece *id, piece *body)
{
    uint32_t flags = p->at[0] & 15, qos = (flags >> 1) & 3;
    if (flags & IS_RETAINED || qos > 1 || (!qos && flags & IS_DUPLICATE))
        return false;
    const uint8_t *at = p->at + p->header, *end = p->at + p->length;
    if (end - at < 2)
        return false;
    *topic = (piece){at + 2, (uint32_t)(at[0] << 8 | at[1])};
    at += 2;
    bool has_properties = c->version == 5;
    if (end - at < (int64_t)topic->length + (qos ? 2 : 0) + has_properties)
        return false;
    at += topic->length;
    *id = (piece){qos ? at : NULL, 2};
    if (qos) {
        if (!at[0] && !at[1])
            return false;
        at += 2;
    }
    if (has_properties && *at++)
        return false;
    *body = (piece){at, (uint32_t)(end - at)};
    return topic->length && body->length <= c->body_max;
}

/* Take a PUBLISH, or keep it for its switch, or leave it; else -errno. Nothing is taken while others are kept. */
static int take_publish(vespiary_core *core, uint32_t handle, const packet *p, uint64_t position)
{
    connection *c = &core->connections[handle];
    piece topic, id, body;
    if (!read_publish(c, p, &topic, &id, &body) || (id.data && is_over_quota(core, c)))
        return LEFT;
    const taught *known = taught_find(c, topic, (piece){NULL, 0});
    const route *to = taught_route(core, known);
    if (!to || !known->lines_length || (core->switched_count && !to->is_switch))
        return LEFT;
    bool is_persistent = id.data != NULL;
    message m = {.properties = {{known->key + known->key_length,
                                 known->lines_length - (is_persistent ? 0 : PERSISTENT_BYTES)}},
                 .body = body,
                 .protocol = PROTOCOL_MQTT,
                 .priority = PRIORITY_USUAL,
                 .flags = memchr(known->key + known->key_length, '\\', known->lines_length) ? FLAG_ESCAPED : 0,
                 .is_persistent = is_persistent};
    if (!to->is_switch)
        return stage_send(core, handle, to, &m, id);
    uint32_t number = (uint32_t)(to - core->routes);
    if (!switch_takes(core, number))
        return LEFT;
    core->switched_connection = handle;
    switched_send what = {position, p->length, m, id};
    int bad = switch_keep(core, number, &what);
    return bad ? bad : KEPT;
}

/* --- PUBACK ------------------------------------------------------------------------------------------------------- */
/* Take the acknowledgement of a message that C has sent, or leave it; else -errno. */
static int take_puback(vespiary_core *core, uint32_t handle, const packet *p)
{
    connection *c = &core->connections[handle];
    const uint8_t *rest = p->at + p->header;
    uint32_t length = p->length - p->header;
    bool is_plain = length == 2;
    if (c->version == 5 && (length == 3 || length == 4)) /* a reason, and no properties */
        is_plain = rest[2] < 0x80 && (length == 3 || !rest[3]);
    if (!is_plain || core->switched_count)
        return LEFT;
    int done = sent_acknowledge(core, c, (uint32_t)(rest[0] << 8 | rest[1]));
    return done < 0 ? done : done ? TAKEN : LEFT;
}

/* --- the scan ----------------------------------------------------------------------------------------------------- */
/* Take packets until one is not plain, or not whole, or has to wait; *out says why. */
static int scan(vespiary_core *core, uint32_t handle, const uint8_t *memory, uint64_t at, uint64_t end,
                vespiary_result *out)
{
    connection *c = &core->connections[handle];
    for (;;) {
        *out = (vespiary_result){.status = NEED_DATA, .position = at};
        if (at == end)
            return 0;
        packet p = {.at = memory + at};
        int64_t length = find_packet(c, &p, end - at, &out->detail);
        if (length == 0)
            return 0;
        if (length < 0) {
            out->status = ODD;
            return 0;
        }
        int left = LEFT;
        if (p.at[0] >> 4 == PUBLISH)
            left = take_publish(core, handle, &p, at);
        else if (p.at[0] >> 4 == PUBACK)
            left = take_puback(core, handle, &p);
        if (left < 0 && left != -ENOSPC)
            return left;
        if (left == -ENOSPC || left == LEFT) {
            out->status = left == LEFT ? FRAME : BLOCKED;
            out->detail = p.length;
            return 0;
        }
        at += p.length;
    }
}

int vespiary_core_scan_mqtt(vespiary_core *core, uint32_t handle, uint32_t buffer, uint64_t start, uint64_t end,
                            vespiary_result *out)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open ||
        !core->connections[handle].is_mqtt || buffer >= core->buffers_count || !core->buffers[buffer].is_open ||
        start > end || end > core->buffers[buffer].length)
        return -EINVAL;
    core->switched_count = 0;
    int bad = scan(core, handle, core->buffers[buffer].memory, start, end, out);
    if (bad || !core->switched_count)
        return bad;
    *out = (vespiary_result){
        .status = SWITCHED, .detail = core->switched_route, .position = core->switched[0].position};
    return 0;
}
