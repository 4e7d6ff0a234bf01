/* MQTT's way out (mqtt_send.c), for the core's own C files. */
#ifndef VESPIARY_MQTT_H
#define VESPIARY_MQTT_H

#include "state.h"

/* How the messages of one consumer are encoded. */
struct mqtt_encoding {
    uint64_t stored_below; /* messages with a lower sequence are encoded elsewhere */
    uint32_t packet_max;
    uint16_t topic_length; /* 0: each has its own */
    uint8_t qos, version;
    uint8_t topic[];
};

/* One message on its way out. */
typedef struct {
    piece topic;
    const uint8_t *body;
    uint64_t rest, length; /* the remaining length; that of the packet */
    uint32_t body_length;
    uint8_t qos;
    bool is_dup, is_address; /* address: the topic has dots for slashes, and slashes for dots */
} mqtt_packet;

/* Whether a message is encoded here, and how. */
bool mqtt_plan(const mqtt_encoding *by, const entry *item, uint64_t sequence, const uint8_t *record, mqtt_packet *plan);
uint8_t *mqtt_encode(uint8_t *at, const mqtt_encoding *by, const mqtt_packet *plan, uint32_t id);

int sent_next(connection *c);
void sent_put(connection *c, uint32_t by, uint64_t sequence);
void sent_orphan(connection *c, uint32_t by);
int sent_acknowledge(vespiary_core *core, connection *c, uint32_t id);

#endif
