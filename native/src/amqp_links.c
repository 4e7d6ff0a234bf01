/* What the core keeps of AMQP's sessions and of the links by which clients send: allowances that it counts down, and lessons:
 * what messages say before their bodies, and what is stored of that. Read by amqp_scan.c; contract:
 * vespiary_native/abc_amqp.py. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "amqp.h"
#include "state.h"
#include "utf8.h"

enum {
    LINKS_MAX = 256,
    LESSON_BYTES_MAX = 64 * 1024,
    LESSONS_BYTES_MAX = 256 * 1024,
    STORED_BYTES_MAX = 65535,
    TIME_BYTES = 8,
    DIGITS_MAX = 19,
    HEAD_BYTES = 4, /* the descriptor of a body, and the format code of its value */
    RANGE_NUMBERS = 6
};

static const char ENCODED_ID[] = "AMQP_"; /* what begins so is spelled otherwise in its line */
enum { ENCODED_ID_BYTES = sizeof ENCODED_ID - 1 };

/* --- sessions and links ------------------------------------------------------------------------------------------ */
static connection *connection_of(const vespiary_core *core, uint32_t handle)
{
    connection *c = handle < core->connections_count ? &core->connections[handle] : NULL;
    return c && c->is_open && c->is_amqp ? c : NULL;
}

amqp_session *amqp_session_find(const connection *c, uint32_t channel)
{
    return c->amqp ? map_get(&c->amqp->sessions, channel) : NULL;
}

amqp_session *amqp_session_make(connection *c, uint32_t channel)
{
    amqp_session *found = amqp_session_find(c, channel);
    if (found)
        return found;
    if (!c->amqp)
        c->amqp = calloc(1, sizeof *c->amqp);
    amqp_session *made = c->amqp ? calloc(1, sizeof *made) : NULL;
    if (made && map_put(&c->amqp->sessions, channel, made)) {
        free(made);
        made = NULL;
    }
    return made;
}

amqp_link *amqp_link_find(const amqp_session *s, uint32_t handle) { return s ? map_get(&s->links, handle) : NULL; }

static void lesson_forget(connection *c, amqp_lesson *which)
{
    c->amqp->lesson_bytes -= which->key ? which->key_length + which->stored_length : 0;
    free(which->key);
    *which = (amqp_lesson){0};
}

static void lessons_forget(connection *c, amqp_link *link)
{
    for (uint32_t i = 0; i < link->count; i++)
        lesson_forget(c, &link->lessons[i]);
    link->count = link->next = link->last = 0;
}

static void link_free(connection *c, amqp_link *link)
{
    lessons_forget(c, link);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->amqp->touched_count; i++)
        if (c->amqp->touched[i] != link)
            c->amqp->touched[kept++] = c->amqp->touched[i];
    c->amqp->touched_count = kept;
    c->amqp->links--;
    free(link);
}

static void session_free(connection *c, amqp_session *s)
{
    for (uint32_t i = 0; i < s->links.capacity; i++)
        if (s->links.values[i])
            link_free(c, s->links.values[i]);
    map_free(&s->links);
    free(s->out.sent);
    free(s);
}

void amqp_free(connection *c)
{
    if (!c->amqp)
        return;
    for (uint32_t i = 0; i < c->amqp->sessions.capacity; i++)
        if (c->amqp->sessions.values[i])
            session_free(c, c->amqp->sessions.values[i]);
    map_free(&c->amqp->sessions);
    free(c->amqp->touched);
    free(c->amqp);
    c->amqp = NULL;
}

int vespiary_core_set_amqp_window(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t transfers)
{
    connection *c = connection_of(core, handle);
    if (!c || channel > UINT16_MAX || transfers > INT32_MAX)
        return -EINVAL;
    amqp_session *s = amqp_session_make(c, channel);
    if (!s)
        return -ENOMEM;
    s->window = transfers;
    return 0;
}

int vespiary_core_forget_amqp_session(vespiary_core *core, uint32_t handle, uint32_t channel)
{
    connection *c = connection_of(core, handle);
    if (!c)
        return -EINVAL;
    amqp_session *s = amqp_session_find(c, channel);
    if (s) {
        map_remove(&c->amqp->sessions, channel);
        session_free(c, s);
    }
    return 0;
}

int vespiary_core_set_amqp_credit(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t link_handle,
                                  uint32_t messages, int is_settled)
{
    connection *c = connection_of(core, handle);
    amqp_link *link = c ? amqp_link_find(amqp_session_find(c, channel), link_handle) : NULL;
    if (!link || messages > INT32_MAX)
        return -EINVAL;
    link->credit = messages;
    link->is_settled = is_settled != 0;
    return 0;
}

int vespiary_core_forget_amqp_link(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t link_handle)
{
    connection *c = connection_of(core, handle);
    if (!c)
        return -EINVAL;
    amqp_session *s = amqp_session_find(c, channel);
    amqp_link *link = amqp_link_find(s, link_handle);
    if (link) {
        map_remove(&s->links, link_handle);
        link_free(c, link);
    }
    return 0;
}

/* --- what was taken ------------------------------------------------------------------------------------------------ */
int amqp_touch(connection *c, amqp_link *link)
{
    if (!link->taken) {
        int bad = grow_array((void **)&c->amqp->touched, &c->amqp->touched_capacity, c->amqp->touched_count,
                             sizeof(amqp_link *));
        if (bad)
            return bad;
        c->amqp->touched[c->amqp->touched_count++] = link;
    }
    link->taken++;
    return 0;
}

int vespiary_core_taken_amqp(vespiary_core *core, uint32_t handle, vespiary_taken *out, uint32_t room)
{
    connection *c = connection_of(core, handle);
    if (!c)
        return -EINVAL;
    if (!c->amqp || !c->amqp->touched_count)
        return 0;
    uint32_t count = c->amqp->touched_count < room ? c->amqp->touched_count : room;
    for (uint32_t i = 0; i < count; i++) {
        amqp_link *link = c->amqp->touched[i];
        out[i] = (vespiary_taken){link->channel, link->handle, link->taken};
        link->taken = 0;
    }
    c->amqp->touched_count -= count;
    memmove(c->amqp->touched, c->amqp->touched + count, c->amqp->touched_count * sizeof(amqp_link *));
    return (int)count;
}

/* --- messages of a lesson ------------------------------------------------------------------------------------------ */
static bool is_plain_text(const uint8_t *at, uint32_t length)
{
    if (length >= ENCODED_ID_BYTES && !memcmp(at, ENCODED_ID, ENCODED_ID_BYTES))
        return false;
    for (uint32_t i = 0; i < length; i++) {
        uint8_t lower = at[i] | 0x20;
        if (!((lower >= 'a' && lower <= 'z') || (at[i] >= '0' && at[i] <= '9') || at[i] == '-' || at[i] == '_'))
            return false;
    }
    return true;
}

static uint64_t number64(const uint8_t *at) { return (uint64_t)amqp_number(at) << 32 | amqp_number(at + 4); }

/* Whether a time has so many digits, and is not before 1970. */
static bool has_digits(const uint8_t *at, uint32_t digits)
{
    uint64_t value = number64(at);
    uint32_t count = 1;
    for (uint64_t rest = value; rest > 9; rest /= 10)
        count++;
    return value <= INT64_MAX && count == digits;
}

/* Whether bytes are a key, up to what may differ. */
static bool is_key(const amqp_lesson *known, const uint8_t *at)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < known->ranges_count; i++) {
        const amqp_range *r = &known->ranges[i];
        if (memcmp(at + from, known->key + from, r->at - from))
            return false;
        from = r->at + r->length;
    }
    if (memcmp(at + from, known->key + from, known->key_length - from))
        return false;
    for (uint32_t i = 0; i < known->ranges_count; i++) {
        const amqp_range *r = &known->ranges[i];
        if (!(r->is_time ? has_digits(at + r->at, r->line_length) : is_plain_text(at + r->at, r->length)))
            return false;
    }
    return true;
}

/* Put what differs where it is stored. */
static void write_ranges(const amqp_lesson *known, const uint8_t *at)
{
    uint8_t *stored = known->key + known->key_length;
    for (uint32_t i = 0; i < known->ranges_count; i++) {
        const amqp_range *r = &known->ranges[i];
        memcpy(stored + r->native_at, at + r->at, r->length);
        if (!r->is_time) {
            memcpy(stored + r->line_at, at + r->at, r->length);
            continue;
        }
        uint64_t value = number64(at + r->at);
        for (uint32_t k = r->line_length; k-- > 0; value /= 10)
            stored[r->line_at + k] = (uint8_t)('0' + value % 10);
    }
}

/* Whether the value of a body, whose format code ends a key, is all that is behind the key. */
static bool read_body(const amqp_lesson *known, const uint8_t *at, uint32_t length, piece *body)
{
    uint8_t code = known->key[known->key_length - 1];
    uint32_t width = code < 0xB0 ? 1 : 4;
    if (length < known->key_length + width)
        return false;
    const uint8_t *size = at + known->key_length;
    *body = (piece){size + width, length - known->key_length - width};
    if ((width == 1 ? *size : amqp_number(size)) != body->length)
        return false;
    return (code & 0x0F) != 1 || is_utf8(body->data, body->length);
}

amqp_lesson *amqp_lesson_of(amqp_link *link, const uint8_t *at, uint32_t length, piece *body)
{
    for (uint32_t i = 0; i < link->count; i++) {
        uint32_t number = (link->last + i) % link->count;
        amqp_lesson *known = &link->lessons[number];
        if (length <= known->key_length || !is_key(known, at))
            continue;
        if (!read_body(known, at, length, body))
            return NULL;
        link->last = number;
        write_ranges(known, at);
        return known;
    }
    return NULL;
}

/* --- teaching -------------------------------------------------------------------------------------------------------- */
static bool is_body_head(const uint8_t *at)
{
    bool is_value = at[2] == 0x77;
    return at[0] == 0 && at[1] == 0x53 && (is_value || at[2] == 0x75) &&
           (at[3] == 0xA0 || at[3] == 0xB0 || (is_value && (at[3] == 0xA1 || at[3] == 0xB1)));
}

/* Read the ranges of a lesson; false: they are not what the contract says. */
static bool read_ranges(amqp_lesson *made, const uint32_t *numbers, uint32_t count)
{
    uint64_t from = 0;
    made->ranges_count = count;
    for (uint32_t i = 0; i < count; i++, numbers += RANGE_NUMBERS) {
        amqp_range *r = &made->ranges[i];
        *r = (amqp_range){numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
        bool is_shaped = r->is_time ? r->length == TIME_BYTES && r->line_length && r->line_length <= DIGITS_MAX
                                    : r->length && r->line_length == r->length;
        if (!is_shaped || r->at < from || (uint64_t)r->at + r->length > made->key_length - HEAD_BYTES ||
            (uint64_t)r->line_at + r->line_length > made->stored_length ||
            (uint64_t)r->native_at + r->length > made->stored_length)
            return false;
        from = (uint64_t)r->at + r->length;
    }
    return true;
}

/* The link, made if need be; *bad: -ENOMEM, or 0 with NULL: there are too many. */
static amqp_link *link_make(connection *c, uint32_t channel, uint32_t handle, int *bad)
{
    amqp_session *s = amqp_session_make(c, channel);
    *bad = s ? 0 : -ENOMEM;
    amqp_link *link = amqp_link_find(s, handle);
    if (!s || link || c->amqp->links >= LINKS_MAX)
        return link;
    link = calloc(1, sizeof *link);
    if (!link || map_put(&s->links, handle, link)) {
        free(link);
        *bad = -ENOMEM;
        return NULL;
    }
    link->channel = channel;
    link->handle = handle;
    c->amqp->links++;
    return link;
}

/* Where a lesson goes: in place of one of the same messages, else behind the others, else in place of the oldest. */
static amqp_lesson *lesson_place(amqp_link *link, const amqp_lesson *made)
{
    for (uint32_t i = 0; i < link->count; i++)
        if (link->lessons[i].key_length == made->key_length && is_key(&link->lessons[i], made->key))
            return &link->lessons[i];
    if (link->count < LESSONS_MAX)
        return &link->lessons[link->count++];
    uint32_t oldest = link->next;
    link->next = (oldest + 1) % LESSONS_MAX;
    return &link->lessons[oldest];
}

int vespiary_core_teach_amqp(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t link_handle,
                             const uint8_t *key, uint32_t key_length, const uint8_t *stored, uint32_t stored_length,
                             uint32_t to, int is_persistent, int is_escaped, const uint32_t *ranges, uint32_t count)
{
    connection *c = connection_of(core, handle);
    uint64_t bytes = (uint64_t)key_length + stored_length;
    if (!c || channel > UINT16_MAX || to >= core->routes_count || !core->routes[to].is_open ||
        core->routes[to].is_switch || key_length < HEAD_BYTES || bytes > LESSON_BYTES_MAX ||
        stored_length > STORED_BYTES_MAX || count > RANGES_MAX || !is_body_head(key + key_length - HEAD_BYTES))
        return -EINVAL;
    amqp_lesson made = {.key_length = key_length,
                        .stored_length = stored_length,
                        .route = to,
                        .generation = core->routes[to].generation,
                        .is_persistent = is_persistent != 0,
                        .is_escaped = is_escaped != 0};
    if (!read_ranges(&made, ranges, count))
        return -EINVAL;
    int bad;
    amqp_link *link = link_make(c, channel, link_handle, &bad);
    if (!link)
        return bad;
    made.key = malloc(bytes);
    if (!made.key)
        return -ENOMEM;
    memcpy(made.key, key, key_length);
    if (stored_length)
        memcpy(made.key + key_length, stored, stored_length);
    amqp_lesson *place = lesson_place(link, &made);
    lesson_forget(c, place);
    if (c->amqp->lesson_bytes + bytes > LESSONS_BYTES_MAX) {
        lessons_forget(c, link);
        if (c->amqp->lesson_bytes + bytes > LESSONS_BYTES_MAX) {
            free(made.key);
            return 0;
        }
        place = &link->lessons[link->count++];
    }
    *place = made;
    c->amqp->lesson_bytes += (uint32_t)bytes;
    return 1;
}
