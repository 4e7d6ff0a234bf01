/* Prepared branches: what a transaction holds between PREPARE and its COMMIT or ROLLBACK (journal-format.md, 3.3).
 *
 * Added messages have their places (ENTRY_RESERVED) and are not deliverable; acknowledged ones are ENTRY_LOCKED. Both go
 * on when the record that ends the branch is durable. Until then each file that the branch needs has one live place more. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "counts.h"
#include "state.h"

enum { COMMITTED = 1, ROLLED_BACK = 2 };

branch *branch_find(const vespiary_core *core, uint64_t id)
{
    for (uint32_t i = 0; i < core->branches_count; i++)
        if (core->branches[i].id == id)
            return &core->branches[i];
    return NULL;
}

branch *branch_make(vespiary_core *core, uint64_t id)
{
    if (grow_array((void **)&core->branches, &core->branches_capacity, core->branches_count, sizeof(branch)))
        return NULL;
    core->branches[core->branches_count] = (branch){.id = id, .journal_id = id, .is_whole = true};
    return &core->branches[core->branches_count++];
}

void branch_clear(branch *which)
{
    free(which->members);
    free(which->data);
    free(which->pins);
    *which = (branch){0};
}

int branch_reserve(branch *to, uint32_t more)
{
    int bad = 0;
    while (!bad && to->capacity - to->count < more)
        bad = grow_array((void **)&to->members, &to->capacity, to->capacity, sizeof(branch_member));
    return bad;
}

int branch_add(branch *to, branch_member member)
{
    int bad = grow_array((void **)&to->members, &to->capacity, to->count, sizeof(branch_member));
    if (!bad)
        to->members[to->count++] = member;
    return bad;
}

int branch_pin(vespiary_core *core, branch *to, uint32_t slot)
{
    for (uint32_t i = to->pins_count; i-- > 0;) /* mostly the last one */
        if (to->pins[i] == slot)
            return 0;
    int bad = grow_array((void **)&to->pins, &to->pins_capacity, to->pins_count, sizeof(uint32_t));
    if (!bad) {
        to->pins[to->pins_count++] = slot;
        core->slots[slot]->live++;
        core->slots[slot]->pins++;
    }
    return bad;
}

static int64_t stage_end(vespiary_core *core, const branch *b, uint32_t type)
{
    uint8_t body[16];
    put64(body, b->journal_id);
    put32(body + 8, b->records);
    put32(body + 12, b->digest);
    return vespiary_core_append_record(core, type, 0, body, sizeof body, 1);
}

static int stage_prepare(vespiary_core *core, const uint8_t *data, uint32_t length, placed *at)
{
    int bad = place_record(core, 24 + length, false, at);
    if (bad)
        return bad;
    put32(at->memory, 24 + length);
    at->memory[4] = RECORD_PREPARE;
    at->memory[5] = 0;
    put16(at->memory + 6, 0);
    put64(at->memory + 8, core->transaction);
    put32(at->memory + 16, core->transaction_records);
    put32(at->memory + 20, core->transaction_digest);
    if (length)
        memcpy(at->memory + 24, data, length);
    mark_urgent(core);
    return 0;
}

/* --- preparing ------------------------------------------------------------------------------------------------- */
int64_t vespiary_core_prepare(vespiary_core *core, uint64_t transaction, const uint8_t *data, uint32_t length)
{
    if (!transaction || core->transaction != transaction || !core->is_branch || length > BRANCH_DATA_MAX)
        return -EINVAL;
    int bad = grow_array((void **)&core->branches, &core->branches_capacity, core->branches_count, sizeof(branch));
    uint8_t *copy = malloc(length ? length : 1);
    placed at;
    if (!bad)
        bad = copy ? stage_prepare(core, data, length, &at) : -ENOMEM;
    if (bad) {
        free(copy);
        return bad;
    }
    if (length)
        memcpy(copy, data, length);
    branch *made = branch_make(core, transaction); /* there is room: see above */
    *made = core->staged;
    core->staged = (branch){0};
    made->id = made->journal_id = transaction;
    made->is_whole = true;
    made->data = copy;
    made->data_length = length;
    made->block = core->next_sequence;
    made->records = core->transaction_records;
    made->digest = core->transaction_digest;
    bad = branch_pin(core, made, at.slot);
    for (uint32_t i = 0; i < core->transaction_slots_count; i++)
        bad |= branch_pin(core, made, core->transaction_slots[i]);
    bad |= transaction_end(core);
    return bad ? -ENOMEM : (int64_t)made->block;
}

/* --- copying it to the end of the journal ------------------------------------------------------------------------- */
/* Of a member: where its message's record begins in `copying.records`, and where the copy of the member's record is. */
typedef struct {
    uint64_t from;         /* UINT64_MAX: no message is copied for it */
    uint32_t slot, offset; /* slot UINT32_MAX: it is in no journal file */
    uint16_t places;       /* of an ADD */
} member_copy;

typedef struct {
    vespiary_core *core;
    branch *b;
    member_copy *members;
    uint8_t *records; /* the messages, whose slabs may lose their memory meanwhile */
    uint64_t used, capacity;
} copying;

/* The entry of a member whose message is in a journal file; NULL: it is volatile, or in a page. */
static entry *journalled_message(const vespiary_core *core, const branch_member *m)
{
    queue *q = queue_find(core, m->queue_id);
    entry *item = q ? queue_entry(q, m->sequence) : NULL;
    if (!item || item->state != (m->is_ack ? ENTRY_LOCKED : ENTRY_RESERVED))
        return NULL;
    const file *in = core->slots[item->slot];
    return in->is_volatile || in->page ? NULL : item;
}

/* Whether a member was added by the record of the member before it, which has several places. */
static bool is_shared(const copying *c, uint32_t i)
{
    const branch_member *m = &c->b->members[i];
    if (!i || m->is_ack || m[-1].is_ack)
        return false;
    const entry *item = journalled_message(c->core, m), *before = journalled_message(c->core, m - 1);
    return item && before && item->slot == before->slot && item->offset == before->offset;
}

/* Copy the messages into memory of their own. -ENOENT: *absent is not in memory. */
static int gather(copying *c, slab_id *absent)
{
    for (uint32_t i = 0; i < c->b->count; i++) {
        const entry *item = journalled_message(c->core, &c->b->members[i]);
        c->members[i] = (member_copy){.from = UINT64_MAX, .slot = UINT32_MAX};
        if (!item || is_shared(c, i))
            continue;
        const uint8_t *record = record_memory(c->core, item);
        *absent = (slab_id){item->slot, item->offset >> c->core->slab_shift};
        if (!record)
            return -ENOENT;
        if (get32(record) > c->core->record_bytes_max) /* from before journal-file-size became smaller */
            return -EMSGSIZE;
        uint64_t length = align8(get32(record));
        if (c->used + length > c->capacity) {
            uint8_t *wider = realloc(c->records, (c->capacity + length) * 2);
            if (!wider)
                return -ENOMEM;
            c->records = wider;
            c->capacity = (c->capacity + length) * 2;
        }
        memcpy(c->records + c->used, record, get32(record));
        c->members[i].from = c->used;
        c->used += length;
    }
    return 0;
}

/* Stage the message of members from `i` on that share its record: added ones under the id of the transaction, an
 * acknowledged one by itself. */
static int copy_add(copying *c, uint32_t i, uint32_t places, placed *to)
{
    const uint8_t *from = c->records + c->members[i].from;
    const branch_member *m = &c->b->members[i];
    uint32_t content = get32(from + 16) + get16(from + 20), before = from[5] & FLAG_TRANSACTIONAL ? 8 : 0;
    uint32_t id = m->is_ack ? 0 : 8, length = ADD_HEADER + places * PLACE_BYTES + id + content;
    int bad = place_record(c->core, length, false, to);
    if (bad)
        return bad;
    memcpy(to->memory, from, ADD_HEADER);
    put32(to->memory, length);
    to->memory[5] = (uint8_t)((from[5] & ~FLAG_TRANSACTIONAL) | FLAG_MOVED | (id ? FLAG_TRANSACTIONAL : 0));
    put16(to->memory + 22, places);
    uint8_t *at = to->memory + ADD_HEADER;
    for (uint32_t k = 0; k < places; k++, at += PLACE_BYTES) {
        put32(at, m[k].queue_id);
        put32(at + 4, 0);
        put64(at + 8, m[k].sequence);
        c->members[i + k].slot = to->slot;
        c->members[i + k].offset = to->offset;
        c->members[i + k].places = (uint16_t)places;
    }
    if (id)
        put64(at, c->core->transaction);
    memcpy(at + id, from + ADD_HEADER + get16(from + 22) * PLACE_BYTES + before, content);
    return id ? join_transaction(c->core, to, length) : transaction_slot(c->core, to->slot);
}

/* A member's message is where its copy is. */
static void take_copy(vespiary_core *core, const branch_member *m, const member_copy *copy)
{
    queue *q = queue_find(core, m->queue_id);
    entry *item = queue_entry(q, m->sequence);
    record_unpin(core, q, item);
    item->slot = copy->slot;
    item->offset = copy->offset;
    item->places = copy->places;
    record_pin(core, q, item);
    q->ack_block = 0; /* an ACK record before the copy must not be extended by it */
}

/* Stage a copy of an acknowledged message; its acknowledgement is staged again later. The file of the acknowledgement depends on
 * the file of the message; if that were the later one, the two could depend on each other, and neither would ever be
 * freed. */
static int copy_acknowledged(copying *c, uint32_t i, entry *item)
{
    vespiary_core *core = c->core;
    branch_member *m = &c->b->members[i];
    queue *q = queue_find(core, m->queue_id);
    placed at;
    uint32_t before = item->slot;
    bool is_counted = q->is_durable && journalled_deliveries(core, item);
    if (is_counted) /* in one block with the message, unless that fills a block alone */
        (void)reserve_record(core, get32(c->records + c->members[i].from) + 8 + COUNT_BYTES, false);
    int bad = copy_add(c, i, 1, &at);
    if (bad)
        return bad;
    bad = add_cancel(core->slots[at.slot], before);
    take_copy(core, m, &c->members[i]);
    return bad || !is_counted ? bad : stage_count(core, q, m->sequence, item);
}

static int copy_ack(copying *c, uint32_t i)
{
    const branch_member *m = &c->b->members[i];
    placed at;
    int bad = m->slot == UINT32_MAX ? 0 : place_ack(c->core, m->queue_id, m->sequence, &at);
    if (!bad && m->slot != UINT32_MAX)
        c->members[i].slot = at.slot;
    return bad;
}

/* No other record may stand between the members and the PREPARE: recovery accepts missing members as reclaimed only if blocks
 * are missing right before those that are left. */
static int copy_members(copying *c)
{
    branch *b = c->b;
    int bad = 0;
    for (uint32_t i = 0; i < b->count && !bad; i++) {
        entry *item = b->members[i].is_ack ? journalled_message(c->core, &b->members[i]) : NULL;
        bad = item ? copy_acknowledged(c, i, item) : 0;
    }
    for (uint32_t i = 0; i < b->count && !bad; i++) {
        uint32_t places = 1;
        placed at;
        if (b->members[i].is_ack) {
            bad = copy_ack(c, i);
        } else if (c->members[i].from != UINT64_MAX) {
            while (i + places < b->count && is_shared(c, i + places))
                places++;
            bad = copy_add(c, i, places, &at);
        }
    }
    return bad;
}

/* From now on the copies are the members: the branch needs their files, and no longer those of the earlier records. */
static int take_copies(const copying *c)
{
    vespiary_core *core = c->core;
    branch *b = c->b;
    file *own = core->slots[core->filling.slot];
    uint32_t kept = 0;
    int bad = 0;
    for (uint32_t i = 0; i < b->pins_count; i++) {
        file *which = core->slots[b->pins[i]];
        bad |= add_cancel(own, which->slot); /* without the ROLLBACK the earlier records would count again */
        if (which->page) { /* with a message that it acknowledges */
            b->pins[kept++] = which->slot;
            continue;
        }
        which->live--;
        which->pins--;
    }
    b->pins_count = kept;
    bad |= branch_pin(core, b, own->slot);
    for (uint32_t i = 0; i < core->transaction_slots_count; i++) {
        bad |= add_cancel(own, core->transaction_slots[i]);
        bad |= branch_pin(core, b, core->transaction_slots[i]);
    }
    for (uint32_t i = 0; i < b->count; i++) {
        branch_member *m = &b->members[i];
        if (m->slot == UINT32_MAX || c->members[i].slot == UINT32_MAX)
            continue;
        if (!m->is_ack)
            take_copy(core, m, &c->members[i]);
        m->slot = c->members[i].slot;
    }
    return bad;
}

/* The copies are prepared and the members before them rolled back in one block: both, or neither. */
static int64_t stage_copies(copying *c)
{
    vespiary_core *core = c->core;
    branch *b = c->b;
    placed at;
    int64_t bad = copy_members(c);
    if (!bad)
        bad = reserve_record(core, (uint32_t)align8(24 + b->data_length) + 24, false);
    if (!bad)
        bad = stage_prepare(core, b->data, b->data_length, &at);
    if (!bad)
        bad = stage_end(core, b, RECORD_ROLLBACK);
    if (bad < 0)
        return bad;
    b->journal_id = core->transaction;
    b->records = core->transaction_records;
    b->digest = core->transaction_digest;
    return take_copies(c) ? -ENOMEM : bad;
}

static bool is_complete(const branch *b)
{
    for (uint32_t i = 0; i < b->count; i++)
        if (b->members[i].is_missing)
            return false;
    return b->is_whole;
}

int64_t vespiary_core_branch_copy(vespiary_core *core, uint64_t transaction, uint64_t members_id, uint64_t *file_id,
                                  uint32_t *index)
{
    copying c = {.core = core, .b = branch_find(core, transaction)};
    *file_id = 0;
    *index = 0;
    if (!c.b || c.b->outcome || core->transaction || c.b->block > core->durable_sequence || !is_complete(c.b))
        return -EINVAL;
    c.members = calloc(c.b->count ? c.b->count : 1, sizeof *c.members);
    slab_id absent = {0};
    int64_t block = c.members ? gather(&c, &absent) : -ENOMEM;
    if (!block)
        block = vespiary_core_begin(core, members_id, c.used + c.b->data_length, 3 * (uint64_t)c.b->count + 1, false);
    if (!block) {
        block = stage_copies(&c);
        transaction_abandon(core); /* its records are the branch's now */
    }
    free(c.members);
    free(c.records);
    if (block == -ENOENT) {
        *file_id = core->slots[absent.slot]->file_id;
        *index = absent.index;
        return 0;
    }
    return block;
}

/* --- its end ----------------------------------------------------------------------------------------------------- */
/* The entry that a member holds, NULL if its queue is gone. */
static entry *member_entry(const vespiary_core *core, const branch_member *m, queue **q)
{
    *q = m->is_missing ? NULL : queue_find(core, m->queue_id);
    entry *item = *q ? queue_entry(*q, m->sequence) : NULL;
    return item && item->state == (m->is_ack ? ENTRY_LOCKED : ENTRY_RESERVED) ? item : NULL;
}

/* A place in a closed extent that the branch acknowledges. */
static int resolve_paged(vespiary_core *core, const branch_member *m, queue *q, uint32_t slot, int commit)
{
    if (commit) { /* the acknowledgement must stay as long as the page needs it, and so must the COMMIT */
        int bad = m->slot == UINT32_MAX ? 0 : add_cancel(core->slots[m->slot], slot);
        return bad ? bad : add_cancel(core->slots[core->filling.slot], slot);
    }
    uint32_t deliveries = paged_count_delivery(q, m->sequence);
    if (q->is_durable) /* a lost count is no lost message */
        (void)stage_count_of(core, q, m->sequence, deliveries, slot);
    return 0;
}

int64_t vespiary_core_resolve(vespiary_core *core, uint64_t transaction, int commit)
{
    branch *b = branch_find(core, transaction);
    if (!b || b->outcome || core->transaction || b->block > core->durable_sequence)
        return -EINVAL;
    int64_t block = stage_end(core, b, commit ? RECORD_COMMIT : RECORD_ROLLBACK);
    if (block < 0)
        return block;
    b->block = (uint64_t)block;
    b->outcome = commit ? COMMITTED : ROLLED_BACK;
    b->ended = core->branches_ended++;
    core->branches_ending++;
    file *own = core->slots[core->filling.slot];
    int bad = 0;
    for (uint32_t i = 0; i < b->pins_count; i++)
        bad |= add_cancel(own, b->pins[i]);
    for (uint32_t i = 0; i < b->count; i++) {
        const branch_member *m = &b->members[i];
        queue *q = NULL;
        entry *item = m->is_ack ? member_entry(core, m, &q) : NULL;
        uint32_t slot;
        if (!item && m->is_ack && q && paged_is_locked(q, m->sequence, &slot))
            bad |= resolve_paged(core, m, q, slot, commit);
        if (!item)
            continue;
        if (!commit) {
            count_delivery(core, q, m->sequence, item);
        } else if (m->slot != UINT32_MAX && !core->slots[item->slot]->is_volatile) {
            /* Its acknowledgement must stay as long as the message, and so must the COMMIT. */
            bad |= add_cancel(core->slots[m->slot], item->slot);
            bad |= add_cancel(own, item->slot);
        }
    }
    return bad ? -ENOMEM : block;
}

static void let_go(vespiary_core *core, const branch_member *m, bool is_commit)
{
    queue *q;
    entry *item = member_entry(core, m, &q);
    uint32_t slot;
    if (!item && m->is_ack && q && paged_is_locked(q, m->sequence, &slot))
        paged_let_go(core, q, m->sequence, is_commit);
    if (!item)
        return;
    if (m->is_ack == is_commit) { /* an acknowledged message that is done, or an added one that is void */
        entry_done(core, q, m->sequence, item);
        q->acknowledged -= !is_commit;
        return;
    }
    if (m->is_ack) {
        q->locked--;
        q->redelivered++;
    } else {
        q->reserved--;
        q->added++;
    }
    q->resolved++;
    if (m->sequence < q->next) /* consumers went past it: it is first in line now */
        entry_put_first(q, m->sequence, item);
    else
        item->state = ENTRY_READY;
    q->has_special |= (item->flags & FLAG_SPECIAL) != 0;
    queue_ready(core, q);
}

/* Carry out what became durable. */
void branches_written(vespiary_core *core)
{
    for (;;) {
        branch *next = NULL; /* in the order of the journal */
        for (uint32_t i = 0; i < core->branches_count; i++) {
            branch *b = &core->branches[i];
            if (b->outcome && b->block <= core->durable_sequence && (!next || b->ended < next->ended))
                next = b;
        }
        if (!next)
            return;
        for (uint32_t i = 0; i < next->count; i++)
            let_go(core, &next->members[i], next->outcome == COMMITTED);
        for (uint32_t i = 0; i < next->pins_count; i++) {
            core->slots[next->pins[i]]->live--;
            core->slots[next->pins[i]]->pins--;
        }
        branch_clear(next);
        *next = core->branches[--core->branches_count];
        core->branches_ending--;
    }
}

/* --- questions ------------------------------------------------------------------------------------------------------ */
int64_t vespiary_core_branches(const vespiary_core *core, vespiary_branch_facts *out, uint32_t room)
{
    for (uint32_t i = 0; i < core->branches_count && i < room; i++) {
        const branch *b = &core->branches[i];
        uint32_t missing = 0;
        for (uint32_t k = 0; k < b->count; k++)
            missing += b->members[k].is_missing;
        out[i] = (vespiary_branch_facts){b->id, b->block, b->records, b->count, missing, b->is_whole, b->outcome};
    }
    return core->branches_count;
}

int64_t vespiary_core_branch_members(const vespiary_core *core, uint64_t transaction, vespiary_branch_member *out,
                                     uint32_t room)
{
    const branch *b = branch_find(core, transaction);
    if (!b)
        return -EINVAL;
    for (uint32_t i = 0; i < b->count && i < room; i++) {
        const branch_member *m = &b->members[i];
        out[i] = (vespiary_branch_member){m->sequence, m->queue_id, m->is_ack, m->is_missing};
    }
    return b->count;
}

int vespiary_core_branch_data(const vespiary_core *core, uint64_t transaction, const uint8_t **data)
{
    const branch *b = branch_find(core, transaction);
    if (!b)
        return -EINVAL;
    *data = b->data;
    return (int)b->data_length;
}

int vespiary_core_branches_in(const vespiary_core *core, uint64_t file_id, uint64_t *out, uint32_t room)
{
    const file *which = file_find(core, file_id);
    uint32_t found = 0;
    if (!which)
        return -EINVAL;
    for (uint32_t i = 0; which->pins && i < core->branches_count; i++) {
        const branch *b = &core->branches[i];
        for (uint32_t k = 0; k < b->pins_count; k++)
            if (b->pins[k] == which->slot && found++ < room)
                out[found - 1] = b->id;
    }
    return (int)found;
}
