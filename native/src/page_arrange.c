/* A page in order of priority (contract: page_arrange.h; specification: twin/page_arrange.py). */
#include "page_arrange.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "little_endian.h"

enum {
    PAGE = 4096,
    FIRST = 4096, /* offset of the first block */
    BLOCK_HEADER = 64,
    BLOCK_MOST = 256 * 1024, /* larger than those of the core: less is left over at their ends, so the whole fits */
    BLOCK_MAGIC = 0x4B4C4256,
    BLOCK_VERSION = 1,
    IS_SEAL = 1,
    RECORD_SEAL = 7,
    TRAILER = 64,
    INDEX_QUEUE = 32,
    INDEX_PLACE = 8,
    INDEX_RECORD = 16,
    ADD_HEADER = 24,
    PLACE_BYTES = 16,
    LEVELS = 256
};
#define PAGE_BIT ((uint64_t)1 << 62)

typedef struct {
    const vespiary_page_part *parts;
    uint32_t count; /* of those with blocks */
    uint32_t places_count, records_count;
    uint64_t places_at, rows_at; /* in the footer */
    const uint8_t *footer, *seal;
    uint64_t footer_offset, footer_length, seal_at;
} page_view;

/* Blocks of one part that are being written, or only measured. */
typedef struct {
    const page_view *page;
    uint8_t *rows, *out; /* of the new index; NULL: nothing is written */
    uint64_t salt, begin, at, used, end;
    uint32_t records;
    vespiary_page_cursor *cursor;
} filling;

static uint64_t align8(uint64_t n) { return (n + 7U) & ~(uint64_t)7; }
static uint64_t align_page(uint64_t n) { return (n + PAGE - 1U) & ~(uint64_t)(PAGE - 1); }

static uint32_t seeded(uint64_t salt, uint64_t offset, const void *data, uint64_t length)
{
    const uint64_t seed[2] = {salt, offset};
    return vespiary_crc32c(vespiary_crc32c(0, seed, sizeof seed), data, length);
}

static uint64_t row_length(const uint8_t *row)
{
    return ADD_HEADER + (uint64_t)get16(row + 10) * PLACE_BYTES + get16(row + 8) + get32(row + 4);
}

/* So many bytes at an offset of the file; NULL: no part has them all. */
static const uint8_t *memory_at(const page_view *p, uint64_t offset, uint64_t length)
{
    uint32_t low = 0, high = p->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (p->parts[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    const vespiary_page_part *part = &p->parts[low];
    if (offset < part->offset || offset - part->offset > part->length ||
        length > part->length - (offset - part->offset))
        return NULL;
    return (const uint8_t *)(uintptr_t)part->memory + (offset - part->offset);
}

/* Whether the parts are a page: blocks without gaps, and a footer behind them. */
static bool read_page(page_view *p, const vespiary_page_part *parts, uint32_t count)
{
    uint64_t at = FIRST;
    if (count < 2)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].offset != at || !parts[i].length || parts[i].length % PAGE)
            return false;
        at += parts[i].length;
    }
    p->parts = parts;
    p->count = count - 1;
    p->footer = (const uint8_t *)(uintptr_t)parts[count - 1].memory;
    p->footer_offset = parts[count - 1].offset;
    p->footer_length = parts[count - 1].length;
    const uint8_t *trailer = p->footer + p->footer_length - TRAILER;
    p->places_count = get32(trailer + 36);
    p->records_count = get32(trailer + 40);
    p->places_at = (uint64_t)get32(trailer + 32) * INDEX_QUEUE;
    p->rows_at = p->places_at + (uint64_t)p->places_count * INDEX_PLACE;
    p->seal_at = p->footer_offset - PAGE;
    p->seal = memory_at(p, p->seal_at, PAGE);
    return get32(trailer) == 0x54475056 && get64(trailer + 16) == p->footer_offset &&
           p->rows_at + (uint64_t)p->records_count * INDEX_RECORD <= p->footer_length - TRAILER && p->seal &&
           get32(p->seal) == BLOCK_MAGIC && (get16(p->seal + 6) & IS_SEAL);
}

/* Whether all that the tables tell of is there. */
static bool check_tables(const page_view *p)
{
    for (uint32_t i = 0; i < p->places_count; i++)
        if (get32(p->footer + p->places_at + (uint64_t)i * INDEX_PLACE + 4) >= p->records_count)
            return false;
    for (uint32_t i = 0; i < p->records_count; i++) {
        const uint8_t *row = p->footer + p->rows_at + (uint64_t)i * INDEX_RECORD;
        if (!memory_at(p, get32(row), row_length(row)))
            return false;
    }
    return true;
}

/* --- blocks --------------------------------------------------------------------------------------------------- */
/* Close the block at `at`, of `used` bytes. */
static void close_block(filling *f, uint32_t flags)
{
    uint64_t length = align_page(f->used);
    if (f->out) {
        uint8_t *block = f->out + (f->at - f->begin);
        memset(block + f->used, 0, length - f->used);
        memset(block, 0, BLOCK_HEADER);
        put32(block, BLOCK_MAGIC);
        put16(block + 4, BLOCK_VERSION);
        put16(block + 6, flags);
        put64(block + 8, ++f->cursor->sequence);
        put64(block + 16, get64(f->page->footer + f->page->footer_length - TRAILER + 8) | PAGE_BIT);
        put32(block + 32, (uint32_t)(f->used - BLOCK_HEADER));
        put32(block + 36, f->records);
        put32(block + 40, f->cursor->crc);
        put64(block + 48, get64(f->page->seal + 48));
        f->cursor->crc = seeded(f->salt, f->at, block, f->used);
        put32(block + 44, f->cursor->crc);
    }
    f->at += length;
    f->used = f->records = 0;
}

/* Open a block with room for so many bytes in front of `end`. False: there is none. */
static bool open_block(filling *f, uint64_t padded, uint64_t end)
{
    uint64_t need = align_page(BLOCK_HEADER + padded), most = need > BLOCK_MOST ? need : BLOCK_MOST;
    if (f->used)
        close_block(f, 0);
    if (f->at + need > end)
        return false;
    f->end = most < end - f->at ? most : end - f->at;
    f->used = BLOCK_HEADER;
    return true;
}

static void copy_record(filling *f, uint8_t *row, uint64_t length, uint64_t padded)
{
    uint8_t *at = f->out + (f->at - f->begin) + f->used;
    memcpy(at, memory_at(f->page, get32(row), length), length);
    memset(at + length, 0, padded - length);
    put32(row, (uint32_t)(f->at + f->used));
}

/* Fill the next part: records, a block that holds nothing where none fits any more, and at the very end the seal. */
static void fill_part(filling *f)
{
    const page_view *p = f->page;
    const vespiary_page_part *part = &p->parts[f->cursor->part++];
    bool is_last = f->cursor->part == p->count;
    uint64_t end = is_last ? p->seal_at : part->offset + part->length;
    f->begin = f->at = part->offset;
    while (f->cursor->record < p->records_count) {
        uint8_t *row = f->rows + (uint64_t)f->cursor->record * INDEX_RECORD;
        uint64_t length = row_length(row), padded = align8(length);
        if ((!f->used || f->used + padded > f->end) && !open_block(f, padded, end))
            break;
        if (f->out)
            copy_record(f, row, length, padded);
        f->used += padded;
        f->records++;
        f->cursor->record++;
    }
    if (f->used)
        close_block(f, 0);
    if (f->at < end) {
        f->used = end - f->at;
        if (f->out)
            memset(f->out + (f->at - f->begin), 0, f->used);
        close_block(f, 0);
    }
    if (!is_last || !f->out)
        return;
    uint8_t *seal = f->out + (f->at - f->begin) + BLOCK_HEADER;
    memset(seal, 0, 16);
    put32(seal, 16);
    seal[4] = RECORD_SEAL;
    f->used = BLOCK_HEADER + 16;
    f->records = 1;
    close_block(f, IS_SEAL);
}

/* --- the index ------------------------------------------------------------------------------------------------ */
/* Write the tables with the records by priority. False: they are in order as they stand. */
static bool write_tables(const page_view *p, uint32_t *number, uint8_t *footer)
{
    uint32_t next[LEVELS] = {0}, before = LEVELS;
    bool is_sorted = true;
    const uint8_t *rows = p->footer + p->rows_at;
    for (uint32_t i = 0; i < p->records_count; i++) {
        uint8_t priority = rows[(uint64_t)i * INDEX_RECORD + 13];
        is_sorted = is_sorted && priority <= before;
        before = priority;
        next[priority]++;
    }
    if (is_sorted)
        return false;
    for (uint32_t level = LEVELS, begin = 0; level-- > 0;) {
        uint32_t here = next[level];
        next[level] = begin;
        begin += here;
    }
    memcpy(footer, p->footer, p->footer_length);
    for (uint32_t i = 0; i < p->records_count; i++) {
        const uint8_t *row = rows + (uint64_t)i * INDEX_RECORD;
        number[i] = next[row[13]]++;
        memcpy(footer + p->rows_at + (uint64_t)number[i] * INDEX_RECORD, row, INDEX_RECORD);
    }
    for (uint32_t i = 0; i < p->places_count; i++) {
        uint64_t at = p->places_at + (uint64_t)i * INDEX_PLACE + 4;
        put32(footer + at, number[get32(p->footer + at)]);
    }
    return true;
}

int vespiary_page_arrange(const vespiary_page_part *parts, uint32_t count, uint8_t *footer)
{
    page_view p;
    if (!read_page(&p, parts, count) || !check_tables(&p))
        return -EINVAL;
    uint32_t *number = malloc(((uint64_t)p.records_count + 1) * sizeof *number);
    if (!number)
        return -ENOMEM;
    bool is_other = write_tables(&p, number, footer);
    free(number);
    vespiary_page_cursor cursor = {0};
    filling f = {.page = &p, .rows = footer + p.rows_at, .cursor = &cursor};
    while (is_other && cursor.part < p.count)
        fill_part(&f);
    return is_other && cursor.record == p.records_count;
}

int vespiary_page_arrange_part(const vespiary_page_part *parts, uint32_t count, uint64_t salt, uint8_t *footer,
                               vespiary_page_cursor *at, uint8_t *out)
{
    page_view p;
    if (!read_page(&p, parts, count) || at->part >= p.count)
        return -EINVAL;
    filling f = {.page = &p, .rows = footer + p.rows_at, .out = out, .salt = salt, .cursor = at};
    fill_part(&f);
    if (at->part < p.count)
        return 0;
    uint8_t *trailer = footer + p.footer_length - TRAILER;
    put32(trailer + 48, (uint32_t)at->sequence);
    put32(trailer + 52, at->crc);
    put32(trailer + 56, seeded(salt, p.footer_offset, footer, p.footer_length - TRAILER));
    put32(trailer + 60, seeded(salt, p.footer_offset + p.footer_length - TRAILER, trailer, TRAILER - 4));
    return 0;
}
