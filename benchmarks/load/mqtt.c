/* MQTT 3.1.1 and 5 for protocolload: QoS 1, one topic a client.
 *
 * Owns: packets of MQTT (OASIS MQTT 3.1.1 and 5.0, section 3). Must never: take a PUBACK out of its order, which is that
 * of the PUBLISHes (section 4.6). A consumer's session is persistent, so that what it is sent is journalled. */
#include <stdio.h>
#include <string.h>

#include "load.h"

enum { IDS = 65535, CONNACK = 2, PUBLISH = 3, PUBACK = 4, SUBACK = 9, REFUSED = 0x80 };

static bool is_5(const struct client *c) { return c->protocol == &MQTT_5; }

static size_t put_length(uint8_t *at, size_t length)
{
    size_t count = 0;
    for (; length > 127; length >>= 7)
        at[count++] = (uint8_t)(length | 0x80);
    at[count++] = (uint8_t)length;
    return count;
}

static size_t put_name(uint8_t *at, const char *name)
{
    size_t length = strlen(name);
    *at++ = 0, *at++ = (uint8_t)length;
    memcpy(at, name, length);
    return length + 2;
}

static void greet(struct load *l, struct client *c)
{
    static const char *const NAMES[] = {"producer-%u", "consumer-%u", "keeper-%u"};
    bool is_kept = c->role != PRODUCES;
    uint8_t rest[256], *at = rest;
    char id[32];
    (void)l;
    memcpy(at, is_5(c) ? "\0\4MQTT\5" : "\0\4MQTT\4", 7);
    at += 7;
    *at++ = is_kept ? 0 : 2;
    *at++ = 0, *at++ = 0; /* no keep alive */
    if (is_5(c)) {
        memcpy(at, is_kept ? "\5\x11\xff\xff\xff\xff" : "\0", is_kept ? 6 : 1);
        at += is_kept ? 6 : 1;
    }
    (void)snprintf(id, sizeof id, NAMES[c->role], c->index);
    at += put_name(at, id);
    size_t size = (size_t)(at - rest);
    uint8_t *to = reserve(&c->out, size + 8);
    *to = 0x10;
    size_t head = 1 + put_length(to + 1, size);
    memcpy(to + head, rest, size);
    c->out.end += head + size;
}

static void subscribe(struct client *c)
{
    uint8_t *to = reserve(&c->out, ADDRESS_MAX + 16), *at = to;
    *at++ = 0x82;
    *at++ = (uint8_t)(strlen(c->address) + (is_5(c) ? 6u : 5u));
    *at++ = 0, *at++ = 1;
    if (is_5(c))
        *at++ = 0;
    at += put_name(at, c->address);
    *at++ = 1;
    c->out.end += (size_t)(at - to);
}

static bool may_put(const struct client *c) { return c->next_seq - c->oldest < IDS; }

static void put(struct load *l, struct client *c, uint64_t seq)
{
    size_t rest = 2 + strlen(c->address) + (is_5(c) ? 3u : 2u) + l->body_size;
    uint8_t *to = reserve(&c->out, rest + 8), *at = to;
    uint64_t id = seq % IDS + 1;
    *at++ = 0x32;
    at += put_length(at, rest);
    at += put_name(at, c->address);
    *at++ = (uint8_t)(id >> 8), *at++ = (uint8_t)id;
    if (is_5(c))
        *at++ = 0;
    put_body(l, c, seq, at);
    c->out.end += (size_t)(at - to) + l->body_size;
}

static void on_puback(struct load *l, struct client *c, const uint8_t *at, size_t length, uint64_t now)
{
    char text[64];
    uint64_t id = length < 2 ? 0 : (uint64_t)at[0] << 8 | at[1];
    if (length > 2 && at[2] >= REFUSED) {
        (void)snprintf(text, sizeof text, "a message was refused with reason code 0x%02x", at[2]);
        note_refused(l, c, text);
    } else if (c->oldest == c->next_seq || id != c->oldest % IDS + 1) {
        note_refused(l, c, "a PUBACK of another message than the oldest");
    } else {
        note_confirmed(l, c, c->oldest, now);
    }
}

static void on_publish(struct load *l, struct client *c, uint8_t first, const uint8_t *at, size_t length, uint64_t now)
{
    const uint8_t *end = at + length;
    size_t head = length < 2 ? SIZE_MAX : 2 + ((size_t)at[0] << 8 | at[1]) + (is_5(c) ? 3u : 2u);
    if ((first & 6) != 2 || head > length)
        die_of(c, EXIT_CHECK, "a PUBLISH of %zu bytes that is not QoS 1, or has no place for its head", length);
    const uint8_t *id = at + head - (is_5(c) ? 3 : 2);
    at += head;
    if (is_5(c)) { /* properties: a variable byte integer tells their length */
        size_t properties = 0, shift = 0;
        for (at--; at < end && shift < 28; shift += 7) {
            properties |= (size_t)(*at & 127) << shift;
            if (*at++ < 128)
                break;
        }
        at = properties > (size_t)(end - at) ? end : at + properties;
    }
    note_received(l, c, at, (size_t)(end - at), now);
    uint8_t *to = reserve(&c->out, 4);
    to[0] = 0x40, to[1] = 2, to[2] = id[0], to[3] = id[1];
    c->out.end += 4;
}

static void on_packet(struct load *l, struct client *c, const uint8_t *at, size_t header, size_t size, uint64_t now)
{
    uint32_t kind = *at >> 4;
    size_t length = size - header;
    if (kind == PUBACK && c->role == PRODUCES) {
        on_puback(l, c, at + header, length, now);
    } else if (kind == PUBLISH && c->role == CONSUMES) {
        on_publish(l, c, *at, at + header, length, now);
    } else if (kind == CONNACK && length > 1 && !at[header + 1]) {
        if (c->role == PRODUCES)
            be_ready(l, c);
        else
            subscribe(c);
    } else if (kind == SUBACK && c->role != PRODUCES && at[size - 1] < REFUSED) {
        be_ready(l, c);
        if (c->role == KEEPS) {
            memcpy(reserve(&c->out, 2), "\xe0", 2); /* DISCONNECT; its session stays */
            c->out.end += 2;
        }
    } else if (kind != PUBLISH) { /* a keeper may be given one before it has gone */
        die_of(c, EXIT_CHECK, "the broker refused: packet of type %u, reason code 0x%02x", kind,
               length > 1 && kind == CONNACK ? at[header + 1] : length ? at[kind == SUBACK ? size - 1 : header] : 0);
    }
}

static size_t take(struct load *l, struct client *c, const char *data, size_t size, uint64_t now)
{
    const uint8_t *at = (const uint8_t *)data;
    size_t length = 0, header = 1;
    bool is_whole = false;
    while (!is_whole && header < size && header < 5) {
        length |= (size_t)(at[header] & 127) << (7 * (header - 1));
        is_whole = at[header++] < 128;
    }
    if (!is_whole || size < header + length)
        return 0;
    on_packet(l, c, at, header, header + length, now);
    return header + length;
}

static void after_read(struct client *c) { (void)c; }

const struct protocol MQTT_3 = {.name = "mqtt", .has_topics = true, .body_max = 1 << 20, .greet = greet, .take = take,
                                .after_read = after_read, .may_put = may_put, .put = put};
const struct protocol MQTT_5 = {.name = "mqtt5", .has_topics = true, .body_max = 1 << 20, .greet = greet, .take = take,
                                .after_read = after_read, .may_put = may_put, .put = put};
