/* The fields of a performative of AMQP 1.0, read one behind the other (AMQP 1.0, OASIS 2012, §1.6 and §2.7). What is not of
 * the usual form makes the whole odd, and is left to the codec in Python: nothing is refused here. */
#ifndef VESPIARY_AMQP_FIELDS_H
#define VESPIARY_AMQP_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "connections.h"

enum { AMQP_NULL = 0x40, AMQP_TRANSFER = 0x14, AMQP_DISPOSITION = 0x15, AMQP_ACCEPTED = 0x24 };

typedef struct {
    const uint8_t *at, *end; /* of what the list holds */
    uint32_t left;           /* fields that were not read; behind the last one all are null */
    bool is_odd;
} amqp_fields;

static inline uint32_t amqp_number(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Begin to read a list that stands at `at`; returns what is behind it, NULL: it is none, or cut off. */
static inline const uint8_t *amqp_list(const uint8_t *at, const uint8_t *end, amqp_fields *f)
{
    *f = (amqp_fields){.at = end, .end = end};
    uint32_t width = at < end && *at == 0xC0 ? 1 : 4;
    if (at < end && *at == 0x45) {
        f->at = f->end = at + 1;
        return at + 1;
    }
    if (at >= end || (*at != 0xC0 && *at != 0xD0) || end - at < 1 + 2 * (int64_t)width)
        return NULL;
    uint32_t size = width == 1 ? at[1] : amqp_number(at + 1);
    f->left = width == 1 ? at[2] : amqp_number(at + 5);
    f->at = at + 1 + 2 * width;
    if (size < width || size > end - at - 1 - (int64_t)width)
        return NULL;
    f->end = at + 1 + width + size;
    return f->end;
}

/* Begin to read a composite with a small descriptor; returns what is behind it, NULL: it is none. */
static inline const uint8_t *amqp_composite(const uint8_t *at, const uint8_t *end, uint8_t *code, amqp_fields *f)
{
    if (end - at < 4 || at[0] != 0 || at[1] != 0x53)
        return NULL;
    *code = at[2];
    return amqp_list(at + 3, end, f);
}

/* The format code of the next field; AMQP_NULL also behind the last one. */
static inline uint8_t amqp_code(amqp_fields *f)
{
    if (!f->left)
        return AMQP_NULL;
    f->left--;
    if (f->at >= f->end) {
        f->is_odd = true;
        return AMQP_NULL;
    }
    return *f->at++;
}

/* The next `length` bytes of a field; NULL: there are not so many. */
static inline const uint8_t *amqp_bytes(amqp_fields *f, uint64_t length)
{
    if ((uint64_t)(f->end - f->at) < length) {
        f->is_odd = true;
        return NULL;
    }
    const uint8_t *at = f->at;
    f->at += length;
    return at;
}

/* A uint; false: it is null. */
static inline bool amqp_uint(amqp_fields *f, uint32_t *value)
{
    const uint8_t *at;
    *value = 0;
    switch (amqp_code(f)) {
    case AMQP_NULL: return false;
    case 0x43: return true;
    case 0x52:
        at = amqp_bytes(f, 1);
        *value = at ? *at : 0;
        return at != NULL;
    case 0x70:
        at = amqp_bytes(f, 4);
        *value = at ? amqp_number(at) : 0;
        return at != NULL;
    default: f->is_odd = true; return false;
    }
}

/* A ubyte, or what null means. */
static inline uint8_t amqp_ubyte(amqp_fields *f, uint8_t otherwise)
{
    uint8_t code = amqp_code(f);
    if (code == AMQP_NULL)
        return otherwise;
    const uint8_t *at = code == 0x50 ? amqp_bytes(f, 1) : NULL;
    f->is_odd |= !at;
    return at ? *at : otherwise;
}

/* A boolean; null is false. */
static inline bool amqp_boolean(amqp_fields *f)
{
    uint8_t code = amqp_code(f);
    if (code == 0x56) {
        const uint8_t *at = amqp_bytes(f, 1);
        f->is_odd |= !at || *at > 1;
        return at && *at == 1;
    }
    f->is_odd |= code != AMQP_NULL && code != 0x41 && code != 0x42;
    return code == 0x41;
}

/* A binary; without data: it is null. */
static inline piece amqp_binary(amqp_fields *f)
{
    uint8_t code = amqp_code(f);
    if (code == AMQP_NULL)
        return (piece){NULL, 0};
    const uint8_t *size = code == 0xA0 ? amqp_bytes(f, 1) : code == 0xB0 ? amqp_bytes(f, 4) : NULL;
    f->is_odd |= !size;
    uint32_t length = !size ? 0 : code == 0xA0 ? *size : amqp_number(size);
    const uint8_t *at = size ? amqp_bytes(f, length) : NULL;
    return (piece){at, at ? length : 0};
}

/* Whether all fields were read, and as they have to be. */
static inline bool amqp_read_all(const amqp_fields *f) { return !f->is_odd && !f->left && f->at == f->end; }

/* Whether the next field is the outcome accepted, whatever its empty list looks like. */
static inline bool amqp_accepted(amqp_fields *f)
{
    uint8_t code;
    amqp_fields inside;
    if (!f->left || f->at >= f->end)
        return false;
    const uint8_t *behind = amqp_composite(f->at, f->end, &code, &inside);
    if (!behind || code != AMQP_ACCEPTED || !amqp_read_all(&inside))
        return false;
    f->left--;
    f->at = behind;
    return true;
}

#endif
