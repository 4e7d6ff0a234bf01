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
    core->branches[core->branches_count] = (branch){.id = id, .is_whole = true};
    return &core->branches[core->branches_count++];
}

void branch_clear(branch *which)
{
    free(which->members);
    free(which->data);
    free(which->pins);
    *which = (branch){0};
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

/* --- preparing ------------------------------------------------------------------------------------------------- */
int64_t vespiary_core_prepare(vespiary_core *core, uint64_t transaction, const uint8_t *data, uint32_t length)
{
    if (!transaction || core->transaction != transaction || !core->is_branch || length > BRANCH_DATA_MAX)
        return -EINVAL;
    int bad = grow_array((void **)&core->branches, &core->branches_capacity, core->branches_count, sizeof(branch));
    uint8_t *copy = malloc(length ? length : 1);
    placed at;
    if (!bad)
        bad = copy ? place_record(core, 24 + length, false, &at) : -ENOMEM;
    if (bad) {
        free(copy);
        return bad;
    }
    put32(at.memory, 24 + length);
    at.memory[4] = RECORD_PREPARE;
    at.memory[5] = 0;
    put16(at.memory + 6, 0);
    put64(at.memory + 8, transaction);
    put32(at.memory + 16, core->transaction_records);
    put32(at.memory + 20, core->transaction_digest);
    if (length) {
        memcpy(at.memory + 24, data, length);
        memcpy(copy, data, length);
    }
    mark_urgent(core);
    branch *made = branch_make(core, transaction); /* there is room: see above */
    *made = core->staged;
    core->staged = (branch){0};
    made->id = transaction;
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
    uint8_t body[16];
    put64(body, transaction);
    put32(body + 8, b->records);
    put32(body + 12, b->digest);
    int64_t block =
        vespiary_core_append_record(core, commit ? RECORD_COMMIT : RECORD_ROLLBACK, 0, body, sizeof body, 1);
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

int vespiary_core_prepared_in(const vespiary_core *core, uint64_t file_id)
{
    const file *which = file_find(core, file_id);
    return which ? which->pins > 0 : -EINVAL;
}
