/* Sketches of pages under sanitizers: random headers, each page in a block of memory that ends where it does, and rooms of
 * any size; indexes that lie are refused. */
#include "page_sketch.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { RUNS = 3000, RECORDS_MAX = 40, LENGTH_MAX = 300, TRAILER = 64, ROW = 16, HEADER = 24, PLACE = 16, ROOM = 2048 };

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

/* Properties as clients would hardly send them: names, numbers, escapes and ends of lines anywhere. */
static uint32_t fill(uint8_t *at)
{
    static const char *const words[] = {"a",  "b:",  "expires:", "\n", ":",  "\\",   "\\c", "1e3", "-7",
                                        "\t", "999", ".",        "e",  "\n", "name", "red", " ",   "+"};
    uint32_t length = 0;
    for (uint32_t i = below(60); i; i--) {
        const char *word = words[below(sizeof words / sizeof *words)];
        size_t size = strlen(word);
        memcpy(at + length, word, size);
        length += (uint32_t)size;
    }
    if (!below(4))
        for (uint32_t i = below(LENGTH_MAX); i; i--)
            at[length++] = (uint8_t)below(256);
    return length;
}

static void run(void)
{
    uint32_t records = 1 + below(RECORDS_MAX), used = 0, places = below(3) + 1, room = below(4) ? ROOM : below(ROOM);
    uint8_t *blocks = malloc(RECORDS_MAX * (HEADER + 3 * PLACE + 3 * LENGTH_MAX)), *rows = malloc(RECORDS_MAX * ROW);
    CHECK(blocks && rows);
    for (uint32_t i = 0; i < records; i++) {
        uint8_t *row = rows + i * ROW, *record = blocks + used;
        memset(record, 0, HEADER + places * PLACE);
        put64(record + 8, below(1000));
        uint32_t length = fill(record + HEADER + places * PLACE);
        put32(row, 4096 + used);
        put32(row + 4, below(2000));
        put16(row + 8, (uint16_t)length);
        put16(row + 10, (uint16_t)places);
        row[12] = (uint8_t)(8 | (below(2) ? 2 : 0) | (below(2) ? 16 : 0));
        row[13] = (uint8_t)below(10);
        row[14] = below(400) ? 1 : 2;
        row[15] = 0;
        used += HEADER + places * PLACE + length;
    }
    uint32_t end = records * ROW + TRAILER;
    uint8_t *exact = malloc(used), *footer = malloc(end), *out = malloc(room ? room : 1);
    CHECK(exact && footer && out);
    memcpy(exact, blocks, used);
    memcpy(footer, rows, records * ROW);
    uint8_t *trailer = footer + records * ROW;
    memset(trailer, 0, TRAILER);
    put32(trailer, 0x54475056);
    put64(trailer + 16, 1 << 20);
    put32(trailer + 40, records);
    vespiary_page_part parts[2] = {{(uint64_t)(uintptr_t)exact, 4096, used}, {(uint64_t)(uintptr_t)footer, 1 << 20, end}};
    int length = vespiary_page_sketch(parts, 2, out, room);
    CHECK(length >= 0 && (uint32_t)length <= room);
    for (uint32_t i = 0; i < records; i++)
        if (footer[i * ROW + 14] != 1)
            CHECK_EQUAL(length, 0);
    parts[0].length -= 1; /* the last record is cut off */
    length = vespiary_page_sketch(parts, 2, out, room);
    CHECK(length == -EINVAL || length == 0);
    parts[0].length += 1;
    put32(trailer + 40, records + 1 + below(1000)); /* more records than there is room for */
    CHECK_EQUAL(vespiary_page_sketch(parts, 2, out, room), -EINVAL);
    put32(trailer + 40, records);
    put32(footer, below(UINT32_MAX)); /* a record anywhere */
    length = vespiary_page_sketch(parts, 2, out, room);
    CHECK(length >= -EINVAL && length <= (int)room);
    free(blocks);
    free(rows);
    free(exact);
    free(footer);
    free(out);
}

int main(void)
{
    for (int i = 0; i < RUNS; i++)
        run();
    CHECK_EQUAL(vespiary_page_sketch(NULL, 0, NULL, 0), -EINVAL);
    printf("%d pages\n", RUNS);
    return 0;
}
