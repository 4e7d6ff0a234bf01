/* The tree of a queue's segments against a plain list: numbers near and far, put, found, walked and removed in any order,
 * and what it costs. */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "state.h"

enum { ROUNDS = 300, STEPS = 400, HELD_MAX = 200 };

static unsigned long long drawn = 88172645463325252ULL;

static uint64_t draw(void)
{
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return drawn;
}

/* Numbers that share any number of their leading bits with others. */
static uint64_t draw_number(const uint64_t *held, uint32_t count)
{
    uint64_t highest = SEQUENCE_MAX / SEGMENT_ENTRIES;
    switch (draw() % 4) {
    case 0: return draw() % 300;
    case 1: return draw() % (highest + 1);
    case 2: return highest - draw() % 5;
    default: return count ? held[draw() % count] ^ draw() % ((uint64_t)1 << draw() % 57) : 0;
    }
}

static uint32_t index_of(const uint64_t *held, uint32_t count, uint64_t number)
{
    uint32_t at = 0;
    while (at < count && held[at] != number)
        at++;
    return at;
}

static void compare(const segments *in, const uint64_t *held, uint32_t count, uint64_t asked)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++)
        if (held[i] >= asked && held[i] < next)
            next = held[i];
    const segment *from = segments_from(in, asked), *found = segments_find(in, asked);
    CHECK(from ? from->number == next : next == UINT64_MAX);
    CHECK(found ? found->number == asked : index_of(held, count, asked) == count);
}

static void test_against_a_list(void)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        segments in = {0};
        uint64_t held[HELD_MAX];
        uint32_t count = 0, walked = 0;
        for (uint32_t step = 0; step < STEPS; step++) {
            uint64_t number = draw_number(held, count);
            uint32_t at = index_of(held, count, number);
            if (at == count && count < HELD_MAX && draw() % 3) {
                segment *made = calloc(1, sizeof *made);
                CHECK(made);
                made->number = number;
                CHECK(segments_put(&in, made) == 0);
                held[count++] = number;
            } else if (count && draw() % 2) {
                at = (uint32_t)(draw() % count);
                segment *found = segments_find(&in, held[at]);
                CHECK(found && found->number == held[at]);
                segments_remove(&in, held[at]);
                free(found);
                held[at] = held[--count];
            }
            compare(&in, held, count, number);
            compare(&in, held, count, draw_number(held, count));
        }
        for (const segment *s = segments_from(&in, 0); s; s = segments_from(&in, s->number + 1))
            walked++;
        CHECK(walked == count);
        segments_free(&in);
        CHECK(!in.root && !in.newest && !in.found && !segments_from(&in, 0) && !segments_find(&in, 0));
    }
}

/* A queue whose oldest message stays has two segments, not one for each 64 messages that went through. */
static void test_an_old_message_holds_one_segment(void)
{
    vespiary_core *core = vespiary_core_new(64 * 1024, 16 * 1024, 12, 20000);
    CHECK(core && vespiary_core_open_queue(core, 1, 1, 1) == 0);
    queue *q = queue_find(core, 1);
    int to = vespiary_core_open_route(core, (uint32_t[]){1}, 1), client = vespiary_core_open_connection(core);
    int by = vespiary_core_open_consumer(core, (uint32_t)client, 1, 2, 1 << 20, (const uint8_t *)"s", 1, 12);
    CHECK(to >= 0 && by >= 0);
    vespiary_result out;
    const uint8_t *frames;
    for (uint64_t sequence = 1; sequence < 100 * SEGMENT_ENTRIES; sequence++) {
        CHECK(vespiary_core_publish(core, (uint32_t)to, NULL, 0, (const uint8_t *)"x", 1, 0, 1, 4, 0, 0, 0, 0) == 1);
        CHECK(vespiary_core_deliver(core, (uint32_t)by, 1, 1000, &out, &frames) == 1);
        CHECK(sequence == 1 || vespiary_core_acknowledge(core, (uint32_t)by, sequence, 0) == 1);
    }
    CHECK(q->live == 1 && queue_entry(q, 1)->state == ENTRY_DELIVERED);
    uint32_t held = 0;
    for (const segment *s = segments_from(&q->segments, 0); s; s = segments_from(&q->segments, s->number + 1))
        held++;
    CHECK(held <= 2); /* with the one that is being filled */
    vespiary_core_free(core);
}

int main(void)
{
    test_against_a_list();
    test_an_old_message_holds_one_segment();
    puts("segments: passed");
    return 0;
}
