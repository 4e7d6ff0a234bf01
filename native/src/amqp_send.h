/* AMQP's way out (amqp_send.c, amqp_transfer.c), for the core's own C files. */
#ifndef VESPIARY_AMQP_SEND_H
#define VESPIARY_AMQP_SEND_H

#include "state.h"

/* A link by which a client receives: a consumer's. */
struct amqp_out_link {
    uint32_t handle, frame_max;
    uint32_t credit; /* messages that its client takes */
    uint16_t channel;
    bool is_settled; /* its deliveries are settled as they leave */
    bool is_stored;  /* nothing of it is encoded here */
};

/* A delivery that was sent from here, and is not settled. */
typedef struct {
    uint64_t sequence;
    uint32_t id, consumer; /* consumer UINT32_MAX: the slot is free */
} amqp_delivery;

/* What a session sends. */
struct amqp_outgoing {
    uint32_t room; /* transfers that its client takes */
    uint32_t next_id;
    amqp_delivery *sent; /* by id, open addressing */
    uint32_t capacity, count;
};

/* One message on its way out. */
typedef struct {
    const uint8_t *before, *body, *footer;
    uint32_t before_length, body_length, footer_length;
    uint32_t deliveries;
    uint8_t section, code; /* of the body; section 0: it is sections */
    bool is_durable, is_first; /* first: the sender set first-acquirer, and it was not delivered */
} amqp_transfer;

/* amqp_transfer.c: whether a message is encoded here, and how. */
bool amqp_plan(const amqp_out_link *by, const entry *item, const uint8_t *record, amqp_transfer *plan);
uint8_t *amqp_encode(uint8_t *at, const amqp_out_link *by, const amqp_transfer *plan, uint32_t id, uint64_t sequence);

/* amqp_send.c */
amqp_outgoing *amqp_outgoing_of(const vespiary_core *core, const consumer *by); /* NULL: no link, or its session is not known */
int amqp_next_id(amqp_outgoing *of); /* make room for a delivery, and next_id one that is free; 0 or -ENOMEM */
void amqp_sent(amqp_outgoing *of, uint32_t by, uint64_t sequence); /* as next_id, which goes on */
void amqp_drop_sent(const vespiary_core *core, const consumer *by); /* it closes */

/* Whether a consumer may be given one more, for what its link and its session take. */
static inline bool amqp_takes(const consumer *by, const amqp_outgoing *of)
{
    return !by->amqp || (of && of->room && by->amqp->credit);
}

static inline void amqp_gave(const consumer *by, amqp_outgoing *of)
{
    if (by->amqp)
        by->amqp->credit--, of->room--;
}

#endif
