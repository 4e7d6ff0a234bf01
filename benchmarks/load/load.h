/* A load in a closed loop over any protocol: its clients, the ledger of every message it made, and what a protocol has
 * to do for it.
 *
 * Owns: the shapes that protocolload.c (options), ledger.c, run.c, report.c and the protocols share. Must never: let a
 * protocol count by itself; all is told to the ledger. */
#ifndef LOAD_LOAD_H
#define LOAD_LOAD_H
#include "channel.h"
#include "measuring.h"

enum { SECONDS_MAX = 3600, ADDRESS_MAX = 64 };
enum phase { LOGIN, WARM, RUN, DRAIN, LINGER, DONE };
enum role { PRODUCES, CONSUMES, KEEPS }; /* KEEPS: subscribes for good and goes, so that what is published is kept */

struct load;
struct client;

struct protocol {
    const char *name;
    bool has_topics;                      /* no queues: what nobody has subscribed to is dropped */
    size_t body_max;
    void (*greet)(struct load *l, struct client *c); /* the first bytes of a connection */
    /* Take one frame off what was read; returns its bytes, 0 when it is not all there. */
    size_t (*take)(struct load *l, struct client *c, const char *at, size_t size, uint64_t now);
    void (*after_read)(struct client *c); /* acknowledge what was gathered */
    bool (*may_put)(const struct client *c); /* whether the broker lets it send one more */
    void (*put)(struct load *l, struct client *c, uint64_t seq); /* write message `seq`, its body with `put_body` */
};
extern const struct protocol STOMP, MQTT_3, MQTT_5, AMQP;

struct stamp { uint32_t magic, producer; uint64_t seq, time_ns; }; /* what a body begins with; a fixed filler follows */

struct client {
    struct channel channel;
    const struct protocol *protocol;
    void *state;                          /* the protocol's own */
    enum role role;
    uint32_t index, queue, events;
    bool is_ready, is_cut;
    char address[ADDRESS_MAX];            /* what it sends to or receives from, in its protocol's words */
    struct buffer in, out;
    uint64_t next_seq, oldest, in_flight, last_seq, *made_ns; /* of a producer; so are the flags of its messages, by seq */
    uint8_t *flags;
    uint64_t flags_size;
};

struct options { double port, producers, consumers, queues, window, body_size, warmup, seconds, messages, drain_seconds;
                 const char *producer_protocol, *consumer_protocol, *tls_ca; };

struct load {
    struct options options;
    const struct protocol *producer_protocol, *consumer_protocol;
    uint32_t producers, consumers, queues, window, keepers, client_count, ready;
    size_t body_size;
    uint64_t quota, ring_mask, put_ns;    /* put_ns: when the messages of this write were made */
    struct client *clients;               /* producers first, then consumers, then keepers */
    void *trust;
    int epoll;
    enum phase phase;
    uint64_t phase_ns;
    const char *ended;
    char *filler;
    struct counts counts;
    uint64_t duplicates, misrouted, out_of_order, corrupt, receipt_errors;
    struct snapshot begin, end;
    struct histogram confirm, end_to_end;
    uint32_t series[SECONDS_MAX][2];
};

/* --- ledger.c: what the protocols tell ------------------------------------------------------------------------------ */
/* Write the body of the producer's message `seq`, which is `l->body_size` bytes. */
void put_body(struct load *l, struct client *c, uint64_t seq, void *to);
void note_sent(struct load *l, struct client *c);
void note_confirmed(struct load *l, struct client *c, uint64_t seq, uint64_t now);
/* The broker has answered otherwise than with a confirm, or one that fits nothing: said once, and the run counts for nothing. */
void note_refused(struct load *l, const struct client *c, const char *what);
void note_received(struct load *l, struct client *c, const void *body, size_t size, uint64_t now);
bool is_drained(const struct load *l);
void count_ledger(const struct load *l, uint64_t *unconfirmed, uint64_t *not_seen);

/* --- run.c ------------------------------------------------------------------------------------------------------------ */
void be_ready(struct load *l, struct client *c);
void connect_all(struct load *l);
void run(struct load *l);
/* End the program with a sentence about a connection. */
void die_of(const struct client *c, int code, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));

/* --- report.c ----------------------------------------------------------------------------------------------------------- */
int report(const struct load *l); /* the exit code */
#endif
