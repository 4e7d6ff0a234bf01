/* Header lines of what STOMP, AMQP and others have sent, as MQTT says them: the topic, the QoS, properties of MQTT 5 (contract:
 * CoreMqtt.encode_mqtt in vespiary_native/abc_mqtt.py; MQTT 5.0, 3.3.2). Which of them are left to Python is decided here. */
#include <string.h>

#include "mqtt.h"
#include "utf8.h"

enum { CONTENT_TYPE = 3, CORRELATION_DATA = 9, PAYLOAD_FORMAT = 1, USER_PROPERTY = 38 };

/* What a line is to MQTT. OWN: said otherwise, or not at all; PYTHONS: Python encodes it. */
typedef enum { USER = 0, DESTINATION, PERSISTENT, TYPE, CORRELATION, FORMAT, OWN, PYTHONS, PYTHONS_IN_5 } line_kind;

typedef struct {
    line_kind kind;
    piece name, value;
} line;

static const struct {
    const char *name;
    line_kind kind;
} KNOWN[] = {
    {"destination", DESTINATION}, {"persistent", PERSISTENT}, {"content-type", TYPE},
    {"correlation-id", CORRELATION}, {"mqtt-payload-format", FORMAT}, {"mqtt-retain", PYTHONS}, {"mqtt-retained", PYTHONS},
    {"expires", PYTHONS_IN_5}, {"reply-to", PYTHONS_IN_5}, {"mqtt-correlation-data", PYTHONS_IN_5}, {"mqtt-qos", OWN},
    {"priority", OWN}, {"receipt", OWN}, {"content-length", OWN}, {"transaction", OWN}, {"message-id", OWN},
    {"subscription", OWN}, {"ack", OWN}, {"redelivered", OWN}, {"delivery-count", OWN}, {"destination-type", OWN},
    {"JMSExpiration", OWN}, {"_AMQ_DUPL_ID", OWN},
};
static const char USER_PREFIX[] = "user-property.";
enum { USER_PREFIX_BYTES = sizeof USER_PREFIX - 1 };

static bool is_text(piece p, const char *text) { return strlen(text) == p.length && !memcmp(p.data, text, p.length); }

static line_kind kind_of(piece name)
{
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++)
        if (is_text(name, KNOWN[i].name))
            return KNOWN[i].kind;
    return USER;
}

/* The next line, with its end, off the rest; false: there is none. */
static bool next_line(piece *rest, line *out)
{
    const uint8_t *end = rest->length ? memchr(rest->data, '\n', rest->length) : NULL;
    if (!end)
        return false;
    uint32_t length = (uint32_t)(end - rest->data);
    const uint8_t *colon = length ? memchr(rest->data, ':', length) : NULL;
    uint32_t name = colon ? (uint32_t)(colon - rest->data) : length;
    *out = (line){.name = {rest->data, name}, .value = {end, 0}};
    if (colon)
        out->value = (piece){colon + 1, length - name - 1};
    out->kind = kind_of(out->name);
    if (out->kind == USER && name >= USER_PREFIX_BYTES && !memcmp(rest->data, USER_PREFIX, USER_PREFIX_BYTES))
        out->name = (piece){rest->data + USER_PREFIX_BYTES, name - USER_PREFIX_BYTES};
    rest->data += length + 1;
    rest->length -= length + 1;
    return true;
}

/* Length of a text without its escapes (STOMP 1.2); -1: one of them means nothing. */
static int64_t plain_length(piece p, bool is_escaped)
{
    int64_t length = 0;
    for (uint32_t i = 0; i < p.length; i++, length++)
        if (is_escaped && p.data[i] == '\\' && (++i == p.length || !memchr("cnr\\", p.data[i], 4)))
            return -1;
    return length;
}

static uint8_t *put_plain(uint8_t *at, piece p, bool is_escaped)
{
    uint8_t *length = at;
    at += 2;
    for (uint32_t i = 0; i < p.length; i++) {
        uint8_t octet = p.data[i];
        if (is_escaped && octet == '\\') {
            octet = p.data[++i];
            octet = octet == 'c' ? ':' : octet == 'n' ? '\n' : octet == 'r' ? '\r' : octet;
        }
        *at++ = octet;
    }
    uint32_t written = (uint32_t)(at - length - 2);
    length[0] = (uint8_t)(written >> 8);
    length[1] = (uint8_t)written;
    return at;
}

/* Bytes of the property that a line becomes; 0: none; -1: Python says it. */
static int64_t property_length(const line *l, const mqtt_said *said, bool is_escaped)
{
    int64_t value = plain_length(l->value, is_escaped), name = plain_length(l->name, is_escaped);
    if (value < 0 || name < 0)
        return -1;
    if (l->kind == USER)
        return 1 + 2 + name + 2 + value;
    if (l->value.data == said->content_type.data || l->value.data == said->correlation.data)
        return 1 + 2 + value;
    return l->value.data == said->format.data && (is_text(l->value, "0") || is_text(l->value, "1")) ? 2 : 0;
}

/* Note a line; the first of a name counts. */
static void note_line(const line *l, mqtt_said *said)
{
    piece *place = l->kind == DESTINATION   ? &said->destination
                   : l->kind == PERSISTENT  ? &said->persistent
                   : l->kind == TYPE        ? &said->content_type
                   : l->kind == CORRELATION ? &said->correlation
                   : l->kind == FORMAT      ? &said->format
                                            : NULL;
    if (place && !place->data)
        *place = l->value;
}

bool mqtt_read_lines(piece lines, bool is_escaped, uint8_t version, mqtt_said *said)
{
    *said = (mqtt_said){.lines = lines, .is_escaped = is_escaped};
    line l;
    for (piece rest = lines; next_line(&rest, &l);) {
        bool is_odd = l.kind == PYTHONS || (l.kind == PYTHONS_IN_5 && version == 5);
        bool is_read = l.kind == DESTINATION || l.kind == PERSISTENT;
        if (is_odd || (is_read && is_escaped && memchr(l.value.data, '\\', l.value.length)))
            return false;
        note_line(&l, said);
        if (version != 5)
            continue;
        int64_t length = property_length(&l, said, is_escaped);
        if (length < 0)
            return false;
        said->properties_length += (uint32_t)length;
    }
    said->is_persistent = said->persistent.data && is_text(said->persistent, "true");
    return version != 5 || is_utf8(lines.data, lines.length);
}

bool mqtt_topic_of(const mqtt_encoding *by, piece destination, piece *topic)
{
    *topic = destination;
    const uint8_t *prefix = by->topic + by->topic_length, *end = prefix + by->prefixes_length;
    while (prefix < end) {
        const uint8_t *stop = memchr(prefix, 0, (size_t)(end - prefix));
        uint32_t length = (uint32_t)((stop ? stop : end) - prefix);
        if (length && length <= topic->length && !memcmp(topic->data, prefix, length)) {
            *topic = (piece){topic->data + length, topic->length - length};
            break;
        }
        prefix += length + 1;
    }
    return topic->length && is_utf8(topic->data, topic->length);
}

static uint8_t *put_property(uint8_t *at, uint8_t property, piece value, bool is_escaped)
{
    *at++ = property;
    return put_plain(at, value, is_escaped);
}

uint8_t *mqtt_put_properties(uint8_t *at, const mqtt_said *said)
{
    if (said->format.data && (is_text(said->format, "0") || is_text(said->format, "1"))) {
        *at++ = PAYLOAD_FORMAT;
        *at++ = *said->format.data - '0';
    }
    if (said->content_type.data)
        at = put_property(at, CONTENT_TYPE, said->content_type, said->is_escaped);
    if (said->correlation.data)
        at = put_property(at, CORRELATION_DATA, said->correlation, said->is_escaped);
    line l;
    for (piece rest = said->lines; next_line(&rest, &l);) {
        if (l.kind != USER)
            continue;
        at = put_property(at, USER_PROPERTY, l.name, said->is_escaped);
        at = put_plain(at, l.value, said->is_escaped);
    }
    return at;
}
