#include "amqp_values.h"

#include <string.h>

enum { DESCRIBED = 0x00, NULL_VALUE = 0x40, TRUE_VALUE = 0x41, BOOLEAN = 0x56, LIST_32 = 0xd0 };

uint32_t read_u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

uint8_t *put_u32(uint8_t *at, uint32_t number)
{
    at[0] = (uint8_t)(number >> 24), at[1] = (uint8_t)(number >> 16), at[2] = (uint8_t)(number >> 8), at[3] = (uint8_t)number;
    return at + 4;
}

/* Section 1.6: the upper half of a constructor tells how wide the value is, or its size. */
static bool read_size(struct cursor *c, uint8_t code, size_t *size)
{
    static const uint8_t WIDTHS[] = {0, 1, 2, 4, 8, 16};
    size_t left = (size_t)(c->end - c->at);
    unsigned kind = code >> 4;
    if (kind >= 4 && kind <= 9) {
        *size = WIDTHS[kind - 4];
        return *size <= left;
    }
    if (kind < 10)
        return false;
    size_t width = kind % 2 ? 4 : 1;
    if (left < width)
        return false;
    *size = width == 1 ? *c->at : read_u32(c->at);
    c->at += width;
    return *size <= left - width;
}

static bool read_plain(struct cursor *c, struct value *v)
{
    size_t size;
    v->code = *c->at++;
    if (v->code == DESCRIBED || !read_size(c, v->code, &size))
        return false;
    v->data = c->at;
    v->size = size;
    v->is_null = v->code == NULL_VALUE;
    v->number = 0;
    for (size_t i = 0; v->code >> 4 < 10 && size <= 8 && i < size; i++)
        v->number = v->number << 8 | c->at[i];
    v->is_true = v->code == TRUE_VALUE || (v->code == BOOLEAN && v->number);
    if (v->code >> 4 >= 12) { /* lists, maps, arrays: behind the count of their items */
        size_t width = v->code >> 4 == 12 || v->code >> 4 == 14 ? 1 : 4;
        if (size < width)
            return false;
        v->data += width;
        v->size -= width;
    }
    c->at += size;
    return true;
}

bool next_value(struct cursor *c, struct value *v)
{
    uint64_t descriptor = 0;
    if (c->at >= c->end)
        return false;
    if (*c->at == DESCRIBED) {
        c->at++;
        if (c->at >= c->end || !read_plain(c, v) || c->at >= c->end)
            return false;
        descriptor = v->number;
    }
    bool is_read = read_plain(c, v);
    v->descriptor = descriptor;
    return is_read;
}

bool next_field(struct cursor *c, struct value *v)
{
    if (c->at < c->end)
        return next_value(c, v);
    *v = (struct value){.code = NONE, .is_null = true};
    return true;
}

struct cursor items_of(const struct value *list) { return (struct cursor){list->data, list->data + list->size}; }

uint8_t *put_uint(uint8_t *at, uint32_t number)
{
    *at++ = 0x70;
    return put_u32(at, number);
}

uint8_t *put_string(uint8_t *at, uint8_t code, const char *text)
{
    size_t size = strlen(text);
    *at++ = code;
    *at++ = (uint8_t)size;
    memcpy(at, text, size);
    return at + size;
}

uint8_t *put_list(uint8_t *at, uint8_t descriptor)
{
    *at++ = DESCRIBED, *at++ = 0x53, *at++ = descriptor, *at++ = LIST_32;
    return at + 8;
}

uint8_t *end_list(uint8_t *list, uint8_t *at, uint8_t count)
{
    (void)put_u32(list + 4, (uint32_t)(at - list - 8));
    (void)put_u32(list + 8, count);
    return at;
}
