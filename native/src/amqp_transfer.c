/* Transfers of AMQP 1.0: plain messages as one frame each (OASIS, 2012; 2.7.5 and 3.2), the same bytes as
 * vespiary_broker/server/amqp/{transfers,restoring}.py give. What is plain stands at CoreAmqpSending in
 * vespiary_native/abc_amqp_sending.py. */
#include <string.h>

#include "amqp_send.h"
#include "state.h"

enum {
    PROTOCOL_AMQP = 3,
    PRIORITY_USUAL = 4,
    NATIVE_HEAD = 8, /* version, section, code, flags, bytes before the body (big-endian) */
    NATIVE_VERSION = 1,
    FIRST_ACQUIRER = 1, /* a flag */
    FRAME_HEAD = 8,
    HEAD_MAX = 8 + 5 + 1 + 5 + 5 + 2 + 32 + 3, /* of a transfer beside its piece, as Python splits them */
    SHORT_BINARY = 0xA0,
    SHORT_STRING = 0xA1,
    LONG_BINARY = 0xB0,
    LONG_STRING = 0xB1
};

static uint32_t uint_bytes(uint32_t value) { return value == 0 ? 1 : value <= 255 ? 2 : 5; }

static uint8_t *put_uint(uint8_t *at, uint32_t value)
{
    if (!value) {
        *at++ = 0x43;
    } else if (value <= 255) {
        *at++ = 0x52;
        *at++ = (uint8_t)value;
    } else {
        *at++ = 0x70;
        for (int shift = 24; shift >= 0; shift -= 8)
            *at++ = (uint8_t)(value >> shift);
    }
    return at;
}

static uint32_t read_be32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static bool begins_with(const uint8_t *at, size_t left, const char *text, size_t length)
{
    return left >= length && !memcmp(at, text, length);
}
#define BEGINS(at, left, text) begins_with(at, left, text, sizeof(text) - 1)

/* Whether header lines leave a message of AMQP as its sender wrote it: none is about its expiry, or says what a client
 * is told in annotations. */
static bool are_lines_plain(const uint8_t *at, const uint8_t *end, bool *is_durable)
{
    *is_durable = false;
    while (at < end) {
        size_t left = (size_t)(end - at);
        switch (*at) {
        case 'p':
            *is_durable |= BEGINS(at, left, "persistent:true\n");
            break;
        case 'e':
            if (BEGINS(at, left, "expires:"))
                return false;
            break;
        case 'i':
            if (BEGINS(at, left, "ingress-timestamp:"))
                return false;
            break;
        case '_':
            if (BEGINS(at, left, "_AMQ_ORIG_") || BEGINS(at, left, "_AMQ_REJECT_") ||
                BEGINS(at, left, "_AMQ_ACTUAL_EXPIRY:"))
                return false;
            break;
        case 'A':
            if (BEGINS(at, left, "AMQ_SCHEDULED_TIME:"))
                return false;
            break;
        default:
            break;
        }
        const uint8_t *line_end = memchr(at, '\n', left);
        if (!line_end)
            break;
        at = line_end + 1;
    }
    return true;
}

static uint32_t body_head_length(const amqp_transfer *plan)
{
    if (!plan->section)
        return 0;
    switch (plan->code) {
    case SHORT_BINARY:
    case SHORT_STRING:
        return 5;
    case LONG_BINARY:
    case LONG_STRING:
        return 8;
    default:
        return 4;
    }
}

static uint64_t payload_length(const amqp_transfer *plan)
{
    return 11 + (uint64_t)uint_bytes(plan->deliveries) + plan->before_length + body_head_length(plan) +
           plan->body_length + plan->footer_length;
}

bool amqp_plan(const amqp_out_link *by, const entry *item, const uint8_t *record, amqp_transfer *plan)
{
    if (by->is_stored || record[6] != PROTOCOL_AMQP || record[7] != PRIORITY_USUAL ||
        item->flags & (FLAG_LARGE | FLAG_SPECIAL))
        return false;
    const uint8_t *properties = properties_of(item, record), *end = properties + item->properties_length;
    const uint8_t *native = item->properties_length ? memchr(properties, 0, item->properties_length) : NULL;
    if (!native || end - native <= NATIVE_HEAD || !are_lines_plain(properties, native, &plan->is_durable))
        return false;
    native++;
    if (native[0] != NATIVE_VERSION)
        return false;
    plan->section = native[1];
    plan->code = native[2];
    plan->is_first = native[3] & FIRST_ACQUIRER && !item->deliveries;
    plan->before_length = read_be32(native + 4);
    plan->before = native + NATIVE_HEAD;
    if (plan->before_length > (uint64_t)(end - plan->before))
        return false;
    plan->footer = plan->before + plan->before_length;
    plan->footer_length = (uint32_t)(end - plan->footer);
    plan->body = end;
    plan->body_length = item->body_length;
    plan->deliveries = item->deliveries;
    if (body_head_length(plan) == 5 && plan->body_length > 255)
        return false;
    return payload_length(plan) + HEAD_MAX <= by->frame_max;
}

static uint8_t *put_header(uint8_t *at, const amqp_transfer *plan)
{
    static const uint8_t start[] = {0x00, 0x53, 0x70, 0xC0};
    memcpy(at, start, sizeof start);
    at += sizeof start;
    *at++ = (uint8_t)(6 + uint_bytes(plan->deliveries));
    *at++ = 5;
    *at++ = plan->is_durable ? 0x41 : 0x40;
    *at++ = 0x50;
    *at++ = PRIORITY_USUAL;
    *at++ = 0x40;                         /* ttl */
    *at++ = plan->is_first ? 0x41 : 0x40; /* first-acquirer */
    return put_uint(at, plan->deliveries);
}

static uint8_t *put_body_head(uint8_t *at, const amqp_transfer *plan)
{
    uint32_t length = body_head_length(plan);
    if (!length)
        return at;
    *at++ = 0x00;
    *at++ = 0x53;
    *at++ = plan->section;
    *at++ = plan->code;
    if (length == 5)
        *at++ = (uint8_t)plan->body_length;
    for (int shift = 24; length == 8 && shift >= 0; shift -= 8)
        *at++ = (uint8_t)(plan->body_length >> shift);
    return at;
}

static uint8_t *put_bytes(uint8_t *at, const uint8_t *from, uint32_t length)
{
    memcpy(at, from, length);
    return at + length;
}

uint8_t *amqp_encode(uint8_t *at, const amqp_out_link *by, const amqp_transfer *plan, uint32_t id, uint64_t sequence)
{
    uint8_t *frame = at;
    at += 4;
    *at++ = 2; /* words before the body */
    *at++ = 0; /* of AMQP */
    *at++ = (uint8_t)(by->channel >> 8);
    *at++ = (uint8_t)by->channel;
    static const uint8_t start[] = {0x00, 0x53, 0x14, 0xC0};
    at = put_bytes(at, start, sizeof start);
    *at++ = (uint8_t)(1 + uint_bytes(by->handle) + uint_bytes(id) + 2 + 8 + 3);
    *at++ = 6;
    at = put_uint(at, by->handle);
    at = put_uint(at, id);
    *at++ = SHORT_BINARY;
    *at++ = 8;
    for (int shift = 56; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(sequence >> shift);
    *at++ = 0x43; /* message-format */
    *at++ = by->is_settled ? 0x41 : 0x42;
    *at++ = 0x42; /* more */
    at = put_header(at, plan);
    at = put_bytes(at, plan->before, plan->before_length);
    at = put_body_head(at, plan);
    at = put_bytes(at, plan->body, plan->body_length);
    at = put_bytes(at, plan->footer, plan->footer_length);
    uint32_t length = (uint32_t)(at - frame);
    for (int shift = 24, i = 0; shift >= 0; shift -= 8)
        frame[i++] = (uint8_t)(length >> shift);
    return at;
}
