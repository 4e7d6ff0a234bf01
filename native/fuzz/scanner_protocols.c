/* The rows of the scanners' fuzz target: how a connection of each protocol is made. */
#include <string.h>

#include "../tests/check.h"
#include "scanner_target.h"

static const uint8_t *bytes(const char *text) { return (const uint8_t *)text; }

/* Store messages in queue 1, and give them to a consumer of the connection. */
static uint32_t give_messages(fuzz_world *w, const char *properties, uint32_t protocol, uint32_t mode, uint32_t version)
{
    for (uint32_t i = 0; i < HELD_MESSAGES; i++)
        CHECK_EQUAL(vespiary_core_publish(w->core, w->routes[1], bytes(properties), (uint32_t)strlen(properties), bytes("x"),
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
    deliver(w, give_messages(w, "destination:a\n", 1, w->settings.gives_in_order ? 1 : 2, version));
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
    uint32_t consumer = give_messages(w, "destination:a\npersistent:true\n", 2, 2, 0);
    CHECK_EQUAL(vespiary_core_encode_mqtt(w->core, consumer, 1, 1000, 0, bytes(""), 0, bytes(""), 0), 0);
    deliver(w, consumer); /* as packets 32768 and above */
}

static size_t mqtt_answer(const uint8_t *data, size_t length)
{
    return length >= 4 && data[0] == 0x40 && data[1] == 2 && (data[2] || data[3]) ? 4 : 0;
}

const fuzz_protocol FUZZ_PROTOCOLS[] = {
    {"stomp", open_stomp, vespiary_core_scan_stomp, stomp_answer},
    {"mqtt", open_mqtt, vespiary_core_scan_mqtt, mqtt_answer},
};
const size_t FUZZ_PROTOCOLS_COUNT = sizeof FUZZ_PROTOCOLS / sizeof *FUZZ_PROTOCOLS;
