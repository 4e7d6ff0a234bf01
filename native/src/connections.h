/* What the core keeps of connections and of messages on their way in, for its own C files only; the rest: state.h. */
#ifndef VESPIARY_CONNECTIONS_H
#define VESPIARY_CONNECTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum { TAUGHT_MAX = 4096 };

/* --- messages on their way in ------------------------------------------------------------------------------ */
typedef struct {
    const uint8_t *data;
    uint32_t length;
} piece;

typedef struct {
    piece properties[4]; /* joined in this order */
    piece body;
    uint8_t protocol, priority, flags;
    bool is_persistent;
} message;

typedef struct {
    uint64_t position; /* of its frame in the buffer that was scanned */
    uint32_t length;
    message message;
    piece receipt;
} switched_send;

/* --- connections ----------------------------------------------------------------------------------------- */
typedef struct {
    uint8_t *key; /* NULL: empty; behind it stand the lines, of MQTT */
    uint32_t key_length, lines_length, route, generation;
} taught;

typedef struct {
    uint64_t sequence;
    uint32_t consumer;
    uint8_t state;
} sent_message;

typedef struct {
    bool is_open, is_ready, is_listed;
    bool is_mqtt;    /* ready for vespiary_core_scan_mqtt */
    bool is_amqp;    /* ready for vespiary_core_scan_amqp */
    uint8_t version; /* of STOMP: 10, 11, 12; of MQTT: 3, 4, 5 */
    uint32_t header_lines_max, header_line_max, headers_max, body_max;
    uint32_t packet_max; /* of MQTT; of AMQP: of a frame */
    uint32_t unanswered_max; /* of MQTT */
    sent_message *sent; /* of MQTT, by packet id: messages of QoS 1 that were sent (mqtt_send.c) */
    uint32_t sent_capacity, sent_at, sent_used, sent_out; /* at: where ids go on; out: used and not reserved */
    uint32_t window; /* so many may be out */
    struct amqp_state *amqp; /* amqp.h; NULL: no session is known */
    taught *table;
    uint32_t table_count, table_capacity, last_taught;
    uint8_t *output; /* receipts that wait or may go */
    uint32_t output_capacity, output_end;
    uint64_t output_base; /* position of output[0] in all that was ever put there */
    uint64_t released;    /* position below which all may go */
    uint64_t last_block; /* sequence of the block with its latest record */
    uint64_t note;
    uint32_t notes_pending;
    uint32_t need;    /* bytes of an incomplete frame, when known */
    uint32_t scanned; /* bytes of an incomplete frame's headers in which no end was found */
    uint32_t body_scanned;
    uint32_t switched_max; /* SENDs that a scan keeps for a switch, after one found no room; 0: as many as ever */
} connection;

#endif
