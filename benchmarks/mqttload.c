/* mqttload: an MQTT 3.1.1 and 5 load generator (QoS 1) that checks what it measures; beside stompload, and with its report.
 *
 * Owns: connections to ONE broker on 127.0.0.1, a ledger of every message it made, and the two latency
 * histograms. One thread, one epoll, no dependencies. Closed loop: each producer has `window` messages out.
 * Must never: run without an end, or print a figure without the loss, duplicate and order check beside it.
 * Called by: `python -m benchmarks.protocols`, and by hand; docs/howto/benchmarks.md.
 *
 * Every topic has a reader with a persistent session, so each message is journalled before its PUBACK: the consumer, or
 * without consumers one that has subscribed and gone. Producer p publishes to topic p % queues; consumer c reads topic c.
 * Exit: 0 good, 1 a check failed, 2 usage, 3 connection refused or lost. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000ull
#define MAGIC 0x564d5154u
enum { EXIT_CHECK = 1, EXIT_USAGE = 2, EXIT_LOST = 3 };
enum { CONFIRMED = 1, RECEIVED = 2 };
enum { READ_BYTES = 262144, SEND_BYTES = 131072, IDS = 65535, SLOTS = 37 * 1024, SECONDS_MAX = 3600, HEAD_MAX = 64 };
enum phase { LOGIN, WARM, RUN, DRAIN, DONE };

struct stamp { uint32_t magic, producer; uint64_t seq, time_ns; };
struct buffer { uint8_t *data; size_t start, end, size; };
struct histogram { uint64_t count, sum_ns, max_ns, slots[SLOTS]; };
struct counts { uint64_t sent, confirmed, delivered, acknowledged; };
struct options { double port, producers, consumers, queues, window, body_size, warmup, seconds, messages, drain_seconds,
                 version; };
struct client {
    int fd;
    uint32_t index, events;
    bool produces, is_ready;
    struct buffer in, out;
    uint64_t next_seq, oldest;            /* producer */
    uint64_t last_seq, *made_ns;
    uint8_t *flags;                       /* of its messages, by seq */
    uint64_t flags_size;
};
struct snapshot { uint64_t time_ns; struct counts counts; double user_s, system_s; };
struct load {
    struct options options;
    uint32_t producers, consumers, queues, window, ready;
    size_t body_size;
    bool is_5;
    uint64_t quota;
    struct client *clients;               /* producers first */
    int epoll;
    enum phase phase;
    uint64_t phase_ns;
    const char *ended;
    uint8_t *frame;                       /* a PUBLISH with room for its head in front of the body */
    struct counts counts;
    uint64_t duplicates, out_of_order, corrupt, receipt_errors;
    struct snapshot begin, end;
    struct histogram confirm, end_to_end;
    uint32_t series[SECONDS_MAX][2];
};

static void die(int code, const char *what)
{
    fprintf(stderr, "mqttload: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(code);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        die(EXIT_CHECK, "no memory");
    return memory;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

static uint8_t *reserve(struct buffer *b, size_t room)
{
    if (b->start == b->end)
        b->start = b->end = 0;
    if (b->size - b->end < room) {
        memmove(b->data, b->data + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
    }
    if (b->size - b->end < room) {
        b->size = (b->end + room) * 2;
        b->data = realloc(b->data, b->size);
        if (!b->data)
            die(EXIT_CHECK, "no memory");
    }
    return b->data + b->end;
}

/* --- histograms: 1024 slots for each power of two from 1 us on --------------------------------------------------- */
static void record(struct histogram *h, uint64_t ns)
{
    uint32_t shift = ns < 2048 ? 0 : 53 - (uint32_t)__builtin_clzll(ns);
    uint64_t slot = shift * 1024ull + (ns >> shift);
    h->slots[slot < SLOTS ? slot : SLOTS - 1]++;
    h->count++;
    h->sum_ns += ns;
    h->max_ns = ns > h->max_ns ? ns : h->max_ns;
}

static double percentile_us(const struct histogram *h, double share)
{
    uint64_t rank = (uint64_t)((double)h->count * share), seen = 0;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        seen += h->slots[slot];
        if (seen > rank || (h->count && seen == h->count)) {
            uint32_t shift = slot < 2048 ? 0 : slot / 1024 - 1;
            return (double)((uint64_t)(slot - shift * 1024u) << shift) / 1e3;
        }
    }
    return 0;
}

/* --- packets -------------------------------------------------------------------------------------------------------- */
static size_t put_length(uint8_t *at, size_t length)
{
    size_t count = 0;
    for (; length > 127; length >>= 7)
        at[count++] = (uint8_t)(length | 0x80);
    at[count++] = (uint8_t)length;
    return count;
}

static void put_connect(const struct load *l, struct buffer *out, const char *client_id, bool is_kept)
{
    uint8_t rest[256], *at = rest;
    size_t id = strlen(client_id);
    memcpy(at, l->is_5 ? "\0\4MQTT\5" : "\0\4MQTT\4", 7);
    at += 7;
    *at++ = is_kept ? 0 : 2;
    *at++ = 0, *at++ = 0; /* no keep alive */
    if (l->is_5) {
        memcpy(at, is_kept ? "\5\x11\xff\xff\xff\xff" : "\0", is_kept ? 6 : 1);
        at += is_kept ? 6 : 1;
    }
    *at++ = 0, *at++ = (uint8_t)id;
    memcpy(at, client_id, id);
    at += id;
    uint8_t *to = reserve(out, 512);
    *to++ = 0x10;
    to += put_length(to, (size_t)(at - rest));
    memcpy(to, rest, (size_t)(at - rest));
    out->end = (size_t)(to - out->data) + (size_t)(at - rest);
}

static void put_subscribe(const struct load *l, struct buffer *out, uint32_t topic)
{
    char name[32];
    int length = snprintf(name, sizeof name, "bench/%u", topic);
    uint8_t *to = reserve(out, 64), *at = to;
    *at++ = 0x82;
    *at++ = (uint8_t)(2 + (l->is_5 ? 1 : 0) + 2 + length + 1);
    *at++ = 0, *at++ = 1;
    if (l->is_5)
        *at++ = 0;
    *at++ = 0, *at++ = (uint8_t)length;
    memcpy(at, name, (size_t)length);
    at += length;
    *at++ = 1;
    out->end += (size_t)(at - to);
}

static void update_events(struct load *l, struct client *c)
{
    uint32_t wanted = EPOLLIN | (c->out.start < c->out.end ? EPOLLOUT : 0u);
    if (wanted == c->events)
        return;
    struct epoll_event event = {.events = wanted, .data.u32 = c->index};
    if (epoll_ctl(l->epoll, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &event))
        die(EXIT_LOST, "epoll_ctl");
    c->events = wanted;
}

static void flush(struct load *l, struct client *c)
{
    while (c->out.start < c->out.end) {
        ssize_t sent = write(c->fd, c->out.data + c->out.start, c->out.end - c->out.start);
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0)
            die(EXIT_LOST, "the broker closed a connection");
        c->out.start += (size_t)sent;
    }
    errno = 0;
    update_events(l, c);
}

static uint8_t *flags_of(struct client *c, uint64_t seq)
{
    if (seq >= c->flags_size) {
        uint64_t wider = c->flags_size ? c->flags_size * 2 : 1 << 16;
        while (wider <= seq)
            wider *= 2;
        c->flags = realloc(c->flags, wider);
        if (!c->flags)
            die(EXIT_CHECK, "no memory");
        memset(c->flags + c->flags_size, 0, wider - c->flags_size);
        c->flags_size = wider;
    }
    return &c->flags[seq];
}

static void produce(struct load *l, struct client *c, uint64_t now)
{
    char name[32];
    int topic = snprintf(name, sizeof name, "bench/%u", c->index % l->queues);
    size_t rest = 2 + (size_t)topic + 2 + (l->is_5 ? 1 : 0) + l->body_size;
    while (c->next_seq - c->oldest < l->window && l->counts.sent < l->quota && c->out.end - c->out.start < SEND_BYTES) {
        uint8_t *to = reserve(&c->out, rest + 8), *at = to;
        *at++ = 0x32;
        at += put_length(at, rest);
        *at++ = 0, *at++ = (uint8_t)topic;
        memcpy(at, name, (size_t)topic);
        at += topic;
        uint64_t id = c->next_seq % IDS + 1;
        *at++ = (uint8_t)(id >> 8), *at++ = (uint8_t)id;
        if (l->is_5)
            *at++ = 0;
        struct stamp stamp = {MAGIC, c->index, c->next_seq, now};
        memcpy(at, l->frame, l->body_size);
        memcpy(at, &stamp, sizeof stamp);
        c->out.end += (size_t)(at - to) + l->body_size;
        c->made_ns[c->next_seq % l->window] = now;
        (void)flags_of(c, c->next_seq);
        c->next_seq++;
        l->counts.sent++;
    }
}

static uint32_t second_of(const struct load *l, uint64_t now)
{
    uint64_t second = (now - l->begin.time_ns) / NS;
    return second < SECONDS_MAX ? (uint32_t)second : SECONDS_MAX - 1;
}

static void on_puback(struct load *l, struct client *c, const uint8_t *rest, size_t length, uint64_t now)
{
    uint64_t id = (uint64_t)rest[0] << 8 | rest[1];
    if (c->oldest == c->next_seq || id != c->oldest % IDS + 1 || (length > 2 && rest[2] >= 0x80)) {
        l->receipt_errors++;
        return;
    }
    *flags_of(c, c->oldest) |= CONFIRMED;
    l->counts.confirmed++;
    if (l->phase == RUN) {
        record(&l->confirm, now - c->made_ns[c->oldest % l->window]);
        l->series[second_of(l, now)][0]++;
    }
    c->oldest++;
}

static void on_publish(struct load *l, struct client *c, uint8_t first, const uint8_t *at, size_t length, uint64_t now)
{
    const uint8_t *end = at + length;
    size_t topic = (size_t)at[0] << 8 | at[1];
    at += 2 + topic;
    uint8_t id[2] = {at[0], at[1]};
    at += first & 6 ? 2 : 0;
    if (l->is_5)
        at += 1 + *at; /* its properties are short */
    struct stamp stamp;
    memset(&stamp, 0, sizeof stamp);
    if (at <= end && (size_t)(end - at) == l->body_size)
        memcpy(&stamp, at, sizeof stamp);
    if (stamp.magic != MAGIC || stamp.producer >= l->producers || stamp.producer % l->queues != c->index - l->producers ||
        stamp.seq >= l->clients[stamp.producer].next_seq || memcmp(at + sizeof stamp, l->frame + sizeof stamp,
                                                                   l->body_size - sizeof stamp)) {
        l->corrupt++;
        return;
    }
    struct client *from = &l->clients[stamp.producer];
    uint8_t *flags = flags_of(from, stamp.seq);
    l->duplicates += (*flags & RECEIVED) != 0;
    l->out_of_order += from->last_seq && stamp.seq + 1 <= from->last_seq;
    from->last_seq = stamp.seq + 1;
    *flags |= RECEIVED;
    l->counts.delivered++;
    if (l->phase == RUN) {
        record(&l->end_to_end, now - stamp.time_ns);
        l->series[second_of(l, now)][1]++;
    }
    if (first & 6) {
        uint8_t *to = reserve(&c->out, 4);
        to[0] = 0x40, to[1] = 2, to[2] = id[0], to[3] = id[1];
        c->out.end += 4;
        l->counts.acknowledged++;
    }
}

static void on_packet(struct load *l, struct client *c, const uint8_t *at, size_t header, size_t length, uint64_t now)
{
    uint32_t kind = *at >> 4;
    if (kind == 4 && c->produces) {
        on_puback(l, c, at + header, length - header, now);
    } else if (kind == 3 && !c->produces) {
        on_publish(l, c, *at, at + header, length - header, now);
    } else if (kind == 2 && !at[header + 1]) {
        if (!c->produces) {
            put_subscribe(l, &c->out, c->index - l->producers);
        } else {
            c->is_ready = true;
            l->ready++;
        }
    } else if (kind == 9 && !c->produces) {
        c->is_ready = true;
        l->ready++;
    } else {
        fprintf(stderr, "mqttload: packet of type %u, reason %u\n", kind, length > header + 1 ? at[header + 1] : 0);
        die(EXIT_CHECK, "the broker refused");
    }
}

static void on_readable(struct load *l, struct client *c)
{
    uint8_t *to = reserve(&c->in, READ_BYTES);
    ssize_t got = read(c->fd, to, READ_BYTES);
    if (got < 0 && errno == EAGAIN) {
        errno = 0;
        return;
    }
    if (got <= 0)
        die(EXIT_LOST, "the broker closed a connection");
    c->in.end += (size_t)got;
    uint64_t now = now_ns();
    for (;;) {
        const uint8_t *at = c->in.data + c->in.start;
        size_t left = c->in.end - c->in.start, length = 0, header = 1;
        bool is_whole = false;
        while (!is_whole && header < left && header < 5) {
            length |= (size_t)(at[header] & 127) << (7 * (header - 1));
            is_whole = at[header++] < 128;
        }
        if (!is_whole || left < header + length)
            return;
        on_packet(l, c, at, header, header + length, now);
        c->in.start += header + length;
    }
}

/* --- the run -------------------------------------------------------------------------------------------------------- */
static void snapshot(const struct load *l, struct snapshot *s, uint64_t now)
{
    struct rusage used;
    (void)getrusage(RUSAGE_SELF, &used);
    *s = (struct snapshot){now, l->counts, (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec / 1e6,
                           (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec / 1e6};
}

static bool is_drained(const struct load *l)
{
    return l->counts.confirmed == l->counts.sent && (!l->consumers || l->counts.delivered >= l->counts.sent);
}

static void enter(struct load *l, enum phase phase, uint64_t now)
{
    l->phase = phase;
    l->phase_ns = now;
    if (phase == RUN) {
        snapshot(l, &l->begin, now);
        fputs("mqttload: measuring\n", stderr);
    } else if (phase == DRAIN) {
        snapshot(l, &l->end, now);
        fputs("mqttload: measured\n", stderr);
    }
}

static void advance(struct load *l, uint64_t now)
{
    double elapsed_s = (double)(now - l->phase_ns) / 1e9;
    bool is_made = l->counts.sent >= l->quota && l->counts.confirmed == l->counts.sent;
    if (l->phase == LOGIN && l->ready == l->producers + l->consumers)
        enter(l, WARM, now);
    else if (l->phase == LOGIN && elapsed_s > 30)
        die(EXIT_LOST, "not all clients were let in within 30 seconds");
    else if (l->phase == WARM && (elapsed_s >= l->options.warmup || is_made))
        enter(l, RUN, now);
    else if (l->phase == RUN && (elapsed_s >= l->options.seconds || is_made))
        l->ended = is_made ? "messages" : "seconds", enter(l, DRAIN, now);
    else if (l->phase == DRAIN && (is_drained(l) || elapsed_s > l->options.drain_seconds))
        enter(l, DONE, now);
}

static void run(struct load *l)
{
    struct epoll_event events[256];
    enter(l, LOGIN, now_ns());
    while (l->phase != DONE) {
        int count = epoll_wait(l->epoll, events, 256, 5);
        for (int i = 0; i < count; i++) {
            struct client *c = &l->clients[events[i].data.u32];
            if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                on_readable(l, c);
            flush(l, c);
        }
        uint64_t now = now_ns();
        advance(l, now);
        for (uint32_t i = 0; i < l->producers && (l->phase == WARM || l->phase == RUN); i++) {
            produce(l, &l->clients[i], now);
            if (l->clients[i].out.start < l->clients[i].out.end)
                flush(l, &l->clients[i]);
        }
    }
}

/* --- the report ----------------------------------------------------------------------------------------------------- */
static void print_latency(const char *name, const struct histogram *h)
{
    printf("\"%s\": {\"count\": %" PRIu64 ", \"mean\": %.1f, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, "
           "\"max\": %.1f}, ",
           name, h->count, h->count ? (double)h->sum_ns / (double)h->count / 1e3 : 0, percentile_us(h, 0.5),
           percentile_us(h, 0.9), percentile_us(h, 0.99), percentile_us(h, 0.999), (double)h->max_ns / 1e3);
}

static void print_counts(const char *name, struct counts a, struct counts b)
{
    printf("\"%s\": {\"sent\": %" PRIu64 ", \"confirmed\": %" PRIu64 ", \"delivered\": %" PRIu64 ", \"acknowledged\": %" PRIu64
           "}, ", name, b.sent - a.sent, b.confirmed - a.confirmed, b.delivered - a.delivered,
           b.acknowledged - a.acknowledged);
}

static int report(struct load *l)
{
    const struct options *o = &l->options;
    uint64_t lost = 0, unconfirmed = 0, not_seen = 0;
    for (uint32_t i = 0; i < l->producers; i++)
        for (uint64_t seq = 0; seq < l->clients[i].next_seq; seq++) {
            uint8_t flags = *flags_of(&l->clients[i], seq);
            unconfirmed += !(flags & CONFIRMED);
            bool is_unseen = flags & CONFIRMED && !(flags & RECEIVED);
            lost += l->consumers && is_unseen;
            not_seen += !l->consumers && is_unseen;
        }
    bool is_good = !(lost || unconfirmed || l->duplicates || l->out_of_order || l->corrupt || l->receipt_errors);
    double seconds = (double)(l->end.time_ns - l->begin.time_ns) / 1e9;
    double confirmed = (double)(l->end.counts.confirmed - l->begin.counts.confirmed);
    double delivered = (double)(l->end.counts.delivered - l->begin.counts.delivered);
    double messages = l->consumers ? delivered : confirmed, user = l->end.user_s - l->begin.user_s,
           system = l->end.system_s - l->begin.system_s;
    printf("{\"passed\": %s, \"ended\": \"%s\", \"reason\": \"\", \"settings\": {\"version\": %.0f, \"producers\": %u, "
           "\"consumers\": %u, \"queues\": %u, \"window\": %u, \"body_size\": %zu}, \"seconds\": %.3f, "
           "\"confirmed_per_s\": %.0f, \"delivered_per_s\": %.0f, ",
           is_good ? "true" : "false", l->ended ? l->ended : "", o->version, l->producers, l->consumers, l->queues, l->window,
           l->body_size, seconds, confirmed / seconds, delivered / seconds);
    print_counts("window", l->begin.counts, l->end.counts);
    print_counts("totals", (struct counts){0}, l->counts);
    print_latency("confirm_latency_us", &l->confirm);
    print_latency("end_to_end_latency_us", &l->end_to_end);
    printf("\"checks\": {\"lost\": %" PRIu64 ", \"duplicates\": %" PRIu64 ", \"misrouted\": 0, \"corrupt\": %" PRIu64
           ", \"receipt_errors\": %" PRIu64 ", \"unconfirmed\": %" PRIu64 ", \"resurrected\": 0, \"out_of_order\": %" PRIu64
           ", \"foreign\": 0, \"confirmed_not_seen\": %" PRIu64 ", \"in_doubt\": 0, \"order_checked\": true}, ",
           lost, l->duplicates, l->corrupt, l->receipt_errors, unconfirmed, l->out_of_order, not_seen);
    printf("\"generator\": {\"user_us_per_message\": %.3f, \"system_us_per_message\": %.3f, \"cores\": %.3f}, \"per_second\": [",
           user * 1e6 / (messages > 0 ? messages : 1), system * 1e6 / (messages > 0 ? messages : 1), (user + system) / seconds);
    for (uint32_t i = 0; i < (uint32_t)seconds && i < SECONDS_MAX; i++)
        printf("%s[%u, %u]", i ? ", " : "", l->series[i][0], l->series[i][1]);
    puts("]}");
    return is_good ? 0 : EXIT_CHECK;
}

/* --- the beginning ---------------------------------------------------------------------------------------------------- */
static int open_socket(const struct load *l)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)l->options.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
        die(EXIT_LOST, "cannot connect to the broker");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

/* Subscribe to a topic in a persistent session, and go: what is published there is kept. */
static void leave_reader(const struct load *l, uint32_t topic)
{
    char id[32];
    uint8_t answer[64];
    struct buffer out = {0};
    (void)snprintf(id, sizeof id, "keeper-%u", topic);
    int fd = open_socket(l);
    put_connect(l, &out, id, true);
    put_subscribe(l, &out, topic);
    if (write(fd, out.data, out.end) != (ssize_t)out.end)
        die(EXIT_LOST, "cannot subscribe");
    size_t got = 0, needed = 4 + 5; /* CONNACK and SUBACK of MQTT 3.1.1 */
    for (bool is_done = false; !is_done;) {
        ssize_t more = read(fd, answer + got, sizeof answer - got);
        if (more <= 0)
            die(EXIT_LOST, "cannot subscribe");
        got += (size_t)more;
        size_t connack = 2u + answer[1];
        needed = got > connack + 1 ? connack + 2u + answer[connack + 1] : connack + 5;
        is_done = got >= needed;
    }
    if (answer[needed - 1] > 2 || write(fd, "\xe0", 2) != 2)
        die(EXIT_CHECK, "a subscription was refused");
    (void)close(fd);
    free(out.data);
}

static void prepare(struct load *l)
{
    const struct options *o = &l->options;
    l->producers = (uint32_t)o->producers, l->consumers = (uint32_t)o->consumers, l->queues = (uint32_t)o->queues;
    l->window = (uint32_t)o->window, l->body_size = (size_t)o->body_size, l->quota = (uint64_t)o->messages;
    l->is_5 = o->version >= 5;
    if (!l->producers || !l->queues || !l->window || l->window > IDS / 2 || l->body_size < sizeof(struct stamp) ||
        l->body_size > 1 << 20 || (l->consumers && l->consumers != l->queues) || (o->version != 4 && o->version != 5))
        die(EXIT_USAGE, "producers, queues, window 1 or more; consumers 0 or as many as queues; version 4 or 5; body 24 B to 1 MiB");
    l->frame = allocate(1, l->body_size);
    for (size_t i = 0; i < l->body_size; i++)
        l->frame[i] = (uint8_t)('a' + i % 26);
    l->epoll = epoll_create1(0);
    for (uint32_t topic = 0; !l->consumers && topic < l->queues; topic++)
        leave_reader(l, topic);
    l->clients = allocate(l->producers + l->consumers, sizeof *l->clients);
    for (uint32_t i = 0; i < l->producers + l->consumers; i++) {
        struct client *c = &l->clients[i];
        char id[32];
        *c = (struct client){.fd = open_socket(l), .index = i, .produces = i < l->producers};
        c->made_ns = allocate(c->produces ? l->window : 1, sizeof(uint64_t));
        (void)snprintf(id, sizeof id, c->produces ? "producer-%u" : "consumer-%u", i);
        put_connect(l, &c->out, id, !c->produces);
        if (fcntl(c->fd, F_SETFL, O_NONBLOCK))
            die(EXIT_LOST, "fcntl");
        flush(l, c);
    }
}

static void read_options(struct options *o, int argc, char **argv)
{
    struct { const char *name; double *value; } known[] = {
        {"--port", &o->port}, {"--producers", &o->producers}, {"--consumers", &o->consumers}, {"--queues", &o->queues},
        {"--window", &o->window}, {"--body-size", &o->body_size}, {"--warmup", &o->warmup}, {"--seconds", &o->seconds},
        {"--messages", &o->messages}, {"--drain-seconds", &o->drain_seconds}, {"--version", &o->version}};
    for (int i = 1; i < argc; i += 2) {
        bool is_known = false;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            if (!strcmp(argv[i], known[k].name) && i + 1 < argc) {
                char *end;
                *known[k].value = strtod(argv[i + 1], &end);
                is_known = !*end && *known[k].value >= 0;
            }
        if (!is_known) {
            fprintf(stderr, "mqttload: what is %s? options, each with a number:", argv[i]);
            for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
                fprintf(stderr, " %s", known[k].name);
            fputc('\n', stderr);
            exit(EXIT_USAGE);
        }
    }
}

int main(int argc, char **argv)
{
    struct load *l = allocate(1, sizeof *l);
    l->options = (struct options){.port = 1883, .producers = 1, .queues = 1, .window = 1, .body_size = 1024, .warmup = 1,
                                  .seconds = 4, .messages = 2e7, .drain_seconds = 10, .version = 4};
    read_options(&l->options, argc, argv);
    prepare(l);
    run(l);
    return report(l);
}
