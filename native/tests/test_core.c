/* The core under sanitizers: random calls in long runs, and after each run what must hold. The same contract is tested
 * against the Python twin in tests/unit/vespiary_native; here it is memory that is watched. */
#include "core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(is_true)                                                                              \
    do {                                                                                            \
        if (!(is_true)) {                                                                           \
            fprintf(stderr, "%s:%d: seed %llu: not true: %s\n", __FILE__, __LINE__, seed, #is_true); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

enum { QUEUES = 5, SLAB = 64 * 1024, FILE_SIZE = 256 * 1024, BODY = 9000, STEPS = 4000 };

static unsigned long long seed;
static unsigned long long state;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 11) % n);
}

typedef struct {
    vespiary_core *core;
    int connection, buffer, routes[3], consumers[QUEUES];
    uint64_t next_file, written, confirmed, delivered, done, receipts, large, large_done;
    uint8_t memory[64 * 1024];
} world;

static void add_file(world *w)
{
    w->next_file++;
    CHECK(vespiary_core_add_file(w->core, w->next_file, w->next_file * 77, FILE_SIZE) == 0);
}

static void open_world(world *w)
{
    memset(w, 0, sizeof *w);
    w->core = vespiary_core_new(SLAB, 16 * 1024, 12, 20000);
    CHECK(w->core);
    vespiary_core_set_time(w->core, 1700000000000);
    for (uint32_t q = 1; q <= QUEUES; q++)
        CHECK(vespiary_core_open_queue(w->core, q, 1, q != QUEUES) == 0);
    uint32_t one[] = {1}, three[] = {2, 3, 4}, mixed[] = {4, 5};
    w->routes[0] = vespiary_core_open_route(w->core, one, 1);
    w->routes[1] = vespiary_core_open_route(w->core, three, 3);
    w->routes[2] = vespiary_core_open_route(w->core, mixed, 2);
    w->connection = vespiary_core_open_connection(w->core);
    uint32_t c = (uint32_t)w->connection;
    CHECK(vespiary_core_set_ready(w->core, c, 12, 20, 1024, 4096, BODY) == 0);
    CHECK(vespiary_core_teach(w->core, c, (const uint8_t *)"/queue/one", 10, (uint32_t)w->routes[0]) == 0);
    CHECK(vespiary_core_teach(w->core, c, (const uint8_t *)"/topic/two", 10, (uint32_t)w->routes[1]) == 0);
    CHECK(vespiary_core_open_account(w->core) == 1 && vespiary_core_open_account(w->core) == 2);
    w->buffer = vespiary_core_attach_buffer(w->core, w->memory, sizeof w->memory);
    for (uint32_t q = 0; q < QUEUES; q++)
        w->consumers[q] = vespiary_core_open_consumer(w->core, c, q + 1, q % 3, 50, (const uint8_t *)"s", 1, 12);
    add_file(w);
    add_file(w);
}

static void scan(world *w)
{
    char head[200];
    size_t length = 0, body = below(BODY);
    int n = snprintf(head, sizeof head, "SEND\ndestination:%s\npersistent:%s\nreceipt:r%u\ncontent-length:%zu\n\n",
                     below(2) ? "/queue/one" : "/topic/two", below(3) ? "true" : "false", below(1000), body);
    memcpy(w->memory, head, (size_t)n);
    length = (size_t)n;
    memset(w->memory + length, 'x', body);
    length += body;
    w->memory[length++] = 0;
    if (below(4) == 0) /* break it somewhere: nothing may be read beyond the end */
        w->memory[below((uint32_t)length)] = (uint8_t)below(256);
    uint64_t end = below(4) == 0 ? below((uint32_t)length + 1) : length;
    /* A block of exactly `end` bytes lets the sanitizer see a read behind it. */
    uint8_t *exact = malloc(end ? end : 1);
    memcpy(exact, w->memory, end);
    int buffer = vespiary_core_attach_buffer(w->core, exact, end);
    int fresh = vespiary_core_open_connection(w->core); /* an incomplete frame would be remembered */
    CHECK(vespiary_core_set_ready(w->core, (uint32_t)fresh, 12, 20, 1024, 4096, BODY) == 0);
    CHECK(vespiary_core_teach(w->core, (uint32_t)fresh, (const uint8_t *)"/queue/one", 10, (uint32_t)w->routes[0]) ==
          0);
    vespiary_result out;
    int bad = vespiary_core_scan_stomp(w->core, (uint32_t)fresh, (uint32_t)buffer, 0, end, &out);
    CHECK(bad == 0 && out.position <= end && out.status >= 0 && out.status <= 3);
    CHECK(vespiary_core_detach_buffer(w->core, (uint32_t)buffer) == 0);
    CHECK(vespiary_core_close_connection(w->core, (uint32_t)fresh) == 0);
    free(exact);
}

static void publish(world *w)
{
    static const uint8_t properties[] = "destination:/queue/one\n";
    int places = vespiary_core_publish(w->core, (uint32_t)w->routes[below(3)], properties, sizeof properties - 1,
                                       w->memory, below(BODY), below(4) != 0, 1, 4, 0, 0, below(50) == 0, 0);
    CHECK(places >= 0 || places == -ENOSPC);
    w->written += places > 0 ? (uint64_t)places : 0;
    uint64_t reference[3] = {++w->large, 1000000, 0};
    places = vespiary_core_publish(w->core, (uint32_t)w->routes[below(3)], properties, sizeof properties - 1,
                                   (const uint8_t *)reference, sizeof reference, below(4) != 0, 1, 4, 0, 1, 0, 0);
    CHECK(places >= 0 || places == -ENOSPC);
    w->written += places > 0 ? (uint64_t)places : 0;
}

static void transaction(world *w, uint64_t id)
{
    static const uint8_t properties[] = "destination:/topic/two\n";
    uint32_t members = 1 + below(5);
    int is_branch = below(2) == 0;
    int bad = vespiary_core_begin(w->core, id, members * 2000, members * 3, is_branch);
    CHECK(bad == 0 || bad == -ENOSPC);
    if (bad)
        return;
    for (uint32_t i = 0; i < members; i++)
        CHECK(vespiary_core_publish(w->core, (uint32_t)w->routes[below(2)], properties, sizeof properties - 1,
                                    w->memory, below(1900), 1, 1, 4, 0, 0, 0, id) > 0);
    if (is_branch)
        CHECK(vespiary_core_prepare(w->core, id, (const uint8_t *)"name", 4) > 0);
    else
        CHECK(vespiary_core_commit(w->core, id) == 0);
}

static void resolve(world *w)
{
    vespiary_branch_facts facts[64];
    int64_t count = vespiary_core_branches(w->core, facts, 64);
    CHECK(count >= 0);
    if (!count)
        return;
    uint64_t id = facts[below(count < 64 ? (uint32_t)count : 64)].transaction;
    int64_t block = vespiary_core_resolve(w->core, id, below(2) == 0);
    CHECK(block > 0 || block == -ENOSPC || block == -EINVAL); /* not durable yet, or ending */
}

/* Messages that branches have added to a queue. */
static uint64_t reserved(const world *w, uint32_t queue_id)
{
    static vespiary_branch_facts facts[4096];
    static vespiary_branch_member members[64];
    int64_t count = vespiary_core_branches(w->core, facts, 4096);
    CHECK(count >= 0 && count <= 4096);
    uint64_t found = 0;
    CHECK(vespiary_core_branch_members(w->core, UINT64_MAX, members, 64) == -EINVAL);
    for (int64_t i = 0; i < count; i++) {
        int64_t places = vespiary_core_branch_members(w->core, facts[i].transaction, members, 64);
        CHECK(places >= 0 && places <= 64 && (uint32_t)places == facts[i].places);
        for (int64_t k = 0; k < places; k++)
            found += members[k].queue_id == queue_id && !members[k].is_acknowledgement;
    }
    return found;
}

static void write_out(world *w, bool is_read_back)
{
    vespiary_write out;
    vespiary_block_facts facts[64];
    int got = vespiary_core_seal_write(w->core, &out);
    CHECK(got >= 0 || got == -ENOSPC);
    if (got <= 0)
        return;
    int blocks = vespiary_verify_blocks((const uint8_t *)(uintptr_t)out.address, out.length, out.offset,
                                        out.file_id * 77, out.file_id, facts, 64);
    CHECK(blocks > 0 && facts[blocks - 1].sequence == out.sequence);
    CHECK(facts[blocks - 1].offset + facts[blocks - 1].length == out.offset + out.length);
    if (is_read_back)
        CHECK(vespiary_core_write_done(w->core, out.sequence) == 0);
    w->confirmed = out.sequence;
}

static void deliver(world *w)
{
    uint32_t q = below(QUEUES);
    vespiary_result out;
    const uint8_t *frames;
    int count = vespiary_core_deliver(w->core, (uint32_t)w->consumers[q], 1 + below(20), 30000, &out, &frames);
    CHECK(count >= 0);
    if (count) {
        CHECK(frames[out.position - 1] == 0 && !memcmp(frames, "MESSAGE\n", 8));
        w->delivered += (uint64_t)count;
    }
    if (out.status == 3) { /* large */
        vespiary_large body;
        CHECK(vespiary_core_next_large(w->core, (uint32_t)w->consumers[q], &body) == 1 && body.id <= w->large);
        CHECK(vespiary_core_take_large(w->core, (uint32_t)w->consumers[q], &body, &frames) == 1);
        CHECK(body.size == 1000000 && !memcmp(frames, "MESSAGE\n", 8) && frames[body.head_length - 1] == '\n');
        int64_t done = below(2) ? vespiary_core_acknowledge(w->core, (uint32_t)w->consumers[q], body.sequence, 0) : 0;
        CHECK(done >= 0 || done == -ENOSPC);
        w->delivered++;
    }
    uint64_t gone[4];
    int bodies = vespiary_core_take_done_large(w->core, gone, 4);
    for (int i = 0; i < bodies; i++)
        CHECK(gone[i] && gone[i] <= w->large);
    w->large_done += (uint64_t)bodies;
    if (out.status == 4) { /* special */
        uint64_t next = (uint64_t)vespiary_core_next_deliverable(w->core, q + 1);
        vespiary_look seen;
        vespiary_view view = {.is_special = 1}; /* unless it is in memory and says otherwise */
        CHECK(next && vespiary_core_look(w->core, q + 1, next, 1, 0, 0, 0, 0, &seen, &frames) >= 0);
        if (seen.count)
            memcpy(&view, frames, sizeof view);
        CHECK(!seen.count || view.sequence == next);
        if (view.is_special)
            CHECK(vespiary_core_set_aside(w->core, q + 1, next) == 1);
        CHECK(vespiary_core_specials_seen(w->core, q + 1) == 0);
    }
    if (out.status == 2) { /* absent: the bytes that were there come back */
        uint64_t file_id;
        uint32_t index;
        vespiary_write load;
        vespiary_core_absent_slab(w->core, (uint32_t)w->consumers[q], &file_id, &index);
        if (vespiary_core_load_begin(w->core, file_id, index, &load) == 0)
            CHECK(vespiary_core_load_done(w->core, file_id, index, 0) == 0); /* the read failed */
    }
}

/* Look at a queue, and do something to what was seen: give it, end it, set it aside. Returns how many were seen. */
static uint32_t look(world *w, uint32_t queue_id, bool is_everything, uint64_t *seen, uint32_t room)
{
    vespiary_queue_statistics s;
    vespiary_look out;
    const uint8_t *data;
    CHECK(vespiary_core_queue_statistics(w->core, queue_id, &s) == 0);
    bool is_special = below(4) == 0;
    uint32_t least = below(3) ? 0 : below(10);
    int count = vespiary_core_look(w->core, queue_id, s.head + below(20), room, is_everything, below(4) == 0,
                                   is_special, least, &out, &data);
    CHECK(count >= 0 && (uint32_t)count <= room && (uint32_t)count == out.count);
    for (uint32_t i = 0; i < out.count; i++) {
        vespiary_view view;
        memcpy(&view, data + i * sizeof view, sizeof view);
        CHECK(!i || view.sequence > seen[i - 1]);
        CHECK(view.sequence < s.available && view.properties_at <= view.properties_end &&
              view.properties_end <= out.length && view.is_held + view.is_aside + view.is_returned <= 1);
        CHECK(is_everything || (!view.is_held && !view.is_aside));
        CHECK((view.is_special || !is_special) && view.priority >= least);
        seen[i] = view.sequence;
    }
    return out.count;
}

static void inspect(world *w)
{
    enum { SEEN = 8 };
    uint32_t q = below(QUEUES), passed, index;
    uint64_t seen[SEEN], file_id;
    uint32_t count = look(w, q + 1, below(2), seen, SEEN);
    if (!count)
        return;
    uint64_t one = seen[below(count)];
    uint32_t consumer = (uint32_t)w->consumers[q];
    vespiary_result out;
    vespiary_large body;
    const uint8_t *data;
    int done = 0;
    switch (below(6)) {
    case 0:
        for (uint32_t i = 0; i < count; i++)
            if (seen[i] > one) { /* in no order */
                uint64_t kept = seen[i];
                seen[i] = seen[0];
                seen[0] = kept;
            }
        done = vespiary_core_give(w->core, consumer, seen, count, 20000, &out, &passed, &data);
        CHECK(done >= 0 && passed <= count && (done == 0 || data[out.position - 1] == 0));
        if (out.status == 3) /* large */
            CHECK(vespiary_core_give_large(w->core, consumer, seen[passed], &body, &data) == 1);
        w->delivered += (uint64_t)done + (out.status == 3);
        return;
    case 1: done = vespiary_core_finish(w->core, q + 1, seen, count, 0); break;
    case 2: done = vespiary_core_finish_held(w->core, consumer, one, 0); break;
    case 3: done = vespiary_core_set_aside(w->core, q + 1, one); break;
    case 4: done = vespiary_core_put_back(w->core, q + 1, one); break;
    default:
        CHECK(vespiary_core_body(w->core, q + 1, one, &data) >= 0 && data);
        CHECK(vespiary_core_absent_for(w->core, q + 1, one, &file_id, &index) == 0 && !file_id);
        CHECK(vespiary_core_next_deliverable(w->core, q + 1) >= 0);
    }
    CHECK(done >= 0 || done == -ENOSPC);
}

static void settle(world *w)
{
    uint32_t q = below(QUEUES);
    vespiary_queue_statistics s;
    CHECK(vespiary_core_queue_statistics(w->core, q + 1, &s) == 0);
    CHECK(s.head <= s.next && s.next <= s.available && s.available <= s.tail);
    CHECK(s.added + reserved(w, q + 1) ==
          s.acknowledged + s.ready + s.delivering + s.prepared + s.aside + (s.tail - s.available));
    if (s.next == s.head)
        return;
    uint64_t sequence = s.head + below((uint32_t)(s.next - s.head));
    int64_t done = below(3) ? vespiary_core_acknowledge(w->core, (uint32_t)w->consumers[q], sequence, 0)
                            : vespiary_core_give_back(w->core, (uint32_t)w->consumers[q], sequence, 1);
    CHECK(done >= 0 || done == -ENOSPC);
}

static void reopen_consumer(world *w)
{
    uint32_t q = below(QUEUES);
    uint64_t held[2];
    int64_t count = vespiary_core_held(w->core, (uint32_t)w->consumers[q], 0, 0, held, 1);
    CHECK(count >= 0);
    CHECK(vespiary_core_close_consumer(w->core, (uint32_t)w->consumers[q], (int)below(2)) == count);
    w->consumers[q] = vespiary_core_open_consumer(w->core, (uint32_t)w->connection, q + 1, q % 3, 1 + below(50),
                                                  (const uint8_t *)"s", 1, 12);
    CHECK(w->consumers[q] >= 0);
}

static void reclaim(world *w)
{
    for (uint64_t id = 1; id < vespiary_core_current_file(w->core); id++)
        if (vespiary_core_live_places(w->core, id) == 0) {
            int bad = vespiary_core_forget_file(w->core, id);
            CHECK(bad == 0 || bad == -EBUSY);
        }
    if (vespiary_core_files_ahead(w->core) < 2)
        add_file(w);
}

static void take(world *w)
{
    uint32_t handle, length, ids[4];
    const uint8_t *data;
    while (vespiary_core_take_receipt(w->core, &handle, &data, &length)) {
        CHECK(length && data[length - 1] == 0);
        w->receipts++;
    }
    while (vespiary_core_take_ready_queues(w->core, ids, 4) == 4)
        ;
}

/* Queues change their accounts, and accounts their limits; what all cost is the sum of what each holds. */
static void account(world *w)
{
    vespiary_account_limits limits = {.bytes_max = below(2) ? UINT64_MAX : below(200000), .messages_max = below(300)};
    limits.bytes_low = limits.bytes_max / 2;
    limits.messages_low = limits.messages_max / 2;
    limits.is_holding = below(2);
    CHECK(vespiary_core_join_account(w->core, 1 + below(QUEUES), below(3)) == 0);
    CHECK(vespiary_core_limit_account(w->core, 1 + below(2), &limits) == 0);
    uint32_t changed[2];
    while (vespiary_core_take_changed_accounts(w->core, changed, 2) == 2)
        ;
    vespiary_account_statistics all, each[2];
    CHECK(vespiary_core_account_statistics(w->core, 0, &all) == 0);
    for (uint32_t i = 0; i < 2; i++)
        CHECK(vespiary_core_account_statistics(w->core, 1 + i, &each[i]) == 0);
    CHECK(each[0].bytes + each[1].bytes <= all.bytes && each[0].messages + each[1].messages <= all.messages);
    for (uint32_t r = 0; r < 3; r++)
        CHECK(vespiary_core_is_held(w->core, (uint32_t)w->routes[r]) >= 0);
}

static void run(unsigned long long which)
{
    static world w;
    seed = which;
    state = which * 2654435761u + 88172645463325252u;
    open_world(&w);
    for (uint32_t step = 1; step <= STEPS; step++) {
        switch (below(12)) {
        case 0: scan(&w); break;
        case 1: publish(&w); break;
        case 2: transaction(&w, step); break;
        case 10: resolve(&w); break;
        case 11: inspect(&w); break;
        case 3:
        case 4: write_out(&w, true); break;
        case 5:
        case 6: deliver(&w); break;
        case 7: settle(&w); break;
        case 8: below(20) ? take(&w) : reopen_consumer(&w); break;
        default: reclaim(&w); break;
        }
        if (below(30) == 0)
            account(&w);
        if (below(400) == 0)
            CHECK(vespiary_core_purge_queue(w.core, 1 + below(QUEUES)) >= -ENOSPC);
    }
    CHECK(w.delivered > 100 && w.next_file > 2);
    for (uint32_t q = 0; q < QUEUES; q++)
        CHECK(vespiary_core_close_consumer(w.core, (uint32_t)w.consumers[q], 1) >= 0);
    int bad = vespiary_core_drop_queue(w.core, 1 + below(QUEUES));
    CHECK(bad == 0 || bad == -EINVAL); /* a branch needs it */
    vespiary_core_free(w.core);
}

/* --- cumulative acknowledgement against a list of what was given ------------------------------------------------- */
enum { GIVEN_MAX = 4096 };

typedef struct {
    uint64_t items[GIVEN_MAX];
    uint32_t count;
} given_list;

static void take_given(vespiary_core *core, uint32_t consumer, given_list *list)
{
    vespiary_result out;
    const uint8_t *frames;
    int count = vespiary_core_deliver(core, consumer, 1 + below(6), 100000, &out, &frames);
    CHECK(count >= 0);
    const char *at = (const char *)frames;
    for (int i = 0; i < count; i++) {
        static const char id[] = "message-id:1-";
        at = memmem(at, out.position - (uint64_t)(at - (const char *)frames), id, sizeof id - 1);
        CHECK(at && list->count < GIVEN_MAX);
        list->items[list->count++] = strtoull(at + sizeof id - 1, NULL, 10);
        at += sizeof id - 1;
    }
}

static void forget_given(given_list *list, uint32_t count)
{
    list->count -= count;
    memmove(list->items, list->items + count, list->count * sizeof *list->items);
}

static void run_cumulative(unsigned long long which)
{
    static world w;
    seed = which;
    state = which * 2654435761u + 88172645463325252u;
    open_world(&w);
    uint32_t c = (uint32_t)w.connection, other;
    CHECK(vespiary_core_close_consumer(w.core, (uint32_t)w.consumers[0], 1) == 0);
    uint32_t by = (uint32_t)vespiary_core_open_consumer(w.core, c, 1, 1, 60, (const uint8_t *)"s", 1, 12);
    other = (uint32_t)vespiary_core_open_consumer(w.core, c, 1, 2, 9, (const uint8_t *)"t", 1, 12);
    static given_list mine, others;
    mine.count = others.count = 0;
    uint32_t disorders = 0;
    for (uint32_t step = 0; step < 3000; step++) {
        uint32_t before = mine.count, covered = mine.count ? 1 + below(mine.count) : 0;
        switch (below(8)) {
        case 0:
        case 1:
            CHECK(vespiary_core_publish(w.core, (uint32_t)w.routes[0], w.memory, 0, w.memory, 10, 1, 1, 4, 0, 0, 0, 0) == 1);
            write_out(&w, true);
            break;
        case 2:
        case 3:
            take_given(w.core, by, &mine);
            disorders += before && mine.count > before && mine.items[before] < mine.items[before - 1];
            break;
        case 4: take_given(w.core, other, &others); break;
        case 5:
            CHECK(vespiary_core_close_consumer(w.core, other, 1) == others.count);
            others.count = 0;
            other = (uint32_t)vespiary_core_open_consumer(w.core, c, 1, 2, 9, (const uint8_t *)"t", 1, 12);
            break;
        default:
            if (!covered)
                break;
            uint64_t sequence = mine.items[covered - 1];
            CHECK((below(4) ? vespiary_core_acknowledge(w.core, by, sequence, 0)
                            : vespiary_core_give_back(w.core, by, sequence, 1)) == covered);
            forget_given(&mine, covered);
            for (uint32_t i = 0; i < mine.count; i++)
                CHECK(vespiary_core_holder(w.core, c, 1, mine.items[i]) == (int)by);
        }
        reclaim(&w);
    }
    CHECK(disorders > 20);
    vespiary_core_free(w.core); /* with a list in use, if there is one */
}

int main(void)
{
    for (unsigned long long which = 1; which <= 40; which++) {
        run(which);
        run_cumulative(which);
    }
    printf("core: 40 runs of %d steps\n", STEPS);
    return 0;
}
