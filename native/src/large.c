/* Large messages: bodies that stand in files of their own (journal-format.md §3.5). The record holds a reference; here
 * is counted how many places each has left, and which bodies nobody needs any more. Files are the store's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

/* The block that everything done so far waits for; in a transaction its COMMIT, which is not staged yet. */
static uint64_t block_of_now(const vespiary_core *core)
{
    if (core->transaction)
        return UINT64_MAX;
    if (is_all_durable(core))
        return 0;
    return core->filling.is_open ? core->next_sequence : core->next_sequence - 1;
}

/* One place less. Behind the last one the body waits for the flush that covers it, in the order of ending. */
static void large_release(vespiary_core *core, large_message *which)
{
    uint64_t block = block_of_now(core);
    if (block > which->block)
        which->block = block;
    if (--which->places)
        return;
    map_remove(&core->large, which->id);
    which->next = NULL;
    if (core->large_done_last)
        core->large_done_last->next = which;
    else
        core->large_done = which;
    core->large_done_last = which;
}

int large_place(vespiary_core *core, queue *q, uint64_t sequence, const uint8_t *reference)
{
    uint64_t id = get64(reference);
    large_message *old = map_get(&q->large, sequence);
    if (old && old->id == id)
        return 0; /* the same place, moved to a newer file */
    if (old)
        large_done(core, q, sequence);
    large_message *which = map_get(&core->large, id);
    if (!which) {
        which = calloc(1, sizeof *which);
        if (!which)
            return -ENOMEM;
        which->id = id;
        which->size = get64(reference + 8);
        memcpy(&which->crc, reference + 16, 4);
        if (map_put(&core->large, id, which)) {
            free(which);
            return -ENOMEM;
        }
    }
    if (map_put(&q->large, sequence, which)) {
        if (!which->places) {
            map_remove(&core->large, id);
            free(which);
        }
        return -ENOMEM;
    }
    which->places++;
    return 0;
}

void large_done(vespiary_core *core, queue *q, uint64_t sequence)
{
    large_message *which = map_get(&q->large, sequence);
    if (!which)
        return;
    map_remove(&q->large, sequence);
    large_release(core, which);
}

/* A place that an aborted transaction added goes; without another one the body is nobody's here, as before. */
void large_void(vespiary_core *core, queue *q, uint64_t sequence)
{
    large_message *which = map_get(&q->large, sequence);
    if (!which)
        return;
    map_remove(&q->large, sequence);
    if (--which->places)
        return;
    map_remove(&core->large, which->id);
    free(which);
}

void large_drop(vespiary_core *core, queue *q)
{
    for (uint32_t i = 0; i < q->large.capacity; i++)
        if (q->large.values[i])
            large_release(core, q->large.values[i]);
    map_free(&q->large);
}

void large_committed(vespiary_core *core)
{
    for (large_message *at = core->large_done; at; at = at->next)
        if (at->block == UINT64_MAX)
            at->block = core->next_sequence;
    for (uint32_t i = 0; i < core->large.capacity; i++) {
        large_message *at = core->large.values[i];
        if (at && at->block == UINT64_MAX)
            at->block = core->next_sequence;
    }
}

void large_forget_done(vespiary_core *core)
{
    while (core->large_done) {
        large_message *which = core->large_done;
        core->large_done = which->next;
        free(which);
    }
    core->large_done_last = NULL;
}

void large_free(vespiary_core *core)
{
    large_forget_done(core);
    for (uint32_t i = 0; i < core->large.capacity; i++)
        free(core->large.values[i]);
    map_free(&core->large);
}

int vespiary_core_take_done_large(vespiary_core *core, uint64_t *out, uint32_t room)
{
    uint32_t given = 0;
    large_message **link = &core->large_done, *last = NULL;
    while (*link) {
        large_message *which = *link;
        if (given == room || which->block > core->durable_sequence) {
            last = which;
            link = &which->next;
            continue;
        }
        out[given++] = which->id;
        *link = which->next;
        free(which);
    }
    core->large_done_last = last;
    return (int)given;
}

int64_t vespiary_core_live_large(const vespiary_core *core, vespiary_large *out, uint64_t room)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < core->large.capacity; i++) {
        const large_message *at = core->large.values[i];
        if (at && count++ < room)
            out[count - 1] = (vespiary_large){.id = at->id, .size = at->size, .crc = at->crc};
    }
    return (int64_t)count;
}
