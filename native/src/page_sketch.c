/* The sketch of a page (contract: page_sketch.h; bytes: journal-format.md §7.4; specification: twin/page_sketch.py). */
#include "little_endian.h"
#include "page_sketch.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"

enum {
    VERSION = 1,
    HEAD = 48,
    NAME_HEAD = 8,
    NUMBERS = 16,
    NAMES_MAX = 32,
    NAME_BYTES_MAX = 255,
    BOUND_BYTES = 32,
    FILTER_WORDS = 128, /* 1024 bytes */
    FILTER_SMALL = 64,  /* bytes: these come before bounds of texts */
    PROBES = 6,
    NUMBER_CHARACTERS_MAX = 64,
    WHOLE_DIGITS_MAX = 18,
    PROPERTIES_MAX = 65536
};
enum { IS_COMPLETE = 1, IN_ALL = 1, HAS_NUMBERS = 2, HAS_OTHERS = 4, IS_WHOLE = 8, HAS_BOUNDS = 16 };
enum { TRAILER = 64, INDEX_QUEUE = 32, INDEX_PLACE = 8, INDEX_RECORD = 16, ADD_HEADER = 24, PLACE_BYTES = 16 };
enum { FLAG_ESCAPED = 2, FLAG_SPECIAL = 16, PROTOCOL_STOMP = 1 };
#define EXPIRY_MAX 1000000000000000000ULL
#define EXACT_MAX 9007199254740992.0 /* 2**53: above it a double stands for its neighbours too */

typedef struct {
    const uint8_t *at;
    uint32_t length;
} text;

typedef struct {
    uint8_t name[NAME_BYTES_MAX], name_length, low[BOUND_BYTES], high[BOUND_BYTES], low_length, high_length;
    uint32_t count, latest; /* messages that have it; number of the latest, from 1 */
    bool has_numbers, has_others, is_whole, has_bounds;
    double lowest, highest;
    uint32_t filter_bytes;
    uint64_t filter[FILTER_WORDS];
} facts;

typedef struct {
    facts names[NAMES_MAX];
    uint8_t plain[PROPERTIES_MAX]; /* a value without its escapes */
    uint32_t count, next, records;
    bool is_complete;
    uint8_t lowest, highest, flags_of_all, flags_of_any;
    uint64_t first, last, least, most, expiry;
} sketching;

/* --- values --------------------------------------------------------------------------------------------------- */
static bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }
static bool is_blank(uint8_t c) { return c == ' ' || c == '\t'; }

static uint32_t digits_at(text t, uint32_t at)
{
    uint32_t end = at;
    while (end < t.length && is_digit(t.at[end]))
        end++;
    return end - at;
}

/* Whether a text without blanks around it is a number as selectors read one: digits, a point, an exponent. */
static bool is_number(text t)
{
    uint32_t at = t.length && (t.at[0] == '+' || t.at[0] == '-'), whole = digits_at(t, at), part = 0;
    at += whole;
    if (at < t.length && t.at[at] == '.') {
        part = digits_at(t, at + 1);
        at += 1 + part;
    }
    if (!whole && !part)
        return false;
    if (at < t.length && (t.at[at] == 'e' || t.at[at] == 'E')) {
        at++;
        at += at < t.length && (t.at[at] == '+' || t.at[at] == '-');
        uint32_t digits = digits_at(t, at);
        if (!digits)
            return false;
        at += digits;
    }
    return at == t.length;
}

/* Whether it is the shortest text of a whole number with up to 18 digits. */
static bool is_shortest(text t)
{
    uint32_t sign = t.length && t.at[0] == '-', digits = t.length - sign;
    if (!digits || digits > WHOLE_DIGITS_MAX || digits_at(t, sign) != digits)
        return false;
    return t.at[sign] != '0' || (digits == 1 && !sign);
}

/* The next double above or below one that is not 0: as nextafter, without the library that has it. */
static double neighbour(double value, bool is_above)
{
    if (value == (is_above ? INFINITY : -INFINITY))
        return value;
    uint64_t bits;
    memcpy(&bits, &value, 8);
    bits = (value > 0) == is_above ? bits + 1 : bits - 1;
    memcpy(&value, &bits, 8);
    return value;
}

static void widen(facts *f, double low, double high)
{
    if (low <= -EXACT_MAX || low >= EXACT_MAX)
        low = neighbour(low, false);
    if (high <= -EXACT_MAX || high >= EXACT_MAX)
        high = neighbour(high, true);
    f->lowest = !f->has_numbers || low < f->lowest ? low : f->lowest;
    f->highest = !f->has_numbers || high > f->highest ? high : f->highest;
    f->has_numbers = true;
}

static void note_number(facts *f, text t)
{
    char copy[NUMBER_CHARACTERS_MAX + 1];
    bool is_whole = is_shortest(t);
    if (is_whole) {
        int64_t value = 0;
        for (uint32_t i = t.at[0] == '-'; i < t.length; i++)
            value = value * 10 + (t.at[i] - '0');
        double exact = (double)(t.at[0] == '-' ? -value : value);
        widen(f, exact, exact);
        return;
    }
    uint32_t from = 0, to = t.length;
    while (t.length <= NUMBER_CHARACTERS_MAX && from < to && is_blank(t.at[from]))
        from++;
    while (to > from && is_blank(t.at[to - 1]))
        to--;
    if (t.length > NUMBER_CHARACTERS_MAX || !is_number((text){t.at + from, to - from})) {
        f->has_others = true;
        return;
    }
    f->is_whole = false;
    memcpy(copy, t.at + from, to - from);
    copy[to - from] = 0;
    char *end;
    double value = strtod(copy, &end);
    if (end == copy + (to - from))
        widen(f, value, value);
    else /* a locale with another point */
        widen(f, -INFINITY, INFINITY);
}

static int compare_texts(text a, text b)
{
    uint32_t shorter = a.length < b.length ? a.length : b.length;
    int order = memcmp(a.at, b.at, shorter);
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static void note_bounds(facts *f, text t)
{
    t.length = t.length < BOUND_BYTES ? t.length : BOUND_BYTES;
    if (!f->count || compare_texts(t, (text){f->low, f->low_length}) < 0) {
        memcpy(f->low, t.at, t.length);
        f->low_length = (uint8_t)t.length;
    }
    if (!f->count || compare_texts(t, (text){f->high, f->high_length}) > 0) {
        memcpy(f->high, t.at, t.length);
        f->high_length = (uint8_t)t.length;
    }
}

static void note_filter(facts *f, text t)
{
    uint64_t mixed = vespiary_crc32c(0, t.at, t.length) * 0x9E3779B97F4A7C15ULL;
    uint64_t bit = mixed & UINT32_MAX, step = mixed >> 32 | 1;
    for (int i = 0; i < PROBES; i++, bit += step) {
        uint64_t at = bit & (FILTER_WORDS * 64 - 1);
        f->filter[at / 64] |= (uint64_t)1 << (at % 64);
    }
}

/* --- headers -------------------------------------------------------------------------------------------------- */

/* The value without escapes; as it is if one of them is none. */
static text unescaped(sketching *s, text t)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < t.length; i++) {
        uint8_t c = t.at[i];
        if (c == '\\') {
            uint8_t next = ++i < t.length ? t.at[i] : 0;
            if (next != '\\' && next != 'n' && next != 'c' && next != 'r')
                return t;
            c = next == 'n' ? '\n' : next == 'c' ? ':' : next == 'r' ? '\r' : '\\';
        }
        s->plain[used++] = c;
    }
    return (text){s->plain, used};
}

static bool is_named(const facts *f, text name)
{
    return f->name_length == name.length && !memcmp(f->name, name.at, name.length);
}

/* The facts of a name; NULL if there is no room for one more. Most messages have the same names in the same order. */
static facts *facts_of(sketching *s, text name)
{
    if (s->next < s->count && is_named(&s->names[s->next], name))
        return &s->names[s->next++];
    for (uint32_t i = 0; i < s->count; i++) {
        if (is_named(&s->names[i], name)) {
            s->next = i + 1;
            return &s->names[i];
        }
    }
    if (s->count == NAMES_MAX || name.length > NAME_BYTES_MAX) {
        s->is_complete = false;
        return NULL;
    }
    facts *f = &s->names[s->count++];
    memcpy(f->name, name.at, name.length);
    f->name_length = (uint8_t)name.length;
    f->is_whole = true;
    s->next = s->count;
    return f;
}

static void note_expiry(sketching *s, text value)
{
    uint64_t expiry = 0;
    if (!value.length || digits_at(value, 0) != value.length)
        return;
    for (uint32_t i = 0; i < value.length && expiry < EXPIRY_MAX; i++)
        expiry = expiry * 10 + (uint64_t)(value.at[i] - '0');
    expiry = expiry < EXPIRY_MAX ? expiry : EXPIRY_MAX;
    if (expiry && expiry < s->expiry)
        s->expiry = expiry;
}

static void note_line(sketching *s, text line, uint8_t flags)
{
    const uint8_t *colon = line.length ? memchr(line.at, ':', line.length) : NULL;
    text name = {line.at, colon ? (uint32_t)(colon - line.at) : 0};
    if (!name.length || memchr(name.at, '\\', name.length))
        return; /* no selector asks for such a name (twin/page_sketch.py) */
    text value = {colon + 1, line.length - name.length - 1};
    if ((flags & FLAG_SPECIAL) && name.length == 7 && !memcmp(name.at, "expires", 7))
        note_expiry(s, value);
    facts *f = facts_of(s, name);
    if (!f || f->latest == s->records)
        return; /* the first of a name counts */
    if ((flags & FLAG_ESCAPED) && value.length && memchr(value.at, '\\', value.length))
        value = unescaped(s, value);
    note_number(f, value);
    note_bounds(f, value);
    note_filter(f, value);
    f->latest = s->records;
    f->count++;
}

static void note_record(sketching *s, const uint8_t *row, const uint8_t *record)
{
    uint64_t time = get64(record + 8), size = (uint64_t)get32(row + 4) + get16(row + 8);
    uint8_t flags = row[12], priority = row[13];
    bool is_first = !s->records++;
    s->lowest = is_first || priority < s->lowest ? priority : s->lowest;
    s->highest = is_first || priority > s->highest ? priority : s->highest;
    s->flags_of_all = is_first ? flags : s->flags_of_all & flags;
    s->flags_of_any |= flags;
    s->first = is_first || time < s->first ? time : s->first;
    s->last = is_first || time > s->last ? time : s->last;
    s->least = is_first || size < s->least ? size : s->least;
    s->most = is_first || size > s->most ? size : s->most;
    s->next = 0;
    const uint8_t *at = record + ADD_HEADER + (uint64_t)get16(row + 10) * PLACE_BYTES, *end = at + get16(row + 8);
    while (at < end) {
        const uint8_t *feed = memchr(at, '\n', (size_t)(end - at)), *stop = feed ? feed : end;
        note_line(s, (text){at, (uint32_t)(stop - at)}, flags);
        at = stop + 1;
    }
}

/* --- encoding ------------------------------------------------------------------------------------------------- */

/* Halve a filter while no more than half of its bits are set; none if more are at its full size. */
static void fold_filter(facts *f)
{
    uint32_t words = FILTER_WORDS, set = 0;
    for (uint32_t i = 0; i < words; i++)
        set += (uint32_t)__builtin_popcountll(f->filter[i]);
    if (set > words * 32)
        return;
    for (; words > 1; words /= 2) {
        uint32_t half = words / 2;
        set = 0;
        for (uint32_t i = 0; i < half; i++)
            set += (uint32_t)__builtin_popcountll(f->filter[i] | f->filter[i + half]);
        if (set > half * 32)
            break;
        for (uint32_t i = 0; i < half; i++)
            f->filter[i] |= f->filter[i + half];
    }
    f->filter_bytes = words * 8;
}

/* Take the filters of one size that there is room for, in order of names; the others go. */
static void take_filters(sketching *s, uint32_t bytes, uint32_t *left)
{
    for (uint32_t i = 0; i < s->count; i++) {
        facts *f = &s->names[i];
        if (f->filter_bytes != bytes)
            continue;
        if (bytes <= *left)
            *left -= bytes;
        else
            f->filter_bytes = 0;
    }
}

/* Decide what the room is used for: names with their numbers, small filters, bounds of texts, large filters. */
static void choose(sketching *s, uint32_t room)
{
    uint32_t left = room - HEAD, count = 0, bytes;
    for (; count < s->count; count++) {
        const facts *f = &s->names[count];
        bytes = (uint32_t)(NAME_HEAD + f->name_length + (f->has_numbers ? NUMBERS : 0));
        if (bytes > left)
            break;
        left -= bytes;
    }
    s->is_complete = s->is_complete && count == s->count;
    s->count = count;
    for (uint32_t i = 0; i < count; i++)
        fold_filter(&s->names[i]);
    for (bytes = 8; bytes <= FILTER_SMALL; bytes *= 2)
        take_filters(s, bytes, &left);
    for (uint32_t i = 0; i < count; i++) {
        facts *f = &s->names[i];
        uint32_t both = (uint32_t)f->low_length + f->high_length;
        f->has_bounds = both <= left;
        left -= f->has_bounds ? both : 0;
    }
    for (; bytes <= FILTER_WORDS * 8; bytes *= 2)
        take_filters(s, bytes, &left);
}

static uint8_t *put(uint8_t *at, const void *data, size_t length)
{
    memcpy(at, data, length);
    return at + length;
}

static uint8_t *put_name(const sketching *s, const facts *f, uint8_t *at)
{
    uint8_t flags = (uint8_t)((f->count == s->records ? IN_ALL : 0) | (f->has_numbers ? HAS_NUMBERS : 0) |
                              (f->has_others ? HAS_OTHERS : 0) | (f->is_whole ? IS_WHOLE : 0) |
                              (f->has_bounds ? HAS_BOUNDS : 0));
    uint8_t low = f->has_bounds ? f->low_length : 0, high = f->has_bounds ? f->high_length : 0;
    uint16_t filter = (uint16_t)f->filter_bytes;
    const uint8_t head[4] = {f->name_length, flags, low, high};
    at = put(at, head, sizeof head);
    at = put(at, &filter, 2);
    at = put(at, "\0\0", 2);
    if (f->has_numbers) {
        at = put(at, &f->lowest, 8);
        at = put(at, &f->highest, 8);
    }
    at = put(at, f->name, f->name_length);
    at = put(at, f->low, low);
    at = put(at, f->high, high);
    return put(at, f->filter, filter);
}

static int encode(const sketching *s, uint8_t *out)
{
    uint16_t count = (uint16_t)s->count;
    const uint8_t head[6] = {
        VERSION, s->is_complete ? IS_COMPLETE : 0, s->lowest, s->highest, s->flags_of_all, s->flags_of_any};
    uint8_t *at = put(out, head, sizeof head);
    at = put(at, &count, 2);
    const uint64_t numbers[5] = {s->first, s->last, s->least, s->most, s->expiry};
    at = put(at, numbers, sizeof numbers);
    for (uint32_t i = 0; i < count; i++)
        at = put_name(s, &s->names[i], at);
    return (int)(at - out);
}

/* --- the page ------------------------------------------------------------------------------------------------- */

/* The memory of so many bytes at an offset of the file; NULL: no part has them all. */
static const uint8_t *part_memory(const vespiary_page_part *parts, uint32_t count, uint64_t offset, uint64_t length)
{
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (parts[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    const vespiary_page_part *part = &parts[low];
    if (!count || offset < part->offset || offset - part->offset > part->length ||
        length > part->length - (offset - part->offset))
        return NULL;
    return (const uint8_t *)(uintptr_t)part->memory + (offset - part->offset);
}

static int note_records(sketching *s, const vespiary_page_part *parts, uint32_t count, const uint8_t *rows,
                        uint32_t records)
{
    for (uint32_t i = 0; i < records; i++) {
        const uint8_t *row = rows + (uint64_t)i * INDEX_RECORD;
        uint64_t length = ADD_HEADER + (uint64_t)get16(row + 10) * PLACE_BYTES + get16(row + 8);
        const uint8_t *record = part_memory(parts, count, get32(row), length);
        if (!record)
            return -EINVAL;
        if (row[14] != PROTOCOL_STOMP)
            return 0; /* its properties are no lines */
        note_record(s, row, record);
    }
    return 1;
}

int vespiary_page_sketch(const vespiary_page_part *parts, uint32_t count, uint8_t *out, uint32_t room)
{
    if (!count || parts[count - 1].length < TRAILER)
        return -EINVAL;
    const vespiary_page_part *last = &parts[count - 1];
    const uint8_t *footer = (const uint8_t *)(uintptr_t)last->memory, *trailer = footer + last->length - TRAILER;
    uint64_t before = (uint64_t)get32(trailer + 32) * INDEX_QUEUE + (uint64_t)get32(trailer + 36) * INDEX_PLACE;
    uint32_t records = get32(trailer + 40);
    if (get32(trailer) != 0x54475056 || get64(trailer + 16) != last->offset ||
        before + (uint64_t)records * INDEX_RECORD > last->length - TRAILER)
        return -EINVAL;
    if (room < HEAD || !records)
        return 0;
    sketching *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->is_complete = true;
    s->expiry = UINT64_MAX;
    int result = note_records(s, parts, count, footer + before, records);
    if (result > 0) {
        choose(s, room);
        result = encode(s, out);
    }
    free(s);
    return result;
}
