#include "stomp_frames.h"

#include <string.h>

#define HEADER_LIMIT_BYTES 65536u
#define BODY_LIMIT_BYTES (64u << 20)

size_t put_number(char *to, uint64_t value)
{
    char digits[20];
    size_t count = 0;
    do {
        digits[count++] = (char)('0' + value % 10);
    } while ((value /= 10) > 0);
    for (size_t i = 0; i < count; i++)
        to[i] = digits[count - 1 - i];
    return count;
}

bool get_number(struct span text, uint64_t *value)
{
    *value = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] < '0' || text.data[i] > '9' || *value > UINT64_MAX / 10 - 1)
            return false;
        *value = *value * 10 + (uint64_t)(text.data[i] - '0');
    }
    return text.size > 0;
}

static void put_header(struct frame *f, const char *line, size_t size)
{
    const char *colon = memchr(line, ':', size);
    size_t name = colon == NULL ? 0 : (size_t)(colon - line);
    struct span value = {line + name + 1, size - name - 1}, *to = NULL;
    uint64_t length;
    if (name == 3 && memcmp(line, "ack", 3) == 0)
        to = &f->ack;
    else if (name == 7 && memcmp(line, "message", 7) == 0)
        to = &f->message;
    else if (name == 10 && memcmp(line, "receipt-id", 10) == 0)
        to = &f->receipt;
    else if (name == 12 && memcmp(line, "subscription", 12) == 0)
        to = &f->subscription;
    else if (name == 14 && memcmp(line, "content-length", 14) == 0 && !f->has_length) {
        f->has_length = true;
        f->length = get_number(value, &length) && length <= BODY_LIMIT_BYTES ? length : SIZE_MAX;
    }
    if (to != NULL && to->data == NULL) /* STOMP 1.2: the first of repeated headers counts */
        *to = value;
}

ssize_t parse_frame(const char *data, size_t size, struct frame *f)
{
    const char *line = data, *end = data + size, *eol, *nul;
    *f = (struct frame){.needed = size + 1};
    if (*data == '\n' || *data == '\r')
        return 1;
    for (;;) {
        eol = memchr(line, '\n', (size_t)(end - line));
        if ((size_t)((eol == NULL ? end : eol) - data) > HEADER_LIMIT_BYTES)
            return -1;
        if (eol == NULL)
            return 0;
        size_t length = (size_t)(eol - line) - (eol > line && eol[-1] == '\r');
        if (length == 0)
            break;
        if (line == data)
            f->command = *line;
        else
            put_header(f, line, length);
        line = eol + 1;
    }
    f->body = (struct span){eol + 1, f->length};
    if (f->has_length && f->length == SIZE_MAX)
        return -1;
    if (f->has_length) {
        f->needed = (size_t)(f->body.data - data) + f->length + 1;
        return f->needed > size ? 0 : data[f->needed - 1] == '\0' ? (ssize_t)f->needed : -1;
    }
    nul = memchr(f->body.data, '\0', (size_t)(end - f->body.data));
    f->body.size = nul == NULL ? 0 : (size_t)(nul - f->body.data);
    return nul == NULL ? (size > BODY_LIMIT_BYTES ? -1 : 0) : (ssize_t)(nul + 1 - data);
}
