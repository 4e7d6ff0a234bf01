/* The ledger of protocolload: every message that was made, whether it was confirmed and received, once and in order.
 *
 * Owns: the flags of each message. Must never: count a message twice as confirmed or delivered. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

#define MAGIC 0x564d5154u
enum { CONFIRMED = 1, RECEIVED = 2 };

static uint8_t *flags_of(struct client *c, uint64_t seq)
{
    if (seq >= c->flags_size) {
        uint64_t wider = c->flags_size ? c->flags_size * 2 : 1 << 16;
        while (wider <= seq)
            wider *= 2;
        c->flags = realloc(c->flags, wider);
        if (!c->flags)
            die(EXIT_CHECK, "no memory for a ledger of %llu messages", (unsigned long long)wider);
        memset(c->flags + c->flags_size, 0, wider - c->flags_size);
        c->flags_size = wider;
    }
    return &c->flags[seq];
}

static uint32_t *second_of(struct load *l, uint64_t now)
{
    uint64_t second = (now - l->begin.time_ns) / NS;
    return l->series[second < SECONDS_MAX ? second : SECONDS_MAX - 1];
}

void put_body(struct load *l, struct client *c, uint64_t seq, void *to)
{
    struct stamp stamp = {MAGIC, c->index, seq, l->put_ns};
    memcpy(to, &stamp, sizeof stamp);
    memcpy((char *)to + sizeof stamp, l->filler, l->body_size - sizeof stamp);
}

void note_sent(struct load *l, struct client *c)
{
    c->made_ns[c->next_seq & l->ring_mask] = l->put_ns;
    (void)flags_of(c, c->next_seq);
    c->next_seq++;
    c->in_flight++;
    l->counts.sent++;
}

void note_refused(struct load *l, const struct client *c, const char *what)
{
    if (!l->receipt_errors++)
        fprintf(stderr, "%s: producer %u by %s: %s\n", PROGRAM, c->index, c->protocol->name, what);
}

void note_confirmed(struct load *l, struct client *c, uint64_t seq, uint64_t now)
{
    if (seq >= c->next_seq || *flags_of(c, seq) & CONFIRMED) {
        note_refused(l, c, "a message was confirmed that was not sent, or for the second time");
        return;
    }
    *flags_of(c, seq) |= CONFIRMED;
    uint64_t made = c->made_ns[seq & l->ring_mask];
    while (c->oldest < c->next_seq && *flags_of(c, c->oldest) & CONFIRMED)
        c->oldest++;
    c->in_flight--;
    l->counts.confirmed++;
    if (l->phase == RUN) {
        record(&l->confirm, now - made);
        second_of(l, now)[0]++;
    }
}

void note_received(struct load *l, struct client *c, const void *body, size_t size, uint64_t now)
{
    struct stamp stamp = {0};
    l->counts.acknowledged++; /* each protocol does so for all that it is given */
    if (size == l->body_size)
        memcpy(&stamp, body, sizeof stamp);
    if (stamp.magic != MAGIC || stamp.producer >= l->producers || stamp.seq >= l->clients[stamp.producer].next_seq ||
        memcmp((const char *)body + sizeof stamp, l->filler, l->body_size - sizeof stamp)) {
        l->corrupt++;
        return;
    }
    struct client *from = &l->clients[stamp.producer];
    uint8_t *flags = flags_of(from, stamp.seq);
    if (*flags & RECEIVED) {
        l->duplicates++;
        return;
    }
    *flags |= RECEIVED;
    l->misrouted += from->queue != c->queue;
    l->out_of_order += stamp.seq < from->last_seq;
    from->last_seq = stamp.seq;
    l->counts.delivered++;
    if (l->phase == RUN) {
        record(&l->end_to_end, now - stamp.time_ns);
        second_of(l, now)[1]++;
    }
}

bool is_drained(const struct load *l)
{
    return l->counts.confirmed == l->counts.sent && (!l->consumers || l->counts.delivered >= l->counts.sent);
}

void count_ledger(const struct load *l, uint64_t *unconfirmed, uint64_t *not_seen)
{
    *unconfirmed = *not_seen = 0;
    for (uint32_t i = 0; i < l->producers; i++)
        for (uint64_t seq = 0; seq < l->clients[i].next_seq; seq++) {
            uint8_t flags = l->clients[i].flags[seq];
            *unconfirmed += !(flags & CONFIRMED);
            *not_seen += flags & CONFIRMED && !(flags & RECEIVED);
        }
}
