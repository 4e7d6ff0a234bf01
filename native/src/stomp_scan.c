/* STOMP's fast path in: plain SEND and ACK frames (STOMP 1.2 specification). What is plain stands at Core.scan_stomp in
 * vespiary_native/abc.py; all else goes to the codec in Python, which also words all errors. The way out: delivery.c. */
#include <errno.h>
#include <string.h>

#include "state.h"

enum { LOGIN_BYTES_MAX = 8192, PRIORITY_USUAL = 4 };

typedef struct {
    const uint8_t *at; /* first byte of the frame */
    uint64_t left;     /* bytes there are */
    uint32_t command_length;
    uint32_t headers_end; /* length up to and with the empty line */
    int64_t content_length;
    piece destination, type, receipt, id, subscription;
    piece dropped[2]; /* lines that are not stored: content-length, receipt */
    uint32_t dropped_count;
    bool is_plain; /* no header that the fast path leaves to Python */
    bool is_persistent, has_persistent, has_priority, is_grouped;
    uint8_t priority;
} frame;

/* --- finding frames ------------------------------------------------------------------------------------------ */
/* Find the end of the headers. Returns their length with the empty line, 0: not there yet, -1: beyond a limit. */
static int64_t headers_length(connection *c, const uint8_t *at, uint64_t left)
{
    uint64_t most = c->is_ready ? (uint64_t)c->headers_max : LOGIN_BYTES_MAX;
    uint64_t line_max = c->is_ready ? c->header_line_max : LOGIN_BYTES_MAX;
    uint64_t slack = c->is_ready ? 32 : 0; /* the command and the empty line */
    uint64_t line = c->scanned;
    for (;;) {
        const uint8_t *end = left > line ? memchr(at + line, '\n', left - line) : NULL;
        uint64_t next = end ? (uint64_t)(end - at) + 1 : left;
        if (next - line > line_max + 2 || next > most + slack)
            return -1;
        if (!end) {
            if (memchr(at + line, 0, left - line))
                return -1;
            c->scanned = (uint32_t)line;
            return 0;
        }
        uint64_t length = next - line - 1;
        if (line && (length == 0 || (length == 1 && at[line] == '\r')))
            return (int64_t)next;
        line = next;
    }
}

static int64_t parse_number(const uint8_t *at, uint32_t length)
{
    if (!length || length > 18)
        return -1;
    int64_t value = 0;
    for (uint32_t i = 0; i < length; i++) {
        if (at[i] < '0' || at[i] > '9')
            return -1;
        value = value * 10 + (at[i] - '0');
    }
    return value;
}

static bool is_name(piece name, const char *text, uint32_t length)
{
    return name.length == length && !memcmp(name.data, text, length);
}
#define NAME(name, text) is_name(name, text, sizeof(text) - 1)
#define BEGINS(name, text) ((name).length >= sizeof(text) - 1 && !memcmp((name).data, text, sizeof(text) - 1))

/* STOMP 1.0 drops blanks around names and values. Returns whether there were any. */
static bool trim(piece *name, piece *value)
{
    uint32_t before = name->length + value->length;
    piece *both[2] = {name, value};
    if (value->length && value->data[value->length - 1] == '\r')
        value->length--, before--;
    for (uint32_t i = 0; i < 2; i++) {
        piece *p = both[i];
        while (p->length && (p->data[0] == ' ' || p->data[0] == '\t'))
            p->data++, p->length--;
        while (p->length && (p->data[p->length - 1] == ' ' || p->data[p->length - 1] == '\t'))
            p->length--;
    }
    return name->length + value->length != before;
}

static bool is_left_to_python(piece name)
{
    switch (name.length ? name.data[0] : 0) {
    case '_':
        return NAME(name, "_AMQ_DUPL_ID") || NAME(name, "_AMQ_SCHED_DELIVERY") || BEGINS(name, "_AMQ_ORIG_") ||
               BEGINS(name, "_AMQ_REJECT_") || BEGINS(name, "_AMQ_ACTUAL_EXPIRY");
    case 'A':
        return NAME(name, "AMQ_SCHEDULED_TIME") || NAME(name, "AMQ_SCHEDULED_DELAY") || NAME(name, "AMQ_SCHEDULED_CRON") ||
               NAME(name, "AMQ_SCHEDULED_PERIOD") || NAME(name, "AMQ_SCHEDULED_REPEAT");
    case 'J': return NAME(name, "JMSExpiration");
    case 'a': return NAME(name, "ack");
    case 'd': return NAME(name, "delivery-count");
    case 'e': return NAME(name, "expires");
    case 'm': return NAME(name, "message-id");
    case 'r': return NAME(name, "redelivered");
    case 's': return NAME(name, "subscription");
    case 't': return NAME(name, "transaction");
    default: return false;
    }
}

/* Take one header of a SEND: what the fast path knows is noted, what it leaves to Python makes the frame not plain. */
static void send_header(frame *f, piece line, piece name, piece value)
{
    if (NAME(name, "content-length")) {
        f->dropped[f->dropped_count++ & 1] = line;
        return;
    }
    if (memchr(value.data, ':', value.length))
        f->is_plain = false; /* a second colon is data that RECEIPTs and the canonical properties escape */
    if (NAME(name, "destination")) {
        f->is_plain &= !f->destination.data;
        f->destination = value;
    } else if (NAME(name, "persistent")) {
        f->is_persistent = f->has_persistent ? f->is_persistent : NAME(value, "true");
        f->has_persistent = true; /* of a repeated header the first counts */
    } else if (NAME(name, "receipt")) {
        f->is_plain &= !f->receipt.data;
        f->receipt = value;
        f->dropped[f->dropped_count++ & 1] = line;
    } else if (NAME(name, "destination-type")) {
        f->is_plain &= !f->type.data;
        f->type = value;
    } else if (NAME(name, "priority")) {
        if (!f->has_priority) {
            f->is_plain &= value.length == 1 && *value.data >= '0' && *value.data <= '9';
            f->priority = (uint8_t)(value.length ? *value.data - '0' : 0);
        }
        f->has_priority = true;
    } else if (NAME(name, "JMSXGroupID")) {
        f->is_grouped = true;
    } else if (is_left_to_python(name)) {
        f->is_plain = false;
    }
}

static void ack_header(const connection *c, frame *f, piece name, piece value)
{
    bool is_id = c->version == 12 ? NAME(name, "id") : NAME(name, "message-id");
    piece *known = is_id                        ? &f->id
                   : NAME(name, "subscription") ? &f->subscription
                   : NAME(name, "receipt")      ? &f->receipt
                                                : NULL;
    if (known) {
        f->is_plain &= !known->data && !memchr(value.data, ':', value.length);
        *known = value;
    } else if (!NAME(name, "content-length")) {
        f->is_plain = false; /* `transaction` and what may come */
    }
}

static bool is_ascii_plain(const uint8_t *at, uint32_t length)
{
    uint8_t odd = 0;
    for (uint32_t i = 0; i < length; i++)
        odd |= (uint8_t)((at[i] >> 7) | (at[i] == '\\') | (at[i] == '\r') | (at[i] == 0));
    return !odd;
}

/* Read the headers of a whole header block. Returns false when it is malformed. */
static bool read_headers(const connection *c, frame *f)
{
    const uint8_t *end = f->at + f->headers_end, *line = f->at + f->command_length + 1;
    bool is_send = f->command_length == 4 && !memcmp(f->at, "SEND", 4);
    bool is_ack = f->command_length == 3 && !memcmp(f->at, "ACK", 3);
    bool is_fast = c->is_ready && (is_send || is_ack) && is_ascii_plain(f->at, f->headers_end);
    uint32_t lines = 0;
    f->is_plain = is_fast && f->headers_end <= c->headers_max;
    f->content_length = -1;
    for (;; lines++) {
        const uint8_t *stop = memchr(line, '\n', (size_t)(end - line));
        uint32_t length = (uint32_t)(stop - line);
        if (length == 0 || (length == 1 && *line == '\r'))
            return !c->is_ready || lines <= c->header_lines_max;
        const uint8_t *colon = memchr(line, ':', length);
        if (!colon || colon == line)
            return false;
        piece name = {line, (uint32_t)(colon - line)};
        piece value = {colon + 1, length - name.length - 1};
        f->is_plain &= length <= c->header_line_max;
        if (c->version == 10 && trim(&name, &value))
            f->is_plain = false;
        if (NAME(name, "content-length")) {
            if (f->content_length >= 0) {
                f->is_plain = false; /* the first counts */
            } else {
                uint32_t digits = value.length;
                if (digits && value.data[digits - 1] == '\r')
                    digits--;
                f->content_length = parse_number(value.data, digits);
                if (f->content_length < 0 || (c->is_ready && f->content_length > c->body_max))
                    return false;
            }
        }
        if (is_fast && is_send)
            send_header(f, (piece){line, length + 1}, name, value);
        else if (is_fast)
            ack_header(c, f, name, value);
        line = stop + 1;
    }
}

/* Find one whole frame. Returns its length with the NUL; 0: more data is needed (*need: how many, if known); -1: odd. */
static int64_t find_frame(connection *c, frame *f, uint32_t *need)
{
    *need = 0;
    if (c->need && f->left < c->need) {
        *need = c->need;
        return 0;
    }
    int64_t headers = headers_length(c, f->at, f->left);
    if (headers <= 0)
        return headers;
    f->headers_end = (uint32_t)headers;
    const uint8_t *stop = memchr(f->at, '\n', f->headers_end);
    f->command_length = (uint32_t)(stop - f->at);
    if (!read_headers(c, f))
        return -1;
    uint64_t most = c->is_ready ? (uint64_t)c->body_max + f->headers_end : LOGIN_BYTES_MAX - 1;
    if (f->content_length >= 0) {
        uint64_t total = f->headers_end + (uint64_t)f->content_length + 1;
        if (total - 1 > most || total > UINT32_MAX)
            return -1;
        if (f->left < total) {
            *need = c->need = (uint32_t)total;
            return 0;
        }
        return f->at[total - 1] == 0 ? (int64_t)total : -1;
    }
    uint64_t from = f->headers_end + (uint64_t)c->body_scanned;
    const uint8_t *nul = f->left > from ? memchr(f->at + from, 0, f->left - from) : NULL;
    if (!nul) {
        c->body_scanned = (uint32_t)(f->left - f->headers_end);
        return f->left > most ? -1 : 0;
    }
    uint64_t total = (uint64_t)(nul - f->at) + 1;
    return total - 1 > most ? -1 : (int64_t)total;
}

/* --- SEND and ACK ------------------------------------------------------------------------------------------------ */
/* The receipt of a message that no queue took says so. */
static int stage_receipt(vespiary_core *core, uint32_t handle, piece id, bool is_unrouted)
{
    static const char start[] = "RECEIPT\nreceipt-id:", unrouted[] = "\nqueues:0\n\n";
    const uint32_t head = sizeof start - 1;
    const char *end = is_unrouted ? unrouted : "\n\n";
    const uint32_t end_length = is_unrouted ? sizeof unrouted : 3; /* with its NUL */
    uint8_t *at = output_room(core, handle, head + id.length + end_length);
    if (!at)
        return -ENOMEM;
    memcpy(at, start, head);
    memcpy(at + head, id.data, id.length);
    memcpy(at + head + id.length, end, end_length);
    return output_waits(core, handle, false);
}

/* The header lines that are stored: all but the dropped ones, in order. */
static void stored_lines(const frame *f, message *m)
{
    const uint8_t *from = f->at + f->command_length + 1, *end = f->at + f->headers_end - 1;
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < f->dropped_count; i++) {
        m->properties[pieces++] = (piece){from, (uint32_t)(f->dropped[i].data - from)};
        from = f->dropped[i].data + f->dropped[i].length;
    }
    m->properties[pieces] = (piece){from, (uint32_t)(end - from)};
}

/* Stage a message and hold its receipt (of MQTT: its packet id): 0 done, 1 leave it to Python, else -errno. */
int stage_send(vespiary_core *core, uint32_t handle, const route *to, const message *m, piece receipt)
{
    if (core->accounts_full && is_route_held(core, to))
        return 1;
    const connection *from = &core->connections[handle];
    if (from->is_mqtt && from->version == 5 && receipt.data && !to->count)
        return 1; /* the client is told that nobody gets it */
    uint64_t block;
    int places = publish(core, to, m, &block);
    if (places < 0)
        return places == -EMSGSIZE || places == -EOVERFLOW ? 1 : places; /* Python says why */
    if (block)
        core->connections[handle].last_block = block;
    if (!receipt.data)
        return 0;
    return core->connections[handle].is_mqtt ? stage_puback(core, handle, receipt)
                                             : stage_receipt(core, handle, receipt, !places);
}

enum { TAKEN = 0, LEFT = 1, KEPT = 2 };

/* Take a SEND, or keep it for its switch, or leave it; else -errno. Nothing is taken while others are kept. */
static int take_send(vespiary_core *core, uint32_t handle, const frame *f, uint64_t position, int64_t length)
{
    const route *to =
        f->destination.length ? taught_route(core, taught_find(&core->connections[handle], f->destination, f->type)) : NULL;
    if (!to || (core->switched_count && !to->is_switch))
        return LEFT;
    uint8_t priority = f->has_priority ? f->priority : PRIORITY_USUAL;
    message m = {.body = {f->at + f->headers_end, (uint32_t)(length - f->headers_end - 1)},
                 .protocol = 1,
                 .priority = priority,
                 .flags = priority != PRIORITY_USUAL || f->is_grouped ? FLAG_SPECIAL : 0,
                 .is_persistent = f->is_persistent};
    stored_lines(f, &m);
    if (!to->is_switch)
        return stage_send(core, handle, to, &m, f->receipt);
    uint32_t number = (uint32_t)(to - core->routes);
    if (!switch_takes(core, number))
        return LEFT;
    core->switched_connection = handle;
    switched_send what = {position, (uint32_t)length, m, f->receipt};
    int bad = switch_keep(core, number, &what);
    return bad ? bad : KEPT;
}

/* Part of a message id: as `parse_number`, but there is one spelling only. */
static int64_t parse_id(const uint8_t *at, uint32_t length)
{
    return length > 1 && *at == '0' ? -1 : parse_number(at, length);
}

static bool is_subscription(const consumer *by, piece value)
{
    return value.data && by->subscription_length == value.length &&
           !memcmp(by->prefix + by->subscription_at, value.data, value.length);
}

static int take_ack(vespiary_core *core, uint32_t handle, const frame *f, int64_t length)
{
    connection *c = &core->connections[handle];
    const uint8_t *dash = f->id.length ? memchr(f->id.data, '-', f->id.length) : NULL;
    if (!dash || length != (int64_t)f->headers_end + 1) /* an ACK has no body */
        return 1;
    uint32_t digits = (uint32_t)(dash - f->id.data);
    int64_t id = parse_id(f->id.data, digits), sequence = parse_id(dash + 1, f->id.length - digits - 1);
    if (id < 0 || sequence < 0 || id > INT32_MAX)
        return 1;
    int holder = vespiary_core_holder(core, handle, (uint32_t)id, (uint64_t)sequence);
    if (holder < 0 || core->consumers[holder].mode == 0)
        return 1;
    if (c->version == 11 && !is_subscription(&core->consumers[holder], f->subscription))
        return 1;
    uint64_t block = 0;
    int done = acknowledge(core, &core->consumers[holder], (uint64_t)sequence, &block);
    if (block)
        c->last_block = block;
    if (done < 0)
        return done;
    return f->receipt.data ? stage_receipt(core, handle, f->receipt, false) : 0;
}

/* Take frames until one is not plain, or not whole, or has to wait; *out says why. */
static int scan(vespiary_core *core, uint32_t handle, const uint8_t *memory, uint64_t at, uint64_t end,
                vespiary_result *out)
{
    connection *c = &core->connections[handle];
    for (;;) {
        if (!c->need && !c->scanned && !c->body_scanned) /* heart-beats, and the ends of lines after frames */
            while (at < end && (memory[at] == '\n' || (memory[at] == '\r' && at + 1 < end && memory[at + 1] == '\n')))
                at++;
        *out = (vespiary_result){.status = NEED_DATA, .position = at};
        if (at == end || (end - at == 1 && memory[at] == '\r'))
            return 0;
        frame f = {.at = memory + at, .left = end - at};
        int64_t length = find_frame(c, &f, &out->detail);
        if (length == 0)
            return 0;
        if (length < 0) {
            c->need = c->scanned = c->body_scanned = 0; /* how it goes on, the caller knows */
            out->status = ODD;
            return 0;
        }
        int left = LEFT;
        if (f.is_plain && f.command_length == 4)
            left = take_send(core, handle, &f, at, length);
        else if (f.is_plain && !core->switched_count)
            left = take_ack(core, handle, &f, length);
        if (left < 0 && left != -ENOSPC)
            return left;
        c->need = c->scanned = c->body_scanned = 0;
        if (left == -ENOSPC || left == LEFT) {
            out->status = left == LEFT ? FRAME : BLOCKED;
            out->detail = (uint32_t)length;
            return 0;
        }
        at += (uint64_t)length;
    }
}

int vespiary_core_scan_stomp(vespiary_core *core, uint32_t handle, uint32_t buffer, uint64_t start, uint64_t end,
                             vespiary_result *out)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open || buffer >= core->buffers_count ||
        !core->buffers[buffer].is_open || start > end || end > core->buffers[buffer].length)
        return -EINVAL;
    core->switched_count = 0;
    int bad = scan(core, handle, core->buffers[buffer].memory, start, end, out);
    if (bad || !core->switched_count)
        return bad;
    connection *c = &core->connections[handle];
    c->need = c->scanned = c->body_scanned = 0; /* what is behind them is looked at again */
    *out = (vespiary_result){
        .status = SWITCHED, .detail = core->switched_route, .position = core->switched[0].position};
    return 0;
}
