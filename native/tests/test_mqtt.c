/* MQTT's fast path under sanitizers: random streams of clients in random pieces, each scanned in a block of memory that
 * ends where the piece does; messages to them, whoever encodes them; windows, reserved ids, consumers that close, routes
 * that go, journals without room. What must hold: each packet is taken or left, once; PUBACKs come in the order of what
 * asked for them; no packet id is out twice; what is acknowledged was sent. */
#include "core.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { RUNS = 200, STEPS = 250, STREAM_MAX = 1 << 20, PACKET_MAX = 9000, FIRST_ID = 1, CONSUMERS = 3 };

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
    uint32_t routes[3], switch_route, connection, version;
    int consumers[CONSUMERS];
    uint32_t queue_of[CONSUMERS];
    bool is_encoded[CONSUMERS];
    uint8_t is_out[65536]; /* ids that the client was sent and has not acknowledged */
    uint32_t out[70000], out_count;
    uint8_t *stream;
    size_t length;
    uint32_t next_id, confirmed, taken, sent, stored;
} world;

static void add_file(world *w)
{
    w->files++;
    CHECK_EQUAL(vespiary_core_add_file(w->core, w->files, w->files * 31, 512 * 1024), 0);
}

static void teach(world *w)
{
    static const char *const lines[] = {"destination:a.b\n", "destination:a\\cb\n", "destination:a%20b\n", "destination:$x\n"};
    static const char *const topics[] = {"a/b", "c", "longer/topic/name"};
    const char *topic = topics[below(3)], *line = lines[below(8) ? 0 : below(4)];
    uint32_t to = below(6) ? w->routes[below(3)] : w->switch_route;
    CHECK_EQUAL(vespiary_core_teach_mqtt(w->core, w->connection, (const uint8_t *)topic, (uint32_t)strlen(topic),
                                         (const uint8_t *)line, (uint32_t)strlen(line), to), 0);
}

static void connect_client(world *w)
{
    w->connection = (uint32_t)vespiary_core_open_connection(w->core);
    w->version = 3 + below(3);
    CHECK_EQUAL(vespiary_core_set_ready_mqtt(w->core, w->connection, w->version, PACKET_MAX, 8000, 65535), 0);
    CHECK_EQUAL(vespiary_core_set_window(w->core, w->connection, below(4) ? 60000 : below(20)), 0);
    for (uint32_t i = 0; i < 6; i++)
        teach(w);
    for (uint32_t i = 0; i < CONSUMERS; i++)
        w->consumers[i] = -1;
    memset(w->is_out, 0, sizeof w->is_out);
    w->out_count = 0;
    w->next_id = w->confirmed = 0;
}

static void open_world(world *w)
{
    uint8_t *stream = w->stream;
    uint32_t sent = w->sent, stored = w->stored, taken = w->taken;
    memset(w, 0, sizeof *w);
    w->stream = stream, w->sent = sent, w->stored = stored, w->taken = taken;
    w->core = vespiary_core_new(64 * 1024, 16 * 1024, 40, 20000);
    CHECK(w->core);
    CHECK_EQUAL(vespiary_core_start(w->core, 1, 0, 0), 0);
    for (uint32_t q = 1; q <= 3; q++)
        CHECK_EQUAL(vespiary_core_open_queue(w->core, q, 1, q != 3), 0);
    static const uint32_t queues[] = {1, 2, 3};
    for (uint32_t i = 0; i < 3; i++)
        w->routes[i] = (uint32_t)vespiary_core_open_route(w->core, queues, i + 1);
    w->switch_route = (uint32_t)vespiary_core_open_switch(w->core);
    connect_client(w);
    add_file(w);
    add_file(w);
}

/* --- what the client sends ---------------------------------------------------------------------------------------- */
static void put_packet(world *w, uint8_t first, const uint8_t *rest, size_t length)
{
    CHECK(w->length + length + 8 < STREAM_MAX);
    w->stream[w->length++] = first;
    size_t left = length;
    for (; left > 127; left >>= 7)
        w->stream[w->length++] = (uint8_t)(left | 0x80);
    w->stream[w->length++] = (uint8_t)left;
    if (length)
        memcpy(w->stream + w->length, rest, length);
    w->length += length;
}

static void put_publish(world *w)
{
    static const char *const topics[] = {"a/b", "c", "longer/topic/name", "unknown"};
    static uint8_t rest[PACKET_MAX];
    const char *topic = topics[below(20) ? below(3) : 3];
    size_t length = strlen(topic), at = 2 + length;
    bool is_confirmed = below(3) != 0;
    rest[0] = 0, rest[1] = (uint8_t)length;
    memcpy(rest + 2, topic, length);
    if (is_confirmed) {
        uint32_t id = w->next_id++ % 65535 + 1;
        rest[at++] = (uint8_t)(id >> 8), rest[at++] = (uint8_t)id;
    }
    if (w->version == 5)
        rest[at++] = 0;
    size_t body = below(30) ? below(100) : below(8000);
    memset(rest + at, 'x', body);
    put_packet(w, is_confirmed ? 0x32 : 0x30, rest, at + body);
}

static void put_puback(world *w)
{
    uint32_t id = w->out_count && below(20) ? w->out[below(w->out_count)] : below(65536);
    uint8_t rest[4] = {(uint8_t)(id >> 8), (uint8_t)id, 0, 0};
    put_packet(w, 0x40, rest, w->version == 5 ? 2 + below(3) : 2);
}

/* --- what the server does -------------------------------------------------------------------------------------------- */
static void write_out(world *w)
{
    vespiary_write out;
    int got;
    while ((got = vespiary_core_seal_write(w->core, &out)) > 0)
        CHECK_EQUAL(vespiary_core_write_done(w->core, out.sequence), 0);
    CHECK(got == 0 || got == -ENOSPC);
}

static void make_room(world *w)
{
    vespiary_core_hold_adds(w->core, 0);
    write_out(w);
    for (uint32_t q = 1; q <= 3; q++)
        if (below(2))
            CHECK(vespiary_core_purge_queue(w->core, q) >= -ENOSPC);
    write_out(w);
    for (uint64_t id = 1; id < vespiary_core_current_file(w->core); id++)
        if (vespiary_core_live_places(w->core, id) == 0)
            (void)vespiary_core_forget_file(w->core, id);
    while (vespiary_core_files_ahead(w->core) < 2)
        add_file(w);
}

/* PUBACKs that may leave come in the order of the PUBLISHes that were taken; those that were left are passed over. */
static void receipts(world *w)
{
    uint32_t handle, length;
    const uint8_t *data;
    while (vespiary_core_take_receipt(w->core, &handle, &data, &length) == 1) {
        if (handle != w->connection)
            continue;
        CHECK_EQUAL(length % 4, 0);
        for (uint32_t i = 0; i < length; i += 4) {
            CHECK(data[i] == 0x40 && data[i + 1] == 2);
            uint32_t id = (uint32_t)(data[i + 2] << 8 | data[i + 3]);
            while (w->confirmed < w->next_id && w->confirmed % 65535 + 1 != id)
                w->confirmed++;
            CHECK(w->confirmed < w->next_id);
            w->confirmed++;
            w->taken++;
        }
    }
}

static void acknowledged(world *w, uint32_t id)
{
    w->is_out[id] = 0;
    for (uint32_t i = 0; i < w->out_count; i++)
        if (w->out[i] == id)
            w->out[i] = w->out[--w->out_count];
}

/* Which ids are free again is to be seen from how many are out. */
static void compare_sent(world *w, const uint8_t *data, size_t length)
{
    for (size_t i = 0; i + 3 < length;) {
        size_t header = 1, rest = 0, shift = 0;
        do
            rest |= (size_t)(data[i + header] & 127) << shift, shift += 7;
        while (data[i + header++] & 128);
        if (data[i] == 0x40) {
            uint32_t id = (uint32_t)(data[i + header] << 8 | data[i + header + 1]);
            if (w->is_out[id])
                acknowledged(w, id);
        }
        i += header + rest;
    }
}

/* Scan what is in the stream in pieces; what is left goes to nobody. */
static void serve(world *w)
{
    size_t at = 0, end = 0;
    while (at < w->length) {
        end += 1 + below(below(3) ? 100000 : 30);
        end = end < w->length ? end : w->length;
        for (bool is_done = false; !is_done && at < end;) {
            uint8_t *exact = malloc(end - at);
            memcpy(exact, w->stream + at, end - at);
            int buffer = vespiary_core_attach_buffer(w->core, exact, end - at);
            vespiary_result out;
            CHECK_EQUAL(vespiary_core_scan_mqtt(w->core, w->connection, (uint32_t)buffer, 0, end - at, &out), 0);
            if (out.status == 4) {
                static uint32_t routes[512];
                vespiary_look look;
                const uint8_t *data;
                int count = vespiary_core_switched(w->core, &look, &data);
                CHECK(count > 0 && count <= 512);
                for (int i = 0; i < count; i++)
                    routes[i] = w->routes[below(3)];
                if (below(20) == 0)
                    teach(w); /* what was kept is forgotten, and scanned again */
                else
                    CHECK_EQUAL(vespiary_core_send_switched(w->core, routes, (uint32_t)count, &out), 0);
                if (out.status == 4)
                    out.status = 0, out.detail = 0;
            }
            CHECK_EQUAL(vespiary_core_detach_buffer(w->core, (uint32_t)buffer), 0);
            CHECK(out.status != 2 && out.position <= end - at);
            compare_sent(w, exact, out.position);
            free(exact);
            at += out.position;
            if (out.status == 1)
                at += out.detail;
            if (out.status == 3)
                make_room(w);
            is_done = out.status == 0 && at < end && out.position == 0 && end < w->length;
            CHECK(!(out.status == 0 && out.position == 0 && out.detail && out.detail <= end - at));
        }
    }
    w->length = 0;
}

/* --- messages to the client ------------------------------------------------------------------------------------------- */
static void open_reader(world *w, uint32_t i)
{
    w->queue_of[i] = 1 + below(3);
    w->consumers[i] =
        vespiary_core_open_consumer(w->core, w->connection, w->queue_of[i], 2, 100000, (const uint8_t *)"", 0, 0);
    CHECK(w->consumers[i] >= 0);
    w->is_encoded[i] = below(5) != 0;
    if (w->is_encoded[i])
        CHECK_EQUAL(vespiary_core_encode_mqtt(w->core, (uint32_t)w->consumers[i], below(3), below(4) ? 100000 : 60,
                                              below(4) ? 0 : below(200), (const uint8_t *)"fixed", below(2) ? 5 : 0,
                                              (const uint8_t *)"/queue/\0/topic/", below(2) ? 15 : 0), 0);
}

/* A message of STOMP or AMQP: lines at random, in memory that ends where they end. */
static void put_other(world *w)
{
    static const char *lines[] = {"destination:/queue/a.b\n", "persistent:true\n", "a:b\n", "\n", ":\n", "content-type:x\n",
                                  "mqtt-payload-format:1\n", "correlation-id:ID\\c7\n", "a\\nb:\\\\\n", "bad:\\\n",
                                  "user-property.x:y\n", "no end", "mqtt-retain:true\n", "\xc3\xa9:\xff\n"};
    char text[512] = "";
    for (uint32_t n = below(9); n; n--)
        strcat(text, lines[below(sizeof lines / sizeof lines[0])]);
    uint32_t length = (uint32_t)strlen(text);
    uint8_t *properties = malloc(length + 1U);
    memcpy(properties, text, length + 1U); /* with the NUL for AMQP */
    bool is_amqp = below(2);
    int placed = vespiary_core_publish(w->core, w->routes[below(3)], properties, length + is_amqp,
                                       (const uint8_t *)"body", 4, (int)below(2), is_amqp ? 3 : 1, 4, (int)below(2), 0, 0, 0);
    CHECK(placed >= 0 || placed == -ENOSPC);
    free(properties);
}

static void deliver(world *w, uint32_t i)
{
    vespiary_result out;
    const uint8_t *data;
    uint32_t handle = (uint32_t)w->consumers[i], most = 1 + below(100);
    int count = vespiary_core_deliver(w->core, handle, most, below(2) ? 1 << 20 : 300, &out, &data);
    CHECK(count >= 0);
    for (size_t at = 0; w->is_encoded[i] && at < out.position;) {
        size_t header = 1, rest = 0, shift = 0;
        do
            rest |= (size_t)(data[at + header] & 127) << shift, shift += 7;
        while (data[at + header++] & 128);
        CHECK(at + header + rest <= out.position && data[at] >> 4 == 3);
        size_t topic = (size_t)data[at + header] << 8 | data[at + header + 1];
        CHECK(topic + 2 <= rest);
        if (data[at] & 6) {
            uint32_t id = (uint32_t)(data[at + header + 2 + topic] << 8 | data[at + header + 3 + topic]);
            CHECK(id >= FIRST_ID && !w->is_out[id]);
            w->is_out[id] = 1;
            w->out[w->out_count++] = id;
        }
        w->sent++;
        at += header + rest;
    }
    if (out.status == 7) {
        count = vespiary_core_deliver_stored(w->core, handle, most, 1 << 20, &out, &data);
        CHECK(count >= 0 && (count > 0 || out.status != 7));
        w->stored += (uint32_t)count;
    }
}

static void step(world *w)
{
    uint32_t i = below(CONSUMERS), id = FIRST_ID + below(200);
    switch (below(8)) {
    case 0:
        if (w->consumers[i] < 0)
            open_reader(w, i);
        else if (below(6) == 0) {
            CHECK(vespiary_core_close_consumer(w->core, (uint32_t)w->consumers[i], (int)below(2)) >= 0);
            w->consumers[i] = -1;
        }
        break;
    case 1:
        if (!w->is_out[id] && vespiary_core_reserve_packet_id(w->core, w->connection, id, 1) == 0)
            w->is_out[id] = 2;
        else if (w->is_out[id] == 2 && vespiary_core_reserve_packet_id(w->core, w->connection, id, 0) == 0)
            w->is_out[id] = 0;
        break;
    case 2:
        write_out(w);
        receipts(w);
        break;
    case 3:
    case 4:
        if (w->consumers[i] >= 0)
            deliver(w, i);
        break;
    default:
        for (uint32_t n = below(40); n; n--)
            if (below(3))
                put_publish(w);
            else
                put_puback(w);
        if (below(3) == 0)
            put_other(w);
        serve(w);
    }
    if (below(100) == 0)
        vespiary_core_hold_adds(w->core, (int)below(2));
    if (below(60) == 0)
        make_room(w);
    CHECK(vespiary_core_sent_count(w->core, w->connection) == w->out_count);
}

/* Lines of one byte become properties of five: there has to be room for them, however much is sent at once. */
static void check_wide_lines(world *w)
{
    static char text[15000];
    memset(text, '\n', sizeof text);
    open_world(w);
    w->version = 5;
    CHECK_EQUAL(vespiary_core_set_ready_mqtt(w->core, w->connection, 5, PACKET_MAX, 8000, 65535), 0);
    for (uint32_t i = 0; i < 12; i++)
        CHECK_EQUAL(vespiary_core_publish(w->core, w->routes[2], (const uint8_t *)text, sizeof text, (const uint8_t *)"", 0, 0,
                                          1, 4, 0, 0, 0, 0), 3);
    int consumer = vespiary_core_open_consumer(w->core, w->connection, 3, 2, 100, (const uint8_t *)"", 0, 0);
    CHECK_EQUAL(vespiary_core_encode_mqtt(w->core, (uint32_t)consumer, 0, 100000, 0, (const uint8_t *)"t", 1,
                                          (const uint8_t *)"", 0), 0);
    vespiary_result out;
    const uint8_t *data;
    CHECK_EQUAL(vespiary_core_deliver(w->core, (uint32_t)consumer, 100, 1 << 21, &out, &data), 12);
    CHECK_EQUAL(out.position, 12 * (1 + 3 + 3 + 3 + 5 * sizeof text));
    vespiary_core_free(w->core);
}

int main(void)
{
    world *w = calloc(1, sizeof *w);
    w->stream = malloc(STREAM_MAX);
    check_wide_lines(w);
    for (uint64_t which = 1; which <= RUNS; which++) {
        state = which * 2654435761u + 88172645463325252u;
        open_world(w);
        for (uint32_t i = 0; i < STEPS; i++)
            step(w);
        for (uint32_t i = 0; i < CONSUMERS; i++)
            if (w->consumers[i] >= 0)
                CHECK(vespiary_core_close_consumer(w->core, (uint32_t)w->consumers[i], 0) >= 0);
        CHECK_EQUAL(vespiary_core_close_connection(w->core, w->connection), 0);
        vespiary_core_free(w->core);
    }
    printf("mqtt: %u confirmed, %u sent, %u as they are stored\n", w->taken, w->sent, w->stored);
    CHECK(w->taken > 10000 && w->sent > 10000 && w->stored > 100);
    free(w->stream);
    free(w);
    return 0;
}
