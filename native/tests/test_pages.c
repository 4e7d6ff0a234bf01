/* Pages under sanitizers: messages move to pages and come back by being entered, picked, or looked at where they stand,
 * in random order, with footers that are as long as their bytes and not one more; and no message is lost or there twice. */
#include "core.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { RUNS = 40, STEPS = 1500, QUEUES = 2, FILES = 512, PAGES = 64, SLAB = 64 * 1024, FILE_SIZE = 256 * 1024,
       PAGE_SIZE = 192 * 1024, HEADER = 4096, TRAILER = 64, SEEN = 64 };
#define PAGE_BIT ((uint64_t)1 << 62)

static uint64_t state;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 11) % n);
}

typedef struct {
    uint8_t *bytes;
    uint64_t length, footer_at;
    uint64_t end; /* block of its PAGE_DONE, 0: it is not done */
} page_file;

typedef struct {
    vespiary_core *core;
    uint32_t route, consumers[QUEUES];
    uint8_t *files[FILES]; /* by file id */
    page_file pages[PAGES];
    uint64_t last_file, last_page, durable;
    uint64_t looked, picked, entered, moved, refused;
} world;

/* --- files ---------------------------------------------------------------------------------------------------------- */
static void add_file(world *w)
{
    CHECK(++w->last_file < FILES);
    w->files[w->last_file] = malloc(FILE_SIZE);
    CHECK_EQUAL(vespiary_core_add_file(w->core, w->last_file, w->last_file * 77, FILE_SIZE), 0);
}

static void flush(world *w)
{
    vespiary_write out;
    int got;
    while ((got = vespiary_core_seal_write(w->core, &out)) > 0) {
        memcpy(w->files[out.file_id] + out.offset, (const uint8_t *)(uintptr_t)out.address, out.length);
        CHECK_EQUAL(vespiary_core_write_done(w->core, out.sequence), 0);
        w->durable = out.sequence;
        while (vespiary_core_files_ahead(w->core) < 2 && w->last_file + 1 < FILES)
            add_file(w);
    }
    CHECK(got == 0 || got == -ENOSPC);
}

/* Bring a slab back; false: there is no memory, or it is there. */
static bool load(world *w, uint64_t file_id, uint32_t index)
{
    vespiary_write out;
    if (vespiary_core_load_begin(w->core, file_id, index, &out))
        return false;
    const uint8_t *from = file_id & PAGE_BIT ? w->pages[file_id & ~PAGE_BIT].bytes : w->files[file_id];
    uint64_t length = file_id & PAGE_BIT ? w->pages[file_id & ~PAGE_BIT].length : FILE_SIZE;
    uint64_t here = out.offset + out.length <= length ? out.length : length - out.offset;
    memcpy((uint8_t *)(uintptr_t)out.address, from + out.offset, here);
    CHECK_EQUAL(vespiary_core_load_done(w->core, file_id, index, 1), 0);
    return true;
}

/* --- moving out --------------------------------------------------------------------------------------------------- */
static void publish(world *w)
{
    char properties[3000];
    static const uint8_t body[9000];
    uint32_t pad = below(8) ? below(60) : below(2800);
    for (uint32_t n = below(12); n; n--) {
        int length = snprintf(properties, sizeof properties, "destination:/q\npad:%0*u\n", (int)pad + 1, below(7));
        uint32_t priority = below(3) ? 4 : below(10);
        int places = vespiary_core_publish(w->core, w->route, (const uint8_t *)properties, (uint32_t)length, body,
                                           below(6) ? below(300) : below(sizeof body), below(9) != 0, 1, priority, 0, 0,
                                           priority != 4, 0);
        CHECK(places == QUEUES || places == -ENOSPC);
    }
    flush(w);
}

static void close_page(world *w, uint64_t id)
{
    enum { ROOM = PAGE_SIZE / SLAB + 4 };
    vespiary_write pieces[ROOM];
    int count = vespiary_core_page_close(w->core, id, pieces, ROOM);
    if (count == 0 || count == -ENOSPC) {
        CHECK_EQUAL(vespiary_core_page_abandon(w->core, id), 0);
        return;
    }
    CHECK(count > 0 && count <= ROOM);
    page_file *p = &w->pages[id];
    p->length = pieces[count - 1].offset + pieces[count - 1].length;
    p->bytes = calloc(1, p->length);
    for (int i = 0; i < count; i++)
        memcpy(p->bytes + pieces[i].offset, (const uint8_t *)(uintptr_t)pieces[i].address, pieces[i].length);
    memcpy(&p->footer_at, p->bytes + p->length - TRAILER + 16, 8);
    CHECK(p->footer_at >= HEADER && p->footer_at < p->length);
    if (below(10) == 0) {
        CHECK_EQUAL(vespiary_core_page_abandon(w->core, id), 0);
        return;
    }
    uint64_t kept = 1 + below(50);
    CHECK_EQUAL(vespiary_core_page_keep(w->core, 1 + below(QUEUES), &kept, 1, 1), 0);
    int64_t block = vespiary_core_page_commit(w->core, id);
    CHECK(block >= 0 || block == -ENOSPC);
    if (block == -ENOSPC)
        CHECK_EQUAL(vespiary_core_page_abandon(w->core, id), 0);
    w->moved += block > 0;
    flush(w);
}

static void move_out(world *w)
{
    static const uint32_t queues[] = {1, 2};
    if (w->last_page + 1 >= PAGES)
        return;
    uint64_t id = ++w->last_page;
    CHECK_EQUAL(vespiary_core_page_open(w->core, id, id * 31, PAGE_SIZE, queues, QUEUES), 0);
    for (uint32_t q = 1; q <= QUEUES; q++) {
        vespiary_page_fill out;
        uint64_t at = 0;
        for (int tries = 0; tries < 20; tries++) {
            int bad = vespiary_core_page_fill(w->core, id, q, at, UINT64_MAX, 1 + below(60000), 1 + below(200), &out);
            CHECK(bad >= 0 || bad == -ENOSPC);
            if (bad < 0 || out.is_full)
                break;
            if (out.absent_file && !load(w, out.absent_file, out.absent_slab))
                break;
            at = out.next_sequence;
        }
    }
    close_page(w, id);
}

/* --- what stands in pages ------------------------------------------------------------------------------------------- */
/* A footer in memory that ends where it does. */
static uint8_t *footer_of(const page_file *p, uint32_t *length)
{
    *length = (uint32_t)(p->length - p->footer_at);
    uint8_t *made = malloc(*length);
    memcpy(made, p->bytes + p->footer_at, *length);
    return made;
}

static void misuse(world *w, uint64_t page_id, uint32_t queue_id)
{
    uint32_t length;
    uint8_t *whole = footer_of(&w->pages[page_id], &length);
    uint32_t cut = below(3) ? below(length) : below(TRAILER);
    uint8_t *shorter = malloc(cut ? cut : 1);
    memcpy(shorter, whole + length - cut, cut);
    uint32_t at = length - TRAILER + 32 + below(12); /* a count of the trailer */
    whole[at] = (uint8_t)(whole[at] + 1 + below(255));
    vespiary_look out;
    const uint8_t *data;
    for (int i = 0; i < 2; i++) {
        const uint8_t *footer = i ? whole : shorter;
        uint32_t bytes = i ? length : cut;
        int count = vespiary_core_page_look(w->core, page_id, queue_id, footer, bytes, 0, 5, 0, &out, &data);
        CHECK(count >= 0 || count == -EINVAL);
        w->refused += count == -EINVAL;
    }
    CHECK_EQUAL(vespiary_core_page_look(w->core, PAGES + 9, queue_id, whole, length, 0, 5, 0, &out, &data), -EINVAL);
    free(shorter);
    free(whole);
}

static uint32_t look(world *w, uint64_t page_id, uint32_t queue_id, const uint8_t *footer, uint32_t length, uint64_t *seen)
{
    vespiary_look out;
    const uint8_t *data;
    uint32_t least = below(3) ? 0 : below(10);
    uint64_t from = below(2) ? 0 : below(4000);
    for (int tries = 0; tries < 4; tries++) {
        int count = vespiary_core_page_look(w->core, page_id, queue_id, footer, length, from, 1 + below(SEEN), least, &out, &data);
        CHECK(count >= 0 && count <= SEEN && out.count == (uint32_t)count);
        for (uint32_t i = 0; i < out.count; i++) {
            vespiary_view view;
            memcpy(&view, data + i * sizeof view, sizeof view);
            CHECK(view.sequence >= from && (!i || view.sequence > seen[i - 1]) && view.priority >= least);
            CHECK(view.properties_at < view.properties_end && view.properties_end <= out.length);
            CHECK(!memcmp(data + view.properties_at, "destination:/q\n", 15) && data[view.properties_end - 1] == '\n');
            seen[i] = view.sequence;
        }
        w->looked += out.count;
        if (out.count || !out.absent_file || !load(w, out.absent_file, out.absent_slab))
            return out.count;
    }
    return 0;
}

static void visit(world *w, uint64_t page_id, uint32_t queue_id)
{
    uint32_t length;
    uint8_t *footer = footer_of(&w->pages[page_id], &length);
    uint64_t seen[SEEN];
    const uint8_t *data;
    uint32_t count = look(w, page_id, queue_id, footer, length, seen);
    if (count) {
        uint32_t lengths[SEEN], bodies = 1 + below(count);
        CHECK_EQUAL(vespiary_core_page_bodies(w->core, page_id, queue_id, footer, length, seen, bodies, UINT32_MAX,
                                              lengths, &data),
                    bodies);
        if (below(3) == 0) {
            uint32_t first = below(count);
            int picked = vespiary_core_page_pick(w->core, page_id, queue_id, footer, length, seen + first, count - first);
            CHECK_EQUAL(picked, count - first);
            CHECK_EQUAL(vespiary_core_page_pick(w->core, page_id, queue_id, footer, length, seen + first, count - first), 0);
            w->picked += (uint64_t)picked;
            if (below(2))
                CHECK(vespiary_core_finish(w->core, queue_id, seen + first, 1, 0) == 1);
            if (below(2) && count - first > 1)
                CHECK_EQUAL(vespiary_core_set_aside(w->core, queue_id, seen[first + 1]), 1);
        }
    }
    if (below(6) == 0) {
        int64_t entered = vespiary_core_page_enter(w->core, page_id, queue_id, footer, length);
        CHECK(entered >= 0 || entered == -EINVAL); /* it is open */
        w->entered += entered > 0;
    } else if (below(4) == 0) {
        int left = vespiary_core_page_leave(w->core, page_id, queue_id);
        CHECK(left == 0 || left == 1 || left == -EINVAL);
    }
    free(footer);
    if (below(4) == 0)
        misuse(w, page_id, queue_id);
}

static void visit_one(world *w)
{
    vespiary_extent_facts facts[PAGES];
    uint32_t q = 1 + below(QUEUES);
    int count = vespiary_core_extents(w->core, q, 0, facts, PAGES);
    CHECK(count >= 0 && count <= PAGES);
    if (count) {
        uint64_t id = facts[below((uint32_t)count)].page_id;
        visit(w, id, q);
    }
}

/* --- the end of messages and pages ------------------------------------------------------------------------------------ */
static void take(world *w)
{
    uint32_t q = below(QUEUES);
    vespiary_result out;
    const uint8_t *frames;
    int count = vespiary_core_deliver(w->core, w->consumers[q], 1 + below(30), 60000, &out, &frames);
    CHECK(count >= 0);
    if (out.status == 2) {
        uint64_t file_id;
        uint32_t index;
        vespiary_core_absent_slab(w->core, w->consumers[q], &file_id, &index);
        (void)load(w, file_id, index);
    } else if (out.status == 4) {
        CHECK_EQUAL(vespiary_core_specials_seen(w->core, q + 1), 0);
    }
    vespiary_page_wish wishes[QUEUES];
    int wanted = vespiary_core_page_wanted(w->core, wishes, QUEUES);
    for (int i = 0; i < wanted; i++) {
        uint32_t length;
        uint8_t *footer = footer_of(&w->pages[wishes[i].page_id], &length);
        CHECK(vespiary_core_page_enter(w->core, wishes[i].page_id, wishes[i].queue_id, footer, length) > 0);
        free(footer);
        w->entered++;
    }
    uint64_t held[2 * SEEN];
    int64_t holds = vespiary_core_held(w->core, w->consumers[q], 0, 0, held, SEEN);
    CHECK_EQUAL(vespiary_core_held_count(w->core, w->consumers[q]), holds);
    for (int64_t i = 0; i < holds && i < SEEN; i++) {
        int64_t done = below(5) ? vespiary_core_acknowledge(w->core, w->consumers[q], held[2 * i], 0)
                                : vespiary_core_give_back(w->core, w->consumers[q], held[2 * i], 1);
        CHECK(done == 1 || done == -ENOSPC);
    }
    flush(w);
}

static void end_pages(world *w)
{
    uint64_t ids[PAGES];
    int64_t count = vespiary_core_page_done(w->core, ids, PAGES);
    CHECK(count >= 0 && count <= PAGES);
    for (int64_t i = 0; i < count; i++) {
        int64_t block = vespiary_core_page_end(w->core, ids[i]);
        CHECK(block > 0 || block == -ENOSPC);
        if (block <= 0)
            continue;
        flush(w);
        CHECK_EQUAL(vespiary_core_page_forget(w->core, ids[i]), 0);
    }
    vespiary_page_facts facts[PAGES];
    uint32_t known = vespiary_core_pages(w->core, facts, PAGES);
    if (known && below(4) == 0) {
        int64_t block = vespiary_core_page_restage(w->core, facts[below(known)].page_id);
        CHECK(block > 0 || block == -ENOSPC || block == -EINVAL);
        flush(w);
    }
}

/* Everything that was added is acknowledged, or stands in the ring or in a closed extent. */
static void count_all(const world *w)
{
    for (uint32_t q = 1; q <= QUEUES; q++) {
        vespiary_queue_statistics s;
        CHECK_EQUAL(vespiary_core_queue_statistics(w->core, q, &s), 0);
        CHECK_EQUAL(s.added, s.acknowledged + s.ready + s.delivering + s.aside + s.paged + (s.tail - s.available));
    }
}

static void run(uint64_t which, world *w)
{
    state = which * 2654435761u + 88172645463325252u;
    w->core = vespiary_core_new(SLAB, 16 * 1024, 60, 20000);
    w->last_file = w->last_page = 0;
    CHECK(w->core);
    CHECK_EQUAL(vespiary_core_start(w->core, 1, 0, 0), 0);
    static const uint32_t queues[] = {1, 2};
    uint32_t connection = (uint32_t)vespiary_core_open_connection(w->core);
    for (uint32_t q = 0; q < QUEUES; q++) {
        CHECK_EQUAL(vespiary_core_open_queue(w->core, q + 1, 1, 1), 0);
        w->consumers[q] =
            (uint32_t)vespiary_core_open_consumer(w->core, connection, q + 1, 2, 40, (const uint8_t *)"s", 1, 12);
    }
    w->route = (uint32_t)vespiary_core_open_route(w->core, queues, QUEUES);
    add_file(w);
    add_file(w);
    for (uint32_t step = 0; step < STEPS; step++) {
        switch (below(8)) {
        case 0: publish(w); break;
        case 1: below(6) ? publish(w) : move_out(w); break;
        case 2:
        case 3:
        case 4: visit_one(w); break;
        case 5: take(w); break;
        case 6: end_pages(w); break;
        default:
            for (uint32_t q = 0; q < QUEUES; q++)
                CHECK(vespiary_core_put_back(w->core, q + 1, 1 + below(2000)) >= 0);
        }
        count_all(w);
    }
    vespiary_core_free(w->core);
    for (uint64_t id = 1; id <= w->last_file; id++)
        free(w->files[id]);
    for (uint64_t id = 1; id < PAGES; id++)
        free(w->pages[id].bytes);
    memset(w->pages, 0, sizeof w->pages);
}

int main(void)
{
    static world w;
    for (uint64_t which = 1; which <= RUNS; which++)
        run(which, &w);
    printf("pages: %llu moved, %llu entered, %llu looked at, %llu picked, %llu footers refused\n",
           (unsigned long long)w.moved, (unsigned long long)w.entered, (unsigned long long)w.looked,
           (unsigned long long)w.picked, (unsigned long long)w.refused);
    CHECK(w.moved > 100 && w.entered > 50 && w.looked > 1000 && w.picked > 300 && w.refused > 50);
    return 0;
}
