/* AMQP 1.0 in the core (amqp_scan.c: in; amqp_send.c: out), for the core's own C files. */
#ifndef VESPIARY_AMQP_H
#define VESPIARY_AMQP_H

#include "amqp_fields.h"
#include "amqp_send.h"
#include "state.h"

enum { RANGES_MAX = 4, LESSONS_MAX = 16 };

/* Bytes that may differ between messages of one lesson. */
typedef struct {
    uint32_t at, length;              /* in the key */
    uint32_t line_at, line_length;    /* where they stand in a header line, as text */
    uint32_t native_at;               /* where they stand as they came */
    uint32_t is_time;                 /* a timestamp, decimal in its line; else characters that need no escapes */
} amqp_range;

/* What a message says before its body, and what is stored of that. */
typedef struct {
    uint8_t *key; /* up to and with the format code of the body's value; behind it stands what is stored */
    uint32_t key_length, stored_length, route, generation;
    uint32_t ranges_count;
    bool is_persistent, is_escaped;
    amqp_range ranges[RANGES_MAX];
} amqp_lesson;

/* A link by which the client sends. */
typedef struct {
    uint32_t channel, handle;
    uint32_t credit; /* messages of it that the core may take */
    uint32_t taken;  /* so many were since the caller has asked */
    bool is_settled; /* all of its deliveries are */
    uint32_t count, next, last; /* lessons; the one that goes next; the one that was of use last */
    amqp_lesson lessons[LESSONS_MAX];
} amqp_link;

/* What the core keeps of a session. */
typedef struct {
    uint32_t window; /* transfers of the client that the core may take */
    number_map links; /* amqp_link by handle */
    amqp_outgoing out;
} amqp_session;

/* What it keeps of a connection from the first session on. */
struct amqp_state {
    number_map sessions; /* by channel */
    amqp_link **touched; /* links with `taken` */
    uint32_t touched_count, touched_capacity;
    uint32_t links, lesson_bytes;
};

amqp_session *amqp_session_find(const connection *c, uint32_t channel); /* NULL: it is not known */
amqp_session *amqp_session_make(connection *c, uint32_t channel);       /* the same, made if need be; NULL: no memory */

amqp_link *amqp_link_find(const amqp_session *s, uint32_t handle); /* NULL: it is not known, as in no session */
int amqp_touch(connection *c, amqp_link *link);                     /* one more of its messages was taken */
/* The lesson that a message is one of, NULL: it is none; and its body. What differs is put into what is stored. */
amqp_lesson *amqp_lesson_of(amqp_link *link, const uint8_t *at, uint32_t length, piece *body);

/* One frame, and the performative that it begins with. */
typedef struct {
    const uint8_t *at;
    uint32_t length, body; /* of all; where its body begins */
    uint16_t channel;
} amqp_frame;

enum { AMQP_TAKEN = 0, AMQP_LEFT = 1 }; /* what becomes of a frame; else -errno */

/* amqp_send.c: take what a client says of deliveries, or leave it. */
int amqp_take_disposition(vespiary_core *core, connection *c, uint32_t channel, amqp_fields *f);

#endif
