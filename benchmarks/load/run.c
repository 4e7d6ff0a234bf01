/* The run of protocolload: one thread, one epoll, from the first connection to the last confirm.
 *
 * Owns: the connections' reads and writes, and the phases. Must never: run without an end; time and count are bounded. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "load.h"

enum { READ_BYTES = 262144, SEND_BYTES = 131072, LOGIN_S = 30, LINGER_MS = 50 };

void die_of(const struct client *c, int code, const char *format, ...)
{
    static const char *const ROLES[] = {"producer", "consumer", "keeper"};
    char text[1024];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    die(code, "%s %u by %s: %s", ROLES[c->role], c->index, c->protocol->name, text);
}

static void update_events(struct load *l, struct client *c)
{
    uint32_t wanted = EPOLLIN | (c->out.start < c->out.end ? EPOLLOUT : 0u);
    if (wanted == c->events)
        return;
    struct epoll_event event = {.events = wanted, .data.u32 = (uint32_t)(c - l->clients)};
    if (epoll_ctl(l->epoll, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->channel.fd, &event))
        die(EXIT_LOST, "epoll_ctl: %s", strerror(errno));
    c->events = wanted;
}

static void flush(struct load *l, struct client *c)
{
    while (c->out.start < c->out.end) {
        ssize_t sent = channel_write(&c->channel, c->out.data + c->out.start, c->out.end - c->out.start);
        if (sent == 0)
            break;
        if (sent < 0) {
            c->is_cut = true; /* reading goes on to the end: the broker may have said why */
            c->out.start = c->out.end;
            break;
        }
        c->out.start += (size_t)sent;
    }
    update_events(l, c);
}

void be_ready(struct load *l, struct client *c)
{
    if (!c->is_ready)
        l->ready++;
    c->is_ready = true;
}

static bool may_send(const struct load *l, const struct client *c)
{
    return (l->phase == WARM || l->phase == RUN) && !c->is_cut && l->counts.sent < l->quota && c->in_flight < l->window &&
           c->next_seq - c->oldest <= l->ring_mask && c->protocol->may_put(c);
}

/* Send all that window, broker and socket allow, in as few writes as that takes. */
static void produce(struct load *l, struct client *c)
{
    while (c->out.start == c->out.end && may_send(l, c)) {
        l->put_ns = now_ns();
        do {
            c->protocol->put(l, c, c->next_seq);
            note_sent(l, c);
        } while (c->out.end - c->out.start < SEND_BYTES && may_send(l, c));
        flush(l, c);
    }
}

static void on_readable(struct load *l, struct client *c)
{
    ssize_t got;
    do {
        got = channel_read(&c->channel, reserve(&c->in, READ_BYTES), READ_BYTES);
        if (got < 0)
            die_of(c, EXIT_LOST, "the broker closed the connection");
        c->in.end += (size_t)got;
        uint64_t now = now_ns();
        size_t used = 1;
        while (used && c->in.start < c->in.end) {
            used = c->protocol->take(l, c, c->in.data + c->in.start, c->in.end - c->in.start, now);
            c->in.start += used;
        }
    } while (got > 0 && channel_has_more(&c->channel));
    c->protocol->after_read(c);
    flush(l, c);
    if (c->role == KEEPS && c->is_ready && c->out.start == c->out.end)
        channel_close(&c->channel);
}

static void enter(struct load *l, enum phase phase, uint64_t now)
{
    l->phase = phase;
    l->phase_ns = now;
    if (phase == RUN) {
        take_snapshot(&l->begin, l->counts, now);
        fprintf(stderr, "%s: measuring\n", PROGRAM);
    } else if (phase == DRAIN) {
        take_snapshot(&l->end, l->counts, now);
        fprintf(stderr, "%s: measured\n", PROGRAM);
    }
}

static void advance(struct load *l, uint64_t now)
{
    double elapsed_s = (double)(now - l->phase_ns) / 1e9;
    bool is_made = l->counts.sent >= l->quota && l->counts.confirmed == l->counts.sent;
    if (l->phase == LOGIN && l->ready == l->client_count)
        enter(l, l->options.warmup > 0 ? WARM : RUN, now); /* without a warm-up the window opens before the first message */
    else if (l->phase == LOGIN && elapsed_s > LOGIN_S)
        die(EXIT_LOST, "%u of %u clients were let in within %d seconds", l->ready, l->client_count, LOGIN_S);
    else if (l->phase == WARM && (elapsed_s >= l->options.warmup || is_made))
        enter(l, RUN, now);
    else if (l->phase == RUN && (elapsed_s >= l->options.seconds || is_made))
        l->ended = is_made ? "messages" : "seconds", enter(l, DRAIN, now);
    else if (l->phase == DRAIN && (is_drained(l) || elapsed_s > l->options.drain_seconds))
        enter(l, LINGER, now);
    else if (l->phase == LINGER && elapsed_s * 1000 > LINGER_MS) /* what comes twice has had the time to come */
        enter(l, DONE, now);
}

void connect_all(struct load *l)
{
    for (uint32_t i = 0; i < l->client_count; i++) {
        struct client *c = &l->clients[i];
        channel_open(&c->channel, (uint16_t)l->options.port, l->trust);
        c->protocol->greet(l, c);
        flush(l, c);
    }
}

void run(struct load *l)
{
    struct epoll_event events[256];
    enter(l, LOGIN, now_ns());
    while (l->phase != DONE) {
        int count = epoll_wait(l->epoll, events, 256, 5);
        for (int i = 0; i < count; i++) {
            struct client *c = &l->clients[events[i].data.u32];
            if (events[i].events & EPOLLOUT)
                flush(l, c);
            if (events[i].events & ~(uint32_t)EPOLLOUT)
                on_readable(l, c);
        }
        advance(l, now_ns());
        for (uint32_t i = 0; i < l->producers; i++)
            produce(l, &l->clients[i]);
    }
}
