/* AMQP's fast path out: credit of links, windows and delivery ids of sessions, and what accepted deliveries mean (AMQP 1.0,
 * OASIS, 2012; 2.5.6, 2.6.7, 2.6.12; contract: CoreAmqpSending in vespiary_native/abc_amqp_sending.py). The form of a
 * transfer: amqp_transfer.c; who gets how many: delivery.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "amqp.h"
#include "amqp_send.h"
#include "state.h"

enum { SENT_FIRST = 64, SPARSE = 8 };
static const uint32_t NOBODY = UINT32_MAX;

/* --- deliveries that are not settled ----------------------------------------------------------------------------- */
static amqp_delivery *sent_find(const amqp_outgoing *of, uint32_t id)
{
    if (!of->count)
        return NULL;
    uint32_t mask = of->capacity - 1;
    for (uint32_t at = id & mask; of->sent[at].consumer != NOBODY; at = (at + 1) & mask)
        if (of->sent[at].id == id)
            return &of->sent[at];
    return NULL;
}

static void sent_put(amqp_delivery *table, uint32_t capacity, const amqp_delivery *what)
{
    uint32_t at = what->id & (capacity - 1);
    while (table[at].consumer != NOBODY)
        at = (at + 1) & (capacity - 1);
    table[at] = *what;
}

static int sent_resize(amqp_outgoing *of, uint32_t capacity)
{
    amqp_delivery *made = malloc(capacity * sizeof *made);
    if (!made)
        return -ENOMEM;
    for (uint32_t i = 0; i < capacity; i++)
        made[i] = (amqp_delivery){.consumer = NOBODY};
    for (uint32_t i = 0; i < of->capacity; i++)
        if (of->sent[i].consumer != NOBODY)
            sent_put(made, capacity, &of->sent[i]);
    free(of->sent);
    of->sent = made;
    of->capacity = capacity;
    return 0;
}

/* Take one out; those behind it that it kept from their places move up. */
static void sent_remove(amqp_outgoing *of, const amqp_delivery *which)
{
    uint32_t mask = of->capacity - 1, hole = (uint32_t)(which - of->sent);
    for (uint32_t at = (hole + 1) & mask; of->sent[at].consumer != NOBODY; at = (at + 1) & mask) {
        uint32_t home = of->sent[at].id & mask;
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        of->sent[hole] = of->sent[at];
        hole = at;
    }
    of->sent[hole].consumer = NOBODY;
    of->count--;
}

/* Give memory back that a long window has taken; who looks at all of them looks at few slots then. */
static void sent_shrink(amqp_outgoing *of)
{
    uint32_t capacity = of->capacity;
    while (capacity > SENT_FIRST && of->count * SPARSE < capacity)
        capacity /= 2;
    if (capacity != of->capacity)
        (void)sent_resize(of, capacity); /* without memory it stays as it is */
}

int amqp_next_id(amqp_outgoing *of)
{
    if ((of->count + 1) * 2 > of->capacity) {
        int bad = sent_resize(of, of->capacity ? of->capacity * 2 : SENT_FIRST);
        if (bad)
            return bad;
    }
    while (sent_find(of, of->next_id)) /* they have come round */
        of->next_id++;
    return 0;
}

void amqp_sent(amqp_outgoing *of, uint32_t by, uint64_t sequence)
{
    sent_put(of->sent, of->capacity, &(amqp_delivery){.sequence = sequence, .id = of->next_id++, .consumer = by});
    of->count++;
}

static int compare(const void *one, const void *other)
{
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return a < b ? -1 : a > b;
}

/* Find those with ids from `first` to `last`: how far each is behind `first`, ascending, at *found, valid while nothing
 * is delivered. How many, or -ENOMEM. Looks at no more than there are, however long the range is. */
static int64_t sent_between(vespiary_core *core, const amqp_outgoing *of, uint32_t first, uint32_t last, uint32_t **found)
{
    uint32_t reach = last - first, count = 0;
    if (reach > INT32_MAX || !of->count) /* serial numbers (RFC 1982): it ends before it begins */
        return 0;
    int bad = scratch_room(core, 0, of->count * sizeof(uint32_t));
    if (bad)
        return bad;
    uint32_t *out = *found = (uint32_t *)(void *)core->scratch;
    if (reach < of->count) {
        for (uint32_t step = 0; step <= reach; step++)
            if (sent_find(of, first + step))
                out[count++] = step;
        return count;
    }
    for (uint32_t i = 0; i < of->capacity; i++)
        if (of->sent[i].consumer != NOBODY && of->sent[i].id - first <= reach)
            out[count++] = of->sent[i].id - first;
    qsort(out, count, sizeof *out, compare);
    return count;
}

/* --- sessions ------------------------------------------------------------------------------------------------------ */
static amqp_outgoing *outgoing_find(const connection *c, uint32_t channel)
{
    amqp_session *of = amqp_session_find(c, channel);
    return of ? &of->out : NULL;
}

static connection *connection_of(const vespiary_core *core, uint32_t handle)
{
    bool is_there = handle < core->connections_count && core->connections[handle].is_open;
    return is_there && core->connections[handle].is_amqp ? &core->connections[handle] : NULL;
}

amqp_outgoing *amqp_outgoing_of(const vespiary_core *core, const consumer *by)
{
    return by->amqp ? outgoing_find(&core->connections[by->connection], by->amqp->channel) : NULL;
}

int vespiary_core_set_amqp_room(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t frames)
{
    connection *c = connection_of(core, handle);
    if (!c || channel > UINT16_MAX)
        return -EINVAL;
    amqp_session *of = amqp_session_make(c, channel);
    if (!of)
        return -ENOMEM;
    of->out.room = frames;
    return 0;
}

int64_t vespiary_core_next_amqp_delivery(vespiary_core *core, uint32_t handle, uint32_t channel)
{
    connection *c = connection_of(core, handle);
    amqp_outgoing *of = c ? outgoing_find(c, channel) : NULL;
    if (!of)
        return -EINVAL;
    int bad = amqp_next_id(of);
    return bad ? bad : (int64_t)of->next_id++;
}

int64_t vespiary_core_take_amqp_sent(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t first,
                                     uint32_t last, vespiary_amqp_sent *out, uint64_t room)
{
    connection *c = connection_of(core, handle);
    if (!c)
        return -EINVAL;
    amqp_outgoing *of = outgoing_find(c, channel);
    uint32_t *found;
    int64_t count = of ? sent_between(core, of, first, last, &found) : 0;
    if (count <= 0 || (uint64_t)count > room)
        return count;
    for (int64_t i = 0; i < count; i++) {
        const amqp_delivery *which = sent_find(of, first + found[i]);
        out[i] = (vespiary_amqp_sent){.sequence = which->sequence, .id = which->id, .consumer = which->consumer};
        sent_remove(of, which);
    }
    sent_shrink(of);
    return count;
}

void amqp_drop_sent(const vespiary_core *core, const consumer *by)
{
    uint32_t handle = (uint32_t)(by - core->consumers);
    amqp_outgoing *of = amqp_outgoing_of(core, by);
    for (uint32_t i = 0; of && of->count && i < of->capacity;)
        if (of->sent[i].consumer == handle)
            sent_remove(of, &of->sent[i]); /* another one may have come here */
        else
            i++;
    if (of)
        sent_shrink(of);
}

/* Acknowledge what was sent from here of these ids. How many of them were, or -errno: those before are done. */
static int64_t accept_sent(vespiary_core *core, connection *c, uint32_t channel, uint32_t first, uint32_t last)
{
    amqp_outgoing *of = outgoing_find(c, channel);
    uint32_t *found;
    int64_t count = of ? sent_between(core, of, first, last, &found) : 0;
    for (int64_t i = 0; i < count; i++) {
        const amqp_delivery *which = sent_find(of, first + found[i]);
        uint64_t block = 0;
        int done = acknowledge(core, &core->consumers[which->consumer], which->sequence, &block);
        if (done < 0)
            return done;
        if (block)
            c->last_block = block;
        sent_remove(of, which);
    }
    if (count > 0)
        sent_shrink(of);
    return count;
}

int amqp_take_disposition(vespiary_core *core, connection *c, uint32_t channel, amqp_fields *f)
{
    uint32_t first, last;
    bool is_receiver = amqp_boolean(f), has_first = amqp_uint(f, &first);
    if (!amqp_uint(f, &last))
        last = first;
    bool is_settled = amqp_boolean(f);
    if (!is_receiver || !has_first || !is_settled || f->is_odd || !amqp_accepted(f))
        return AMQP_LEFT;
    (void)amqp_boolean(f); /* batchable */
    if (!amqp_read_all(f))
        return AMQP_LEFT;
    int64_t count = accept_sent(core, c, channel, first, last);
    if (count < 0)
        return (int)count;
    return count == (int64_t)(last - first) + 1 ? AMQP_TAKEN : AMQP_LEFT; /* it may be about others as well */
}

/* --- links ---------------------------------------------------------------------------------------------------------- */
int vespiary_core_encode_amqp(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t link_handle,
                              uint32_t frame_bytes, int is_settled, int is_stored)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open || channel > UINT16_MAX)
        return -EINVAL;
    consumer *by = &core->consumers[handle];
    if (by->version != 0 || by->mode != 2 || by->mqtt || (by->amqp && by->amqp->channel != channel))
        return -EINVAL;
    amqp_out_link *of = by->amqp ? by->amqp : calloc(1, sizeof *of);
    if (!of)
        return -ENOMEM;
    of->channel = (uint16_t)channel;
    of->handle = link_handle;
    of->frame_max = frame_bytes;
    of->is_settled = is_settled != 0;
    of->is_stored = is_stored != 0;
    by->amqp = of;
    return 0;
}

int vespiary_core_set_amqp_link_credit(vespiary_core *core, uint32_t handle, uint32_t messages)
{
    if (handle >= core->consumers_count || !core->consumers[handle].is_open || !core->consumers[handle].amqp)
        return -EINVAL;
    consumer *by = &core->consumers[handle];
    bool is_more = messages > by->amqp->credit;
    by->amqp->credit = messages;
    if (is_more)
        queue_ready(core, by->queue);
    return 0;
}
