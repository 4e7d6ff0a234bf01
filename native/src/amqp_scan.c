/* AMQP's fast path in: plain transfers (AMQP 1.0, OASIS 2012, §2.3, §2.7.5 and §3.2). What is plain stands at
 * CoreAmqp.scan_amqp in vespiary_native/abc_amqp.py; all else goes to the codec in Python, which also words all errors. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "amqp.h"
#include "state.h"

enum { HEAD_BYTES = 8, SIZE_BYTES = 4, OFFSET_MIN = 2, OFFSET_UNIT = 4, TYPE_AMQP = 0 };

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

/* --- sessions ------------------------------------------------------------------------------------------------------ */
amqp_session *amqp_session_find(const connection *c, uint32_t channel)
{
    return c->amqp ? map_get(&c->amqp->sessions, channel) : NULL;
}

amqp_session *amqp_session_make(connection *c, uint32_t channel)
{
    amqp_session *found = amqp_session_find(c, channel);
    if (found)
        return found;
    if (!c->amqp)
        c->amqp = calloc(1, sizeof *c->amqp);
    amqp_session *made = c->amqp ? calloc(1, sizeof *made) : NULL;
    if (made && map_put(&c->amqp->sessions, channel, made)) {
        free(made);
        made = NULL;
    }
    return made;
}

static void session_free(amqp_session *s) { free(s); }

void amqp_free(connection *c)
{
    for (uint32_t i = 0; c->amqp && i < c->amqp->sessions.capacity; i++)
        if (c->amqp->sessions.values[i])
            session_free(c->amqp->sessions.values[i]);
    if (c->amqp)
        map_free(&c->amqp->sessions);
    free(c->amqp);
    c->amqp = NULL;
}

static connection *connection_of(const vespiary_core *core, uint32_t handle)
{
    connection *c = handle < core->connections_count ? &core->connections[handle] : NULL;
    return c && c->is_open && c->is_amqp ? c : NULL;
}

int vespiary_core_set_amqp_window(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t transfers)
{
    connection *c = connection_of(core, handle);
    if (!c || channel > UINT16_MAX || transfers > INT32_MAX)
        return -EINVAL;
    amqp_session *s = amqp_session_make(c, channel);
    if (!s)
        return -ENOMEM;
    s->window = transfers;
    return 0;
}

int vespiary_core_forget_amqp_session(vespiary_core *core, uint32_t handle, uint32_t channel)
{
    connection *c = connection_of(core, handle);
    if (!c)
        return -EINVAL;
    amqp_session *s = amqp_session_find(c, channel);
    if (s) {
        map_remove(&c->amqp->sessions, channel);
        session_free(s);
    }
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

/* --- the scan ----------------------------------------------------------------------------------------------------- */
/* Take a frame, or leave it; else -errno. */
static int take(vespiary_core *core, uint32_t handle, const amqp_frame *f)
{
    (void)core, (void)handle, (void)f;
    return AMQP_LEFT;
}

/* Take frames until one is not plain, or not whole, or has to wait; *out says why. */
static int scan(vespiary_core *core, uint32_t handle, const uint8_t *memory, uint64_t at, uint64_t end,
                vespiary_result *out)
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
        int left = take(core, handle, &f);
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
    return scan(core, handle, core->buffers[buffer].memory, start, end, out);
}
