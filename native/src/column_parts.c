/* What has a length of its own, copied out of a window (contract: columns.h; specification:
 * vespiary_codec/journal/column_parts.py). */
#include "columns.h"
#include "utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ADD = 1, ESCAPED = 2, ROWS_FIRST = 64, DATA_FIRST = 256, REPLACED = 3 };

typedef struct {
    const uint8_t *at;
    uint64_t length;
} text;

/* --- strings -------------------------------------------------------------------------------------------------- */

static void free_strings(vespiary_strings *out)
{
    free(out->offsets);
    free(out->data);
    free(out->valid);
    memset(out, 0, sizeof *out);
}

static int reserve_row(vespiary_strings *out)
{
    if (out->rows < out->rows_room)
        return 0;
    uint64_t room = out->rows_room ? out->rows_room * 2 : ROWS_FIRST;
    int32_t *offsets = realloc(out->offsets, (size_t)(room + 1) * sizeof *offsets);
    if (!offsets)
        return -ENOMEM;
    out->offsets = offsets;
    uint8_t *valid = realloc(out->valid, (size_t)room / 8);
    if (!valid)
        return -ENOMEM;
    out->valid = valid;
    memset(valid + out->rows_room / 8, 0, (size_t)(room - out->rows_room) / 8);
    if (!out->rows_room)
        offsets[0] = 0;
    out->rows_room = room;
    return 0;
}

/* Make room for so many bytes more; Arrow's offsets have 32 bits. */
static int reserve_data(vespiary_strings *out, uint64_t more)
{
    uint64_t used = out->rows_room ? (uint64_t)out->offsets[out->rows] : 0;
    if (more > (uint64_t)INT32_MAX * REPLACED + REPLACED)
        return -EOVERFLOW;
    uint64_t room = out->data_room ? out->data_room : DATA_FIRST;
    while (room < used + more)
        room *= 2;
    if (room == out->data_room)
        return 0;
    uint8_t *data = realloc(out->data, (size_t)room);
    if (!data)
        return -ENOMEM;
    out->data = data;
    out->data_room = room;
    return 0;
}

/* End an entry whose `length` bytes stand behind those of the entry before. */
static int put_row(vespiary_strings *out, uint64_t length)
{
    uint64_t end = (uint64_t)out->offsets[out->rows] + length;
    if (end > INT32_MAX)
        return -EOVERFLOW;
    out->valid[out->rows / 8] |= (uint8_t)(1u << (out->rows % 8));
    out->offsets[++out->rows] = (int32_t)end;
    return 0;
}

static int put_null(vespiary_strings *out)
{
    int error = reserve_row(out);
    if (error)
        return error;
    out->nulls++;
    out->rows++;
    out->offsets[out->rows] = out->offsets[out->rows - 1];
    return 0;
}

static int begin(vespiary_strings *out)
{
    int error = reserve_row(out);
    return error ? error : reserve_data(out, 1);
}

static bool is_inside(uint64_t length, int64_t at, int64_t count)
{
    return at >= 0 && count >= 0 && (uint64_t)at <= length && (uint64_t)count <= length - (uint64_t)at;
}

int vespiary_columns_gather(const uint8_t *window, uint64_t length, const int64_t *at, const int64_t *lengths,
                            const uint8_t *chosen, uint64_t rows, vespiary_strings *out)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < rows; i++) {
        if (chosen && !chosen[i])
            continue;
        if (!is_inside(length, at[i], lengths[i]))
            return -EINVAL;
        if ((total += (uint64_t)lengths[i]) > INT32_MAX)
            return -EOVERFLOW;
    }
    int error = begin(out);
    error = error ? error : reserve_data(out, total);
    for (uint64_t i = 0; i < rows && !error; i++) {
        if (chosen && !chosen[i]) {
            error = put_null(out);
            continue;
        }
        if ((error = reserve_row(out)))
            break;
        memcpy(out->data + out->offsets[out->rows], window + at[i], (size_t)lengths[i]);
        error = put_row(out, (uint64_t)lengths[i]);
    }
    if (error)
        free_strings(out);
    return error;
}

/* --- headers -------------------------------------------------------------------------------------------------- */

/* What an escape stands for (STOMP 1.2, "Value Encoding"); 0: it is none. */
static uint8_t escape_of(uint8_t c)
{
    return c == 'n' ? '\n' : c == 'c' ? ':' : c == 'r' ? '\r' : c == '\\' ? '\\' : 0;
}

/* Write a text without its escapes; returns its length. `to` may be `from`. */
static uint64_t unescape(const uint8_t *from, uint64_t length, uint8_t *to)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < length; i++) {
        uint8_t plain = from[i] == '\\' && i + 1 < length ? escape_of(from[i + 1]) : 0;
        to[used++] = plain ? plain : from[i];
        i += plain != 0;
    }
    return used;
}

/* Write a text as valid UTF-8; returns its length, at most three times that of the text. */
static uint64_t replace_invalid(text t, uint8_t *to)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < t.length;) {
        bool is_valid;
        uint32_t step = utf8_step(t.at + i, t.length - i, &is_valid);
        memcpy(to + used, is_valid ? t.at + i : (const uint8_t *)"\xEF\xBF\xBD", is_valid ? step : REPLACED);
        used += is_valid ? step : REPLACED;
        i += step;
    }
    return used;
}

/* Write a name or a value behind the last entry; `made` is its length there. `spare` holds 64 KiB. */
static int write_text(vespiary_strings *out, text t, bool has_escapes, uint8_t *spare, uint64_t *made)
{
    int error = reserve_row(out);
    error = error ? error : reserve_data(out, t.length * REPLACED);
    if (error)
        return error;
    if (has_escapes && t.length && memchr(t.at, '\\', (size_t)t.length))
        t = (text){spare, unescape(t.at, t.length, spare)};
    *made = replace_invalid(t, out->data + out->offsets[out->rows]);
    return 0;
}

/* Whether an entry from `first` on has the bytes that stand behind the last one. */
static bool is_known(const vespiary_strings *keys, uint64_t first, uint64_t length)
{
    const uint8_t *name = keys->data + keys->offsets[keys->rows];
    for (uint64_t i = first; i < keys->rows; i++)
        if ((uint64_t)(keys->offsets[i + 1] - keys->offsets[i]) == length &&
            !memcmp(keys->data + keys->offsets[i], name, (size_t)length))
            return true;
    return false;
}

typedef struct {
    vespiary_strings *keys, *values;
    text name; /* the one that is wanted; no bytes: all */
    uint8_t spare[65536];
} heading;

/* Take a line; 1: it was the one that is wanted. `first`: entry of `keys` that the record's own begin with. */
static int take_line(heading *h, text name, text value, bool has_escapes, uint64_t first)
{
    uint64_t made;
    int error = write_text(h->keys, name, has_escapes, h->spare, &made);
    if (error)
        return error;
    if (h->name.at) {
        const uint8_t *found = h->keys->data + h->keys->offsets[h->keys->rows];
        if (made != h->name.length || memcmp(found, h->name.at, (size_t)made))
            return 0;
    } else {
        if (is_known(h->keys, first, made))
            return 0;
        if ((error = put_row(h->keys, made)))
            return error;
    }
    error = write_text(h->values, value, has_escapes, h->spare, &made);
    error = error ? error : put_row(h->values, made);
    return error ? error : h->name.at != NULL;
}

/* Take the lines of a record; 1: the wanted one was there. */
static int take_lines(heading *h, text lines, bool has_escapes)
{
    uint64_t first = h->keys->rows;
    int result = 0;
    const uint8_t *end = lines.length ? memchr(lines.at, 0, (size_t)lines.length) : NULL;
    if (end) /* behind it stands what the sender's protocol keeps */
        lines.length = (uint64_t)(end - lines.at);
    while (lines.length && !result) {
        const uint8_t *feed = memchr(lines.at, '\n', (size_t)lines.length);
        text line = {lines.at, feed ? (uint64_t)(feed - lines.at) : lines.length};
        const uint8_t *colon = line.length ? memchr(line.at, ':', (size_t)line.length) : NULL;
        if (colon && colon > line.at) {
            uint64_t name = (uint64_t)(colon - line.at);
            result = take_line(h, (text){line.at, name}, (text){colon + 1, line.length - name - 1}, has_escapes, first);
        }
        uint64_t used = line.length + (feed != NULL);
        lines = (text){lines.at + used, lines.length - used};
    }
    return result;
}

int vespiary_columns_headers(const uint8_t *window, uint64_t length, const uint8_t *kind, const uint8_t *flags,
                             const int64_t *at, const int64_t *lengths, uint64_t rows, const uint8_t *name,
                             uint32_t name_length, int32_t *entries, vespiary_strings *keys, vespiary_strings *values)
{
    heading *h = malloc(sizeof *h);
    int result = h ? begin(keys) : -ENOMEM;
    result = result ? result : begin(values);
    if (h) {
        h->keys = keys;
        h->values = values;
        h->name = (text){name, name_length};
    }
    for (uint64_t i = 0; i < rows && result >= 0; i++) {
        result = 0;
        if (kind[i] == ADD) {
            if (!is_inside(length, at[i], lengths[i]) || (uint64_t)lengths[i] >= sizeof h->spare)
                result = -EINVAL;
            else
                result = take_lines(h, (text){window + at[i], (uint64_t)lengths[i]}, flags[i] & ESCAPED);
        }
        if (name && !result)
            result = put_null(values);
        if (!name && result >= 0)
            entries[i + 1] = (int32_t)keys->rows;
    }
    free(h);
    if (result >= 0)
        return 0;
    free_strings(keys);
    free_strings(values);
    return result;
}
