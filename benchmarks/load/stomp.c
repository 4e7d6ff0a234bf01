/* STOMP 1.2 for protocolload: a receipt for each SEND, an ACK for each MESSAGE; one destination a client.
 *
 * Owns: frames of STOMP (stomp.github.io, version 1.2). Must never: take an ERROR for anything else than the end. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "load.h"
#include "stomp_frames.h"

enum { HEAD_MAX = 256 };

struct state { char head[HEAD_MAX]; size_t head_bytes, needed; };

static void greet(struct load *l, struct client *c)
{
    struct state *s = c->state = allocate(1, sizeof *s);
    s->head_bytes = (size_t)snprintf(s->head, sizeof s->head, "SEND\ndestination:%s\npersistent:true\ncontent-length:%zu\n"
                                     "receipt:", c->address, l->body_size);
    append(&c->out, "CONNECT\naccept-version:1.2\nhost:localhost\nheart-beat:0,0\n\n%c", '\0');
}

static bool may_put(const struct client *c) { return c->is_ready; }

static void put(struct load *l, struct client *c, uint64_t seq)
{
    const struct state *s = c->state;
    char *to = reserve(&c->out, s->head_bytes + 24 + l->body_size), *at = to;
    memcpy(at, s->head, s->head_bytes);
    at += s->head_bytes;
    at += put_number(at, seq);
    *at++ = '\n', *at++ = '\n';
    put_body(l, c, seq, at);
    at[l->body_size] = '\0';
    c->out.end += (size_t)(at - to) + l->body_size + 1;
}

static void on_message(struct load *l, struct client *c, const struct frame *f, uint64_t now)
{
    if (!f->ack.data)
        die_of(c, EXIT_CHECK, "a MESSAGE without an ack header");
    note_received(l, c, f->body.data, f->body.size, now);
    char *to = reserve(&c->out, f->ack.size + 16);
    memcpy(to, "ACK\nid:", 7);
    memcpy(to + 7, f->ack.data, f->ack.size);
    memcpy(to + 7 + f->ack.size, "\n\n", 3);
    c->out.end += 7 + f->ack.size + 3;
}

static void on_receipt(struct load *l, struct client *c, struct span receipt, uint64_t now)
{
    uint64_t seq;
    if (c->role == CONSUMES && receipt.size == 9 && !memcmp(receipt.data, "subscribe", 9))
        be_ready(l, c);
    else if (c->role == PRODUCES && get_number(receipt, &seq))
        note_confirmed(l, c, seq, now);
    else
        die_of(c, EXIT_CHECK, "a RECEIPT that nobody has asked for");
}

static void on_frame(struct load *l, struct client *c, const struct frame *f, uint64_t now)
{
    struct span why = f->message.data ? f->message : f->body;
    if (f->command == 'R' && f->receipt.data)
        on_receipt(l, c, f->receipt, now);
    else if (f->command == 'M' && c->role == CONSUMES)
        on_message(l, c, f, now);
    else if (f->command == 'C' && c->role == PRODUCES)
        be_ready(l, c);
    else if (f->command == 'C')
        append(&c->out, "SUBSCRIBE\nid:0\ndestination:%s\nack:client-individual\nreceipt:subscribe\n\n%c", c->address, '\0');
    else if (f->command == 'E')
        die_of(c, EXIT_CHECK, "the broker said ERROR: %.*s", (int)(why.size < 500 ? why.size : 500), why.data);
    else if (f->command)
        die_of(c, EXIT_CHECK, "a frame that has no place here begins with '%c'", f->command);
}

static size_t take(struct load *l, struct client *c, const char *data, size_t size, uint64_t now)
{
    struct state *s = c->state;
    struct frame frame;
    if (size < s->needed)
        return 0;
    ssize_t used = parse_frame(data, size, &frame);
    if (used < 0)
        die_of(c, EXIT_CHECK, "a malformed frame from the broker");
    s->needed = used ? 0 : frame.needed;
    if (used)
        on_frame(l, c, &frame, now);
    return (size_t)used;
}

static void after_read(struct client *c) { (void)c; }

const struct protocol STOMP = {.name = "stomp", .body_max = 1 << 20, .greet = greet, .take = take, .after_read = after_read,
                               .may_put = may_put, .put = put};
