/* AMQP's fast path in under sanitizers: random frames of clients in random pieces, each scanned in a block of memory that
 * ends where the piece does, with lessons, allowances, links, sessions and routes that change between them, and journals
 * without room. What must hold: each frame is taken or left, once; no allowance is exceeded; each delivery that was taken
 * and is not settled is confirmed, once, in order. */
#include "core.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { RUNS = 200, STEPS = 200, STREAM_MAX = 1 << 20, FRAME_MAX = 4096, LINKS = 3, CHANNELS = 2 };

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
    uint32_t routes[3], connection;
    uint32_t window[CHANNELS], credit[CHANNELS][LINKS]; /* as the caller has them */
    bool is_known[CHANNELS][LINKS];
    uint8_t *stream;
    size_t length;
    uint32_t next_id;
    uint64_t taken, confirmed; /* of this client */
    uint64_t all;
} world;

static void add_file(world *w)
{
    w->files++;
    CHECK_EQUAL(vespiary_core_add_file(w->core, w->files, w->files * 31, 512 * 1024), 0);
}

/* --- lessons ---------------------------------------------------------------------------------------------------------- */
static const char STORED[] = "id:....\nt:....\n\0....--........";
enum { STORED_BYTES = sizeof STORED - 1, ID_AT = 3, TIME_AT = 7, KEY_BYTES = 19 };

/* What a message says before its body: an id of four characters, a time of eight bytes, the head of the body. */
static void put_key(uint8_t *at, uint32_t kind)
{
    static const char *const ids[] = {"aZ-9", "x_y0", "AMQP", "a:b9"};
    static const uint32_t times[] = {1234, 9999, 7, 70000}, codes[] = {0x75A0, 0x75B0, 0x77A1, 0x77B1};
    at[0] = '<', at[1] = (uint8_t)('0' + kind % 2), at[2] = '>';
    memcpy(at + ID_AT, ids[below(8) ? 0 : below(4)], 4);
    uint32_t time = times[below(8) ? 0 : below(4)], code = codes[kind % 4];
    memset(at + TIME_AT, 0, 4);
    for (uint32_t i = 0; i < 4; i++)
        at[TIME_AT + 4 + i] = (uint8_t)(time >> (24 - 8 * i));
    at[15] = 0, at[16] = 0x53, at[17] = (uint8_t)(code >> 8), at[18] = (uint8_t)code;
}

static void teach(world *w, uint32_t channel, uint32_t link)
{
    uint8_t key[KEY_BYTES];
    put_key(key, below(8));
    static const uint32_t ranges[] = {ID_AT, 4, 3, 4, 16, 0, TIME_AT, 8, 10, 4, 22, 1};
    uint32_t bad_ranges[12];
    memcpy(bad_ranges, ranges, sizeof ranges);
    bad_ranges[below(12)] = below(2) ? UINT32_MAX : below(60);
    bool is_bad = below(10) == 0;
    uint8_t *exact = malloc(KEY_BYTES), *stored = malloc(STORED_BYTES);
    memcpy(exact, key, KEY_BYTES);
    memcpy(stored, STORED, STORED_BYTES);
    int got = vespiary_core_teach_amqp(w->core, w->connection, channel, link, exact, KEY_BYTES, stored, STORED_BYTES,
                                       w->routes[below(3)], (int)below(2), (int)below(2), is_bad ? bad_ranges : ranges,
                                       below(3));
    free(exact);
    free(stored);
    CHECK(got == 1 || (is_bad && got == -EINVAL));
    w->is_known[channel][link] |= got == 1;
}

static void change(world *w)
{
    uint32_t channel = below(CHANNELS), link = below(LINKS);
    switch (below(12)) {
    case 0:
        CHECK_EQUAL(vespiary_core_forget_amqp_link(w->core, w->connection, channel, link), 0);
        w->is_known[channel][link] = false;
        w->credit[channel][link] = 0;
        break;
    case 1:
        CHECK_EQUAL(vespiary_core_forget_amqp_session(w->core, w->connection, channel), 0);
        w->window[channel] = 0;
        for (uint32_t i = 0; i < LINKS; i++)
            w->is_known[channel][i] = false, w->credit[channel][i] = 0;
        break;
    case 2: {
        uint32_t which = below(3), queues[] = {1, 2, 3};
        CHECK_EQUAL(vespiary_core_close_route(w->core, w->routes[which]), 0);
        w->routes[which] = (uint32_t)vespiary_core_open_route(w->core, queues, which + 1);
        break;
    }
    case 3:
    case 4:
        w->window[channel] = below(4) ? 2048 : below(5);
        CHECK_EQUAL(vespiary_core_set_amqp_window(w->core, w->connection, channel, w->window[channel]), 0);
        break;
    case 5:
    case 6: {
        uint32_t credit = below(4) ? 1000 : below(5);
        int got = vespiary_core_set_amqp_credit(w->core, w->connection, channel, link, credit, 0);
        CHECK_EQUAL(got, w->is_known[channel][link] ? 0 : -EINVAL);
        if (!got)
            w->credit[channel][link] = credit;
        break;
    }
    default: teach(w, channel, link);
    }
}

/* --- what the client sends -------------------------------------------------------------------------------------------- */
static void put_transfer(world *w)
{
    uint8_t *frame = w->stream + w->length, *at = frame + 8;
    CHECK(w->length + 2 * FRAME_MAX < STREAM_MAX);
    uint32_t channel = below(CHANNELS), kind = below(8), body = below(30) ? below(60) : below(3000);
    w->next_id += below(10) ? 1 : 1 + below(70000);
    static const uint8_t head[] = {0, 0x53, 0x14, 0xC0, 0, 4, 0x52};
    memcpy(at, head, sizeof head);
    uint8_t *size = at + 4;
    at += sizeof head;
    *at++ = (uint8_t)below(LINKS);
    *at++ = 0x70;
    for (int i = 24; i >= 0; i -= 8)
        *at++ = (uint8_t)(w->next_id >> i);
    *at++ = 0xA0, *at++ = 1, *at++ = 't';
    *at++ = below(2) ? 0x43 : 0x40;
    *size = (uint8_t)(at - size - 1);
    put_key(at, kind);
    bool is_long = at[KEY_BYTES - 1] >= 0xB0;
    at += KEY_BYTES;
    if (!is_long)
        body %= 256;
    for (int i = is_long ? 24 : 0; i >= 0; i -= 8)
        *at++ = (uint8_t)(body >> i);
    memset(at, below(30) ? 'x' : 0xC3, body);
    at += body;
    uint32_t length = (uint32_t)(at - frame) - (below(40) == 0);
    frame[0] = 0, frame[1] = 0, frame[2] = (uint8_t)(length >> 8), frame[3] = (uint8_t)length;
    frame[4] = 2, frame[5] = 0, frame[6] = 0, frame[7] = (uint8_t)channel;
    if (below(60) == 0)
        frame[8 + below(length - 8)] ^= (uint8_t)(1 + below(255));
    w->length += length;
}

/* --- what the server does --------------------------------------------------------------------------------------------- */
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

static uint32_t read_uint(const uint8_t **at)
{
    uint8_t code = *(*at)++;
    if (code == 0x43)
        return 0;
    if (code == 0x52)
        return *(*at)++;
    CHECK_EQUAL(code, 0x70);
    uint32_t value = (uint32_t)(*at)[0] << 24 | (uint32_t)(*at)[1] << 16 | (uint32_t)(*at)[2] << 8 | (*at)[3];
    *at += 4;
    return value;
}

static void receipts(world *w)
{
    uint32_t handle, length;
    const uint8_t *data;
    while (vespiary_core_take_receipt(w->core, &handle, &data, &length) == 1)
        for (const uint8_t *at = data, *end = data + length; at < end;) {
            const uint8_t *field = at + 15;
            CHECK(at[0] == 0 && at[10] == 0x15 && at[12] == at[3] - 13 && at[14] == 0x41);
            uint32_t first = read_uint(&field), last = *field == 0x40 ? (field++, first) : read_uint(&field);
            w->confirmed += (uint64_t)(last - first) + 1;
            at += at[3];
            CHECK(field + 5 == at);
        }
}

static void count_taken(world *w)
{
    vespiary_taken out[CHANNELS * LINKS];
    uint32_t room = 1 + below(CHANNELS * LINKS);
    for (int count = (int)room; count == (int)room;) {
        count = vespiary_core_taken_amqp(w->core, w->connection, out, room);
        CHECK(count >= 0 && count <= (int)room);
        for (int i = 0; i < count; i++) {
            CHECK(out[i].channel < CHANNELS && out[i].handle < LINKS && out[i].messages);
            CHECK(w->window[out[i].channel] >= out[i].messages);
            CHECK(w->credit[out[i].channel][out[i].handle] >= out[i].messages);
            w->window[out[i].channel] -= out[i].messages;
            w->credit[out[i].channel][out[i].handle] -= out[i].messages;
            w->taken += out[i].messages;
        }
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
            CHECK_EQUAL(vespiary_core_scan_amqp(w->core, w->connection, (uint32_t)buffer, 0, end - at, &out), 0);
            CHECK_EQUAL(vespiary_core_detach_buffer(w->core, (uint32_t)buffer), 0);
            free(exact);
            CHECK(out.status <= 3 && out.position <= end - at);
            count_taken(w);
            at += out.position;
            if (out.status == 1)
                at += out.detail;
            if (out.status == 2)
                at = w->length;
            if (out.status == 3)
                make_room(w);
            CHECK(!(out.status == 0 && at < end && out.detail <= end - at));
            is_done = out.status == 0 && at < end;
            if (is_done && end == w->length)
                at = end; /* the rest of a frame that says that it is longer */
        }
    }
    w->length = 0;
}

static void open_world(world *w)
{
    uint8_t *stream = w->stream;
    uint64_t all = w->all;
    memset(w, 0, sizeof *w);
    w->stream = stream, w->all = all;
    w->core = vespiary_core_new(64 * 1024, 16 * 1024, 40, 20000);
    CHECK(w->core);
    CHECK_EQUAL(vespiary_core_start(w->core, 1, 0, 0), 0);
    static const uint32_t queues[] = {1, 2, 3};
    for (uint32_t q = 1; q <= 3; q++)
        CHECK_EQUAL(vespiary_core_open_queue(w->core, q, 1, q != 3), 0);
    for (uint32_t i = 0; i < 3; i++)
        w->routes[i] = (uint32_t)vespiary_core_open_route(w->core, queues, i + 1);
    w->connection = (uint32_t)vespiary_core_open_connection(w->core);
    CHECK_EQUAL(vespiary_core_set_ready_amqp(w->core, w->connection, FRAME_MAX, 2000), 0);
    add_file(w);
    add_file(w);
    for (uint32_t i = 0; i < 40; i++)
        change(w);
}

int main(void)
{
    world *w = calloc(1, sizeof *w);
    w->stream = malloc(STREAM_MAX);
    for (uint64_t which = 1; which <= RUNS; which++) {
        state = which * 2654435761u + 88172645463325252u;
        open_world(w);
        for (uint32_t i = 0; i < STEPS; i++) {
            for (uint32_t n = below(6); n; n--)
                change(w);
            for (uint32_t n = below(40); n; n--)
                put_transfer(w);
            serve(w);
            if (below(3) == 0) {
                write_out(w);
                receipts(w);
            }
            if (below(100) == 0)
                vespiary_core_hold_adds(w->core, 1);
            if (below(40) == 0)
                make_room(w);
        }
        make_room(w);
        receipts(w);
        CHECK_EQUAL(w->taken, w->confirmed);
        w->all += w->taken;
        CHECK_EQUAL(vespiary_core_close_connection(w->core, w->connection), 0);
        vespiary_core_free(w->core);
    }
    printf("amqp: %llu taken and confirmed\n", (unsigned long long)w->all);
    CHECK(w->all > 10000);
    free(w->stream);
    free(w);
    return 0;
}
