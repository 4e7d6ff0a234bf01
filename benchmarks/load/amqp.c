/* AMQP 1.0 for protocolload: a connection with SASL ANONYMOUS, one session, one link; each delivery is one transfer.
 *
 * Owns: frames of AMQP (OASIS 2012, parts 2, 3 and 5). Must never: send more than credit and window of the broker allow,
 * or count a delivery as confirmed that was not both accepted and settled.
 *
 * A sender's transfers are unsettled: a durable header and one data section. A receiver gives CREDIT ahead, tops it up by
 * halves, and accepts what a read has brought with one settled disposition for each run of ids. */
#include <stdio.h>
#include <string.h>

#include "amqp_values.h"
#include "load.h"

enum { CREDIT = 1000, FRAME_MAX = 1 << 18, BODY_MAX = 1 << 16, HEAD = 8, UNBOUNDED = 0x7fffffff };
enum { OPEN = 0x10, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE };
enum { SOURCE = 0x28, TARGET = 0x29, ERROR = 0x1d, ACCEPTED = 0x24, REJECTED = 0x25, DATA = 0x75, AMQP_VALUE = 0x77 };
enum { MECHANISMS = 0x40, INIT = 0x41, OUTCOME = 0x44 };
enum { STRING = 0xa1, SYMBOL = 0xa3, NOTHING = 0x40, YES = 0x41, NO = 0x42, ZERO = 0x43, NO_ITEMS = 0x45, UBYTE = 0x50 };
enum stage { LAYER, LOGGING_IN, HEADER, FRAMES };

struct link {
    enum stage stage;
    uint32_t room, credit;                /* transfers that the broker's session, and its end of the link, still take */
    uint32_t received, granted;           /* deliveries, and up to which of them there is credit */
    uint32_t first, last;                 /* of those to be accepted */
    bool has_run;
    uint8_t head[64];                     /* of a transfer's frame, up to its body */
    size_t head_bytes;
};

static const char LAYER_HEADER[HEAD] = {'A', 'M', 'Q', 'P', 3, 1, 0, 0}, PROTOCOL_HEADER[HEAD] = {'A', 'M', 'Q', 'P', 0, 1, 0, 0};

/* --- frames to the broker ------------------------------------------------------------------------------------------------ */
static void put_header(struct client *c, const char *header)
{
    memcpy(reserve(&c->out, HEAD), header, HEAD);
    c->out.end += HEAD;
}

static uint8_t *begin_frame(struct client *c, uint8_t type, uint8_t descriptor)
{
    uint8_t *frame = reserve(&c->out, 1024);
    frame[4] = 2, frame[5] = type, frame[6] = frame[7] = 0;
    return put_list(frame + HEAD, descriptor);
}

static void end_frame(struct client *c, uint8_t *at, uint8_t count)
{
    uint8_t *frame = (uint8_t *)c->out.data + c->out.end;
    (void)end_list(frame + HEAD, at, count);
    (void)put_u32(frame, (uint32_t)(at - frame));
    c->out.end += (size_t)(at - frame);
}

static void put_init(struct client *c) { end_frame(c, put_string(begin_frame(c, 1, INIT), SYMBOL, "ANONYMOUS"), 1); }

static uint8_t *put_terminus(uint8_t *at, uint8_t kind, const char *address)
{
    uint8_t *list = at;
    at = put_list(at, kind);
    if (address)
        at = put_string(at, STRING, address);
    return end_list(list, at, address ? 1 : 0);
}

static void put_opening(struct client *c)
{
    char name[32];
    bool produces = c->role == PRODUCES;
    (void)snprintf(name, sizeof name, produces ? "producer-%u" : "consumer-%u", c->index);
    uint8_t *at = put_string(begin_frame(c, 0, OPEN), STRING, name);
    *at++ = NOTHING; /* host name */
    end_frame(c, put_uint(at, FRAME_MAX), 3);

    at = begin_frame(c, 0, BEGIN);
    *at++ = NOTHING, *at++ = ZERO; /* remote channel, next outgoing id */
    end_frame(c, put_uint(put_uint(at, UNBOUNDED), UNBOUNDED), 4);

    at = put_string(begin_frame(c, 0, ATTACH), STRING, name);
    *at++ = ZERO;                               /* handle */
    *at++ = produces ? NO : YES;                /* role: whether it receives */
    *at++ = UBYTE, *at++ = 0, *at++ = UBYTE, *at++ = 0; /* unsettled; settled by the receiver first */
    at = put_terminus(at, SOURCE, produces ? NULL : c->address);
    at = put_terminus(at, TARGET, produces ? c->address : NULL);
    *at++ = NOTHING, *at++ = NOTHING, *at++ = ZERO; /* unsettled, incomplete unsettled, initial delivery count */
    end_frame(c, at, 10);
}

static void put_flow(struct client *c)
{
    struct link *k = c->state;
    bool receives = c->role == CONSUMES;
    uint8_t *at = put_uint(begin_frame(c, 0, FLOW), k->received); /* of one link's deliveries: also the next incoming id */
    at = put_uint(put_uint(at, UNBOUNDED), (uint32_t)c->next_seq);
    at = put_uint(at, UNBOUNDED);
    if (receives) {
        k->granted = k->received + CREDIT;
        *at++ = ZERO; /* handle */
        at = put_uint(put_uint(at, k->received), CREDIT);
    }
    end_frame(c, at, receives ? 7 : 4);
}

static void accept_run(struct client *c)
{
    struct link *k = c->state;
    if (!k->has_run)
        return;
    uint8_t *at = begin_frame(c, 0, DISPOSITION);
    *at++ = YES; /* role: a receiver's */
    at = put_uint(put_uint(at, k->first), k->last);
    *at++ = YES; /* settled */
    *at++ = 0, *at++ = 0x53, *at++ = ACCEPTED, *at++ = NO_ITEMS;
    end_frame(c, at, 5);
    k->has_run = false;
}

static void after_read(struct client *c)
{
    const struct link *k = c->state;
    accept_run(c);
    if (c->role == CONSUMES && c->is_ready && k->granted - k->received <= CREDIT / 2)
        put_flow(c);
}

static void greet(struct load *l, struct client *c)
{
    static const uint8_t TRANSFER_HEAD[] = {
        0, 0, 0, 0, 2, 0, 0, 0,                                     /* frame: its size comes below */
        0, 0x53, TRANSFER, 0xc0, 15, 5, ZERO,                       /* handle */
        0x70, 0, 0, 0, 0, 0xa0, 4, 0, 0, 0, 0, ZERO, NO,            /* delivery id and tag, format, settled */
        0, 0x53, 0x70, 0xc0, 2, 1, YES, 0, 0x53, DATA, 0xb0};       /* header: durable; data: its size is next */
    struct link *k = c->state = allocate(1, sizeof *k);
    memcpy(k->head, TRANSFER_HEAD, sizeof TRANSFER_HEAD);
    (void)put_u32(k->head + sizeof TRANSFER_HEAD, (uint32_t)l->body_size);
    k->head_bytes = sizeof TRANSFER_HEAD + 4;
    (void)put_u32(k->head, (uint32_t)(k->head_bytes + l->body_size));
    put_header(c, LAYER_HEADER);
}

static bool may_put(const struct client *c)
{
    const struct link *k = c->state;
    return c->is_ready && k->room && k->credit;
}

static void put(struct load *l, struct client *c, uint64_t seq)
{
    struct link *k = c->state;
    uint8_t *to = reserve(&c->out, k->head_bytes + l->body_size);
    memcpy(to, k->head, k->head_bytes);
    (void)put_u32(to + 16, (uint32_t)seq);
    (void)put_u32(to + 22, (uint32_t)seq);
    put_body(l, c, seq, to + k->head_bytes);
    c->out.end += k->head_bytes + l->body_size;
    k->room--;
    k->credit--;
}

/* --- frames from the broker ------------------------------------------------------------------------------------------------ */
static void field(const struct client *c, struct cursor *fields, struct value *v)
{
    if (!next_field(fields, v))
        die_of(c, EXIT_CHECK, "a malformed frame from the broker");
}

static void skip(const struct client *c, struct cursor *fields, unsigned count)
{
    struct value v;
    while (count--)
        field(c, fields, &v);
}

/* What an error says, as `condition: description`. */
static void tell(const struct client *c, const struct value *error, char *text, size_t size)
{
    struct cursor fields = items_of(error);
    struct value condition, description;
    (void)snprintf(text, size, "without a reason");
    if (error->is_null || error->descriptor != ERROR)
        return;
    field(c, &fields, &condition);
    field(c, &fields, &description);
    (void)snprintf(text, size, "%.*s: %.*s", (int)condition.size, (const char *)condition.data, (int)description.size,
                   description.is_null ? "" : (const char *)description.data);
}

static void on_ended(const struct client *c, const char *what, struct cursor fields, unsigned before)
{
    char text[512];
    struct value error;
    skip(c, &fields, before);
    field(c, &fields, &error);
    tell(c, &error, text, sizeof text);
    die_of(c, EXIT_CHECK, "the broker has ended the %s: %s", what, text);
}

static void on_open(const struct load *l, const struct client *c, struct cursor fields)
{
    const struct link *k = c->state;
    struct value max_frame;
    skip(c, &fields, 2);
    field(c, &fields, &max_frame);
    if (!max_frame.is_null && max_frame.number < k->head_bytes + l->body_size)
        die_of(c, EXIT_USAGE, "a transfer has %zu bytes, the broker takes frames of %llu: --body-size has to be smaller",
               k->head_bytes + l->body_size, (unsigned long long)max_frame.number);
}

static void on_begin(const struct client *c, struct cursor fields)
{
    struct link *k = c->state;
    struct value window;
    skip(c, &fields, 2);
    field(c, &fields, &window);
    k->room = (uint32_t)window.number;
}

static void on_attach(struct load *l, struct client *c, struct cursor fields)
{
    struct value terminus;
    skip(c, &fields, c->role == PRODUCES ? 6 : 5);
    field(c, &fields, &terminus);
    if (terminus.is_null)
        return; /* refused: the detach that follows says why */
    if (c->role == CONSUMES)
        put_flow(c);
    be_ready(l, c);
}

static uint32_t left_of(uint32_t base, uint32_t allowed, uint32_t used)
{
    uint32_t left = base + allowed - used; /* serial numbers: they go round */
    return left > UNBOUNDED ? 0 : left;
}

static void on_flow(struct client *c, struct cursor fields)
{
    struct link *k = c->state;
    struct value incoming, window, handle, count, credit, echo;
    field(c, &fields, &incoming);
    field(c, &fields, &window);
    skip(c, &fields, 2);
    field(c, &fields, &handle);
    field(c, &fields, &count);
    field(c, &fields, &credit);
    skip(c, &fields, 2);
    field(c, &fields, &echo);
    k->room = left_of((uint32_t)incoming.number, (uint32_t)window.number, (uint32_t)c->next_seq);
    if (!handle.is_null && c->role == PRODUCES)
        k->credit = left_of((uint32_t)count.number, (uint32_t)credit.number, (uint32_t)c->next_seq);
    if (echo.is_true)
        put_flow(c);
}

/* Part 3, section 2: the body is a data section, or a value where the broker takes it for text. */
static struct value body_of(const struct client *c, struct cursor payload)
{
    struct value section = {0};
    while (section.descriptor != DATA && section.descriptor != AMQP_VALUE)
        if (!next_value(&payload, &section))
            die_of(c, EXIT_CHECK, "a message without a body, or malformed");
    return section;
}

static void on_transfer(struct load *l, struct client *c, struct cursor fields, struct cursor payload, uint64_t now)
{
    struct link *k = c->state;
    struct value id, settled, more;
    skip(c, &fields, 1);
    field(c, &fields, &id);
    skip(c, &fields, 2);
    field(c, &fields, &settled);
    field(c, &fields, &more);
    if (id.is_null || more.is_true)
        die_of(c, EXIT_CHECK, "a delivery of several transfers; --body-size has to be smaller");
    if (k->granted == k->received)
        die_of(c, EXIT_CHECK, "a delivery that there was no credit for");
    struct value body = body_of(c, payload);
    note_received(l, c, body.data, body.size, now);
    k->received++;
    if (settled.is_true)
        return;
    if (k->has_run && (uint32_t)id.number != k->last + 1)
        accept_run(c);
    if (!k->has_run)
        k->first = (uint32_t)id.number;
    k->last = (uint32_t)id.number;
    k->has_run = true;
}

static void on_disposition(struct load *l, struct client *c, struct cursor fields, uint64_t now)
{
    char text[512] = "a message was not accepted";
    struct value role, first, last, settled, outcome, error;
    field(c, &fields, &role);
    field(c, &fields, &first);
    field(c, &fields, &last);
    field(c, &fields, &settled);
    field(c, &fields, &outcome);
    if (!role.is_true || !settled.is_true)
        return; /* of the broker as a sender, or not the last word */
    uint32_t count = last.is_null ? 1 : (uint32_t)last.number - (uint32_t)first.number + 1;
    uint32_t behind = (uint32_t)first.number - (uint32_t)c->oldest; /* ids are the lower half of sequences */
    if (outcome.descriptor == REJECTED) {
        struct cursor reasons = items_of(&outcome);
        field(c, &reasons, &error);
        tell(c, &error, text, sizeof text);
    }
    if (outcome.descriptor != ACCEPTED || count > c->next_seq - c->oldest)
        note_refused(l, c, outcome.descriptor == ACCEPTED ? "more was accepted than was sent" : text);
    else
        for (uint64_t seq = c->oldest + behind, end = seq + count; seq < end; seq++)
            note_confirmed(l, c, seq, now);
}

static void on_performative(struct load *l, struct client *c, const struct value *body, struct cursor payload, uint64_t now)
{
    struct cursor fields = items_of(body);
    switch (body->descriptor) {
    case OPEN: on_open(l, c, fields); break;
    case BEGIN: on_begin(c, fields); break;
    case ATTACH: on_attach(l, c, fields); break;
    case FLOW: on_flow(c, fields); break;
    case TRANSFER:
        if (c->role != CONSUMES)
            die_of(c, EXIT_CHECK, "a transfer to a sender");
        on_transfer(l, c, fields, payload, now);
        break;
    case DISPOSITION: on_disposition(l, c, fields, now); break;
    case DETACH: on_ended(c, "link", fields, 2); break;
    case END: on_ended(c, "session", fields, 0); break;
    case CLOSE: on_ended(c, "connection", fields, 0); break;
    default: die_of(c, EXIT_CHECK, "a frame of kind 0x%02x has no place here", (unsigned)body->descriptor);
    }
}

static void on_login(struct client *c, const struct value *body)
{
    struct link *k = c->state;
    struct cursor fields = items_of(body);
    struct value code;
    if (body->descriptor == MECHANISMS) {
        put_init(c);
        return;
    }
    field(c, &fields, &code);
    if (body->descriptor != OUTCOME || code.number)
        die_of(c, EXIT_CHECK, "the broker lets nobody in by ANONYMOUS: outcome %u", (unsigned)code.number);
    k->stage = HEADER;
    put_header(c, PROTOCOL_HEADER);
    put_opening(c);
}

static size_t take_header(struct client *c, const char *data)
{
    struct link *k = c->state;
    if (memcmp(data, k->stage == LAYER ? LAYER_HEADER : PROTOCOL_HEADER, HEAD))
        die_of(c, EXIT_CHECK, "the broker speaks no AMQP 1.0 here, or not with this layer");
    k->stage = k->stage == LAYER ? LOGGING_IN : FRAMES;
    return HEAD;
}

static size_t take(struct load *l, struct client *c, const char *data, size_t size, uint64_t now)
{
    struct link *k = c->state;
    const uint8_t *at = (const uint8_t *)data;
    if (size < HEAD)
        return 0;
    if (k->stage == LAYER || k->stage == HEADER)
        return take_header(c, data);
    size_t frame = read_u32(at), head = at[4] * 4u;
    if (frame < HEAD || head < HEAD || head > frame || frame > FRAME_MAX)
        die_of(c, EXIT_CHECK, "a frame of %zu bytes with %zu bytes of head; at most %d", frame, head, FRAME_MAX);
    if (size < frame)
        return 0;
    struct cursor rest = {at + head, at + frame};
    struct value body;
    if (rest.at == rest.end)
        return frame; /* a sign of life */
    if (!next_value(&rest, &body))
        die_of(c, EXIT_CHECK, "a malformed frame from the broker");
    if (k->stage == LOGGING_IN)
        on_login(c, &body);
    else
        on_performative(l, c, &body, rest, now);
    return frame;
}

const struct protocol AMQP = {.name = "amqp", .body_max = BODY_MAX, .greet = greet, .take = take, .after_read = after_read,
                              .may_put = may_put, .put = put};
