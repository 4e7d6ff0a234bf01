/* AMQP's way out under sanitizers: links of two sessions, random credit and windows, dispositions in blocks of memory that end
 * where they do, consumers and sessions that end, ids that are taken over. What must hold: no id is out twice, no more is
 * given than link and session take, and only what was sent is acknowledged. */
#include "core.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { RUNS = 120, STEPS = 400, LINKS = 4, IDS = 1 << 16, LIMIT = 1, STORED = 7 };

static uint64_t state;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 11) % n);
}

typedef struct {
    vespiary_core *core;
    uint64_t files;
    uint32_t route, connection;
    int consumers[LINKS];
    bool is_settled[LINKS];
    uint32_t credit[LINKS], room[2], next[2];
    uint8_t is_out[2][IDS]; /* by session: 1 + the link, 0: not out */
    uint32_t sent, accepted, taken;
} world;

static void add_file(world *w)
{
    w->files++;
    CHECK_EQUAL(vespiary_core_add_file(w->core, w->files, w->files * 31, 512 * 1024), 0);
}

static void open_world(world *w)
{
    uint32_t sent = w->sent, accepted = w->accepted, taken = w->taken;
    memset(w, 0, sizeof *w);
    w->sent = sent, w->accepted = accepted, w->taken = taken;
    w->core = vespiary_core_new(64 * 1024, 16 * 1024, 40, 20000);
    CHECK(w->core);
    CHECK_EQUAL(vespiary_core_start(w->core, 1, 0, 0), 0);
    CHECK_EQUAL(vespiary_core_open_queue(w->core, 1, 1, 1), 0);
    static const uint32_t queues[] = {1};
    w->route = (uint32_t)vespiary_core_open_route(w->core, queues, 1);
    w->connection = (uint32_t)vespiary_core_open_connection(w->core);
    CHECK_EQUAL(vespiary_core_set_ready_amqp(w->core, w->connection, 60000, 50000), 0);
    for (uint32_t i = 0; i < LINKS; i++)
        w->consumers[i] = -1;
    add_file(w);
    add_file(w);
}

static void write_out(world *w)
{
    vespiary_write out;
    while (vespiary_core_seal_write(w->core, &out) > 0)
        CHECK_EQUAL(vespiary_core_write_done(w->core, out.sequence), 0);
    for (uint64_t id = 1; id < vespiary_core_current_file(w->core); id++)
        if (vespiary_core_live_places(w->core, id) == 0)
            (void)vespiary_core_forget_file(w->core, id);
}

static void publish(world *w)
{
    static const char *const lines[] = {"destination:q\npersistent:true\n", "a:b\n", "expires:1\n", ""};
    uint8_t properties[400];
    size_t length = strlen(lines[below(8) ? below(2) : below(4)]);
    memcpy(properties, lines[0], length);
    properties[length++] = 0;
    uint8_t before = (uint8_t)below(200);
    const uint8_t native[] = {1, 0x75, below(2) ? 0xB0 : 0xA0, 0, 0, 0, 0, before};
    memcpy(properties + length, native, sizeof native);
    memset(properties + length + sizeof native, 'b', before);
    length += sizeof native + before + below(2); /* maybe a byte of footer */
    static uint8_t body[9000];
    (void)vespiary_core_publish(w->core, w->route, properties, (uint32_t)length, body, below(30) ? below(300) : below(9000),
                                1, below(20) ? 3 : 1, below(20) ? 4 : 5, 0, 0, 0, 0);
}

static void forget_ids(world *w, uint32_t link)
{
    for (uint32_t id = 0; id < IDS; id++)
        if (w->is_out[link % 2][id] == link + 1)
            w->is_out[link % 2][id] = 0;
}

static void open_or_close(world *w, uint32_t i)
{
    if (w->consumers[i] >= 0) {
        CHECK(vespiary_core_close_consumer(w->core, (uint32_t)w->consumers[i], (int)below(2)) >= 0);
        w->consumers[i] = -1;
        forget_ids(w, i);
        return;
    }
    w->consumers[i] = vespiary_core_open_consumer(w->core, w->connection, 1, 2, 1000, (const uint8_t *)"", 0, 0);
    CHECK(w->consumers[i] >= 0);
    w->is_settled[i] = below(4) == 0;
    w->credit[i] = 0;
    CHECK_EQUAL(vespiary_core_encode_amqp(w->core, (uint32_t)w->consumers[i], i % 2, below(2) ? i : 70000,
                                          below(4) ? 60000 : 300, w->is_settled[i], below(10) == 0), 0);
}

/* Read the transfers that a link was given: each has the next id. */
static uint32_t read_transfers(world *w, uint32_t i, const uint8_t *at, uint64_t length)
{
    const uint8_t *end = at + length;
    uint32_t count = 0, session = i % 2;
    for (; at < end; count++) {
        uint32_t size = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
        CHECK(size <= 60000 && size <= (uint64_t)(end - at) && at[7] == session);
        const uint8_t *field = at + 14;
        field += *field == 0x43 ? 1 : *field == 0x52 ? 2 : 5;
        uint32_t id = *field == 0x43   ? 0
                      : *field == 0x52 ? field[1]
                                       : (uint32_t)field[1] << 24 | (uint32_t)field[2] << 16 | (uint32_t)field[3] << 8 | field[4];
        CHECK_EQUAL(id, w->next[session]);
        CHECK(id < IDS && !w->is_out[session][id]);
        w->next[session]++;
        w->is_out[session][id] = w->is_settled[i] ? 0 : (uint8_t)(i + 1);
        at += size;
    }
    w->sent += count;
    return count;
}

static void deliver(world *w, uint32_t i)
{
    vespiary_result out;
    const uint8_t *data;
    uint32_t handle = (uint32_t)w->consumers[i], most = 1 + below(50), *room = &w->room[i % 2];
    int count = vespiary_core_deliver(w->core, handle, most, below(2) ? 1 << 20 : 300, &out, &data);
    CHECK(count >= 0 && (uint32_t)count <= w->credit[i] && (uint32_t)count <= *room);
    if (count && data[4] == 2 && data[8] == 0 && data[9] == 0x53) /* else all are handed out as they are stored */
        CHECK_EQUAL(read_transfers(w, i, data, out.position), count);
    w->credit[i] -= (uint32_t)count, *room -= (uint32_t)count;
    if (out.status != STORED)
        return;
    count = vespiary_core_deliver_stored(w->core, handle, most, 1 << 20, &out, &data);
    CHECK(count >= 0 && (uint32_t)count <= w->credit[i] && (uint32_t)count <= *room);
    w->credit[i] -= (uint32_t)count, *room -= (uint32_t)count;
}

static void put_big(uint8_t *at, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(value >> shift);
}

/* Let the client accept a range; what was out of it is not any more, unless the journal is full. */
static void settle(world *w)
{
    uint32_t session = below(2), next = w->next[session];
    uint32_t first = next > 50 ? next - below(50) : below(50), last = first + (below(3) ? below(5) : below(1000));
    static const uint8_t form[] = {0, 0, 0, 37, 2, 0, 0, 0, 0, 0x53, 0x15, 0xC0, 24, 6, 0x41, 0x70, 0, 0,
                                   0, 0, 0x70, 0, 0, 0, 0, 0x41, 0, 0x53, 0x24, 0xC0, 1, 0, 0x40};
    uint8_t *frame = malloc(sizeof form);
    memcpy(frame, form, sizeof form);
    frame[3] = sizeof form;
    frame[12] = sizeof form - 13;
    frame[7] = (uint8_t)session;
    put_big(frame + 16, first);
    put_big(frame + 21, last);
    int buffer = vespiary_core_attach_buffer(w->core, frame, sizeof form);
    vespiary_result out;
    CHECK_EQUAL(vespiary_core_scan_amqp(w->core, w->connection, (uint32_t)buffer, 0, sizeof form, &out), 0);
    CHECK(out.status == 0 || out.status == 1 || out.status == 3);
    CHECK_EQUAL(vespiary_core_detach_buffer(w->core, (uint32_t)buffer), 0);
    free(frame);
    uint32_t known = 0;
    for (uint32_t id = first; id <= last && id < IDS; id++)
        known += w->is_out[session][id] != 0, w->is_out[session][id] = 0;
    if (out.status == 3) { /* in part: the rest is taken over */
        static vespiary_amqp_sent rest[IDS];
        CHECK(vespiary_core_take_amqp_sent(w->core, w->connection, session, first, last, rest, IDS) > 0);
        return;
    }
    CHECK_EQUAL(out.status == 0, known == last - first + 1);
    w->accepted += known;
}

static void take(world *w)
{
    static vespiary_amqp_sent found[IDS];
    uint32_t session = below(2), next = w->next[session], first = next > 30 ? next - below(30) : 0, last = first + below(20);
    int64_t count = vespiary_core_take_amqp_sent(w->core, w->connection, session, first, last, NULL, 0);
    CHECK(count >= 0);
    CHECK_EQUAL(vespiary_core_take_amqp_sent(w->core, w->connection, session, first, last, found, IDS), count);
    for (int64_t i = 0; i < count; i++) {
        CHECK(found[i].id - first <= last - first && (!i || found[i].id > found[i - 1].id));
        uint8_t *is_out = &w->is_out[session][found[i].id];
        CHECK(*is_out && w->consumers[*is_out - 1] == (int)found[i].consumer);
        *is_out = 0;
    }
    w->taken += (uint32_t)count;
}

static void end_session(world *w, uint32_t session)
{
    CHECK_EQUAL(vespiary_core_forget_amqp_session(w->core, w->connection, session), 0);
    w->room[session] = w->next[session] = 0;
    memset(w->is_out[session], 0, IDS);
}

static void step(world *w)
{
    uint32_t i = below(LINKS), session = below(2);
    switch (below(10)) {
    case 0:
        if (w->consumers[i] < 0 || below(5) == 0)
            open_or_close(w, i);
        break;
    case 1:
        w->room[session] = below(100);
        CHECK_EQUAL(vespiary_core_set_amqp_room(w->core, w->connection, session, w->room[session]), 0);
        break;
    case 2:
        if (w->consumers[i] >= 0)
            CHECK_EQUAL(vespiary_core_set_amqp_link_credit(w->core, (uint32_t)w->consumers[i], w->credit[i] = below(60)), 0);
        break;
    case 3:
        write_out(w);
        if (below(4))
            while (vespiary_core_files_ahead(w->core) < 2)
                add_file(w);
        break;
    case 4:
        take(w);
        break;
    case 5:
        settle(w);
        break;
    case 6:
        if (w->consumers[i] >= 0)
            deliver(w, i);
        break;
    case 7:
        if (below(40) == 0)
            end_session(w, session);
        else if (vespiary_core_next_amqp_delivery(w->core, w->connection, session) >= 0)
            w->next[session]++;
        break;
    default:
        for (uint32_t n = below(20); n; n--)
            publish(w);
    }
}

int main(void)
{
    static world w;
    for (uint32_t run = 0; run < RUNS; run++) {
        state = 88172645463325252u + run * 977u;
        open_world(&w);
        for (uint32_t i = 0; i < STEPS; i++)
            step(&w);
        if (below(2))
            for (uint32_t i = 0; i < LINKS; i++)
                if (w.consumers[i] >= 0)
                    open_or_close(&w, i);
        vespiary_core_free(w.core);
    }
    printf("%u transfers, %u accepted, %u taken over\n", w.sent, w.accepted, w.taken);
    CHECK(w.sent > 1000 && w.accepted > 500 && w.taken > 100);
    return 0;
}
