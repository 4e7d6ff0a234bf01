/* The image: slabs of memory that mirror journal files, their pool, eviction and loading. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pages.h"

/* --- slabs of memory ---------------------------------------------------------------------------------- */
uint8_t *vespiary_slab_map(uint32_t bytes)
{
    /* Ask for twice as much and give the ends back: a huge page needs its own alignment. */
    uint64_t want = (uint64_t)bytes * 2U;
    uint8_t *base = mmap(NULL, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    uint64_t lead = (bytes - (uint64_t)(uintptr_t)base % bytes) % bytes;
    if (lead)
        (void)munmap(base, lead); /* giving address space back cannot fail in a way that matters here */
    if (bytes - lead)
        (void)munmap(base + lead + bytes, bytes - lead);
    base += lead;
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    memset(base, 0, bytes); /* touched now, so that no page fault stands on the hot path */
    return base;
}

static int slab_make_free(vespiary_core *core)
{
    if (core->slabs_total >= core->slabs_max)
        return -ENOSPC;
    int bad = grow_array((void **)&core->free_slabs, &core->free_capacity, core->free_count, sizeof(uint8_t *));
    if (bad)
        return bad;
    uint8_t *memory = vespiary_slab_map(core->slab_bytes);
    if (!memory)
        return -ENOMEM;
    core->slabs_total++;
    core->free_slabs[core->free_count++] = memory;
    return 0;
}

int vespiary_core_add_slab(vespiary_core *core, uint8_t *memory)
{
    bool is_wanted = core->slabs_total < core->slabs_max && core->free_count < SPARE_SLABS;
    if (!is_wanted ||
        grow_array((void **)&core->free_slabs, &core->free_capacity, core->free_count, sizeof(uint8_t *))) {
        (void)munmap(memory, core->slab_bytes);
        return 0;
    }
    core->slabs_total++;
    core->free_slabs[core->free_count++] = memory;
    return 1;
}

void slab_give(vespiary_core *core, uint8_t *memory)
{
    if (core->free_count >= SPARE_SLABS ||
        grow_array((void **)&core->free_slabs, &core->free_capacity, core->free_count, sizeof(uint8_t *))) {
        (void)munmap(memory, core->slab_bytes);
        core->slabs_total--;
        return;
    }
    core->free_slabs[core->free_count++] = memory; /* last in, first out: its pages are warm */
}

static void list_remove(slab_list *list, uint32_t at)
{
    list->count--;
    memmove(list->items + at, list->items + at + 1, (list->count - at) * sizeof(slab_id));
}

static void list_drop(slab_list *list, uint32_t slot, uint32_t index)
{
    for (uint32_t i = list->count; i-- > 0;)
        if (list->items[i].slot == slot && list->items[i].index == index) {
            list_remove(list, i);
            return;
        }
}

static int list_add(slab_list *list, uint32_t slot, uint32_t index)
{
    int bad = grow_array((void **)&list->items, &list->capacity, list->count, sizeof(slab_id));
    if (!bad)
        list->items[list->count++] = (slab_id){slot, index};
    return bad;
}

static slab *slab_of(const vespiary_core *core, slab_id id)
{
    return &core->slots[id.slot]->slabs[id.index];
}

/* Drop the memory of a slab that stands in one of the lists. */
static void slab_drop(vespiary_core *core, slab *which)
{
    slab_give(core, which->memory);
    which->memory = NULL;
    which->state = SLAB_ABSENT;
}

/* So many of the closed slabs may be evicted, those of them that are durable: the last ones may not. */
static uint32_t unprotected(const vespiary_core *core)
{
    return core->closed.count > PROTECTED_SLABS ? core->closed.count - PROTECTED_SLABS : 0;
}

static bool is_durable_slab(const vespiary_core *core, const slab *s)
{
    return s->last_sequence <= core->durable_sequence;
}

/* All that lives there stands in a page too that is on its way: hardly anybody will ask for it here. */
static bool is_copied(const slab *s) { return s->copied && s->copied == s->live; }

/* The journal slab to evict. What was copied into pages goes first, the oldest first. Then the newest closed one, because
 * queues are read from their old end, by consumers and by who fills pages. A slab that was loaded is being read, so those
 * go last, the one loaded longest ago first. */
static slab_list *evictable(vespiary_core *core, uint32_t *at)
{
    uint32_t closed = unprotected(core);
    for (uint32_t i = 0; core->copied_places && i < closed; i++) {
        const slab *s = slab_of(core, core->closed.items[i]);
        if (is_copied(s) && is_durable_slab(core, s)) {
            *at = i;
            return &core->closed;
        }
    }
    for (uint32_t i = 0; core->copied_places && i < core->loaded.count; i++)
        if (is_copied(slab_of(core, core->loaded.items[i]))) {
            *at = i;
            return &core->loaded;
        }
    for (uint32_t i = closed; i-- > 0;)
        if (is_durable_slab(core, slab_of(core, core->closed.items[i]))) {
            *at = i;
            return &core->closed;
        }
    *at = 0;
    return core->loaded.count ? &core->loaded : NULL;
}

bool slabs_obtainable(const vespiary_core *core, uint32_t count)
{
    uint32_t have = core->free_count + (core->slabs_max - core->slabs_total) + core->loaded.count;
    for (uint32_t i = unprotected(core); have < count && i-- > 0;)
        have += is_durable_slab(core, slab_of(core, core->closed.items[i]));
    return have >= count;
}

static void evict(vespiary_core *core, slab_list *from, uint32_t at, uint8_t **memory)
{
    slab *victim = slab_of(core, from->items[at]);
    list_remove(from, at);
    *memory = victim->memory;
    victim->memory = NULL;
    victim->state = SLAB_ABSENT;
}

uint32_t slabs_left(const vespiary_core *core) { return core->slabs_max / 4 < SLABS_LEFT ? core->slabs_max / 4 : SLABS_LEFT; }

int slab_take(vespiary_core *core, uint8_t **memory)
{
    if (!core->free_count) {
        /* New memory is slow to touch (milliseconds), so it is made ahead of need by another thread. When that
         * lags behind, what will be read last is dropped first; only then is memory made here. */
        uint32_t at;
        slab_list *from = evictable(core, &at);
        int bad = from == &core->closed ? -ENOSPC : slab_make_free(core);
        if (bad == -ENOSPC && from) {
            evict(core, from, at, memory);
            return 0;
        }
        if (bad)
            return bad;
    }
    *memory = core->free_slabs[--core->free_count];
    return 0;
}

void slab_close(vespiary_core *core, file *owner, uint32_t index)
{
    slab *which = &owner->slabs[index];
    which->state = SLAB_CLOSED;
    /* A list that cannot grow only costs the chance to evict this slab. */
    (void)list_add(&core->closed, owner->slot, index);
}

void slabs_release_durable(vespiary_core *core, uint64_t above)
{
    for (uint32_t i = core->closed.count; i-- > 0;) {
        slab *which = slab_of(core, core->closed.items[i]);
        if (which->last_sequence <= above)
            return;
        if (!which->live && which->last_sequence <= core->durable_sequence) {
            list_remove(&core->closed, i);
            slab_drop(core, which);
        }
    }
}

/* --- files ---------------------------------------------------------------------------------------------- */
file *file_new(vespiary_core *core, uint64_t file_id, uint64_t salt, uint64_t size)
{
    uint32_t slot = 0;
    while (slot < core->slots_count && core->slots[slot])
        slot++;
    if (slot == core->slots_count &&
        grow_array((void **)&core->slots, &core->slots_capacity, core->slots_count, sizeof(file *)))
        return NULL;
    uint64_t slabs = (size + core->slab_bytes - 1) >> core->slab_shift;
    file *made = calloc(1, sizeof(file) + slabs * sizeof(slab));
    if (!made)
        return NULL;
    made->file_id = file_id;
    made->salt = salt;
    made->size = size;
    made->slot = slot;
    made->slab_count = (uint32_t)slabs;
    core->slots[slot] = made;
    if (slot == core->slots_count)
        core->slots_count++;
    return made;
}

void file_free(vespiary_core *core, file *which)
{
    core->slots[which->slot] = NULL;
    shared_free(&which->shared);
    free(which->cancels);
    free(which);
}

static uint32_t file_index(const vespiary_core *core, uint64_t file_id)
{
    uint32_t low = 0, high = core->files_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (core->files[middle]->file_id < file_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

file *file_find(const vespiary_core *core, uint64_t file_id)
{
    if (file_id & PAGE_BIT)
        return page_file_find(core, file_id);
    uint32_t at = file_index(core, file_id);
    return at < core->files_count && core->files[at]->file_id == file_id ? core->files[at] : NULL;
}

static int file_register(vespiary_core *core, uint64_t file_id, uint64_t salt, uint64_t size)
{
    if (!file_id || size % PAGE || size < (uint64_t)PAGE * 4 || size > UINT32_MAX ||
        (core->files_count && core->files[core->files_count - 1]->file_id >= file_id))
        return -EINVAL;
    int bad = grow_array((void **)&core->files, &core->files_capacity, core->files_count, sizeof(file *));
    if (bad)
        return bad;
    file *made = file_new(core, file_id, salt, size);
    if (!made)
        return -ENOMEM;
    core->files[core->files_count++] = made;
    return 0;
}

int vespiary_core_add_file(vespiary_core *core, uint64_t file_id, uint64_t salt, uint64_t size)
{
    int bad = file_register(core, file_id, salt, size);
    if (!bad)
        core->files_ahead++;
    return bad;
}

int vespiary_core_restore_file(vespiary_core *core, uint64_t file_id, uint64_t salt, uint64_t size)
{
    if (core->files_ahead || core->current)
        return -EINVAL;
    return file_register(core, file_id, salt, size);
}

uint32_t vespiary_core_files_ahead(const vespiary_core *core) { return core->files_ahead; }

uint64_t vespiary_core_current_file(const vespiary_core *core) { return core->current ? core->current->file_id : 0; }

int64_t vespiary_core_live_places(const vespiary_core *core, uint64_t file_id)
{
    const file *which = file_find(core, file_id);
    return which ? (int64_t)which->live : -EINVAL;
}

int64_t vespiary_core_live_bytes(const vespiary_core *core, uint64_t file_id)
{
    const file *which = file_find(core, file_id);
    return which ? (int64_t)which->live_bytes : -EINVAL;
}

int vespiary_core_cancels(const vespiary_core *core, uint64_t file_id, uint64_t *out, uint32_t room)
{
    const file *which = file_find(core, file_id);
    if (!which)
        return -EINVAL;
    for (uint32_t i = 0; i < which->cancels_count && i < room; i++)
        out[i] = core->slots[which->cancels[i]]->file_id;
    return (int)which->cancels_count;
}

int add_cancel(file *from, uint32_t slot)
{
    if (from->slot == slot)
        return 0;
    for (uint32_t i = from->cancels_count; i-- > 0;) /* mostly the last one */
        if (from->cancels[i] == slot)
            return 0;
    int bad = grow_array((void **)&from->cancels, &from->cancels_capacity, from->cancels_count, sizeof(uint32_t));
    if (!bad)
        from->cancels[from->cancels_count++] = slot;
    return bad;
}

void cancels_remove(vespiary_core *core, uint32_t slot)
{
    for (uint32_t i = 0; i < core->files_count; i++) {
        file *other = core->files[i];
        for (uint32_t k = 0; k < other->cancels_count; k++)
            if (other->cancels[k] == slot) {
                other->cancels[k] = other->cancels[--other->cancels_count];
                break;
            }
    }
}

int vespiary_core_forget_file(vespiary_core *core, uint64_t file_id)
{
    uint32_t at = file_index(core, file_id);
    if (at >= core->files_count || core->files[at]->file_id != file_id)
        return -EINVAL;
    file *which = core->files[at];
    bool is_untouched = core->current ? which->file_id > core->current->file_id : core->files_ahead > 0;
    if (which->live || which == core->current || is_untouched)
        return -EINVAL;
    for (uint32_t i = 0; i < which->slab_count; i++) {
        slab *s = &which->slabs[i];
        if (s->state == SLAB_LOADING || (s->memory && s->last_sequence > core->durable_sequence))
            return -EBUSY;
    }
    for (uint32_t i = 0; i < which->slab_count; i++)
        if (which->slabs[i].memory) {
            list_drop(which->slabs[i].state == SLAB_LOADED ? &core->loaded : &core->closed, which->slot, i);
            slab_drop(core, &which->slabs[i]);
        }
    core->files_count--;
    memmove(core->files + at, core->files + at + 1, (core->files_count - at) * sizeof(file *));
    if (core->current && at < core->current_index)
        core->current_index--;
    cancels_remove(core, which->slot);
    file_free(core, which);
    return 0;
}

/* --- messages in memory ------------------------------------------------------------------------------------ */
uint8_t *record_memory(const vespiary_core *core, const entry *item)
{
    const slab *at = &core->slots[item->slot]->slabs[item->offset >> core->slab_shift];
    if (at->state == SLAB_ABSENT || at->state == SLAB_LOADING)
        return NULL;
    return at->memory + (item->offset & (core->slab_bytes - 1));
}

/* What a live place counts for in its file: its share of the record, without what only transactions have. */
static uint32_t place_bytes(const entry *item)
{
    uint32_t all = ADD_HEADER + item->properties_length + item->body_length;
    return PLACE_BYTES + (item->places == 1 ? all : all / item->places);
}

static void count_copied(vespiary_core *core, const entry *item, int change)
{
    core->slots[item->slot]->slabs[item->offset >> core->slab_shift].copied += (uint32_t)change;
    core->copied_places += (uint64_t)(int64_t)change;
}

void record_mark(vespiary_core *core, entry *item)
{
    item->flags |= FLAG_PAGING;
    count_copied(core, item, 1);
}

void record_unmark(vespiary_core *core, entry *item)
{
    bool is_live = item->state != ENTRY_NONE && item->state != ENTRY_DONE; /* else it was counted when it went */
    if (is_live && item->flags & FLAG_PAGING)
        count_copied(core, item, -1);
    item->flags &= (uint8_t)~FLAG_PAGING;
}

void record_pin(vespiary_core *core, const queue *q, const entry *item)
{
    file *in = core->slots[item->slot];
    uint32_t bytes = place_bytes(item);
    in->live++;
    in->slabs[item->offset >> core->slab_shift].live++;
    if (item->flags & FLAG_PAGING)
        count_copied(core, item, 1);
    in->live_bytes += bytes;
    core->live_bytes += in->is_volatile || in->page ? 0 : bytes;
    account_enter(core, q->account, item);
}

void record_unpin(vespiary_core *core, const queue *q, const entry *item)
{
    account_leave(core, q->account, item);
    file *owner = core->slots[item->slot];
    uint32_t index = item->offset >> core->slab_shift;
    slab *at = &owner->slabs[index];
    uint32_t bytes = place_bytes(item);
    owner->live--;
    owner->live_bytes -= bytes;
    if (item->flags & FLAG_PAGING)
        count_copied(core, item, -1);
    core->live_bytes -= owner->is_volatile || owner->page ? 0 : bytes;
    if (--at->live || page_is_looked_at(owner))
        return;
    if (owner->is_volatile) {
        if (owner->is_closed) {
            slab_give(core, at->memory);
            file_free(core, owner);
        } else {
            core->volatile_position = 0;
        }
    } else if (at->state == SLAB_LOADED) {
        list_drop(&core->loaded, owner->slot, index);
        slab_drop(core, at);
    } else if (at->state == SLAB_CLOSED && at->last_sequence <= core->durable_sequence) {
        list_drop(&core->closed, owner->slot, index);
        slab_drop(core, at);
    }
}

int place_volatile(vespiary_core *core, uint32_t length, placed *out)
{
    bool is_full = core->volatile_current && core->volatile_position + length > core->slab_bytes;
    if (is_full || !core->volatile_current) {
        /* A transaction has asked for its room when it began. */
        if (!slabs_obtainable(core, 1 + (core->transaction ? 0 : slabs_left(core))))
            return -ENOSPC;
    }
    if (is_full) {
        core->volatile_current->is_closed = true; /* it has live messages, or its position would be 0 */
        core->volatile_current = NULL;
    }
    if (!core->volatile_current) {
        uint8_t *memory;
        int bad = slab_take(core, &memory);
        if (bad)
            return bad;
        file *made = file_new(core, 0, 0, core->slab_bytes);
        if (!made) {
            slab_give(core, memory);
            return -ENOMEM;
        }
        made->is_volatile = true;
        made->slabs[0].memory = memory;
        made->slabs[0].state = SLAB_FILLING;
        core->volatile_current = made;
        core->volatile_position = 0;
    }
    out->slot = core->volatile_current->slot;
    out->offset = core->volatile_position;
    out->memory = core->volatile_current->slabs[0].memory + core->volatile_position;
    core->volatile_position += (uint32_t)align8(length);
    return 0;
}

int vespiary_core_load_begin(vespiary_core *core, uint64_t file_id, uint32_t index, vespiary_write *out)
{
    file *which = file_find(core, file_id);
    if (!which || index >= which->slab_count)
        return -EINVAL;
    slab *at = &which->slabs[index];
    if (at->state != SLAB_ABSENT)
        return -EALREADY;
    int bad = slab_take(core, &at->memory);
    if (bad)
        return bad;
    at->state = SLAB_LOADING;
    uint64_t offset = (uint64_t)index << core->slab_shift;
    uint64_t left = which->size - offset;
    *out = (vespiary_write){file_id, offset, (uint64_t)(uintptr_t)at->memory,
                            left < core->slab_bytes ? left : core->slab_bytes, 0};
    return 0;
}

int vespiary_core_load_done(vespiary_core *core, uint64_t file_id, uint32_t index, int good)
{
    file *which = file_find(core, file_id);
    if (!which || index >= which->slab_count || which->slabs[index].state != SLAB_LOADING)
        return -EINVAL;
    slab *at = &which->slabs[index];
    bool is_needed = at->live || page_is_looked_at(which);
    if (!good || !is_needed || list_add(&core->loaded, which->slot, index))
        slab_drop(core, at);
    else
        at->state = SLAB_LOADED;
    for (uint32_t i = 0; i < core->queues.capacity; i++) {
        queue *q = core->queues.values[i];
        if (q && q->waits_for_slab) {
            q->waits_for_slab = false;
            queue_ready(core, q);
        }
    }
    return 0;
}

void slabs_release_unused(vespiary_core *core, file *f)
{
    for (uint32_t i = 0; i < f->slab_count; i++)
        if (f->slabs[i].state == SLAB_LOADED && !f->slabs[i].live) {
            list_drop(&core->loaded, f->slot, i);
            slab_drop(core, &f->slabs[i]);
        }
}

int vespiary_core_grow(vespiary_core *core, uint32_t slabs)
{
    int made = 0;
    while (slabs-- && core->free_count < SPARE_SLABS && slab_make_free(core) == 0)
        made++;
    return made;
}

void vespiary_core_image_statistics(const vespiary_core *core, vespiary_image_statistics *out)
{
    *out = (vespiary_image_statistics){
        .slabs_total = core->slabs_total,
        .slabs_free = core->free_count,
        .slabs_max = core->slabs_max,
        .files_ahead = core->files_ahead,
        .blocks_unwritten = core->blocks_end - core->blocks_first,
        .unwritten_bytes = core->unwritten_bytes,
        .sequence_sealed = core->next_sequence - 1,
        .sequence_durable = core->durable_sequence,
        .records_added = core->records_added,
        .payload_bytes = core->payload_bytes,
        .live_bytes = core->live_bytes,
    };
}
