/* Columns under sanitizers: windows that end where their memory does, with blocks whose checksums hold over records of random
 * fields, cut off and damaged anywhere; texts of any bytes; entries outside of the window. */
#include "columns.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "crc32c.h"
#include "little_endian.h"

enum { RUNS = 20000, PAYLOAD_MAX = 4000, BLOCKS_MAX = 3, BLOCK = 4096, HEADER = 64 };

static uint64_t state = 88172645463325252ULL;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 11) % n);
}

/* A number of a record: mostly small, so that counts often fit. */
static uint32_t number(void) { return below(3) ? below(4) : below(40) ? below(200) : UINT32_MAX - below(3); }

static const uint8_t kinds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 32, 33, 77, 140, 141};
static const uint8_t sizes[] = {48, 32, 24, 24, 32, 40, 16, 32, 24, 48, 16, 24, 24, 8, 88, 8};

/* A record: its kind's usual length or another, its fields random. */
static uint32_t put_record(uint8_t *at, uint32_t room)
{
    uint32_t kind = below(20) ? below(sizeof kinds - 1) : sizeof kinds - 1, length = below(12) ? sizes[kind] : 8 + below(120);
    length = length < room ? length : room;
    for (uint32_t i = 8; i < length; i++)
        at[i] = (uint8_t)(below(4) ? 0 : below(256));
    for (uint32_t i = 8; i + 4 <= length; i += 4)
        if (below(2))
            put32(at + i, number());
    put32(at, below(300) ? length : number());
    at[4] = kinds[kind];
    at[5] = (uint8_t)(below(3) ? 0 : below(64));
    if (kinds[kind] == 1 && length >= 48 && below(4)) { /* one place, properties, a body */
        put32(at + 16, 8);
        put16(at + 20, length - 48);
        put16(at + 22, 1);
    }
    if (kinds[kind] == 2 && length == 32 && below(8)) { /* one range */
        at[5] = 0;
        put32(at + 12, 1);
    }
    if ((kinds[kind] == 5 || kinds[kind] == 6) && length == sizes[kind] && below(8)) { /* one entry, nothing upside down */
        put32(at + 8, 1);
        put64(at + 24, UINT64_MAX);
    }
    if (kinds[kind] == 11 && length == 48 && below(8)) { /* an address of one letter, one id, a transaction */
        put32(at + 8, 1);
        put16(at + 12, 1);
        at[16] = 'a';
        put16(at + 25, 13);
        put64(at + 40, 1);
    }
    if (kinds[kind] >= 32 && kinds[kind] <= 33 && length == 24 && below(8)) { /* a key of 8 letters */
        put32(at + 8, 8);
        memset(at + 16, 'k', 8);
    }
    if (kinds[kind] == 140 && length == 88 && below(4)) { /* one queue, a bitmap */
        put32(at + 32, 1);
        put32(at + 44, 8);
        put64(at + 48, 1 + below(9));
        put64(at + 56, get64(at + 48) + below(64));
        put32(at + 68, 0);
        put32(at + 72, 0);
        put64(at + 80, 1 | 1ULL << (get64(at + 56) - get64(at + 48)));
        put32(at + 64, (uint32_t)__builtin_popcountll(get64(at + 80)));
    }
    return length;
}

static void put_block(uint8_t *block, uint64_t sequence, uint32_t previous, uint64_t offset)
{
    uint32_t used = 0, records = below(4) ? below(4) : below(20), length = 0;
    for (uint32_t i = 0; i < records && used + 200 < PAYLOAD_MAX; i++, length = used)
        used += (put_record(block + HEADER + used, 128) + 7) & ~7U;
    put32(block, 0x4B4C4256);
    put16(block + 4, 1);
    put64(block + 8, sequence);
    put64(block + 16, 7);
    put32(block + 32, below(50) ? length : number());
    put32(block + 36, below(50) ? records : number());
    put32(block + 40, previous);
    uint8_t seed[16];
    put64(seed, 11);
    put64(seed + 8, offset);
    uint32_t payload = get32(block + 32);
    uint32_t crc = vespiary_crc32c(vespiary_crc32c(0, seed, 16), block, HEADER);
    put32(block + 44, payload <= BLOCK - HEADER ? vespiary_crc32c(crc, block + HEADER, payload) : crc);
}

static void free_columns(vespiary_columns *out)
{
    for (int i = 0; i < 4; i++)
        vespiary_columns_free(out->octets[i]);
    for (int i = 0; i < 16; i++)
        vespiary_columns_free(out->numbers[i]);
    for (int i = 0; i < 3; i++)
        vespiary_columns_free(out->place_numbers[i]);
    vespiary_columns_free(out->places_from);
}

static void free_strings(vespiary_strings *out)
{
    vespiary_columns_free(out->offsets);
    vespiary_columns_free(out->data);
    vespiary_columns_free(out->valid);
}

static void check_strings(const vespiary_strings *out)
{
    CHECK_EQUAL(out->offsets[0], 0);
    for (uint64_t i = 0; i < out->rows; i++)
        CHECK(out->offsets[i] <= out->offsets[i + 1]);
}

/* All that is in the columns stands in the window. */
static void check_columns(const uint8_t *window, uint32_t length, const vespiary_columns *out)
{
    int32_t *entries = calloc(out->rows + 1, sizeof *entries);
    vespiary_strings bodies = {0}, keys = {0}, values = {0}, spare = {0}, one = {0};
    CHECK(entries);
    CHECK_EQUAL(out->places_from[out->rows], out->places);
    CHECK_EQUAL(vespiary_columns_gather(window, length, out->numbers[12], out->numbers[13], NULL, out->rows, &bodies), 0);
    CHECK_EQUAL(vespiary_columns_gather(window, length, out->numbers[15], out->numbers[4], NULL, out->rows, &one), 0);
    CHECK_EQUAL(vespiary_columns_headers(window, length, out->octets[0], out->octets[1], out->numbers[10],
                                         out->numbers[11], out->rows, NULL, 0, entries, &keys, &values),
                0);
    CHECK_EQUAL(entries[out->rows], keys.rows);
    check_strings(&bodies);
    check_strings(&one);
    check_strings(&keys);
    check_strings(&values);
    free_strings(&values);
    values = (vespiary_strings){0};
    CHECK_EQUAL(vespiary_columns_headers(window, length, out->octets[0], out->octets[1], out->numbers[10],
                                         out->numbers[11], out->rows, (const uint8_t *)"a", 1, NULL, &spare, &values),
                0);
    CHECK_EQUAL(values.rows, out->rows);
    free_strings(&bodies);
    free_strings(&one);
    free_strings(&keys);
    free_strings(&values);
    free_strings(&spare);
    free(entries);
}

static uint64_t rows_seen, invalid_seen;

static void scan_once(void)
{
    uint8_t *blocks = calloc(BLOCKS_MAX, BLOCK);
    uint32_t count = 1 + below(BLOCKS_MAX), length = count * BLOCK, previous = 0;
    CHECK(blocks);
    for (uint32_t i = 0; i < count; i++) {
        put_block(blocks + i * BLOCK, i + 1, previous, (i + 1) * BLOCK);
        previous = get32(blocks + i * BLOCK + 44);
    }
    if (!below(5))
        blocks[below(length)] ^= (uint8_t)(1 << below(8));
    if (!below(3))
        length = below(length + 1);
    uint8_t *window = malloc(length ? length : 1);
    CHECK(window);
    memcpy(window, blocks, length);
    vespiary_scan_request request = {.offset = BLOCK, .salt = 11, .file_id = 7, .rows_max = below(3) ? UINT64_MAX : 5};
    for (uint32_t i = 0; i < sizeof request.kinds; i++)
        request.kinds[i] = below(4) > 0;
    request.members = below(2) > 0;
    vespiary_columns out = {0};
    CHECK_EQUAL(vespiary_columns_scan(window, length, &request, &out), 0);
    CHECK(out.rows <= out.records && out.blocks <= count);
    rows_seen += out.rows;
    invalid_seen += out.reason == VESPIARY_SCAN_INVALID;
    check_columns(window, length, &out);
    free_columns(&out);
    free(window);
    free(blocks);
}

/* Headers of random bytes, in memory that ends where they do. */
static void read_headers(void)
{
    static const char *const words[] = {"a", "b:", ":", "\n", "\\", "\\c", "\xC3\xA4", "\xE2\x82", "\xED\xA0", "\xF4\x90", "a:b\n"};
    uint8_t made[400], kind = 1, flags = (uint8_t)below(4);
    uint32_t length = 0;
    for (uint32_t i = below(60); i; i--) {
        const char *word = words[below(sizeof words / sizeof *words)];
        memcpy(made + length, word, strlen(word));
        length += (uint32_t)strlen(word);
    }
    uint8_t *window = malloc(length ? length : 1);
    CHECK(window);
    memcpy(window, made, length);
    int64_t at = 0, bytes = length;
    int32_t entries[2];
    vespiary_strings keys = {0}, values = {0};
    CHECK_EQUAL(vespiary_columns_headers(window, length, &kind, &flags, &at, &bytes, 1, NULL, 0, entries, &keys, &values), 0);
    CHECK_EQUAL(keys.rows, values.rows);
    check_strings(&keys);
    check_strings(&values);
    free_strings(&keys);
    free_strings(&values);
    free(window);
}

static void refuse_what_is_outside(void)
{
    uint8_t window[16] = {0}, kind = 1, flags = 0;
    int32_t entries[2];
    const int64_t wrong[][2] = {{0, 17}, {16, 1}, {-1, 1}, {1, -1}, {INT64_MAX, INT64_MAX}};
    for (uint32_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        vespiary_strings out = {0}, keys = {0}, values = {0};
        CHECK_EQUAL(vespiary_columns_gather(window, 16, &wrong[i][0], &wrong[i][1], NULL, 1, &out), -EINVAL);
        CHECK_EQUAL(vespiary_columns_headers(window, 16, &kind, &flags, &wrong[i][0], &wrong[i][1], 1, NULL, 0, entries,
                                             &keys, &values),
                    -EINVAL);
        CHECK(!out.data && !keys.data && !values.data);
    }
}

int main(void)
{
    for (int i = 0; i < RUNS; i++) {
        scan_once();
        read_headers();
    }
    refuse_what_is_outside();
    CHECK(rows_seen > RUNS / 2 && invalid_seen > RUNS / 10);
    printf("%d windows, %llu rows, %llu invalid\n", RUNS, (unsigned long long)rows_seen, (unsigned long long)invalid_seen);
    return 0;
}
