/* stompload: a STOMP 1.2 load generator that checks what it measures.
 *
 * Owns: connections to ONE broker on a loopback address, a ledger of every message it made, and the
 * two latency histograms. One thread, one epoll, no state outside `struct load`; what it shares with protocolload is load/.
 * Must never: talk to another machine, run without an end (time and count are both bounded), or
 * print a figure without the loss, duplicate and order check beside it.
 * Called by: `python -m benchmarks`, tests/crash, and by hand; docs/howto/benchmarks.md.
 *
 * Each body is a 32-byte stamp (struct stamp, native byte order) and a fixed filler. Latency counts
 * from the intended send time: in the open loop (--rate) from the plan, which a slow broker can't
 * shift (no coordinated omission), in the closed loop from the moment the frame was made.
 *
 * Ledger lines (--ledger, append, write(2) before the next frame goes out), for crash tests:
 *   S run producer seq   the broker confirmed the send
 *   T run producer seq   received; its acknowledgement is about to be sent, so either end is legal
 *   A run producer seq   the broker confirmed the acknowledgement
 * Exit: 0 good, 1 a check failed or the broker said ERROR, 2 usage, 3 connection refused or lost.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "load/measuring.h"
#include "load/stomp_frames.h"

#define MAGIC 0x564c4f41u
#define READ_BYTES 131072u           /* room for one read */
#define SEND_BYTES 131072u           /* frames gathered for one write */
#define ACK_LIMIT_BYTES (1u << 20)   /* unsent acknowledgements that stop reading */
#define SEQ_LIMIT (1ull << 30)
#define SOURCE_LIMIT 65536u
#define SERIES_LIMIT 3600u
#define VERIFY_LIMIT 16u

enum { CONFIRMED = 1, RECEIVED = 2, TRIED = 4, ACKED = 8 }; /* a message; the last two: of a file */
enum phase { CONNECT, RUN, DRAIN, CLOSE, DONE };
enum stage { CONNECTING, SUBSCRIBING, READY, CLOSING, CLOSED };

struct stamp { uint32_t magic, run, producer, body_bytes; uint64_t seq, time_ns; };
struct source { uint32_t run, producer; uint64_t capacity, *last_seq; uint8_t *flags; };

struct options {
    const char *host, *login, *passcode, *vhost, *destination, *destination_type, *ack,
               *prefetch_header, *send_header, *selector, *ledger;
    const char *verify[VERIFY_LIMIT];
    double fan, port, queues, producers, window, rate, consumers, prefetch, body_size, seconds, messages,
        warmup, drain_seconds, idle, run, variants;
};

struct checks { uint64_t duplicates, out_of_order, misrouted, corrupt, foreign, receipt_errors,
                lost, unconfirmed, confirmed_not_seen, resurrected, in_doubt; };

struct connection {
    int fd;
    bool produces, is_cut;
    uint32_t index, events;
    enum stage stage;
    size_t needed;                        /* bytes of the frame at in.start, when known */
    uint64_t waiting;                     /* receipts of SUBSCRIBE to come */
    struct buffer in, out;
    struct source *source;                /* producer: its ledger */
    uint64_t next_seq, oldest, in_flight, *made_ns;
    struct span pending_ack, pending_sub; /* consumer, ack mode client: the last one of this read */
    uint64_t pending_count;
};

struct load {
    struct options options;
    uint32_t producers, consumers, queues, run, variants;
    size_t body_size, connection_count, source_count, frame_size;
    uint64_t window, quota, ring_mask, ready, closed, idle_since_ns;
    enum phase phase;
    uint64_t phase_ns, start_ns, begin_ns, end_ns; /* begin..end: the measured window */
    bool individual, cumulative, verifies, order_checked;
    int epoll, ledger_fd, exit_code;
    const char *ended;
    char reason[512];
    char *filler;
    struct span *prefixes;                /* SEND up to `receipt:`, per queue and variant */
    struct connection *connections;
    struct source **sources;
    uint32_t *source_slots;
    struct buffer ledger;
    struct counts counts;
    struct checks checks;
    struct snapshot begin, end;
    struct histogram confirm, end_to_end;
    uint32_t series[SERIES_LIMIT][2];
};

const char PROGRAM[] = "stompload";

/* End the run early; the first reason stays. */
static void stop(struct load *l, int code, const char *ended, struct span reason)
{
    if (l->phase == DONE)
        return;
    l->phase = DONE;
    l->exit_code = code;
    l->ended = ended;
    snprintf(l->reason, sizeof l->reason, "%.*s", (int)(reason.size < 500 ? reason.size : 500),
             reason.data);
}

static void stop_text(struct load *l, int code, const char *ended, const char *reason)
{
    stop(l, code, ended, (struct span){reason, strlen(reason)});
}

/* --- the ledger: one byte of flags a message, per (run, producer) ----------------------------- */
static struct source *find_source(struct load *l, uint32_t run, uint32_t producer)
{
    uint32_t slot = (run * 2654435761u ^ producer * 40503u) % (2 * SOURCE_LIMIT);
    for (; l->source_slots[slot] != 0; slot = (slot + 1) % (2 * SOURCE_LIMIT)) {
        struct source *s = l->sources[l->source_slots[slot] - 1];
        if (s->run == run && s->producer == producer)
            return s;
    }
    if (l->source_count == SOURCE_LIMIT)
        die(EXIT_CHECK, "more than %u producers in bodies and ledgers: start anew", SOURCE_LIMIT);
    struct source *s = allocate(1, sizeof *s);
    *s = (struct source){.run = run, .producer = producer, .capacity = 1024};
    s->flags = allocate(s->capacity, 1);
    s->last_seq = allocate(l->queues, sizeof *s->last_seq);
    l->sources[l->source_count++] = s;
    l->source_slots[slot] = (uint32_t)l->source_count;
    return s;
}

static uint8_t *flags_of(struct source *s, uint64_t seq)
{
    while (seq >= s->capacity) {
        uint8_t *flags = realloc(s->flags, s->capacity * 2);
        if (flags == NULL)
            die(EXIT_CHECK, "no memory for a ledger of %" PRIu64 " messages", s->capacity * 2);
        s->flags = flags;
        memset(s->flags + s->capacity, 0, s->capacity);
        s->capacity *= 2;
    }
    return &s->flags[seq];
}

static void note(struct load *l, char kind, uint32_t run, uint32_t producer, uint64_t seq)
{
    if (l->ledger_fd >= 0)
        append(&l->ledger, "%c %" PRIu32 " %" PRIu32 " %" PRIu64 "\n", kind, run, producer, seq);
}

static void write_ledger(struct load *l)
{
    while (l->ledger.start < l->ledger.end) {
        ssize_t n = write(l->ledger_fd, l->ledger.data + l->ledger.start,
                          l->ledger.end - l->ledger.start);
        if (n < 0 && errno != EINTR)
            die(EXIT_CHECK, "ledger %s: %s", l->options.ledger, strerror(errno));
        l->ledger.start += n > 0 ? (size_t)n : 0;
    }
}

/* Load an older ledger. A last line without its end was torn by a kill and is left out. */
static void read_ledger(struct load *l, const char *path)
{
    char line[128];
    uint64_t number = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        die(EXIT_USAGE, "ledger %s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file) != NULL) {
        char kind, end = 0;
        uint32_t run, producer;
        uint64_t seq;
        number++;
        if (strchr(line, '\n') == NULL && feof(file))
            break;
        if (sscanf(line, "%c %" SCNu32 " %" SCNu32 " %" SCNu64 "%c", &kind, &run, &producer, &seq,
                   &end) != 5 || end != '\n' || seq >= SEQ_LIMIT || strchr("STA", kind) == NULL)
            die(EXIT_USAGE, "ledger %s line %" PRIu64 ": not `S|T|A run producer seq`", path,
                number);
        uint8_t flag = kind == 'S' ? CONFIRMED : kind == 'T' ? TRIED : ACKED;
        *flags_of(find_source(l, run, producer), seq) |= flag;
    }
    fclose(file);
}

/* --- output ----------------------------------------------------------------------------------- */
static void flush(struct load *l, struct connection *c)
{
    while (c->out.start < c->out.end) {
        ssize_t n = send(c->fd, c->out.data + c->out.start, c->out.end - c->out.start,
                         MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            c->is_cut = true; /* reading goes on to the end: the broker may have said why */
            c->out.start = c->out.end;
        }
        if (n < 0)
            break;
        c->out.start += (size_t)n;
    }
    size_t unsent = c->out.end - c->out.start;
    bool reads = c->produces || unsent <= ACK_LIMIT_BYTES;
    uint32_t events = (reads ? EPOLLIN : 0u) | (unsent > 0 ? EPOLLOUT : 0u);
    if (events != c->events) {
        struct epoll_event event = {.events = events, .data.ptr = c};
        c->events = events;
        epoll_ctl(l->epoll, EPOLL_CTL_MOD, c->fd, &event);
    }
}

/* The queue of a message follows from its number, so that a misrouted one shows. */
static uint32_t queue_of(const struct load *l, uint32_t producer, uint64_t seq)
{
    if (l->producers >= l->queues)
        return producer % l->queues;
    uint32_t own = (l->queues - 1 - producer) / l->producers + 1;
    return producer + l->producers * (uint32_t)(seq % own);
}

/* The moment the plan of the open loop gives to a message. */
static uint64_t intended_ns(const struct load *l, const struct connection *c, uint64_t seq)
{
    return l->start_ns + to_ns((double)(seq * l->producers + c->index) / l->options.rate);
}

static bool may_send(const struct load *l, const struct connection *c, uint64_t now)
{
    if (c->next_seq >= l->quota || c->is_cut)
        return false;
    if (l->options.rate > 0) {
        uint64_t due = intended_ns(l, c, c->next_seq);
        return (l->phase == RUN || l->phase == DRAIN) && due <= now && due < l->end_ns;
    }
    return l->phase == RUN && now < l->end_ns && c->in_flight < l->window &&
           c->next_seq - c->oldest <= l->ring_mask;
}

/* Which of the variants the next message is: evenly spread, and in no order. */
static uint32_t variant_of(const struct load *l, const struct connection *c)
{
    uint64_t mixed = (c->next_seq + 1) * 0x9E3779B97F4A7C15u + c->index;
    mixed = (mixed ^ (mixed >> 31)) * 0xBF58476D1CE4E5B9u;
    return (uint32_t)((mixed >> 32) % l->variants);
}

static void put_send(struct load *l, struct connection *c, uint64_t now)
{
    uint32_t kind = queue_of(l, c->index, c->next_seq) * l->variants + variant_of(l, c);
    struct span prefix = l->prefixes[kind];
    char *to = c->out.data + c->out.end, *from = to;
    struct stamp stamp = {MAGIC, l->run, c->index, (uint32_t)l->body_size, c->next_seq, now};
    if (l->options.rate > 0)
        stamp.time_ns = intended_ns(l, c, c->next_seq);
    else
        c->made_ns[c->next_seq & l->ring_mask] = now;
    memcpy(to, prefix.data, prefix.size);
    to += prefix.size;
    to += put_number(to, c->next_seq);
    *to++ = '\n';
    *to++ = '\n';
    memcpy(to, &stamp, sizeof stamp);
    memcpy(to + sizeof stamp, l->filler, l->body_size - sizeof stamp);
    to[l->body_size] = '\0';
    c->out.end += (size_t)(to - from) + l->body_size + 1;
    c->next_seq++;
    c->in_flight++;
    l->counts.sent++;
}

/* Send all that the window or the plan allows, as few writes as the socket takes. */
static void produce(struct load *l, struct connection *c, uint64_t now)
{
    while (l->phase != DONE && c->out.start == c->out.end && may_send(l, c, now)) {
        reserve(&c->out, SEND_BYTES + l->frame_size);
        do {
            put_send(l, c, now);
        } while (c->out.end < SEND_BYTES && may_send(l, c, now));
        flush(l, c);
    }
}

static void put_ack(struct load *l, struct connection *c, struct span id, const struct stamp *stamp)
{
    char *start = reserve(&c->out, id.size + 128), *to = start;
    memcpy(to, "ACK\nid:", 7);
    memcpy(to + 7, id.data, id.size);
    to += 7 + id.size;
    if (l->ledger_fd >= 0 && stamp != NULL)
        to += snprintf(to, 100, "\nreceipt:%" PRIu32 " %" PRIu32 " %" PRIu64, stamp->run,
                       stamp->producer, stamp->seq);
    memcpy(to, "\n\n", 3);
    c->out.end += (size_t)(to - start) + 3;
}

/* --- input ------------------------------------------------------------------------------------ */
static void on_confirm(struct load *l, struct connection *c, struct span receipt, uint64_t now)
{
    uint64_t seq;
    if (!get_number(receipt, &seq) || seq >= c->next_seq ||
        (*flags_of(c->source, seq) & CONFIRMED) != 0) {
        l->checks.receipt_errors++; /* a receipt twice, or for what was never sent */
        return;
    }
    *flags_of(c->source, seq) |= CONFIRMED;
    uint64_t from = l->options.rate > 0 ? intended_ns(l, c, seq) : c->made_ns[seq & l->ring_mask];
    while (c->oldest < c->next_seq && (*flags_of(c->source, c->oldest) & CONFIRMED) != 0)
        c->oldest++;
    c->in_flight--;
    l->counts.confirmed++;
    if (from >= l->begin_ns && from < l->end_ns)
        record(&l->confirm, now - from);
    note(l, 'S', l->run, c->index, seq);
}

static void on_ready(struct load *l, struct connection *c)
{
    c->stage = READY;
    l->ready++;
}

/* Receipts but those of SEND: of SUBSCRIBE, DISCONNECT, and in ledger mode of each ACK. */
static void on_receipt(struct load *l, struct connection *c, struct span receipt, uint64_t now)
{
    char text[64];
    uint32_t run, producer;
    uint64_t seq;
    snprintf(text, sizeof text, "%.*s", (int)(receipt.size < 60 ? receipt.size : 60), receipt.data);
    if (strcmp(text, "bye") == 0 && c->stage == CLOSING) {
        c->stage = CLOSED;
        l->closed++;
    } else if (c->produces) {
        on_confirm(l, c, receipt, now); /* late: after DISCONNECT was sent */
    } else if (strcmp(text, "subscribe") == 0 && c->stage == SUBSCRIBING) {
        if (--c->waiting == 0)
            on_ready(l, c);
    } else if (sscanf(text, "%" SCNu32 " %" SCNu32 " %" SCNu64, &run, &producer, &seq) == 3 &&
               seq < SEQ_LIMIT) {
        note(l, 'A', run, producer, seq);
    } else {
        l->checks.receipt_errors++;
    }
}

/* Book one received body; false when its stamp can't be trusted. */
static bool check_body(struct load *l, const struct frame *f, struct stamp *stamp, uint64_t now)
{
    struct span body = f->body;
    uint64_t queue;
    if (body.size >= sizeof *stamp)
        memcpy(stamp, body.data, sizeof *stamp);
    bool is_stamped = body.size >= sizeof *stamp && stamp->magic == MAGIC && stamp->body_bytes == body.size &&
                      stamp->seq < SEQ_LIMIT && stamp->producer < SOURCE_LIMIT;
    if (is_stamped && l->producers > 0 && stamp->run != l->run) {
        l->checks.foreign++; /* left over from an earlier run, of its own body size: acknowledged and, where
                                there is a ledger of all runs, booked there; not counted */
        return l->ledger_fd >= 0;
    }
    if (!is_stamped || body.size > l->body_size ||
        memcmp(body.data + sizeof *stamp, l->filler, body.size - sizeof *stamp) != 0) {
        l->checks.corrupt++;
        return false;
    }
    if (l->producers > 0 && (stamp->producer >= l->producers ||
                             stamp->seq >= l->connections[stamp->producer].next_seq)) {
        l->checks.corrupt++; /* never sent by this run */
        return false;
    }
    bool is_known = get_number(f->subscription, &queue) && queue < l->queues;
    /* Of a fan each queue has its own ledger: it gets every message, once and in order. */
    bool is_fan = l->options.fan > 0 && is_known;
    struct source *s = find_source(
        l, stamp->run, is_fan ? stamp->producer * l->queues + (uint32_t)queue : stamp->producer);
    uint8_t *flags = flags_of(s, stamp->seq);
    l->checks.duplicates += (*flags & RECEIVED) != 0;
    if (!is_known ||
        (l->producers > 0 && queue != queue_of(l, stamp->producer, stamp->seq)))
        l->checks.misrouted++;
    else if (l->order_checked && (*flags & RECEIVED) == 0) {
        l->checks.out_of_order += stamp->seq + 1 < s->last_seq[queue];
        if (stamp->seq + 1 > s->last_seq[queue])
            s->last_seq[queue] = stamp->seq + 1;
    }
    if ((*flags & RECEIVED) == 0) {
        l->counts.delivered++;
        if (stamp->time_ns >= l->begin_ns && stamp->time_ns < l->end_ns && now > stamp->time_ns)
            record(&l->end_to_end, now - stamp->time_ns);
    }
    *flags |= RECEIVED;
    return true;
}

static void put_pending_ack(struct load *l, struct connection *c)
{
    if (c->pending_count > 0)
        put_ack(l, c, c->pending_ack, NULL);
    l->counts.acknowledged += c->pending_count;
    c->pending_count = 0;
}

static void on_message(struct load *l, struct connection *c, const struct frame *f, uint64_t now)
{
    struct stamp stamp;
    bool trusted = check_body(l, f, &stamp, now);
    l->idle_since_ns = now;
    if (trusted)
        note(l, 'T', stamp.run, stamp.producer, stamp.seq);
    if ((l->individual || l->cumulative) && f->ack.data == NULL) {
        stop_text(l, EXIT_CHECK, "protocol error", "MESSAGE without an ack header (STOMP 1.2)");
    } else if (l->individual) {
        put_ack(l, c, f->ack, trusted ? &stamp : NULL);
        l->counts.acknowledged++;
    } else if (l->cumulative) {
        if (c->pending_count > 0 && (c->pending_sub.size != f->subscription.size ||
             memcmp(c->pending_sub.data, f->subscription.data, c->pending_sub.size) != 0))
            put_pending_ack(l, c);
        c->pending_ack = f->ack;
        c->pending_sub = f->subscription;
        c->pending_count++;
    }
}

static void subscribe(struct load *l, struct connection *c)
{
    uint32_t step = l->consumers >= l->queues ? l->queues : l->consumers;
    for (uint32_t q = c->index % l->queues; q < l->queues; q += step) {
        struct span name = l->prefixes[q * l->variants]; /* "SEND\ndestination:NAME\n..." */
        const char *from = name.data + 5, *eol = strchr(from, '\n');
        append(&c->out, "SUBSCRIBE\nid:%" PRIu32 "\n%.*s\nack:%s\nreceipt:subscribe\n", q,
               (int)(eol - from), from, l->options.ack);
        if (strcmp(l->options.destination_type, "none") != 0)
            append(&c->out, "destination-type:%s\nsubscription-type:%s\n",
                   l->options.destination_type, l->options.destination_type);
        if (*l->options.selector != '\0')
            append(&c->out, "selector:%s\n", l->options.selector);
        if (l->options.prefetch > 0)
            append(&c->out, "%s:%.0f\n", l->options.prefetch_header, l->options.prefetch);
        append(&c->out, "\n%c", '\0');
        c->waiting++;
    }
    c->stage = SUBSCRIBING;
}

static void on_frame(struct load *l, struct connection *c, const struct frame *f, uint64_t now)
{
    if (f->command == 'R' && c->produces && c->stage == READY) {
        on_confirm(l, c, f->receipt, now);
    } else if (f->command == 'R' && f->receipt.data != NULL) {
        on_receipt(l, c, f->receipt, now);
    } else if (f->command == 'M' && !c->produces) {
        on_message(l, c, f, now);
    } else if (f->command == 'C' && c->stage == CONNECTING) {
        if (c->produces)
            on_ready(l, c);
        else
            subscribe(l, c);
    } else if (f->command == 'E') {
        stop(l, EXIT_CHECK, "broker error", f->message.data != NULL ? f->message : f->body);
    } else if (f->command != 0) {
        stop_text(l, EXIT_CHECK, "protocol error", "a frame that has no place here");
    }
}

static void on_readable(struct load *l, struct connection *c)
{
    size_t have = c->in.end - c->in.start;
    char *to = reserve(&c->in, c->needed > have + READ_BYTES ? c->needed - have : READ_BYTES);
    ssize_t n = recv(c->fd, to, c->in.size - c->in.end, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        if (c->stage == CLOSING)
            l->closed++;
        else if (c->stage != CLOSED)
            stop_text(l, EXIT_LOST, "connection lost", n == 0 ? "closed by the broker" :
                      strerror(errno));
        c->stage = CLOSED;
        epoll_ctl(l->epoll, EPOLL_CTL_DEL, c->fd, NULL);
        return;
    }
    uint64_t now = now_ns();
    struct counts before = l->counts;
    c->in.end += (size_t)n;
    while (c->in.end - c->in.start > 0 && c->in.end - c->in.start >= c->needed) {
        struct frame frame;
        ssize_t used = parse_frame(c->in.data + c->in.start, c->in.end - c->in.start, &frame);
        c->needed = used == 0 ? frame.needed : 0;
        if (used < 0)
            stop_text(l, EXIT_CHECK, "protocol error", "malformed frame from the broker");
        if (used <= 0 || l->phase == DONE)
            break;
        c->in.start += (size_t)used;
        on_frame(l, c, &frame, now);
    }
    put_pending_ack(l, c);
    write_ledger(l); /* before the acknowledgements that it announces */
    uint64_t second = (now - l->begin_ns) / NS;
    if (now >= l->begin_ns && now < l->end_ns && second < SERIES_LIMIT) {
        l->series[second][0] += (uint32_t)(l->counts.confirmed - before.confirmed);
        l->series[second][1] += (uint32_t)(l->counts.delivered - before.delivered);
    }
    if (c->produces && c->stage == READY && l->phase >= RUN)
        produce(l, c, now);
    else
        flush(l, c);
}

/* --- the run ---------------------------------------------------------------------------------- */
static bool all_confirmed(const struct load *l, bool quota_too)
{
    if (l->counts.confirmed < l->counts.sent)
        return false;
    for (uint32_t p = 0; quota_too && p < l->producers; p++)
        if (l->connections[p].next_seq < l->quota)
            return false;
    return l->consumers == 0 || l->counts.delivered >= l->counts.sent;
}

/* Open loop: a due message that still waits, or the next one's moment; UINT64_MAX for none. */
static uint64_t next_due_ns(const struct load *l)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t p = 0; p < l->producers && l->options.rate > 0; p++) {
        const struct connection *c = &l->connections[p];
        uint64_t due = c->next_seq < l->quota ? intended_ns(l, c, c->next_seq) : UINT64_MAX;
        if (due < l->end_ns && due < next)
            next = due;
    }
    return next;
}

static void advance(struct load *l, uint64_t now);

static void enter(struct load *l, enum phase phase, uint64_t now)
{
    l->phase = phase;
    l->phase_ns = now;
    if (phase == RUN) {
        l->start_ns = l->idle_since_ns = now;
        l->begin_ns = now + to_ns(l->options.warmup);
        l->end_ns = l->begin_ns + to_ns(l->options.seconds);
        advance(l, now); /* without a warm-up the window opens before the first frame */
    } else if (phase == DRAIN) {
        l->end_ns = now < l->end_ns ? now : l->end_ns;
        if (l->begin.time_ns == 0)
            take_snapshot(&l->begin, l->counts, now);
        /* A drain that ended by falling silent is measured up to its last message. */
        bool silent = l->producers == 0 && l->idle_since_ns > l->begin.time_ns;
        take_snapshot(&l->end, l->counts, silent ? l->idle_since_ns : now);
        fputs("stompload: measured\n", stderr);
    }
    for (size_t i = 0; phase == CLOSE && i < l->connection_count; i++) {
        l->connections[i].stage = CLOSING;
        append(&l->connections[i].out, "DISCONNECT\nreceipt:bye\n\n%c", '\0');
        flush(l, &l->connections[i]);
    }
    for (uint32_t p = 0; phase == RUN && p < l->producers; p++)
        produce(l, &l->connections[p], now);
}

/* Move to the next phase when its time has come. */
static void advance(struct load *l, uint64_t now)
{
    const struct options *o = &l->options;
    if (l->phase == CONNECT && l->ready == l->connection_count)
        enter(l, RUN, now);
    else if (l->phase == CONNECT && now - l->phase_ns > 10 * NS)
        stop_text(l, EXIT_LOST, "connection lost", "no CONNECTED or SUBSCRIBE receipt in 10 s");
    if (l->phase == RUN) {
        bool quiet = l->producers == 0 && (now - l->idle_since_ns > to_ns(o->idle) ||
                                           (double)l->counts.delivered >= o->messages);
        if (now >= l->begin_ns && l->begin.time_ns == 0) {
            if (now >= l->end_ns) { /* a busy machine let all of it pass: measure from here */
                l->begin_ns = now;
                l->end_ns = now + to_ns(o->seconds);
            }
            take_snapshot(&l->begin, l->counts, now);
            fputs("stompload: measuring\n", stderr);
        }
        if (now >= l->end_ns || quiet || (l->producers > 0 && all_confirmed(l, true)))
            enter(l, DRAIN, now);
    }
    if (l->phase == DRAIN && (l->producers == 0 || now - l->phase_ns > to_ns(o->drain_seconds) ||
                              (all_confirmed(l, false) && next_due_ns(l) == UINT64_MAX)))
        enter(l, CLOSE, now);
    if (l->phase == CLOSE && (l->closed == l->connection_count || now - l->phase_ns > 2 * NS))
        l->phase = DONE;
}

/* Nanoseconds until something is due even if no socket stirs. */
static uint64_t wait_ns(const struct load *l, uint64_t now)
{
    uint64_t due = now + 20000000ull;
    uint64_t planned = l->phase == RUN || l->phase == DRAIN ? next_due_ns(l) : UINT64_MAX;
    if (l->phase == RUN && l->begin.time_ns == 0 && l->begin_ns < due)
        due = l->begin_ns;
    if (l->phase == RUN && l->end_ns < due)
        due = l->end_ns;
    if (planned > now && planned < due) /* what is due already waits for EPOLLOUT */
        due = planned;
    return due > now ? due - now : 0;
}

static void run_loop(struct load *l)
{
    struct epoll_event events[256];
    l->phase_ns = now_ns();
    while (l->phase != DONE) {
        uint64_t now = now_ns(), wait = wait_ns(l, now);
        struct timespec timeout = {(time_t)(wait / NS), (long)(wait % NS)};
        int count = epoll_pwait2(l->epoll, events, 256, &timeout, NULL);
        if (count < 0 && errno != EINTR)
            die(EXIT_CHECK, "epoll_pwait2: %s (Linux 5.11 or newer is needed)", strerror(errno));
        for (int i = 0; i < count && l->phase != DONE; i++) {
            struct connection *c = events[i].data.ptr;
            if ((events[i].events & EPOLLOUT) != 0)
                flush(l, c);
            if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0 && l->phase != DONE)
                on_readable(l, c);
            else if (c->produces && c->stage == READY)
                produce(l, c, now_ns());
        }
        now = now_ns();
        for (uint32_t p = 0; l->options.rate > 0 && p < l->producers; p++)
            produce(l, &l->connections[p], now);
        advance(l, now);
    }
    if (l->end.time_ns == 0) { /* ended early: close the window here */
        take_snapshot(&l->end, l->counts, now_ns());
        if (l->begin.time_ns == 0)
            l->begin = l->end;
    }
}

/* --- the end: checks and report --------------------------------------------------------------- */
static void check_ledger(struct load *l)
{
    struct checks *k = &l->checks;
    int shown = 0;
    for (size_t i = 0; i < l->source_count; i++) {
        const struct source *s = l->sources[i];
        for (uint64_t seq = 0; seq < s->capacity; seq++) {
            uint8_t f = s->flags[seq];
            bool lost = (f & CONFIRMED) != 0 && (f & (RECEIVED | TRIED | ACKED)) == 0;
            bool resurrected = l->verifies && (f & ACKED) != 0 && (f & RECEIVED) != 0;
            k->confirmed_not_seen += lost;
            k->resurrected += resurrected;
            k->in_doubt += l->verifies && (f & (TRIED | ACKED)) == TRIED;
            if ((resurrected || (lost && (l->verifies || l->consumers > 0))) && shown++ < 10)
                fprintf(stderr, "stompload: %s: run %" PRIu32 " producer %" PRIu32 " seq %" PRIu64
                        "\n", lost ? "lost" : "resurrected", s->run, s->producer, seq);
        }
    }
    /* Loss can be told only where everything confirmed had the chance to arrive. */
    bool drained = l->consumers > 0 && (l->producers > 0 || l->verifies) && l->exit_code == 0;
    k->lost = drained ? k->confirmed_not_seen : 0;
    k->unconfirmed = l->counts.sent - l->counts.confirmed;
    if (l->exit_code == 0 && (k->lost + k->duplicates + k->misrouted + k->corrupt +
        k->receipt_errors + k->unconfirmed + k->resurrected > 0 ||
        (k->out_of_order > 0 && !l->verifies)))
        l->exit_code = EXIT_CHECK;
}

static void report(const struct load *l)
{
    const struct options *o = &l->options;
    const struct checks *k = &l->checks;
    struct counts a = l->begin.counts, b = l->end.counts;
    double seconds = (double)(l->end.time_ns - l->begin.time_ns) / 1e9;
    double per_s = seconds > 0 ? 1 / seconds : 0;
    uint64_t messages = b.confirmed - a.confirmed;
    if (messages < b.delivered - a.delivered)
        messages = b.delivered - a.delivered;
    double each = messages > 0 ? 1e6 / (double)messages : 0;
    double user = l->end.user_s - l->begin.user_s, system = l->end.system_s - l->begin.system_s;
    printf("{\"tool\":\"stompload\",\"passed\":%s,", l->exit_code == 0 ? "true" : "false");
    print_text("ended", l->ended);
    print_text("reason", l->reason);
    printf("\"settings\":{\"run\":%" PRIu32 ",\"producers\":%" PRIu32 ",\"consumers\":%" PRIu32
           ",\"queues\":%" PRIu32 ",\"window\":%" PRIu64 ",\"rate_per_s\":%.0f,\"body_size_bytes\":"
           "%zu,\"prefetch\":%.0f,\"warmup_s\":%g,\"messages\":%.0f,\"persistent\":true,", l->run,
           l->producers, l->consumers, l->queues, o->rate > 0 ? 0 : l->window, o->rate,
           l->body_size, o->prefetch, o->warmup, o->messages);
    print_text("loop", l->producers == 0 ? "drain" : o->rate > 0 ? "open" : "closed");
    print_text("ack", l->consumers > 0 ? o->ack : "none");
    printf("\"seconds\":%g},\"seconds\":%.6f,\"confirmed_per_s\":%.1f,\"delivered_per_s\":%.1f,",
           o->seconds, seconds, (double)(b.confirmed - a.confirmed) * per_s,
           (double)(b.delivered - a.delivered) * per_s);
    print_counts("window", a, b);
    print_counts("totals", (struct counts){0}, l->counts);
    print_latency("confirm_latency_us", &l->confirm);
    print_latency("end_to_end_latency_us", &l->end_to_end);
    printf("\"checks\":{\"lost\":%" PRIu64 ",\"duplicates\":%" PRIu64 ",\"out_of_order\":%" PRIu64
           ",\"misrouted\":%" PRIu64 ",\"corrupt\":%" PRIu64 ",\"foreign\":%" PRIu64
           ",\"receipt_errors\":%" PRIu64 ",\"unconfirmed\":%" PRIu64 ",\"confirmed_not_seen\":%"
           PRIu64 ",\"resurrected\":%" PRIu64 ",\"in_doubt\":%" PRIu64 ",\"order_checked\":%s},",
           k->lost, k->duplicates, k->out_of_order, k->misrouted, k->corrupt, k->foreign,
           k->receipt_errors, k->unconfirmed, k->confirmed_not_seen, k->resurrected, k->in_doubt,
           l->order_checked && l->consumers > 0 ? "true" : "false");
    printf("\"generator\":{\"user_us_per_message\":%.3f,\"system_us_per_message\":%.3f,"
           "\"cores\":%.3f},\"per_second\":[", user * each, system * each, (user + system) * per_s);
    for (uint32_t s = 0; s < SERIES_LIMIT && (s == 0 || (double)s + 0.01 < seconds); s++)
        printf("%s[%" PRIu32 ",%" PRIu32 "]", s > 0 ? "," : "", l->series[s][0], l->series[s][1]);
    puts("]}");
}

/* --- start ------------------------------------------------------------------------------------ */
struct setting { const char *name; size_t offset; double low, high; const char *help; };
#define AT(field) offsetof(struct options, field)
#define NUMBER(name, field, low, high, help) {name, AT(field), low, high, help}
#define TEXT(name, field, help) {name, AT(field), 0, -1, help}
static const struct setting SETTINGS[] = {
    TEXT("host", host, "loopback address of the broker (127.0.0.0/8 or ::1); others are refused"),
    NUMBER("port", port, 1, 65535, "port that speaks STOMP"),
    TEXT("login", login, "user name; none sends no login"),
    TEXT("passcode", passcode, "password"),
    TEXT("vhost", vhost, "host header of CONNECT"),
    TEXT("destination", destination, "queue name; %d becomes the queue's number"),
    TEXT("destination-type", destination_type, "ANYCAST or MULTICAST; none sends no such header"),
    NUMBER("queues", queues, 1, 100000, "queues; a producer keeps to its own share of them"),
    NUMBER("producers", producers, 0, 4096, "producing connections; 0 only drains"),
    NUMBER("window", window, 1, 1000000, "closed loop: unconfirmed messages a producer"),
    NUMBER("rate", rate, 0, 1e7, "open loop: messages a second of all producers; 0 = closed loop"),
    NUMBER("consumers", consumers, 0, 4096, "consuming connections; 0 only produces"),
    NUMBER("fan", fan, 0, 1, "1: every queue gets each message (needs producers 0)"),
    TEXT("ack", ack, "client-individual, client (cumulative) or auto"),
    NUMBER("prefetch", prefetch, 0, 1e6, "credit asked for by each subscription; 0 = the broker's"),
    TEXT("prefetch-header", prefetch_header, "name of the header that carries it"),
    TEXT("send-header", send_header, "a header line of each SEND; %d is its queue, %v its variant"),
    NUMBER("variants", variants, 1, 100000, "how many send-headers with %v there are, at random"),
    TEXT("selector", selector, "selector of each subscription"),
    NUMBER("body-size", body_size, sizeof(struct stamp), 1 << 24, "bytes a body; drain: at most"),
    NUMBER("warmup", warmup, 0, 3600, "seconds before the measured window"),
    NUMBER("seconds", seconds, 0.01, 86400, "length of the measured window, at most"),
    NUMBER("messages", messages, 1, 1e9, "messages of the run, warm-up included, at most"),
    NUMBER("drain-seconds", drain_seconds, 0, 3600, "wait after it for confirms and deliveries"),
    NUMBER("idle", idle, 0.01, 3600, "draining ends after so many seconds without a message"),
    NUMBER("run", run, 0, UINT32_MAX, "number in each body, unique per ledger; 0 = from the clock"),
    TEXT("ledger", ledger, "append confirmed sends and acknowledgements to this file"),
    TEXT("verify-ledger", verify, "drain, then compare with this ledger (may be repeated)"),
};

static void usage(const struct options *o)
{
    puts("usage: stompload --port N [--NAME VALUE]...\nPrints one JSON object. Options (default):");
    for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
        const struct setting *s = &SETTINGS[i];
        const char *at = (const char *)o + s->offset;
        if (s->low <= s->high)
            printf("  --%-16s %s (%.10g)\n", s->name, s->help, *(const double *)(const void *)at);
        else
            printf("  --%-16s %s (%s)\n", s->name, s->help,
                   *(const char *const *)(const void *)at ? *(const char *const *)(const void *)at
                                                          : "none");
    }
    exit(0);
}

static void set_option(struct options *o, const char *name, const char *value, size_t *verify_count)
{
    for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
        const struct setting *s = &SETTINGS[i];
        char *end, *at = (char *)o + s->offset;
        if (strncmp(name, "--", 2) != 0 || strcmp(name + 2, s->name) != 0)
            continue;
        if (value == NULL)
            die(EXIT_USAGE, "%s needs a value", name);
        if (s->offset == offsetof(struct options, verify)) {
            if (*verify_count == VERIFY_LIMIT)
                die(EXIT_USAGE, "%s: at most %u ledgers", name, VERIFY_LIMIT);
            o->verify[(*verify_count)++] = value;
        } else if (s->low > s->high) {
            if (strpbrk(value, "\r\n") != NULL)
                die(EXIT_USAGE, "%s: line ends can't stand in a header", name);
            *(const char **)(void *)at = value;
        } else {
            double number = strtod(value, &end);
            if (*value == '\0' || *end != '\0' || !(number >= s->low && number <= s->high))
                die(EXIT_USAGE, "%s %s: not a number from %.10g to %.10g", name, value, s->low,
                    s->high);
            *(double *)(void *)at = number;
        }
        return;
    }
    die(EXIT_USAGE, "unknown option %s: see --help", name);
}

static void read_options(struct options *o, int argc, char **argv)
{
    size_t verify_count = 0;
    *o = (struct options){.host = "127.0.0.1", .vhost = "localhost", .destination = "bench.%d",
        .destination_type = "ANYCAST", .ack = "client-individual", .port = 61613, .queues = 1,
        .prefetch_header = "prefetch-count", .send_header = "", .selector = "", .variants = 1,
        .producers = 1, .window = 1, .body_size = 1024, .warmup = 1,
        .seconds = 5, .messages = 20e6, .drain_seconds = 10, .idle = 1};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0)
            usage(o);
        set_option(o, argv[i], argv[i + 1], &verify_count);
    }
    bool individual = strcmp(o->ack, "client-individual") == 0;
    if (!individual && strcmp(o->ack, "client") != 0 && strcmp(o->ack, "auto") != 0)
        die(EXIT_USAGE, "--ack %s: not client-individual, client or auto", o->ack);
    if (o->producers + o->consumers < 1)
        die(EXIT_USAGE, "--producers 0 --consumers 0 leaves nothing to do: give one of them");
    if (o->queues > 1 && strstr(o->destination, "%d") == NULL)
        die(EXIT_USAGE, "--queues %.0f needs %%d in --destination %s", o->queues, o->destination);
    if (o->fan > 0 && (o->producers > 0 || o->ledger != NULL || verify_count > 0))
        die(EXIT_USAGE, "--fan 1 only drains, and without a ledger");
    if (o->producers * o->queues > 1e7)
        die(EXIT_USAGE, "--producers x --queues is %.0f, at most 1e7", o->producers * o->queues);
    if (o->messages / (o->producers > 0 ? o->producers : 1) >= (double)SEQ_LIMIT)
        die(EXIT_USAGE, "--messages is more than %llu a producer", SEQ_LIMIT);
    if (o->ledger != NULL && o->consumers > 0 && !individual)
        die(EXIT_USAGE, "--ledger with consumers needs --ack client-individual");
    if (o->queues * o->variants > 1e6)
        die(EXIT_USAGE, "--queues times --variants is more than a million");
    if (verify_count > 0 && (o->producers > 0 || o->consumers < 1))
        die(EXIT_USAGE, "--verify-ledger drains: give --producers 0 --consumers 1 or more");
}

/* The header line that SENDs have beside their own; "%d" is the queue's number, "%v" the variant's. */
static void append_header(struct buffer *b, const char *line, uint32_t queue, uint32_t variant)
{
    if (*line != '\0')
        append(b, "\n");
    for (; *line != '\0'; line++)
        if (line[0] == '%' && (line[1] == 'd' || line[1] == 'v'))
            append(b, "%" PRIu32, *++line == 'd' ? queue : variant);
        else
            append(b, "%c", *line);
}

/* Everything that follows from the options, before the first socket. */
static void prepare(struct load *l)
{
    const struct options *o = &l->options;
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    uint64_t unique = (uint64_t)clock.tv_sec * 1000 + (uint64_t)clock.tv_nsec / 1000000;
    l->producers = (uint32_t)o->producers;
    l->consumers = (uint32_t)o->consumers;
    l->queues = (uint32_t)o->queues;
    l->variants = (uint32_t)o->variants;
    l->run = o->run > 0 ? (uint32_t)o->run : (uint32_t)(unique ^ ((uint64_t)getpid() << 16)) | 1u;
    l->body_size = (size_t)o->body_size;
    l->window = (uint64_t)o->window;
    l->quota = l->producers > 0 ? (uint64_t)o->messages / l->producers : 0;
    l->individual = strcmp(o->ack, "client-individual") == 0;
    l->cumulative = strcmp(o->ack, "client") == 0;
    l->verifies = o->verify[0] != NULL;
    l->order_checked = l->consumers <= l->queues && l->variants == 1;
    l->ended = "complete";
    l->begin_ns = l->end_ns = UINT64_MAX;
    for (l->ring_mask = 1023; l->ring_mask < 4 * l->window; l->ring_mask = l->ring_mask * 2 + 1) {}
    l->filler = allocate(l->body_size, 1);
    for (size_t i = 0; i < l->body_size; i++)
        l->filler[i] = (char)('a' + i % 23);
    l->prefixes = allocate((size_t)l->queues * l->variants, sizeof *l->prefixes);
    const char *hole = strstr(o->destination, "%d");
    for (uint32_t kind = 0; kind < l->queues * l->variants; kind++) {
        uint32_t q = kind / l->variants;
        struct buffer b = {0};
        append(&b, "SEND\ndestination:%.*s", (int)(hole == NULL ? (ptrdiff_t)strlen(o->destination)
               : hole - o->destination), o->destination);
        if (hole != NULL)
            append(&b, "%" PRIu32 "%s", q, hole + 2);
        if (strcmp(o->destination_type, "none") != 0)
            append(&b, "\ndestination-type:%s", o->destination_type);
        append_header(&b, o->send_header, q, kind % l->variants);
        append(&b, "\npersistent:true\ncontent-length:%zu\nreceipt:", l->body_size);
        l->prefixes[kind] = (struct span){b.data, b.end};
        if (b.end + l->body_size + 64 > l->frame_size)
            l->frame_size = b.end + l->body_size + 64;
    }
    l->sources = allocate(SOURCE_LIMIT, sizeof *l->sources);
    l->source_slots = allocate(2 * SOURCE_LIMIT, sizeof *l->source_slots);
    for (size_t i = 0; i < VERIFY_LIMIT && o->verify[i] != NULL; i++)
        read_ledger(l, o->verify[i]);
    l->ledger_fd = o->ledger == NULL ? -1 :
        open(o->ledger, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (o->ledger != NULL && l->ledger_fd < 0)
        die(EXIT_USAGE, "ledger %s: %s", o->ledger, strerror(errno));
}

static socklen_t resolve(const struct options *o, struct sockaddr_storage *address)
{
    struct sockaddr_in *v4 = (void *)address;
    struct sockaddr_in6 *v6 = (void *)address;
    const char *host = strcmp(o->host, "localhost") == 0 ? "127.0.0.1" : o->host;
    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1 && ntohl(v4->sin_addr.s_addr) >> 24 == 127) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)o->port);
        return sizeof *v4;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)o->port);
        return sizeof *v6;
    }
    die(EXIT_USAGE, "--host %s: not a loopback address; load stays on this machine", o->host);
}

static void connect_all(struct load *l)
{
    struct sockaddr_storage address;
    socklen_t size = resolve(&l->options, &address);
    l->connection_count = l->producers + l->consumers;
    l->connections = allocate(l->connection_count, sizeof *l->connections);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < l->connection_count; i++) {
        struct connection *c = &l->connections[i];
        int on = 1;
        c->produces = i < l->producers;
        c->index = (uint32_t)(c->produces ? i : i - l->producers);
        c->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, size) != 0)
            die(EXIT_LOST, "connect to %s port %.0f: %s", l->options.host, l->options.port,
                strerror(errno));
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->events = EPOLLIN;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &event) != 0)
            die(EXIT_CHECK, "epoll_ctl: %s", strerror(errno));
        if (c->produces) {
            c->source = find_source(l, l->run, c->index);
            c->made_ns = allocate(l->ring_mask + 1, sizeof *c->made_ns);
        }
        append(&c->out, "CONNECT\naccept-version:1.2\nhost:%s\nheart-beat:0,0\n", l->options.vhost);
        if (l->options.login != NULL)
            append(&c->out, "login:%s\n", l->options.login);
        if (l->options.passcode != NULL)
            append(&c->out, "passcode:%s\n", l->options.passcode);
        append(&c->out, "\n%c", '\0');
        flush(l, c);
    }
}

int main(int argc, char **argv)
{
    struct rlimit files;
    struct load *l = allocate(1, sizeof *l);
    read_options(&l->options, argc, argv);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1ul); /* the open loop's wake-ups: 50 us late by default */
    prepare(l);
    connect_all(l);
    run_loop(l);
    write_ledger(l);
    check_ledger(l);
    report(l);
    return l->exit_code;
}
