/* The walk from blocks to columns (contract: columns.h; specification: vespiary_codec/journal/column_scan.py). */
#include "columns.h"
#include "little_endian.h"
#include "utf8.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "crc32c.h"

enum { HEADER = 64, START = 8, ADD_HEADER = 24, PLACE = 16, ACK_HEADER = 16, RANGE = 16, END = 24, KEY_AT = 16 };
enum { PAGED = 40, PAGED_QUEUE = 40, LARGE = 32, COUNTED = 16, REFERENCE = 24, QUEUE_STATE = 24, DUPLICATE_HEAD = 8 };
enum { DUPLICATE_ID = 10, SPAN_MAX = 1 << 24, PLACES_MAX = 32768, POSITION_BITS = 16, ROWS_FIRST = 1024 };
enum { TRANSACTIONAL = 1, IS_LARGE = 4, MUST_KNOW = 0x80, IS_SEAL = 1 };
#define MAGIC 0x4B4C4256u
#define SEQUENCES (1ULL << 63) /* of a queue: all are below */
#define SEQUENCE_END (1ULL << (63 - POSITION_BITS))

enum {
    ADD = 1, ACK = 2, COUNT = 3, COMMIT = 4, FILES = 5, QUEUES = 6, SEAL = 7, PREPARE = 8, ROLLBACK = 9,
    DUPLICATE = 11, PAGE_DONE = 13, PUT = 32, REMOVE = 33, PAGE = 140
};

/* Fields in the order of the columns. */
enum { KIND, FLAGS, PROTOCOL, PRIORITY, OCTETS };
enum {
    OFFSET, BLOCK, BLOCK_TIME, POSITION, LENGTH, TRANSACTION, CRC, NUMBER, DIGEST, ARRIVAL, PROPERTIES_AT,
    PROPERTIES_BYTES, BODY_AT, BODY_BYTES, BODY_SIZE, RECORD_AT, NUMBERS
};
enum { PLACE_NUMBERS = 3 };

typedef struct {
    uint64_t numbers[NUMBERS];
    uint8_t octets[OCTETS];
} fields;

/* A record in the window. */
typedef struct {
    const uint8_t *data;
    uint64_t length; /* without padding */
    uint64_t at;     /* in the window */
} record;

/* --- room ----------------------------------------------------------------------------------------------------- */

/* Make room for `count` entries of `size` bytes; the buffer stays as it was without memory. */
static bool grow(void *buffer, uint64_t count, size_t size)
{
    void *old, *made;
    memcpy(&old, buffer, sizeof old);
    if (count > SIZE_MAX / size || !(made = realloc(old, (size_t)count * size)))
        return false;
    memcpy(buffer, &made, sizeof made);
    return true;
}

static int reserve_rows(vespiary_columns *out, uint64_t more)
{
    uint64_t room = out->rows_room ? out->rows_room : ROWS_FIRST;
    while (room < out->rows + more)
        room *= 2;
    if (room == out->rows_room)
        return 0;
    bool is_there = grow(&out->places_from, room + 1, sizeof *out->places_from);
    for (int i = 0; i < OCTETS; i++)
        is_there = is_there && grow(&out->octets[i], room, 1);
    for (int i = 0; i < NUMBERS; i++)
        is_there = is_there && grow(&out->numbers[i], room, sizeof *out->numbers[i]);
    if (!is_there)
        return -ENOMEM;
    out->rows_room = room;
    return 0;
}

static int reserve_places(vespiary_columns *out, uint64_t more)
{
    if (out->places + more > INT32_MAX)
        return -EOVERFLOW;
    uint64_t room = out->places_room ? out->places_room : ROWS_FIRST;
    while (room < out->places + more)
        room *= 2;
    if (room == out->places_room)
        return 0;
    for (int i = 0; i < PLACE_NUMBERS; i++)
        if (!grow(&out->place_numbers[i], room, sizeof *out->place_numbers[i]))
            return -ENOMEM;
    out->places_room = room;
    return 0;
}

/* Add a place; there is room for it. */
static void put_place(vespiary_columns *out, uint32_t queue_id, uint64_t sequence, uint64_t number)
{
    out->place_numbers[0][out->places] = queue_id;
    out->place_numbers[1][out->places] = (int64_t)sequence;
    out->place_numbers[2][out->places++] = (int64_t)number;
}

/* --- records: 0; -EINVAL: it does not fit its fields ---------------------------------------------------------- */
static bool is_sequence(uint64_t number) { return number && number < SEQUENCES; }

static int take_add(vespiary_columns *out, const record *r, fields *f)
{
    if (r->length < ADD_HEADER)
        return -EINVAL;
    uint64_t count = get16(r->data + 22), is_member = f->octets[FLAGS] & TRANSACTIONAL, after = ADD_HEADER + PLACE * count;
    uint64_t content = after + (is_member ? 8 : 0), properties = get16(r->data + 20), body = get32(r->data + 16);
    if (!count || content + properties + body != r->length)
        return -EINVAL;
    const uint8_t *body_at = r->data + content + properties;
    bool is_large = f->octets[FLAGS] & IS_LARGE;
    if (is_large && body != REFERENCE)
        return -EINVAL;
    int error = reserve_places(out, count);
    if (error)
        return error;
    for (const uint8_t *place = r->data + ADD_HEADER; place < r->data + after; place += PLACE) {
        if (!is_sequence(get64(place + 8)))
            return -EINVAL;
        put_place(out, get32(place), get64(place + 8), 1);
    }
    f->octets[PROTOCOL] = r->data[6];
    f->octets[PRIORITY] = r->data[7];
    f->numbers[ARRIVAL] = get64(r->data + 8);
    f->numbers[TRANSACTION] = is_member ? get64(r->data + after) : 0;
    f->numbers[PROPERTIES_AT] = r->at + content;
    f->numbers[PROPERTIES_BYTES] = properties;
    f->numbers[BODY_AT] = r->at + content + properties;
    f->numbers[BODY_BYTES] = body;
    f->numbers[BODY_SIZE] = is_large ? get64(body_at + 8) : body;
    return 0;
}

static int take_ack(vespiary_columns *out, const record *r, fields *f)
{
    if (r->length < ACK_HEADER)
        return -EINVAL;
    uint64_t count = get32(r->data + 12), end = ACK_HEADER + RANGE * count, is_member = f->octets[FLAGS] & TRANSACTIONAL;
    if (end + (is_member ? 8 : 0) != r->length)
        return -EINVAL;
    int error = reserve_places(out, count);
    if (error)
        return error;
    for (const uint8_t *range = r->data + ACK_HEADER; range < r->data + end; range += RANGE) {
        uint64_t first = get64(range), length = get64(range + 8);
        if (first >= SEQUENCES || length > SEQUENCES - first)
            return -EINVAL;
        put_place(out, get32(r->data + 8), first, length);
    }
    f->numbers[TRANSACTION] = is_member ? get64(r->data + end) : 0;
    return 0;
}

static int take_count(vespiary_columns *out, const record *r, fields *f)
{
    if (r->length != START + 16)
        return -EINVAL;
    int error = reserve_places(out, 1);
    if (error)
        return error;
    if (!is_sequence(get64(r->data + 16)))
        return -EINVAL;
    put_place(out, get32(r->data + 8), get64(r->data + 16), 1);
    f->numbers[NUMBER] = get32(r->data + 12);
    return 0;
}

static int take_end(const record *r, fields *f)
{
    if (r->length < END || (r->length > END && f->octets[KIND] != PREPARE))
        return -EINVAL;
    f->numbers[TRANSACTION] = get64(r->data + 8);
    f->numbers[NUMBER] = get32(r->data + 16);
    f->numbers[DIGEST] = get32(r->data + 20);
    return 0;
}

static int take_key(const record *r, fields *f)
{
    if (r->length < KEY_AT)
        return -EINVAL;
    uint64_t key = get32(r->data + 8), left = r->length - KEY_AT;
    if (key > left || !is_utf8(r->data + KEY_AT, key) || (f->octets[KIND] == REMOVE && key != left))
        return -EINVAL;
    f->numbers[PROPERTIES_AT] = r->at + KEY_AT;
    f->numbers[PROPERTIES_BYTES] = key;
    f->numbers[BODY_AT] = r->at + KEY_AT + key;
    f->numbers[BODY_BYTES] = left - key;
    return 0;
}

/* FILES and QUEUES: a count, and so many entries. */
static int check_counted(const record *r, uint8_t kind)
{
    uint64_t size = kind == FILES ? RANGE : QUEUE_STATE;
    if (r->length < START + 8 || r->length != START + 8 + get32(r->data + 8) * size)
        return -EINVAL;
    for (const uint8_t *run = r->data + START + 8; kind == FILES && run < r->data + r->length; run += RANGE)
        if (get64(run) > get64(run + 8))
            return -EINVAL;
    for (const uint8_t *one = r->data + START + 8; kind == QUEUES && one < r->data + r->length; one += QUEUE_STATE)
        if (get64(one + 8) > SEQUENCES || get64(one + 16) > SEQUENCES)
            return -EINVAL;
    return 0;
}

static int take_duplicate(const record *r, fields *f)
{
    const uint8_t *body = r->data + START;
    uint64_t length = r->length - START;
    if (length < DUPLICATE_HEAD)
        return -EINVAL;
    uint64_t at = DUPLICATE_HEAD + (uint64_t)get16(body + 4);
    if (at > length || !is_utf8(body + DUPLICATE_HEAD, at - DUPLICATE_HEAD))
        return -EINVAL;
    for (uint32_t i = get32(body); i; i--) {
        if (at > length || length - at < DUPLICATE_ID)
            return -EINVAL;
        at += DUPLICATE_ID + (uint64_t)get16(body + at + 8);
    }
    uint64_t transaction = at + 8 == length ? get64(body + at) : 0;
    if (at + (transaction ? 8 : 0) != length)
        return -EINVAL;
    f->numbers[TRANSACTION] = f->octets[FLAGS] & TRANSACTIONAL ? transaction : 0;
    return 0;
}

/* The runs of set bits of a bitmap from `first` to `last`, of `places` bits in all. */
static int put_runs(vespiary_columns *out, uint32_t queue_id, const uint8_t *bits, uint64_t length, uint64_t first,
                    uint64_t last, uint32_t places)
{
    uint64_t begin = 0, found = 0;
    bool is_in = false;
    for (uint64_t i = 0; i <= length * 8; i++) {
        bool is_set = i < length * 8 && bits[i / 8] >> (i % 8) & 1;
        if (is_set && i > last - first)
            return -EINVAL;
        found += is_set;
        if (is_set == is_in)
            continue;
        if (is_set) {
            begin = i;
        } else {
            int error = reserve_places(out, 1);
            if (error)
                return error;
            put_place(out, queue_id, first + begin, i - begin);
        }
        is_in = is_set;
    }
    bool is_framed = length && bits[0] & 1 && bits[(last - first) / 8] >> ((last - first) % 8) & 1;
    return is_framed && found == places ? 0 : -EINVAL;
}

static int take_page(vespiary_columns *out, const record *r, fields *f)
{
    if (r->length < PAGED)
        return -EINVAL;
    uint64_t at = PAGED, before = 0, all_places = 0;
    for (uint32_t left = get32(r->data + 32), is_later = 0; left; left--, is_later = 1) {
        if (at + PAGED_QUEUE > r->length)
            return -EINVAL;
        const uint8_t *queue = r->data + at;
        uint32_t queue_id = get32(queue), places = get32(queue + 24);
        uint64_t length = get32(queue + 4), first = get64(queue + 8), last = get64(queue + 16);
        at += PAGED_QUEUE + length + (uint64_t)get32(queue + 28) * LARGE + (uint64_t)get32(queue + 32) * COUNTED;
        if (at > r->length || !first || last >> 63 || last < first || last - first >= SPAN_MAX)
            return -EINVAL;
        all_places += places;
        if ((is_later && queue_id <= before) || all_places > PLACES_MAX)
            return -EINVAL;
        before = queue_id;
        int error = reserve_places(out, 1);
        if (error)
            return error;
        if (!length && places == last - first + 1)
            put_place(out, queue_id, first, places);
        else if (length != (last - first + 64) / 64 * 8)
            return -EINVAL;
        else if ((error = put_runs(out, queue_id, queue + PAGED_QUEUE, length, first, last, places)))
            return error;
    }
    f->numbers[NUMBER] = get64(r->data + 8);
    return at == r->length ? 0 : -EINVAL;
}

static int take_fields(vespiary_columns *out, const record *r, fields *f)
{
    uint8_t kind = f->octets[KIND];
    switch (kind) {
    case ADD:
        return take_add(out, r, f);
    case ACK:
        return take_ack(out, r, f);
    case COUNT:
        return take_count(out, r, f);
    case COMMIT:
    case PREPARE:
    case ROLLBACK:
        return take_end(r, f);
    case FILES:
    case QUEUES:
        return check_counted(r, kind);
    case SEAL:
        return r->length == START + 8 ? 0 : -EINVAL;
    case DUPLICATE:
        return take_duplicate(r, f);
    case PAGE:
        return take_page(out, r, f);
    case PAGE_DONE:
        if (r->length != START + 8)
            return -EINVAL;
        f->numbers[NUMBER] = get64(r->data + 8);
        return 0;
    case PUT:
    case REMOVE:
        return take_key(r, f);
    default:
        return kind & MUST_KNOW ? -EINVAL : 0;
    }
}

/* --- blocks --------------------------------------------------------------------------------------------------- */

static bool is_end(uint8_t kind) { return kind == COMMIT || kind == PREPARE || kind == ROLLBACK; }

static void put_row(vespiary_columns *out, const fields *f)
{
    for (int i = 0; i < OCTETS; i++)
        out->octets[i][out->rows] = f->octets[i];
    for (int i = 0; i < NUMBERS; i++)
        out->numbers[i][out->rows] = (int64_t)f->numbers[i];
    out->places_from[++out->rows] = (int32_t)out->places;
}

/* Take the records of a valid block at `at` in the window; those of a malformed one are partly taken. */
static int take_records(const uint8_t *window, uint64_t at, const vespiary_scan_request *request, vespiary_columns *out)
{
    const uint8_t *header = window + at, *payload = header + HEADER;
    uint64_t length = get32(header + 32), records = get32(header + 36), used = 0;
    if (records > length / START)
        return -EINVAL;
    int error = reserve_rows(out, records);
    for (uint64_t i = 0; i < records && !error; i++) {
        if (used + START > length)
            return -EINVAL;
        record r = {payload + used, get32(payload + used), at + HEADER + used};
        if (r.length < START || r.length > length - used)
            return -EINVAL;
        fields f = {.octets = {[KIND] = r.data[4], [FLAGS] = r.data[5]}};
        uint64_t places = out->places;
        error = take_fields(out, &r, &f);
        if (error)
            break;
        used += (r.length + 7) & ~7ULL;
        bool is_member = f.numbers[TRANSACTION] && !is_end(f.octets[KIND]);
        if (!request->kinds[f.octets[KIND]] && !(request->members && (is_member || is_end(f.octets[KIND])))) {
            out->places = places;
            continue;
        }
        f.numbers[OFFSET] = request->offset + r.at;
        f.numbers[BLOCK] = get64(header + 8);
        f.numbers[BLOCK_TIME] = get64(header + 48);
        f.numbers[POSITION] = get64(header + 8) << POSITION_BITS | i;
        f.numbers[LENGTH] = r.length;
        f.numbers[CRC] = is_member ? vespiary_crc32c(0, r.data, r.length) : 0;
        f.numbers[RECORD_AT] = r.at;
        put_row(out, &f);
    }
    if (!error && records && used != ((length + 7) & ~7ULL))
        return -EINVAL;
    return error;
}

/* Whether the checksum of the block at `offset` in its file holds. */
static bool is_whole(const uint8_t *block, uint64_t salt, uint64_t offset)
{
    uint8_t seed[16], header[HEADER];
    put64(seed, salt);
    put64(seed + 8, offset);
    memcpy(header, block, HEADER);
    put32(header + 44, 0);
    uint32_t crc = vespiary_crc32c(vespiary_crc32c(0, seed, sizeof seed), header, sizeof header);
    return vespiary_crc32c(crc, block + HEADER, get32(block + 32)) == get32(block + 44);
}

/* Whether the block at `at` in the window can be taken: false, with the reason in `out`. */
static bool is_next(const uint8_t *window, uint64_t length, uint64_t at, const vespiary_scan_request *request,
                    vespiary_columns *out, bool has_previous)
{
    const uint8_t *header = window + at;
    out->reason = VESPIARY_SCAN_WINDOW;
    if (length - at < HEADER)
        return false;
    uint64_t block = ((uint64_t)get32(header + 32) + HEADER + 4095) & ~4095ULL, sequence = get64(header + 8);
    bool is_block = get32(header) == MAGIC && get16(header + 4) == 1 && get64(header + 16) == request->file_id;
    if (is_block && block > length - at) {
        out->needed_bytes = block;
        return false;
    }
    out->reason = VESPIARY_SCAN_INVALID;
    if (!is_block || !is_whole(header, request->salt, request->offset + at))
        return false;
    if (sequence >= SEQUENCE_END || get32(header + 36) > 1 << POSITION_BITS)
        return false;
    return !has_previous || (sequence && sequence - 1 == out->sequence && get32(header + 40) == out->crc);
}

static void free_all(vespiary_columns *out)
{
    for (int i = 0; i < OCTETS; i++)
        free(out->octets[i]);
    for (int i = 0; i < NUMBERS; i++)
        free(out->numbers[i]);
    for (int i = 0; i < PLACE_NUMBERS; i++)
        free(out->place_numbers[i]);
    free(out->places_from);
    memset(out, 0, sizeof *out);
}

int vespiary_columns_scan(const uint8_t *window, uint64_t length, const vespiary_scan_request *request,
                          vespiary_columns *out)
{
    out->sequence = request->has_previous ? request->previous_sequence : 0;
    out->crc = request->has_previous ? request->previous_crc : 0;
    uint64_t at = 0;
    int error = reserve_rows(out, 1);
    error = error ? error : reserve_places(out, 1);
    if (!error)
        out->places_from[0] = 0;
    while (!error && is_next(window, length, at, request, out, request->has_previous || out->blocks)) {
        const uint8_t *header = window + at;
        uint64_t rows = out->rows, places = out->places;
        error = take_records(window, at, request, out);
        if (error == -EINVAL) {
            out->rows = rows;
            out->places = places;
            out->reason = VESPIARY_SCAN_INVALID;
            error = 0;
            break;
        }
        uint64_t watermark = get64(header + 24);
        out->watermark = watermark > out->watermark ? watermark : out->watermark;
        out->time_ms = get64(header + 48);
        out->sequence = get64(header + 8);
        out->crc = get32(header + 44);
        out->records += get32(header + 36);
        out->blocks++;
        at += ((uint64_t)get32(header + 32) + HEADER + 4095) & ~4095ULL;
        out->reason = get16(header + 6) & IS_SEAL ? VESPIARY_SCAN_END : VESPIARY_SCAN_ROWS;
        if (out->reason == VESPIARY_SCAN_END || out->rows >= request->rows_max)
            break;
    }
    out->stop = request->offset + at;
    if (error)
        free_all(out);
    return error;
}

void vespiary_columns_free(void *buffer) { free(buffer); }
