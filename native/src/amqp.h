/* AMQP 1.0 in the core (amqp_scan.c: in; amqp_send.c: out), for the core's own C files. */
#ifndef VESPIARY_AMQP_H
#define VESPIARY_AMQP_H

#include "amqp_fields.h"
#include "state.h"

/* What the core keeps of a session. */
typedef struct {
    uint32_t window; /* transfers of the client that the core may take */
} amqp_session;

/* What it keeps of a connection from the first session on. */
struct amqp_state {
    number_map sessions; /* by channel */
};

amqp_session *amqp_session_find(const connection *c, uint32_t channel); /* NULL: it is not known */
amqp_session *amqp_session_make(connection *c, uint32_t channel);       /* the same, made if need be; NULL: no memory */

/* One frame, and the performative that it begins with. */
typedef struct {
    const uint8_t *at;
    uint32_t length, body; /* of all; where its body begins */
    uint16_t channel;
} amqp_frame;

enum { AMQP_TAKEN = 0, AMQP_LEFT = 1 }; /* what becomes of a frame; else -errno */

#endif
