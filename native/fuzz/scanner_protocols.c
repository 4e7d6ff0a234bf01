/* The rows of the scanners' fuzz target: how a connection of each protocol is made. */
#include <string.h>

#include "../tests/check.h"
#include "scanner_target.h"

static const uint8_t *bytes(const char *text) { return (const uint8_t *)text; }

/* Store messages in queue 1, and give them to a consumer of the connection. */
static uint32_t give_messages(fuzz_world *w, const char *properties, size_t length, uint32_t protocol, uint32_t mode,
                              uint32_t version)
{
    for (uint32_t i = 0; i < HELD_MESSAGES; i++)
        CHECK_EQUAL(vespiary_core_publish(w->core, w->routes[1], bytes(properties), (uint32_t)length, bytes("x"),
                                          1, 1, protocol, 4, 0, 0, 0, 0), 1);
    vespiary_write out;
    CHECK_EQUAL(vespiary_core_seal_write(w->core, &out), 1);
    CHECK_EQUAL(vespiary_core_write_done(w->core, out.sequence), 0);
    int consumer = vespiary_core_open_consumer(w->core, w->connection, 1, mode, 100, bytes("0"), 1, version);
    CHECK(consumer >= 0);
    return (uint32_t)consumer;
}

static void deliver(fuzz_world *w, uint32_t consumer)
{
    vespiary_result out;
    const uint8_t *frames;
    CHECK_EQUAL(vespiary_core_deliver(w->core, consumer, HELD_MESSAGES, 1 << 20, &out, &frames), HELD_MESSAGES);
}

/* --- STOMP ------------------------------------------------------------------------------------------------------ */
static void open_stomp(fuzz_world *w)
{
    static const struct {
        const char *key;
        uint32_t length, route;
    } taught[] = {{"a", 1, 1}, {"b", 1, 2}, {"/topic/c", 8, 3}, {"n", 1, 0}, {"a\0MULTICAST", 11, 2}};
    bool is_small = w->settings.has_small_limits;
    uint32_t version = 10u + w->settings.version;
    CHECK_EQUAL(vespiary_core_set_ready(w->core, w->connection, version, is_small ? 4 : 20, is_small ? 40 : 1024,
                                        is_small ? 80 : 4096, is_small ? 60 : 3000), 0);
    for (size_t i = 0; i < sizeof taught / sizeof *taught; i++)
        CHECK_EQUAL(vespiary_core_teach(w->core, w->connection, bytes(taught[i].key), taught[i].length,
                                        w->routes[taught[i].route]), 0);
    CHECK_EQUAL(vespiary_core_teach(w->core, w->connection, bytes("s"), 1, w->switch_route), 0);
    deliver(w, give_messages(w, "destination:a\n", 14, 1, w->settings.gives_in_order ? 1 : 2, version));
}

static size_t stomp_answer(const uint8_t *data, size_t length)
{
    static const char start[] = "RECEIPT\nreceipt-id:";
    const uint8_t *nul = memchr(data, 0, length);
    if (!nul || length < sizeof start || memcmp(data, start, sizeof start - 1) || nul[-1] != '\n' || nul[-2] != '\n')
        return 0;
    return (size_t)(nul - data) + 1;
}

/* --- MQTT ------------------------------------------------------------------------------------------------------- */
static void teach_topic(fuzz_world *w, const char *topic, const char *line, uint32_t route)
{
    CHECK_EQUAL(vespiary_core_teach_mqtt(w->core, w->connection, bytes(topic), (uint32_t)strlen(topic), bytes(line),
                                         (uint32_t)strlen(line), route), 0);
}

static void open_mqtt(fuzz_world *w)
{
    bool is_small = w->settings.has_small_limits;
    CHECK_EQUAL(vespiary_core_set_ready_mqtt(w->core, w->connection, 3u + w->settings.version, is_small ? 60 : 3000,
                                             is_small ? 30 : 2000, is_small ? 2 : 100), 0);
    CHECK_EQUAL(vespiary_core_set_window(w->core, w->connection, 100), 0);
    teach_topic(w, "a", "destination:a\n", w->routes[1]);
    teach_topic(w, "b/b", "destination:b.b\n", w->routes[2]);
    teach_topic(w, "c", "destination:c\\cc\n", w->routes[3]);
    teach_topic(w, "n", "destination:n\n", w->routes[0]);
    teach_topic(w, "s", "destination:s\n", w->switch_route);
    uint32_t consumer = give_messages(w, "destination:a\npersistent:true\n", 30, 2, 2, 0);
    CHECK_EQUAL(vespiary_core_encode_mqtt(w->core, consumer, 1, 1000, 0, bytes(""), 0, bytes(""), 0), 0);
    deliver(w, consumer); /* as packets 1 and above */
}

static size_t mqtt_answer(const uint8_t *data, size_t length)
{
    return length >= 4 && data[0] == 0x40 && data[1] == 2 && (data[2] || data[3]) ? 4 : 0;
}

/* --- AMQP ------------------------------------------------------------------------------------------------------- */
/* Header (durable), properties with a message-id `i1` and a creation-time of 13 digits, and the begin of a data section. */
static const uint8_t AMQP_KEY[] = {0,    0x53, 0x70, 0xC0, 2, 1, 0x41, /* */
                                   0,    0x53, 0x73, 0xC0, 22, 10, 0xA1, 2, 'i', '1', 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40,
                                   0x40, 0x83, 0,    0,    1, 0x90, 0, 0, 0, 0, /* */
                                   0,    0x53, 0x75, 0xA0};
static const uint8_t AMQP_TEXT_KEY[] = {0, 0x53, 0x77, 0xA1}; /* a string, and nothing else */
static const char AMQP_LINES[] = "destination:a\npersistent:true\nJMSMessageID:i1\ntimestamp:1717986918400\n";

static void teach_link(fuzz_world *w, uint32_t handle, const uint8_t *key, uint32_t length, const uint8_t *stored,
                       uint32_t stored_length, uint32_t route, const uint32_t *ranges, uint32_t count)
{
    CHECK_EQUAL(vespiary_core_teach_amqp(w->core, w->connection, 0, handle, key, length, stored, stored_length, route,
                                         handle != 2, 0, ranges, count), 1);
    uint32_t credit = w->settings.has_small_limits ? 2 : 100;
    CHECK_EQUAL(vespiary_core_set_amqp_credit(w->core, w->connection, 0, handle, credit, handle == 3), 0);
}

static void teach_amqp(fuzz_world *w)
{
    enum { LINES = sizeof AMQP_LINES, PART = 8, SECTION = sizeof AMQP_KEY - 7 - 4 }; /* lines with their NUL */
    uint8_t stored[LINES + PART + SECTION] = {0};
    memcpy(stored, AMQP_LINES, LINES);
    memcpy(stored + LINES + PART, AMQP_KEY + 7, SECTION);
    const uint32_t id = 44, time = 56, native = LINES + PART;
    const uint32_t ranges[] = {16, 1, id, 1, native + 9, 0, 26, 8, time, 13, native + 19, 1};
    CHECK(stored[id] == '1' && stored[time] == '1' && stored[time + 13] == '\n');
    teach_link(w, 0, AMQP_KEY, sizeof AMQP_KEY, stored, sizeof stored, w->routes[1], ranges, 2);
    teach_link(w, 1, AMQP_TEXT_KEY, sizeof AMQP_TEXT_KEY, bytes("destination:b\n"), 15, w->routes[2], NULL, 0);
    teach_link(w, 2, AMQP_TEXT_KEY, sizeof AMQP_TEXT_KEY, bytes("destination:c\n"), 15, w->routes[3], NULL, 0);
    teach_link(w, 3, AMQP_TEXT_KEY, sizeof AMQP_TEXT_KEY, bytes("destination:n\n"), 15, w->routes[0], NULL, 0);
}

static void open_amqp(fuzz_world *w)
{
    static const char properties[] = "destination:a\npersistent:true\n\0\1\x75\xA0\0\0\0\0\0";
    bool is_small = w->settings.has_small_limits;
    CHECK_EQUAL(vespiary_core_set_ready_amqp(w->core, w->connection, is_small ? 120 : 2000, is_small ? 30 : 1000), 0);
    CHECK_EQUAL(vespiary_core_set_amqp_window(w->core, w->connection, 0, is_small ? 3 : 200), 0);
    teach_amqp(w);
    uint32_t consumer = give_messages(w, properties, sizeof properties - 1, 3, 2, 0);
    CHECK_EQUAL(vespiary_core_encode_amqp(w->core, consumer, 0, 9, 512, 0, 0), 0);
    CHECK_EQUAL(vespiary_core_set_amqp_link_credit(w->core, consumer, 100), 0);
    CHECK_EQUAL(vespiary_core_set_amqp_room(w->core, w->connection, 0, 100), 0);
    deliver(w, consumer); /* as deliveries 0 and above */
}

static size_t amqp_answer(const uint8_t *data, size_t length)
{
    size_t size = length < 12 ? 0 : (size_t)data[2] << 8 | data[3];
    return size >= 12 && size <= length && !data[0] && !data[1] && data[4] == 2 && data[10] == 0x15 ? size : 0;
}

static uint32_t amqp_id(const uint8_t **at)
{
    uint8_t code = *(*at)++;
    if (code == 0x43)
        return 0;
    uint32_t value = 0;
    for (int i = code == 0x52 ? 1 : 4; i; i--)
        value = value << 8 | *(*at)++;
    return value;
}

/* The deliveries that dispositions name, one behind the other: each scan makes its own runs of them. */
static size_t amqp_named(const uint8_t *answers, size_t length, uint8_t *out, size_t room)
{
    size_t used = 0;
    for (size_t at = 0; at < length;) {
        const uint8_t *field = answers + at + 15; /* behind size, offset, type, channel, descriptor, list and role */
        uint32_t first = amqp_id(&field), last = *field == 0x40 ? first : amqp_id(&field);
        for (uint32_t id = first; id != last + 1; id++) {
            CHECK(used + 4 <= room);
            memcpy(out + used, &id, 4);
            used += 4;
        }
        at += amqp_answer(answers + at, length - at);
    }
    return used;
}

const fuzz_protocol FUZZ_PROTOCOLS[] = {
    {"stomp", open_stomp, vespiary_core_scan_stomp, stomp_answer, NULL},
    {"mqtt", open_mqtt, vespiary_core_scan_mqtt, mqtt_answer, NULL},
    {"amqp", open_amqp, vespiary_core_scan_amqp, amqp_answer, amqp_named},
};
const size_t FUZZ_PROTOCOLS_COUNT = sizeof FUZZ_PROTOCOLS / sizeof *FUZZ_PROTOCOLS;
