/* Pages put in order of priority under sanitizers: random messages in random parts, each in a block of memory that ends
 * where it does; indexes that lie are refused. */
#include "page_arrange.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { RUNS = 2000, PARTS_MAX = 6, RECORDS_MAX = 200, TRAILER = 64, ROW = 16, PLACE = 8, QUEUE = 32, PAGE = 4096 };

static uint64_t state = 88172645463325252ULL;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 11) % n);
}

static void put16(uint8_t *at, uint16_t v) { memcpy(at, &v, 2); }
static void put32(uint8_t *at, uint32_t v) { memcpy(at, &v, 4); }
static void put64(uint8_t *at, uint64_t v) { memcpy(at, &v, 8); }
static uint32_t get32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, 4);
    return v;
}

typedef struct {
    vespiary_page_part parts[PARTS_MAX + 1];
    uint8_t *memory[PARTS_MAX + 1];
    uint32_t count, records;
    uint64_t end; /* offset of the footer */
} built;

/* Records of one place each, in blocks of one page or more, the last of which is the seal. */
static void build(built *b)
{
    uint8_t *rows = malloc(RECORDS_MAX * ROW);
    CHECK(rows);
    uint32_t parts = 1 + below(PARTS_MAX);
    b->count = parts + 1;
    b->records = 0;
    b->end = PAGE;
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t length = PAGE * (1 + below(5) + (i + 1 == parts));
        uint8_t *memory = b->memory[i] = calloc(1, length);
        CHECK(memory);
        uint32_t room = i + 1 == parts ? length - PAGE : length, used = 64;
        while (b->records < RECORDS_MAX) {
            uint32_t body = below(1500), padded = (24 + 16 + body + 7) & ~7U;
            if (used + padded > room)
                break;
            uint8_t *row = rows + b->records++ * ROW, *record = memory + used;
            put32(record, 24 + 16 + body);
            for (uint32_t k = 0; k < body; k++)
                record[40 + k] = (uint8_t)b->records;
            memset(row, 0, ROW);
            put32(row, (uint32_t)(b->end + used));
            put32(row + 4, body);
            put16(row + 10, 1);
            row[13] = (uint8_t)below(10);
            used += padded;
        }
        if (i + 1 == parts) {
            put32(memory + room, 0x4B4C4256);
            put16(memory + room + 6, 1);
        }
        b->parts[i] = (vespiary_page_part){(uint64_t)(uintptr_t)memory, b->end, length};
        b->end += length;
    }
    uint32_t tables = QUEUE + b->records * (PLACE + ROW), length = (tables + TRAILER + PAGE - 1) / PAGE * PAGE;
    uint8_t *footer = b->memory[parts] = calloc(1, length), *trailer = footer + length - TRAILER;
    CHECK(footer);
    for (uint32_t i = 0; i < b->records; i++)
        put32(footer + QUEUE + i * PLACE + 4, i);
    memcpy(footer + QUEUE + b->records * PLACE, rows, b->records * ROW);
    put32(trailer, 0x54475056);
    put64(trailer + 8, 7);
    put64(trailer + 16, b->end);
    put32(trailer + 32, 1);
    put32(trailer + 36, b->records);
    put32(trailer + 40, b->records);
    b->parts[parts] = (vespiary_page_part){(uint64_t)(uintptr_t)footer, b->end, length};
    free(rows);
}

/* The new page is in order, and each message in it what it was. */
static void check_arranged(const built *b, const uint8_t *footer, uint8_t *const *made)
{
    uint32_t rows_at = QUEUE + b->records * PLACE, before = 255;
    for (uint32_t i = 0; i < b->records; i++) {
        const uint8_t *row = footer + rows_at + i * ROW;
        CHECK(row[13] <= before);
        before = row[13];
    }
    for (uint32_t i = 0; i < b->records; i++) {
        const uint8_t *row = footer + rows_at + get32(footer + QUEUE + i * PLACE + 4) * ROW;
        uint32_t offset = get32(row), part = 0;
        while (offset >= b->parts[part].offset + b->parts[part].length)
            part++;
        const uint8_t *record = made[part] + (offset - b->parts[part].offset);
        CHECK_EQUAL(get32(record), 40 + get32(row + 4));
        for (uint32_t k = 0; k < get32(row + 4); k++)
            CHECK_EQUAL(record[40 + k], (uint8_t)(i + 1));
    }
}

static bool run(void)
{
    built b;
    uint8_t *made[PARTS_MAX] = {0};
    build(&b);
    uint32_t last = b.count - 1;
    uint64_t length = b.parts[last].length;
    uint8_t *footer = malloc(length), *old = b.memory[last];
    CHECK(footer);
    int result = vespiary_page_arrange(b.parts, b.count, footer);
    CHECK(result == 0 || result == 1);
    if (result) {
        vespiary_page_cursor at = {0};
        for (uint32_t i = 0; i < last; i++) {
            made[i] = malloc(b.parts[i].length);
            CHECK(made[i]);
            CHECK_EQUAL(vespiary_page_arrange_part(b.parts, b.count, 9, footer, &at, made[i]), 0);
        }
        CHECK_EQUAL(vespiary_page_arrange_part(b.parts, b.count, 9, footer, &at, made[0]), -EINVAL);
        check_arranged(&b, footer, made);
    }
    put32(old + length - TRAILER + 40, b.records + 100000); /* more records than there is room for */
    CHECK_EQUAL(vespiary_page_arrange(b.parts, b.count, footer), -EINVAL);
    put32(old + length - TRAILER + 40, b.records);
    if (b.records) {
        put32(old + QUEUE + b.records * PLACE, below(UINT32_MAX)); /* a record anywhere */
        CHECK(vespiary_page_arrange(b.parts, b.count, footer) <= 1);
    }
    b.parts[0].length -= PAGE; /* a gap */
    CHECK_EQUAL(vespiary_page_arrange(b.parts, b.count, footer), -EINVAL);
    for (uint32_t i = 0; i < b.count; i++)
        free(b.memory[i]);
    for (uint32_t i = 0; i < last; i++)
        free(made[i]);
    free(footer);
    return result == 1;
}

int main(void)
{
    int arranged = 0;
    for (int i = 0; i < RUNS; i++)
        arranged += run();
    CHECK(arranged > RUNS / 4);
    CHECK_EQUAL(vespiary_page_arrange(NULL, 0, NULL), -EINVAL);
    printf("%d pages, %d in another order\n", RUNS, arranged);
    return 0;
}
