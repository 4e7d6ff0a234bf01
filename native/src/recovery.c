/* Recovery: the records of valid blocks, in journal order, become queues again (journal-format.md §4). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "state.h"

typedef struct {
    vespiary_core *core;
    file *in;
    uint32_t offset; /* of the record in the file */
    const uint8_t *at;
    uint32_t length;
} record;

static bool is_sequence(uint64_t number) { return number && number <= SEQUENCE_MAX; }

/* --- what records do ---------------------------------------------------------------------------------------- */
/* reference: of a large message, else unused. */
static int apply_add(vespiary_core *core, uint32_t queue_id, uint64_t sequence, const entry *what,
                     const uint8_t *reference)
{
    queue *q = queue_find(core, queue_id);
    if (!q)
        return 0; /* the queue was deleted: the bindings decide */
    uint32_t before;
    entry *made = queue_restore(core, q, sequence, &before);
    if (!made)
        return -ENOMEM;
    uint16_t deliveries = before == UINT32_MAX ? 0 : made->deliveries;
    *made = *what;
    made->deliveries = deliveries;
    q->live_bytes += (uint64_t)what->body_length + what->properties_length;
    q->has_special |= (what->flags & FLAG_SPECIAL) != 0;
    record_pin(core, q, made);
    int bad = what->flags & FLAG_LARGE ? large_place(core, q, sequence, reference) : 0;
    /* The old record stands until its file is freed: what ends the new one must not be gone before. */
    return bad || before == UINT32_MAX ? bad : add_cancel(core->slots[what->slot], before);
}

/* `in` holds the ACK record, `commit` the COMMIT of its transaction; the same file outside of one. */
static int apply_ack(vespiary_core *core, file *in, file *commit, uint32_t queue_id, uint64_t first, uint64_t count)
{
    queue *q = queue_find(core, queue_id);
    if (!q)
        return 0;
    uint64_t end = first + count < q->tail ? first + count : q->tail;
    if (first + count > q->tail)
        q->tail = first + count;
    for (uint64_t at = first; at < end;) {
        entry *item = queue_entry(q, at);
        if (!item) {
            at = queue_next_segment(q, at);
            continue;
        }
        if (item->state == ENTRY_READY) {
            int bad = add_cancel(in, item->slot);
            if (!bad)
                bad = add_cancel(commit, item->slot);
            if (bad)
                return bad;
            entry_done(core, q, at, item);
        }
        at++;
    }
    return q->extents_count ? extents_ack(core, q, in, commit, first, end) : 0;
}

static int apply_count(const record *r)
{
    queue *q = queue_find(r->core, get32(r->at + 8));
    uint64_t sequence = get64(r->at + 16);
    if (!is_sequence(sequence))
        return -EBADMSG;
    entry *item = q ? queue_entry(q, sequence) : NULL;
    uint32_t deliveries = get32(r->at + 12);
    if (q && q->extents_count) {
        int bad = extents_count(q, r->in, sequence, deliveries);
        if (bad)
            return bad;
    }
    if (!item || item->state != ENTRY_READY)
        return 0;
    item->deliveries = deliveries < UINT16_MAX ? (uint16_t)deliveries : UINT16_MAX;
    return add_cancel(r->in, item->slot);
}

static int apply_queues(const record *r)
{
    uint32_t count = get32(r->at + 8);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *at = r->at + 16 + (uint64_t)i * 24;
        queue *q = queue_find(r->core, get32(at));
        uint64_t head = get64(at + 8), tail = get64(at + 16);
        if (head > SEQUENCE_MAX + 1 || tail > SEQUENCE_MAX + 1)
            return -EBADMSG;
        if (q && tail > q->tail)
            q->tail = tail;
    }
    return 0;
}

/* --- transactions ---------------------------------------------------------------------------------------------- */
static pending_transaction *pending_find(const vespiary_core *core, uint64_t id)
{
    uintptr_t at = (uintptr_t)map_get(&core->pending_at, id);
    return at ? &core->pending[at - 1] : NULL;
}

static void pending_remove(vespiary_core *core, pending_transaction *which)
{
    free(which->members);
    free(which->data);
    map_remove(&core->pending_at, which->id);
    const pending_transaction *last = &core->pending[--core->pending_count];
    if (which == last)
        return;
    map_remove(&core->pending_at, last->id);
    /* There is room: two numbers went. */
    (void)map_put(&core->pending_at, last->id, (void *)(uintptr_t)(which - core->pending + 1));
    *which = *last;
}

static pending_transaction *pending_of(vespiary_core *core, uint64_t id)
{
    pending_transaction *known = pending_find(core, id);
    if (known)
        return known;
    if (grow_array((void **)&core->pending, &core->pending_capacity, core->pending_count,
                   sizeof(pending_transaction)) ||
        map_put(&core->pending_at, id, (void *)(uintptr_t)(core->pending_count + 1)))
        return NULL;
    core->pending[core->pending_count] = (pending_transaction){.id = id};
    return &core->pending[core->pending_count++];
}

static int pending_add(pending_transaction *to, pending_member member)
{
    int bad = grow_array((void **)&to->members, &to->capacity, to->count, sizeof(pending_member));
    if (!bad)
        to->members[to->count++] = member;
    return bad;
}

static pending_transaction *pending_record(const record *r, uint64_t id)
{
    pending_transaction *to = pending_of(r->core, id);
    if (to) {
        to->digest = vespiary_crc32c(to->digest, r->at, r->length);
        to->records++;
        to->is_cut |= r->core->is_after_gap;
        to->gaps = r->core->gaps;
    }
    return to;
}

/* PREPARE stands behind the members as COMMIT does, so missing ones are judged alike: see apply_commit. */
static int apply_prepare(const record *r)
{
    vespiary_core *core = r->core;
    pending_transaction *t = pending_of(core, get64(r->at + 8));
    if (!t)
        return -ENOMEM;
    if (t->is_prepared)
        return 0;
    if (r->length - 24 > BRANCH_DATA_MAX)
        return -EBADMSG;
    t->data_length = r->length - 24;
    t->data = malloc(t->data_length ? t->data_length : 1);
    if (!t->data)
        return -ENOMEM;
    memcpy(t->data, r->at + 24, t->data_length);
    t->is_prepared = true;
    t->prepare_slot = r->in->slot;
    t->named = get32(r->at + 16);
    t->named_digest = get32(r->at + 20);
    t->is_whole = t->records == t->named && t->digest == t->named_digest;
    t->is_good = t->is_whole || ((t->is_cut || core->is_after_gap) && t->records < t->named);
    return 0;
}

static bool is_committed(const record *r, const pending_transaction *t)
{
    if (t->is_prepared)
        return t->is_good;
    /* A file goes only when nothing in it is live and the COMMIT is durable. So members that are missing together with
     * blocks before one of them, or before the COMMIT, were committed, and are done. A PREPARE may be among what went. */
    uint32_t members = get32(r->at + 16);
    bool is_whole = t->records == members && t->digest == get32(r->at + 20);
    return is_whole || ((t->is_cut || r->core->gaps != t->gaps) && t->records < members);
}

/* COMMIT or ROLLBACK. 0 done, 1 a COMMIT that the caller is told of, else -errno. */
static int apply_end(const record *r, bool is_commit)
{
    vespiary_core *core = r->core;
    pending_transaction *t = pending_find(core, get64(r->at + 8));
    if (!t || (is_commit && !is_committed(r, t)))
        return 0; /* without members it was of volatile messages alone, or all of it was reclaimed */
    int bad = t->is_prepared ? add_cancel(r->in, t->prepare_slot) : 0;
    for (uint32_t k = 0; k < t->count && !bad; k++) {
        const pending_member *m = &t->members[k];
        if (is_commit)
            bad = m->is_other ? 0
                  : m->is_ack ? apply_ack(core, core->slots[m->entry.slot], r->in, m->queue_id, m->sequence, m->count)
                              : apply_add(core, m->queue_id, m->sequence, &m->entry, m->reference);
        if (!bad)
            bad = add_cancel(r->in, m->entry.slot);
    }
    bool is_told = is_commit && t->has_other;
    pending_remove(core, t);
    return bad ? bad : is_told;
}

/* --- prepared branches at the end ------------------------------------------------------------------------------- */
static int restore_add(vespiary_core *core, branch *to, const pending_member *m)
{
    bool is_missing = !queue_find(core, m->queue_id);
    int bad = branch_add(to, (branch_member){.sequence = m->sequence, .queue_id = m->queue_id, .slot = m->entry.slot,
                                             .is_missing = is_missing});
    if (bad || is_missing)
        return bad;
    bad = apply_add(core, m->queue_id, m->sequence, &m->entry, m->reference);
    if (!bad) {
        queue *q = queue_find(core, m->queue_id);
        queue_entry(q, m->sequence)->state = ENTRY_RESERVED;
        q->reserved++;
    }
    return bad;
}

static int restore_ack(vespiary_core *core, branch *to, const pending_member *m)
{
    queue *q = queue_find(core, m->queue_id);
    uint64_t at = m->sequence, end = m->sequence + m->count;
    int bad = 0;
    while (at < end && !bad) {
        entry *item = q ? queue_entry(q, at) : NULL;
        bool is_there = item && item->state == ENTRY_READY;
        if (is_there) {
            item->state = ENTRY_LOCKED;
            q->locked++;
            bad = branch_pin(core, to, item->slot);
        } else if (q && m->count == 1) {
            uint32_t slot;
            int locked = paged_lock(q, at, &slot);
            is_there = locked > 0;
            bad = is_there ? branch_pin(core, to, slot) : locked;
        }
        if (!bad && (is_there || m->count == 1))
            bad = branch_add(to, (branch_member){.sequence = at, .queue_id = m->queue_id, .slot = m->entry.slot,
                                                   .is_ack = true, .is_missing = !is_there});
        if (!q || at >= q->tail)
            break; /* nothing more is there */
        at = item || m->count == 1 ? at + 1 : queue_next_segment(q, at);
    }
    return bad;
}

/* Hold the members of a prepared branch; those of unknown queues are missing. */
static int restore_branch(vespiary_core *core, const pending_transaction *t)
{
    branch *made = branch_make(core, t->id);
    if (!made) {
        free(t->data);
        return -ENOMEM;
    }
    made->is_whole = t->is_whole;
    made->records = t->named;
    made->digest = t->named_digest;
    made->data = t->data;
    made->data_length = t->data_length;
    int bad = branch_pin(core, made, t->prepare_slot);
    for (uint32_t k = 0; k < t->count && !bad; k++) {
        const pending_member *m = &t->members[k];
        bad = branch_pin(core, made, m->entry.slot);
        if (!bad && !m->is_other)
            bad = m->is_ack ? restore_ack(core, made, m) : restore_add(core, made, m);
    }
    return bad;
}

/* --- records ------------------------------------------------------------------------------------------------------ */
static int read_add(const record *r)
{
    const uint8_t *at = r->at;
    if (r->length < ADD_HEADER)
        return -EBADMSG;
    bool is_member = at[5] & FLAG_TRANSACTIONAL;
    uint32_t body = get32(at + 16), properties = get16(at + 20), places = get16(at + 22);
    uint64_t length = ADD_HEADER + (uint64_t)places * PLACE_BYTES + (is_member ? 8 : 0) + properties + body;
    if (!places || length != r->length || (at[5] & FLAG_LARGE && body != LARGE_REFERENCE))
        return -EBADMSG;
    const uint8_t *reference = at + length - body;
    entry made = {.slot = r->in->slot,
                  .offset = r->offset,
                  .body_length = body,
                  .properties_length = (uint16_t)properties,
                  .state = ENTRY_READY,
                  .flags = at[5] & (FLAG_ESCAPED | FLAG_LARGE | FLAG_SPECIAL),
                  .places = (uint16_t)places};
    pending_transaction *to = NULL;
    if (is_member && !(to = pending_record(r, get64(at + ADD_HEADER + places * PLACE_BYTES))))
        return -ENOMEM;
    for (uint32_t i = 0; i < places; i++) {
        const uint8_t *place = at + ADD_HEADER + i * PLACE_BYTES;
        uint32_t queue_id = get32(place);
        uint64_t sequence = get64(place + 8);
        if (!is_sequence(sequence))
            return -EBADMSG;
        pending_member member = {.queue_id = queue_id, .sequence = sequence, .entry = made};
        if (to && made.flags & FLAG_LARGE)
            memcpy(member.reference, reference, LARGE_REFERENCE);
        int bad = to ? pending_add(to, member) : apply_add(r->core, queue_id, sequence, &made, reference);
        if (bad)
            return bad;
    }
    return 0;
}

static int read_ack(const record *r)
{
    bool is_member = r->at[5] & FLAG_TRANSACTIONAL;
    if (r->length < 16)
        return -EBADMSG;
    uint32_t queue_id = get32(r->at + 8), ranges = get32(r->at + 12);
    if (r->length != 16 + (uint64_t)ranges * 16 + (is_member ? 8 : 0))
        return -EBADMSG;
    pending_transaction *to = NULL;
    if (is_member && !(to = pending_record(r, get64(r->at + 16 + (uint64_t)ranges * 16))))
        return -ENOMEM;
    for (uint32_t i = 0; i < ranges; i++) {
        uint64_t first = get64(r->at + 16 + (uint64_t)i * 16), count = get64(r->at + 24 + (uint64_t)i * 16);
        if (first > SEQUENCE_MAX || count > SEQUENCE_MAX + 1 - first)
            return -EBADMSG;
        int bad = to ? pending_add(to, (pending_member){.is_ack = true,
                                                         .queue_id = queue_id,
                                                         .sequence = first,
                                                         .count = count,
                                                         .entry = {.slot = r->in->slot}})
                     : apply_ack(r->core, r->in, r->in, queue_id, first, count);
        if (bad)
            return bad;
    }
    return 0;
}

/* Duplicate ids are Python's; in a transaction they are members like any other. */
static int read_duplicate(const record *r)
{
    if (r->length < (r->at[5] & FLAG_TRANSACTIONAL ? 24U : 16U))
        return -EBADMSG;
    if (!(r->at[5] & FLAG_TRANSACTIONAL))
        return 1;
    pending_transaction *to = pending_record(r, get64(r->at + r->length - 8));
    if (!to)
        return -ENOMEM;
    to->has_other = true;
    int bad = pending_add(to, (pending_member){.is_other = true, .entry = {.slot = r->in->slot}});
    return bad ? bad : 1;
}

/* 0 kept by the core, 1 for the caller, -EBADMSG malformed. */
static int read_record(const record *r)
{
    switch (r->at[4]) {
    case RECORD_ADD: return read_add(r);
    case RECORD_ACK: return read_ack(r);
    case RECORD_COUNT:
        if (r->length != 24)
            return -EBADMSG;
        return apply_count(r);
    case RECORD_COMMIT: return r->length == 24 ? apply_end(r, true) : -EBADMSG;
    case RECORD_ROLLBACK: return r->length == 24 ? apply_end(r, false) : -EBADMSG;
    case RECORD_PREPARE: return r->length < 24 ? -EBADMSG : apply_prepare(r);
    case RECORD_QUEUES:
        if (r->length < 16 || r->length != 16 + (uint64_t)get32(r->at + 8) * 24)
            return -EBADMSG;
        return apply_queues(r);
    case RECORD_PAGE: return apply_paged(r->core, r->in, r->at, r->length);
    case RECORD_PAGE_DONE: return r->length == 16 ? apply_page_done(r->core, r->in, get64(r->at + 8)) : -EBADMSG;
    case RECORD_DUPLICATE: return read_duplicate(r);
    case RECORD_SEAL: return 0;
    default: return r->at[4] & 0x80 ? -EBADMSG : 1;
    }
}

int vespiary_core_restore_block(vespiary_core *core, uint64_t file_id, uint64_t offset, const uint8_t *block,
                                uint32_t length, vespiary_other_record *others, uint32_t room,
                                uint32_t *bad_offset)
{
    record r = {.core = core, .in = file_find(core, file_id)};
    uint32_t count = 0;
    if (!r.in || length < BLOCK_HEADER)
        return -EINVAL;
    uint32_t end = BLOCK_HEADER + get32(block + 32), records = get32(block + 36);
    if (end > length)
        return -EINVAL;
    uint64_t sequence = get64(block + 8);
    if (sequence != core->restored_sequence + 1) {
        core->is_after_gap = true;
        core->gaps++;
    }
    core->restored_sequence = sequence;
    uint32_t at = BLOCK_HEADER;
    for (uint32_t i = 0; i < records; i++) {
        *bad_offset = at;
        if (at + 8 > end)
            return -EBADMSG;
        r.at = block + at;
        r.offset = (uint32_t)offset + at;
        r.length = get32(r.at);
        if (r.length < 8 || r.length > end - at)
            return -EBADMSG;
        int other = read_record(&r);
        core->is_after_gap = false;
        if (other < 0)
            return other;
        if (other && count < room)
            others[count++] = (vespiary_other_record){r.at[4], at + 8, r.length - 8};
        at += (uint32_t)align8(r.length);
    }
    return (int)count;
}

int vespiary_core_restore_done(vespiary_core *core)
{
    int dropped = 0, bad = 0;
    for (uint32_t i = 0; i < core->pending_count; i++) {
        if (core->pending[i].is_prepared)
            bad |= restore_branch(core, &core->pending[i]);
        else
            dropped++;
        free(core->pending[i].members);
    }
    core->pending_count = 0;
    map_free(&core->pending_at);
    if (bad)
        return -ENOMEM;
    large_forget_done(core); /* bodies that no live message refers to are found in the folder */
    for (uint32_t i = 0; i < core->queues.capacity; i++) {
        queue *q = core->queues.values[i];
        if (!q)
            continue;
        q->available = q->next = q->tail;
        q->head = q->live ? segments_from(&q->segments, 0)->number * SEGMENT_ENTRIES : q->tail;
        queue_advance_head(q);
        q->head = q->head < q->paged_next ? q->head : q->paged_next;
        q->next = q->head;
        q->added = q->acknowledged = 0;
        queue_ready(core, q);
    }
    return dropped;
}
