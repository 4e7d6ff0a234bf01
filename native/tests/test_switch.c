/* SENDs to a switch under sanitizers: random streams in random pieces, each scanned in a block of memory that ends where
 * the piece does; routes that are held, nowhere, or closed; journals without room; connections that go in the middle.
 * What a client sees must hold: each frame is taken or left, once, and receipts come in its order. */
#include "core.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { RUNS = 60, STREAMS = 40, FRAMES_MAX = 700, BODY_MAX = 6000, STREAM_MAX = 6 * 1024 * 1024, MOST = 512 };

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
    uint32_t switch_route, plain_route, routes[4], connection;
    uint8_t *stream;
    size_t length;
    uint32_t frames, number; /* frames of this stream; receipts asked for on this connection so far */
    uint32_t batches, stops, largest;
} world;

static void add_file(world *w)
{
    w->files++;
    CHECK_EQUAL(vespiary_core_add_file(w->core, w->files, w->files * 31, 512 * 1024), 0);
}

static void connect_client(world *w)
{
    w->connection = (uint32_t)vespiary_core_open_connection(w->core);
    CHECK_EQUAL(vespiary_core_set_ready(w->core, w->connection, 12, 20, 1024, 4096, 8000), 0);
    CHECK_EQUAL(vespiary_core_teach(w->core, w->connection, (const uint8_t *)"/s", 2, w->switch_route), 0);
    CHECK_EQUAL(vespiary_core_teach(w->core, w->connection, (const uint8_t *)"/p", 2, w->plain_route), 0);
    w->number = 0;
}

static void open_world(world *w)
{
    uint8_t *stream = w->stream;
    *w = (world){.stream = stream, .core = vespiary_core_new(64 * 1024, 16 * 1024, 20, 20000)};
    CHECK(w->core);
    vespiary_core_set_time(w->core, 1700000000000);
    CHECK_EQUAL(vespiary_core_start(w->core, 1, 0, 0), 0);
    for (uint32_t q = 1; q <= 3; q++)
        CHECK_EQUAL(vespiary_core_open_queue(w->core, q, 1, q != 3), 0);
    static const uint32_t queues[] = {1, 2, 3};
    for (uint32_t i = 0; i < 4; i++)
        w->routes[i] = (uint32_t)vespiary_core_open_route(w->core, queues, i);
    w->plain_route = w->routes[1];
    w->switch_route = (uint32_t)vespiary_core_open_switch(w->core);
    CHECK_EQUAL(vespiary_core_open_account(w->core), 1);
    CHECK_EQUAL(vespiary_core_join_account(w->core, 2, 1), 0);
    connect_client(w);
    add_file(w);
    add_file(w);
}

/* --- what the client sends -------------------------------------------------------------------------------------- */
static void put(world *w, const void *data, size_t length)
{
    CHECK(w->length + length <= STREAM_MAX);
    memcpy(w->stream + w->length, data, length);
    w->length += length;
}

static void frame(world *w, bool is_usual)
{
    static const char *const odd[] = {"", "", "", "", "", "", "priority:7\n", "JMSXGroupID:g\n", "priority:4\npriority:9\n",
                                      "priority:10\n", "transaction:t\n", "a:b\\c\n", "priority\n-is:7\n", "destination:/x\n"};
    char head[300];
    bool has_length = below(3) == 0;
    uint32_t body = below(20) ? below(60) : below(BODY_MAX);
    int n = snprintf(head, sizeof head, "SEND\ndestination:%s\n%s%sreceipt:%u\n", is_usual || below(12) ? "/s" : "/p",
                     below(3) ? "persistent:true\n" : "", odd[is_usual || below(40) ? below(6) : below(14)], w->number++);
    put(w, head, (size_t)n);
    if (has_length)
        put(w, head, (size_t)snprintf(head, sizeof head, "content-length:%u\n", body));
    put(w, "\n", 1);
    for (uint32_t i = 0; i < body; i++)
        w->stream[w->length++] = (uint8_t)(has_length ? below(256) : 'x');
    put(w, "\0", 1);
    while (below(4) == 0)
        put(w, "\n", 1);
    w->frames++;
}

/* --- what the server does ------------------------------------------------------------------------------------------ */
static void write_out(world *w)
{
    vespiary_write out;
    int got;
    while ((got = vespiary_core_seal_write(w->core, &out)) > 0)
        CHECK_EQUAL(vespiary_core_write_done(w->core, out.sequence), 0);
    CHECK(got == 0 || got == -ENOSPC);
}

/* The numbers in the receipts that may leave now: `*next` and above, ascending, if what asked for them was not broken.
 * Returns how many. */
static uint32_t receipts(world *w, uint32_t *next, bool is_broken)
{
    uint32_t handle, length, count = 0;
    const uint8_t *data;
    while (vespiary_core_take_receipt(w->core, &handle, &data, &length) == 1) {
        if (handle != w->connection)
            continue; /* of one that went */
        const char *at = (const char *)data, *end = at + length;
        while (at < end) {
            static const char start[] = "RECEIPT\nreceipt-id:";
            CHECK(end - at > (int64_t)sizeof start && !memcmp(at, start, sizeof start - 1));
            uint32_t number = (uint32_t)strtoul(at + sizeof start - 1, NULL, 10);
            CHECK(is_broken || number >= *next);
            *next = number + 1;
            count++;
            at += strlen(at) + 1;
        }
    }
    return count;
}

static void see_views(world *w, uint32_t count)
{
    vespiary_look look;
    const uint8_t *data;
    CHECK_EQUAL(vespiary_core_switched(w->core, &look, &data), count);
    for (uint32_t i = 0; i < count; i++) {
        vespiary_view view;
        memcpy(&view, data + i * sizeof view, sizeof view);
        CHECK(view.properties_at <= view.properties_end && view.properties_end <= look.length);
        CHECK(memmem(data + view.properties_at, view.properties_end - view.properties_at, "destination:/s\n", 15));
        CHECK(!memmem(data + view.properties_at, view.properties_end - view.properties_at, "receipt:", 8));
        CHECK(view.priority <= 9 && view.body_length <= 8000);
    }
}

/* Choose for what a scan kept; false: the client has gone. */
static bool choose(world *w, vespiary_result *out)
{
    static uint32_t routes[MOST + 1];
    vespiary_look look;
    const uint8_t *data;
    int count = vespiary_core_switched(w->core, &look, &data);
    CHECK(count > 0 && count <= MOST);
    w->largest = (uint32_t)count > w->largest ? (uint32_t)count : w->largest;
    see_views(w, (uint32_t)count);
    for (int i = 0; i <= count; i++)
        routes[i] = w->routes[below(4)];
    vespiary_result none;
    CHECK_EQUAL(vespiary_core_send_switched(w->core, routes, (uint32_t)count + 1, &none), -EINVAL);
    uint32_t kept = routes[count - 1];
    routes[count - 1] = below(2) ? w->switch_route : 1000;
    CHECK_EQUAL(vespiary_core_send_switched(w->core, routes, (uint32_t)count, &none), -EINVAL);
    routes[count - 1] = kept;
    if (below(30) == 0) { /* filters went meanwhile: what was kept goes where it was chosen for */
        CHECK_EQUAL(vespiary_core_close_route(w->core, w->switch_route), 0);
        w->switch_route = (uint32_t)vespiary_core_open_switch(w->core);
        CHECK_EQUAL(vespiary_core_teach(w->core, w->connection, (const uint8_t *)"/s", 2, w->switch_route), 0);
    }
    if (below(150) == 0) {
        CHECK_EQUAL(vespiary_core_close_connection(w->core, w->connection), 0);
        CHECK_EQUAL(vespiary_core_send_switched(w->core, routes, (uint32_t)count, &none), -EINVAL);
        return false;
    }
    CHECK_EQUAL(vespiary_core_send_switched(w->core, routes, (uint32_t)count, out), 0);
    w->batches++;
    w->stops += out->status != 0;
    CHECK_EQUAL(vespiary_core_switched(w->core, &look, &data), 0);
    return true;
}

static void make_room(world *w)
{
    write_out(w);
    for (uint32_t q = 1; q <= 3; q++)
        CHECK(vespiary_core_purge_queue(w->core, q) >= -ENOSPC);
    write_out(w);
    for (uint64_t id = 1; id < vespiary_core_current_file(w->core); id++)
        if (vespiary_core_live_places(w->core, id) == 0)
            (void)vespiary_core_forget_file(w->core, id);
    while (vespiary_core_files_ahead(w->core) < 2)
        add_file(w);
}

/* Scan one stream in pieces. Returns how many frames Python would have got, or -1 when the connection ended. */
static int64_t serve(world *w)
{
    size_t at = 0, end = 0;
    int64_t left = 0;
    while (at < w->length) {
        if (end < w->length)
            end += 1 + below(below(3) ? 200000 : 40);
        end = end < w->length ? end : w->length;
        for (bool is_done = false; !is_done && at < end;) {
            uint8_t *exact = malloc(end - at);
            memcpy(exact, w->stream + at, end - at);
            int buffer = vespiary_core_attach_buffer(w->core, exact, end - at);
            vespiary_result out;
            CHECK_EQUAL(
                vespiary_core_scan_stomp(w->core, w->connection, (uint32_t)buffer, 0, end - at, &out), 0);
            bool is_here = out.status != 4 || choose(w, &out);
            CHECK_EQUAL(vespiary_core_detach_buffer(w->core, (uint32_t)buffer), 0);
            free(exact);
            if (!is_here || out.status == 2)
                return -1;
            CHECK(out.position <= end - at);
            at += out.position;
            if (out.status == 1) {
                at += out.detail;
                left++;
            }
            if (out.status == 3)
                make_room(w);
            is_done = out.status == 0 && at < end && out.position == 0;
        }
        if (end == w->length && at < w->length)
            return -1; /* a broken frame waits for its end */
    }
    return left;
}

static void run(uint64_t which, world *w)
{
    state = which * 2654435761u + 88172645463325252u;
    open_world(w);
    uint32_t next = 0;
    for (uint32_t i = 0; i < STREAMS; i++) {
        vespiary_account_limits limits = {.bytes_max = UINT64_MAX, .bytes_low = UINT64_MAX, .messages_low = 0,
                                          .messages_max = below(3) ? UINT64_MAX : below(100), .is_holding = 1};
        limits.messages_low = limits.messages_max;
        CHECK_EQUAL(vespiary_core_limit_account(w->core, 1, &limits), 0);
        w->length = w->frames = 0;
        bool is_usual = below(3) == 0;
        for (uint32_t n = below(4) ? below(30) : below(FRAMES_MAX); n; n--)
            frame(w, is_usual);
        bool is_broken = w->length && below(5) == 0;
        if (is_broken)
            w->stream[below((uint32_t)w->length)] = (uint8_t)below(256);
        int64_t left = serve(w);
        make_room(w);
        uint32_t confirmed = receipts(w, &next, is_broken);
        if (left >= 0 && !is_broken)
            CHECK_EQUAL(confirmed + left, w->frames);
        if (left < 0 || is_broken) {
            (void)vespiary_core_close_connection(w->core, w->connection);
            connect_client(w);
            next = 0;
        }
    }
    vespiary_core_free(w->core);
}

int main(void)
{
    world w = {.stream = malloc(STREAM_MAX)};
    uint32_t batches = 0, stops = 0, largest = 0;
    for (uint64_t which = 1; which <= RUNS; which++) {
        run(which, &w);
        batches += w.batches;
        stops += w.stops;
        largest = w.largest > largest ? w.largest : largest;
    }
    printf("switch: %u batches, the largest of %u, %u stopped\n", batches, largest, stops);
    CHECK(stops > 100 && largest > 300);
    free(w.stream);
    return 0;
}
