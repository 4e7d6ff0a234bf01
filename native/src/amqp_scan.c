/* AMQP's fast path in: plain transfers (AMQP 1.0, OASIS 2012, §2.3, §2.7.5 and §3.2). What is plain stands at
 * CoreAmqp.scan_amqp in vespiary_native/abc_amqp.py; all else goes to the codec in Python, which also words all errors. */
#include <errno.h>
#include <string.h>

#include "amqp.h"
#include "state.h"

enum {
    HEAD_BYTES = 8,
    SIZE_BYTES = 4,
    OFFSET_MIN = 2,
    OFFSET_UNIT = 4,
    TYPE_AMQP = 0,
    TAG_MAX = 32,
    PROTOCOL_AMQP = 3,
    PRIORITY_USUAL = 4,
    DISPOSITION_BYTES = 32 /* or less */
};

/* Deliveries one behind the other that are to be confirmed. */
typedef struct {
    uint32_t first, count;
    uint16_t channel;
    bool is_written; /* a disposition stands in the output, and what it waits for was not noted */
} run;

int vespiary_core_set_ready_amqp(vespiary_core *core, uint32_t handle, uint32_t frame_bytes, uint32_t body_bytes)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open || frame_bytes < HEAD_BYTES)
        return -EINVAL;
    connection *c = &core->connections[handle];
    c->is_amqp = true;
    c->packet_max = frame_bytes;
    c->body_max = body_bytes;
    return 0;
}

/* --- finding frames --------------------------------------------------------------------------------------------- */
/* Find one whole frame. Returns its length; 0: more data is needed (*need: how many); -1: odd. */
static int64_t find_frame(const connection *c, amqp_frame *f, uint64_t left, uint32_t *need)
{
    *need = SIZE_BYTES;
    if (left < SIZE_BYTES)
        return 0;
    uint32_t size = amqp_number(f->at);
    if (size > c->packet_max || size < HEAD_BYTES)
        return -1;
    *need = HEAD_BYTES;
    if (left < HEAD_BYTES)
        return 0;
    f->body = (uint32_t)f->at[4] * OFFSET_UNIT;
    if (f->at[4] < OFFSET_MIN || f->body > size || f->at[5] != TYPE_AMQP)
        return -1;
    f->length = *need = size;
    if (left < size)
        return 0;
    *need = 0;
    f->channel = (uint16_t)(f->at[6] << 8 | f->at[7]);
    return size;
}

/* --- confirming --------------------------------------------------------------------------------------------------- */
static uint8_t *put32_big(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 24), at[1] = (uint8_t)(value >> 16), at[2] = (uint8_t)(value >> 8), at[3] = (uint8_t)value;
    return at + 4;
}

static uint8_t *put_uint(uint8_t *at, uint32_t value)
{
    if (!value) {
        *at = 0x43;
        return at + 1;
    }
    if (value < 256) {
        at[0] = 0x52, at[1] = (uint8_t)value;
        return at + 2;
    }
    *at = 0x70;
    return put32_big(at + 1, value);
}

/* Confirm the deliveries that were taken one behind the other: a disposition, settled and accepted, as the codec writes it. */
static int confirm_run(vespiary_core *core, uint32_t handle, run *of)
{
    static const uint8_t start[] = {OFFSET_MIN, TYPE_AMQP}, accepted[] = {0x41, 0, 0x53, AMQP_ACCEPTED, 0x45};
    if (!of->count)
        return 0;
    uint8_t made[DISPOSITION_BYTES], *at = made + SIZE_BYTES;
    memcpy(at, start, sizeof start);
    at += sizeof start;
    *at++ = (uint8_t)(of->channel >> 8);
    *at++ = (uint8_t)of->channel;
    *at++ = 0, *at++ = 0x53, *at++ = AMQP_DISPOSITION, *at++ = 0xC0;
    uint8_t *size = at++;
    *at++ = 5;
    *at++ = 0x41; /* role: receiver */
    at = put_uint(at, of->first);
    if (of->count == 1)
        *at++ = AMQP_NULL;
    else
        at = put_uint(at, of->first + of->count - 1);
    memcpy(at, accepted, sizeof accepted);
    at += sizeof accepted;
    *size = (uint8_t)(at - size - 1);
    put32_big(made, (uint32_t)(at - made));
    uint8_t *out = output_room(core, handle, (uint32_t)(at - made));
    if (!out)
        return -ENOMEM;
    memcpy(out, made, (size_t)(at - made));
    of->is_written = true;
    of->count = 0;
    return 0;
}

static int confirm(vespiary_core *core, uint32_t handle, run *of, uint16_t channel, uint32_t delivery)
{
    if (of->count && of->channel == channel && of->first + of->count == delivery) {
        of->count++;
        return 0;
    }
    int bad = confirm_run(core, handle, of);
    of->channel = channel;
    of->first = delivery;
    of->count = 1;
    return bad;
}

/* --- transfers ------------------------------------------------------------------------------------------------------ */
typedef struct {
    uint32_t handle, delivery;
    bool is_settled;
} transfer;

/* Read a transfer that is a whole delivery and of no special kind; false: it is left. */
static bool read_transfer(amqp_fields *f, transfer *t)
{
    uint32_t format;
    bool is_whole = amqp_uint(f, &t->handle);
    is_whole &= amqp_uint(f, &t->delivery);
    piece tag = amqp_binary(f);
    is_whole &= tag.data && tag.length <= TAG_MAX;
    is_whole &= !amqp_uint(f, &format) || !format;
    t->is_settled = amqp_boolean(f);
    is_whole &= !amqp_boolean(f);            /* more */
    is_whole &= !amqp_ubyte(f, 0);           /* rcv-settle-mode */
    is_whole &= amqp_code(f) == AMQP_NULL;   /* state */
    is_whole &= !amqp_boolean(f);            /* resume */
    is_whole &= !amqp_boolean(f);            /* aborted */
    (void)amqp_boolean(f);                   /* batchable */
    return is_whole && amqp_read_all(f);
}

static int take_transfer(vespiary_core *core, uint32_t handle, const amqp_frame *f, amqp_fields *fields,
                         const uint8_t *payload, run *confirmed)
{
    connection *c = &core->connections[handle];
    transfer t;
    amqp_session *s = amqp_session_find(c, f->channel);
    if (!s || !s->window || !read_transfer(fields, &t))
        return AMQP_LEFT;
    amqp_link *link = amqp_link_find(s, t.handle);
    if (!link || !link->credit)
        return AMQP_LEFT;
    piece body;
    const amqp_lesson *known = amqp_lesson_of(link, payload, (uint32_t)(f->at + f->length - payload), &body);
    if (!known || body.length > c->body_max)
        return AMQP_LEFT;
    const route *to = &core->routes[known->route];
    if (!to->is_open || to->generation != known->generation || (core->accounts_full && is_route_held(core, to)))
        return AMQP_LEFT;
    message m = {.properties = {{known->key + known->key_length, known->stored_length}},
                 .body = body,
                 .protocol = PROTOCOL_AMQP,
                 .priority = PRIORITY_USUAL,
                 .flags = known->is_escaped ? FLAG_ESCAPED : 0,
                 .is_persistent = known->is_persistent};
    uint64_t block;
    int places = publish(core, to, &m, &block);
    if (places < 0)
        return places == -EMSGSIZE ? AMQP_LEFT : places;
    if (block)
        c->last_block = block;
    s->window--;
    link->credit--;
    int bad = amqp_touch(c, link);
    if (!bad && !t.is_settled && !link->is_settled)
        bad = confirm(core, handle, confirmed, f->channel, t.delivery);
    return bad;
}

/* --- the scan ----------------------------------------------------------------------------------------------------- */
/* Take a frame, or leave it; else -errno. */
static int take(vespiary_core *core, uint32_t handle, const amqp_frame *f, run *confirmed)
{
    uint8_t code;
    amqp_fields fields;
    const uint8_t *payload = amqp_composite(f->at + f->body, f->at + f->length, &code, &fields);
    if (payload && code == AMQP_TRANSFER)
        return take_transfer(core, handle, f, &fields, payload, confirmed);
    if (payload == f->at + f->length && code == AMQP_DISPOSITION)
        return amqp_take_disposition(core, &core->connections[handle], f->channel, &fields);
    return AMQP_LEFT;
}

/* Take frames until one is not plain, or not whole, or has to wait; *out says why. */
static int scan(vespiary_core *core, uint32_t handle, const uint8_t *memory, uint64_t at, uint64_t end,
                vespiary_result *out, run *confirmed)
{
    for (;;) {
        *out = (vespiary_result){.status = NEED_DATA, .position = at};
        if (at == end)
            return 0;
        amqp_frame f = {.at = memory + at};
        int64_t length = find_frame(&core->connections[handle], &f, end - at, &out->detail);
        if (length == 0)
            return 0;
        if (length < 0) {
            *out = (vespiary_result){.status = ODD, .position = at};
            return 0;
        }
        int left = take(core, handle, &f, confirmed);
        if (left < 0 && left != -ENOSPC)
            return left;
        if (left) {
            *out = (vespiary_result){.status = left == AMQP_LEFT ? FRAME : BLOCKED, .detail = f.length, .position = at};
            return 0;
        }
        at += f.length;
    }
}

int vespiary_core_scan_amqp(vespiary_core *core, uint32_t handle, uint32_t buffer, uint64_t start, uint64_t end,
                            vespiary_result *out)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open ||
        !core->connections[handle].is_amqp || buffer >= core->buffers_count || !core->buffers[buffer].is_open ||
        start > end || end > core->buffers[buffer].length)
        return -EINVAL;
    core->switched_count = 0;
    run confirmed = {0};
    int bad = scan(core, handle, core->buffers[buffer].memory, start, end, out, &confirmed);
    int worse = confirm_run(core, handle, &confirmed);
    if (!worse && confirmed.is_written)
        worse = output_waits(core, handle, false);
    return bad ? bad : worse;
}
