/* The scanners' fuzz target: any bytes, cut anywhere. libFuzzer drives it (libfuzzer.c), and native/tests/test_corpus.c
 * replays what is kept.
 *
 * Each input is scanned twice, each time by a core of its own: cut as its first bytes say, and whole. Each piece ends
 * where its memory ends. What must hold: a scan succeeds with a known status; it goes forward and never beyond its end;
 * a frame that is left is whole, and data that is asked for is missing; what was taken and left, the answers, the
 * queues, the accounts and the journal's bytes are those of the other core. */
#include "scanner_target.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tests/check.h"
#include "crc32c.h"

enum { NEED_DATA = 0, FRAME, ODD, BLOCKED, SWITCHED };
enum { CHOICES = 3, SWITCHED_MAX = 512, FILE_BYTES = 64 * 1024, RECORD_MAX = 600, ANSWERS_MAX = 4 * STREAM_MAX };

typedef struct {
    uint64_t position;
    uint32_t length;
    int32_t status;
} stop;

/* All that is to be seen of one run. */
typedef struct {
    stop stops[STREAM_MAX + 1]; /* where the scanner stopped for good: left, odd, blocked; the last: wants more */
    uint32_t count;
    bool is_odd;
    uint32_t journal; /* checksum of all that was written */
    vespiary_queue_statistics queues[QUEUES];
    vespiary_account_statistics accounts[2];
    uint8_t answers[ANSWERS_MAX];
    size_t answers_length;
} trace;

static const fuzz_protocol *protocol;

bool fuzz_choose(const char *name)
{
    for (size_t i = 0; i < FUZZ_PROTOCOLS_COUNT; i++)
        if (!strcmp(FUZZ_PROTOCOLS[i].name, name)) {
            protocol = &FUZZ_PROTOCOLS[i];
            return true;
        }
    return false;
}

/* --- the world ------------------------------------------------------------------------------------------------- */
static void open_world(fuzz_world *w, const fuzz_settings *settings)
{
    *w = (fuzz_world){.settings = *settings};
    w->core = vespiary_core_new(16 * 1024, 4096, settings->has_little_room ? 2 : 12, RECORD_MAX);
    CHECK(w->core);
    vespiary_core_set_time(w->core, 1700000000000);
    CHECK_EQUAL(vespiary_core_start(w->core, 1, 0, 0), 0);
    CHECK_EQUAL(vespiary_core_add_file(w->core, 1, 31, FILE_BYTES), 0);
    CHECK_EQUAL(vespiary_core_add_file(w->core, 2, 37, FILE_BYTES), 0);
    for (uint32_t q = 1; q <= QUEUES; q++)
        CHECK_EQUAL(vespiary_core_open_queue(w->core, q, 1, q != 3), 0);
    static const uint32_t queues[] = {1, 2, 3};
    static const struct {
        uint32_t first, count;
    } lead[ROUTES] = {{0, 0}, {0, 1}, {0, 3}, {2, 1}};
    for (uint32_t i = 0; i < ROUTES; i++)
        w->routes[i] = (uint32_t)vespiary_core_open_route(w->core, queues + lead[i].first, lead[i].count);
    w->switch_route = (uint32_t)vespiary_core_open_switch(w->core);
    CHECK_EQUAL(vespiary_core_open_account(w->core), 1);
    vespiary_account_limits limits = {UINT64_MAX, UINT64_MAX, settings->has_full_queue ? 1 : UINT64_MAX,
                                      settings->has_full_queue ? 1 : UINT64_MAX, 1};
    CHECK_EQUAL(vespiary_core_limit_account(w->core, 1, &limits), 0);
    CHECK_EQUAL(vespiary_core_join_account(w->core, 2, 1), 0);
    w->connection = (uint32_t)vespiary_core_open_connection(w->core);
    protocol->open(w);
}

static void write_out(fuzz_world *w, trace *t)
{
    vespiary_write out;
    int got;
    while ((got = vespiary_core_seal_write(w->core, &out)) > 0) {
        t->journal = vespiary_crc32c(t->journal ^ (uint32_t)out.offset, (const uint8_t *)(uintptr_t)out.address, out.length);
        CHECK_EQUAL(vespiary_core_write_done(w->core, out.sequence), 0);
    }
    CHECK(got == 0 || got == -ENOSPC);
}

static void take_answers(fuzz_world *w, trace *t)
{
    uint32_t handle, length;
    const uint8_t *data;
    while (vespiary_core_take_receipt(w->core, &handle, &data, &length) == 1) {
        CHECK_EQUAL(handle, w->connection);
        CHECK(t->answers_length + length <= ANSWERS_MAX);
        memcpy(t->answers + t->answers_length, data, length);
        t->answers_length += length;
    }
    for (size_t at = 0, whole; at < t->answers_length; at += whole) {
        whole = protocol->answer(t->answers + at, t->answers_length - at);
        CHECK(whole);
    }
}

static void close_world(fuzz_world *w, trace *t)
{
    write_out(w, t);
    take_answers(w, t);
    if (protocol->said) {
        static uint8_t said[ANSWERS_MAX];
        t->answers_length = protocol->said(t->answers, t->answers_length, said, sizeof said);
        memcpy(t->answers, said, t->answers_length);
    }
    for (uint32_t q = 1; q <= QUEUES; q++)
        CHECK_EQUAL(vespiary_core_queue_statistics(w->core, q, &t->queues[q - 1]), 0);
    for (uint32_t a = 0; a < 2; a++)
        CHECK_EQUAL(vespiary_core_account_statistics(w->core, a, &t->accounts[a]), 0);
    CHECK_EQUAL(vespiary_core_close_connection(w->core, w->connection), 0);
    vespiary_core_free(w->core);
}

/* --- one run ---------------------------------------------------------------------------------------------------- */
/* Where messages to the switch go hangs on what they say, as it is the same however they were cut. */
static void send_switched(fuzz_world *w, vespiary_result *out)
{
    vespiary_look look;
    const uint8_t *data;
    uint32_t routes[SWITCHED_MAX];
    int count = vespiary_core_switched(w->core, &look, &data);
    CHECK(count > 0 && count <= SWITCHED_MAX && (uint32_t)count == look.count);
    for (int i = 0; i < count; i++) {
        vespiary_view view;
        memcpy(&view, data + (size_t)i * sizeof view, sizeof view);
        CHECK(view.properties_at <= view.properties_end && view.properties_end <= look.length && view.priority <= 9);
        routes[i] = w->routes[(view.body_length + view.properties_end - view.properties_at) % ROUTES];
    }
    CHECK_EQUAL(vespiary_core_send_switched(w->core, routes, (uint32_t)count, out), 0);
    CHECK(out->status == NEED_DATA || out->status == FRAME || out->status == BLOCKED);
    if (out->status == NEED_DATA)
        out->status = SWITCHED; /* taken: there may be more behind it */
}

/* Scan bytes that end where their memory ends. `begin` is where they stand in the stream. */
static void scan_exact(fuzz_world *w, const uint8_t *data, size_t length, vespiary_result *out)
{
    uint8_t *exact = malloc(length);
    CHECK(exact);
    memcpy(exact, data, length);
    int buffer = vespiary_core_attach_buffer(w->core, exact, length);
    CHECK(buffer >= 0);
    CHECK_EQUAL(protocol->scan(w->core, w->connection, (uint32_t)buffer, 0, length, out), 0);
    CHECK(out->status >= NEED_DATA && out->status <= SWITCHED && out->position <= length);
    if (out->status == SWITCHED) {
        uint64_t first = out->position;
        send_switched(w, out);
        CHECK(out->position >= first && out->position <= length);
        CHECK(out->status != SWITCHED || out->position > first);
    }
    if (out->status == FRAME || out->status == BLOCKED)
        CHECK(out->detail && out->detail <= length - out->position);
    if (out->status == NEED_DATA)
        CHECK(!out->detail || out->detail > length - out->position);
    CHECK_EQUAL(vespiary_core_detach_buffer(w->core, (uint32_t)buffer), 0);
    free(exact);
}

static void note_stop(trace *t, uint64_t position, const vespiary_result *out)
{
    CHECK(t->count <= STREAM_MAX);
    t->stops[t->count++] = (stop){position, out->status == ODD ? 0 : out->detail, out->status};
}

/* Scan what there is until more is wanted, or something is odd. Returns up to where all was taken or left. */
static size_t scan_piece(fuzz_world *w, const uint8_t *stream, size_t at, size_t end, vespiary_result *out, trace *t)
{
    bool was_blocked = false;
    while (at < end) {
        scan_exact(w, stream + at, end - at, out);
        at += out->position;
        if (out->position)
            was_blocked = false;
        if (out->status == NEED_DATA)
            break;
        if (out->status == BLOCKED && !was_blocked) {
            was_blocked = true;
            write_out(w, t);
        } else if (out->status == FRAME || out->status == BLOCKED) {
            note_stop(t, at, out);
            at += out->detail;
            was_blocked = false;
        } else if (out->status == ODD) {
            t->is_odd = true;
            note_stop(t, at, out);
            break;
        }
    }
    return at;
}

/* Lengths of pieces: two; equal ones; ones of any length; bytes. */
static size_t piece_length(uint8_t kind, uint32_t *state, size_t length, size_t at)
{
    uint32_t seed = *state & 255;
    switch (kind % 4) {
    case 0: return at ? length : 1 + seed * length / 256;
    case 1: return 1 + seed % 31;
    case 2:
        *state = *state * 1103515245 + 12345;
        return 1 + (*state >> 16) % ((*state >> 28) + 3);
    default: return 1;
    }
}

static void run_cut(const fuzz_settings *s, const uint8_t *data, const uint8_t *stream, size_t length, trace *t)
{
    fuzz_world w;
    open_world(&w, s);
    uint32_t state = data[2];
    vespiary_result out = {0};
    size_t at = 0;
    for (size_t end = 0; end < length && !t->is_odd;) {
        size_t more = piece_length(data[1], &state, length, end);
        end = more < length - end ? end + more : length;
        if (end > at)
            at = scan_piece(&w, stream, at, end, &out, t);
    }
    if (!t->is_odd)
        note_stop(t, at, &(vespiary_result){0});
    close_world(&w, t);
}

/* Once a cut stream is odd, nobody scans it further: the whole one ends at the same place then. */
static void run_whole(const fuzz_settings *s, const uint8_t *stream, size_t length, const trace *cut, trace *t)
{
    fuzz_world w;
    open_world(&w, s);
    vespiary_result out = {0};
    size_t limit = length;
    if (cut->is_odd) { /* as far as all that was said before; then one look at what was odd */
        limit = cut->stops[cut->count - 1].position;
        size_t at = scan_piece(&w, stream, 0, limit, &out, t);
        CHECK_EQUAL(at, limit);
        scan_exact(&w, stream + at, length - at, &out);
        CHECK(out.position == 0 && out.status != SWITCHED && out.status != BLOCKED);
        note_stop(t, at, &(vespiary_result){.status = ODD});
        t->is_odd = true;
    } else {
        size_t at = scan_piece(&w, stream, 0, limit, &out, t);
        if (!t->is_odd)
            note_stop(t, at, &(vespiary_result){0});
    }
    close_world(&w, t);
}

static void compare(const trace *cut, const trace *whole)
{
    CHECK_EQUAL(cut->count, whole->count);
    for (uint32_t i = 0; i < cut->count; i++) {
        CHECK_EQUAL(cut->stops[i].position, whole->stops[i].position);
        CHECK_EQUAL(cut->stops[i].length, whole->stops[i].length);
        CHECK_EQUAL(cut->stops[i].status, whole->stops[i].status);
    }
    CHECK_EQUAL(cut->answers_length, whole->answers_length);
    CHECK(!memcmp(cut->answers, whole->answers, cut->answers_length));
    CHECK(!memcmp(cut->queues, whole->queues, sizeof cut->queues));
    for (uint32_t a = 0; a < 2; a++) {
        CHECK_EQUAL(cut->accounts[a].bytes, whole->accounts[a].bytes);
        CHECK_EQUAL(cut->accounts[a].messages, whole->accounts[a].messages);
        CHECK_EQUAL(cut->accounts[a].is_full, whole->accounts[a].is_full);
    }
    CHECK_EQUAL(cut->journal, whole->journal);
}

static void clear(trace *t)
{
    t->count = 0;
    t->is_odd = false;
    t->journal = 0;
    t->answers_length = 0;
}

void fuzz_one(const uint8_t *data, size_t length)
{
    if (length < CHOICES || length - CHOICES > STREAM_MAX)
        return;
    fuzz_settings settings = {
        .version = data[0] % 3,
        .has_full_queue = data[0] & 8,
        .has_little_room = data[0] & 16,
        .has_small_limits = data[0] & 32,
        .gives_in_order = data[0] & 64,
    };
    static trace cut, whole; /* large, and cleared where it was used */
    clear(&cut);
    clear(&whole);
    run_cut(&settings, data, data + CHOICES, length - CHOICES, &cut);
    run_whole(&settings, data + CHOICES, length - CHOICES, &cut, &whole);
    compare(&cut, &whole);
}
