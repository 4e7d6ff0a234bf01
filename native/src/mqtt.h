/* MQTT's way out (mqtt_send.c), for the core's own C files. */
#ifndef VESPIARY_MQTT_H
#define VESPIARY_MQTT_H

#include "state.h"

/* How the messages of one consumer are encoded. */
struct mqtt_encoding {
    uint64_t stored_below; /* messages with a lower sequence are encoded elsewhere */
    uint32_t packet_max;
    uint16_t topic_length; /* 0: each has its own */
    uint16_t prefixes_length;
    uint8_t qos, version;
    uint8_t topic[]; /* behind it what may stand before an address, with a NUL between two */
};

/* What header lines say to MQTT; `data` NULL: nothing. */
typedef struct {
    piece lines, destination, persistent, content_type, correlation, format;
    uint32_t properties_length; /* of MQTT 5 */
    bool is_escaped, is_persistent;
} mqtt_said;

/* One message on its way out. */
typedef struct {
    piece topic;
    mqtt_said said; /* by one who does not speak MQTT; else empty */
    const uint8_t *body;
    uint64_t rest, length; /* the remaining length; that of the packet */
    uint32_t body_length;
    uint8_t qos;
    bool is_dup, is_address; /* address: the topic has dots for slashes, and slashes for dots */
} mqtt_packet;

/* Whether a message is encoded here, and how. */
bool mqtt_plan(const mqtt_encoding *by, const entry *item, uint64_t sequence, const uint8_t *record, mqtt_packet *plan);
uint8_t *mqtt_encode(uint8_t *at, const mqtt_encoding *by, const mqtt_packet *plan, uint32_t id);

/* Read the lines of another protocol (mqtt_lines.c); false: Python encodes the message. */
bool mqtt_read_lines(piece lines, bool is_escaped, uint8_t version, mqtt_said *said);
/* The address in a destination; false: it is none that is text. */
bool mqtt_topic_of(const mqtt_encoding *by, piece destination, piece *topic);
uint8_t *mqtt_put_properties(uint8_t *at, const mqtt_said *said);

int sent_next(connection *c);
void sent_put(connection *c, uint32_t by, uint64_t sequence);
void sent_orphan(connection *c, uint32_t by);
int sent_acknowledge(vespiary_core *core, connection *c, uint32_t id);

#endif
