/* The core's life, its tables (queues by id, routes, connections, buffers), notes and receipts. */
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "amqp_send.h"
#include "state.h"

int grow_array(void **items, uint32_t *capacity, uint32_t count, size_t item_bytes)
{
    if (count < *capacity)
        return 0;
    uint64_t wider = *capacity ? (uint64_t)*capacity * 2 : 16;
    if (wider > UINT32_MAX)
        return -ENOMEM;
    void *made = realloc(*items, wider * item_bytes);
    if (!made)
        return -ENOMEM;
    memset((uint8_t *)made + *capacity * item_bytes, 0, (wider - *capacity) * item_bytes);
    *items = made;
    *capacity = (uint32_t)wider;
    return 0;
}

/* --- number_map ------------------------------------------------------------------------------------------ */
static uint32_t map_home(const number_map *map, uint64_t key)
{
    return (uint32_t)((key * 0x9E3779B97F4A7C15U) >> 32) & (map->capacity - 1);
}

void *map_get(const number_map *map, uint64_t key)
{
    if (!map->capacity)
        return NULL;
    for (uint32_t i = map_home(map, key); map->values[i]; i = (i + 1) & (map->capacity - 1))
        if (map->keys[i] == key)
            return map->values[i];
    return NULL;
}

static void map_insert(number_map *map, uint64_t key, void *value)
{
    uint32_t i = map_home(map, key);
    while (map->values[i])
        i = (i + 1) & (map->capacity - 1);
    map->keys[i] = key;
    map->values[i] = value;
    map->count++;
}

int map_put(number_map *map, uint64_t key, void *value)
{
    if (map->count * 2 >= map->capacity) {
        number_map wider = {.capacity = map->capacity ? map->capacity * 2 : 16};
        wider.keys = calloc(wider.capacity, sizeof *wider.keys);
        wider.values = calloc(wider.capacity, sizeof *wider.values);
        if (!wider.keys || !wider.values) {
            map_free(&wider);
            return -ENOMEM;
        }
        for (uint32_t i = 0; i < map->capacity; i++)
            if (map->values[i])
                map_insert(&wider, map->keys[i], map->values[i]);
        map_free(map);
        *map = wider;
    }
    map_insert(map, key, value);
    return 0;
}

void map_remove(number_map *map, uint64_t key)
{
    if (!map->capacity)
        return;
    uint32_t mask = map->capacity - 1, i = map_home(map, key);
    while (map->values[i] && map->keys[i] != key)
        i = (i + 1) & mask;
    if (!map->values[i])
        return;
    map->values[i] = NULL;
    map->count--;
    for (uint32_t k = (i + 1) & mask; map->values[k]; k = (k + 1) & mask) { /* close the gap */
        void *value = map->values[k];
        map->values[k] = NULL;
        map->count--;
        map_insert(map, map->keys[k], value);
    }
}

void map_free(number_map *map)
{
    free(map->keys);
    free(map->values);
    *map = (number_map){0};
}

/* --- life ---------------------------------------------------------------------------------------------------- */
vespiary_core *vespiary_core_new(uint32_t slab_bytes, uint32_t block_bytes, uint32_t slabs_max,
                                 uint32_t record_bytes_max)
{
    if (slab_bytes < 4 * PAGE || (slab_bytes & (slab_bytes - 1)) || block_bytes < PAGE || slabs_max < 2 ||
        record_bytes_max < 64 || record_bytes_max > slab_bytes - 2 * PAGE)
        return NULL;
    vespiary_core *core = calloc(1, sizeof *core);
    if (!core)
        return NULL;
    core->slab_bytes = slab_bytes;
    core->slab_shift = (uint32_t)__builtin_ctz(slab_bytes);
    core->block_bytes = block_bytes;
    core->slabs_max = slabs_max;
    core->record_bytes_max = record_bytes_max;
    core->next_sequence = 1;
    core->counts_max = UINT32_MAX;
    if (account_make(core) < 0) {
        free(core);
        return NULL;
    }
    return core;
}

static void connection_clear(connection *c)
{
    for (uint32_t i = 0; i < c->table_capacity; i++)
        free(c->table[i].key);
    free(c->table);
    free(c->output);
    free(c->sent);
    amqp_free(c);
    *c = (connection){.notes_pending = c->notes_pending};
}

static void files_free(vespiary_core *core)
{
    for (uint32_t i = 0; i < core->slots_count; i++) {
        file *f = core->slots[i];
        if (!f)
            continue;
        for (uint32_t k = 0; k < f->slab_count; k++)
            if (f->slabs[k].memory)
                (void)munmap(f->slabs[k].memory, core->slab_bytes);
        shared_free(&f->shared);
        page_free(f->page);
        free(f->cancels);
        free(f);
    }
    for (uint32_t i = 0; i < core->free_count; i++)
        (void)munmap(core->free_slabs[i], core->slab_bytes);
    free(core->slots);
    free(core->files);
    free(core->free_slabs);
    free(core->closed.items);
    free(core->loaded.items);
    free(core->blocks);
}

void vespiary_core_free(vespiary_core *core)
{
    if (!core)
        return;
    for (uint32_t i = 0; i < core->queues.capacity; i++) {
        queue *q = core->queues.values[i];
        if (q) {
            segments_free(&q->segments);
            map_free(&q->large);
            extents_drop(q);
        }
        free(q);
    }
    map_free(&core->queues);
    large_free(core);
    for (uint32_t i = 0; i < core->consumers_count; i++) {
        free(core->consumers[i].prefix);
        free(core->consumers[i].order);
        free(core->consumers[i].mqtt);
        free(core->consumers[i].amqp);
    }
    for (uint32_t i = 0; i < core->routes_count; i++)
        free(core->routes[i].queues);
    for (uint32_t i = 0; i < core->connections_count; i++)
        connection_clear(&core->connections[i]);
    for (uint32_t i = 0; i < core->pending_count; i++)
        free(core->pending[i].members), free(core->pending[i].data);
    for (uint32_t i = 0; i < core->branches_count; i++)
        branch_clear(&core->branches[i]);
    branch_clear(&core->staged);
    files_free(core);
    free(core->accounts);
    free(core->accounts_free.items);
    free(core->changed);
    free(core->branches);
    free(core->consumers);
    free(core->consumers_free.items);
    free(core->routes);
    free(core->routes_free.items);
    free(core->unrouted);
    free(core->connections);
    free(core->buffers);
    free(core->notes.items);
    free(core->switched);
    free(core->pages);
    free(core->wanted);
    free(core->ready);
    free(core->released);
    free(core->spare_segment);
    free(core->scratch);
    free(core->transaction_queues);
    free(core->transaction_slots);
    free(core->pending);
    map_free(&core->pending_at);
    free(core);
}

void vespiary_core_set_time(vespiary_core *core, uint64_t now_ms) { core->now_ms = now_ms; }

/* --- notes: what happens when a block is durable ------------------------------------------------------------------ */
static int note_add(vespiary_core *core, note made, uint64_t *number)
{
    note_ring *ring = &core->notes;
    if (ring->end - ring->first == ring->capacity) {
        uint64_t wider = ring->capacity ? ring->capacity * 2 : 256;
        note *items = malloc(wider * sizeof *items);
        if (!items)
            return -ENOMEM;
        for (uint64_t i = ring->first; i < ring->end; i++)
            items[i & (wider - 1)] = ring->items[i & (ring->capacity - 1)];
        free(ring->items);
        ring->items = items;
        ring->capacity = wider;
    }
    ring->items[ring->end & (ring->capacity - 1)] = made;
    *number = ++ring->end;
    return 0;
}

/* The block that holds the latest record: the open one, else the one closed last. */
static uint64_t latest_block(const vespiary_core *core)
{
    return core->filling.is_open ? core->next_sequence : core->next_sequence - 1;
}

/* The note with this number (0: none) if it may still be changed for the block. */
static note *note_current(const vespiary_core *core, uint64_t number, uint64_t block)
{
    if (number <= core->notes.first)
        return NULL;
    note *n = &core->notes.items[(number - 1) & (core->notes.capacity - 1)];
    return n->block == block ? n : NULL;
}

int note_queue(vespiary_core *core, queue *q)
{
    uint64_t block = latest_block(core);
    note *n = note_current(core, q->note, block);
    q->staged_tail = q->tail;
    if (n) {
        n->value = q->tail;
        return 0;
    }
    return note_add(core, (note){.block = block, .value = q->tail, .queue = q}, &q->note);
}

int note_connection(vespiary_core *core, uint32_t handle)
{
    connection *c = &core->connections[handle];
    uint64_t block = latest_block(core), position = c->output_base + c->output_end;
    note *n = note_current(core, c->note, block);
    if (n) {
        n->value = position;
        return 0;
    }
    int bad = note_add(core, (note){.block = block, .value = position, .connection = handle}, &c->note);
    if (!bad)
        c->notes_pending++;
    return bad;
}

static void connection_released(vespiary_core *core, uint32_t handle, uint64_t upto)
{
    connection *c = &core->connections[handle];
    if (upto > c->released)
        c->released = upto;
    if (!c->is_listed && c->released > c->output_base) { /* the list has room for every connection: open_connection grows it */
        core->released[core->released_count++] = handle;
        c->is_listed = true;
    }
}

static void apply_note(vespiary_core *core, const note *n)
{
    queue *q = n->queue;
    if (q) {
        /* What follows the last place that waits for a flush need not wait itself. */
        uint64_t available = n->value >= q->staged_tail ? q->tail : n->value;
        if (available > q->available) {
            q->available = available;
            queue_ready(core, q);
        }
    } else if (n->connection != UINT32_MAX) {
        connection *c = &core->connections[n->connection];
        c->notes_pending--;
        if (c->is_open)
            connection_released(core, n->connection, n->value);
    }
}

int vespiary_core_write_done(vespiary_core *core, uint64_t sequence)
{
    if (sequence > core->handed_sequence || sequence < core->durable_sequence)
        return -EINVAL;
    uint64_t before = core->durable_sequence;
    core->durable_sequence = sequence;
    while (core->blocks_first < core->blocks_next) {
        const sealed_block *b = &core->blocks[core->blocks_first % core->blocks_capacity];
        if (b->sequence > sequence)
            break;
        core->unwritten_bytes -= b->length;
        core->blocks_first++;
    }
    note_ring *ring = &core->notes;
    while (ring->first < ring->end) {
        note *n = &ring->items[ring->first & (ring->capacity - 1)];
        if (n->block > sequence)
            break;
        ring->first++;
        apply_note(core, n);
    }
    if (core->branches_ending)
        branches_written(core);
    slabs_release_durable(core, before);
    return 0;
}

/* --- receipts --------------------------------------------------------------------------------------------------------- */
/* Room for `length` bytes at the end of a connection's output, NULL: no memory. The caller fills them. */
uint8_t *output_room(vespiary_core *core, uint32_t handle, uint32_t length)
{
    connection *c = &core->connections[handle];
    uint64_t needed = (uint64_t)c->output_end + length;
    if (needed > c->output_capacity) {
        uint64_t wider = c->output_capacity ? c->output_capacity : 1024;
        while (wider < needed)
            wider *= 2;
        uint8_t *made = wider <= UINT32_MAX ? realloc(c->output, wider) : NULL;
        if (!made)
            return NULL;
        c->output = made;
        c->output_capacity = (uint32_t)wider;
    }
    uint8_t *at = c->output + c->output_end;
    c->output_end += length;
    return at;
}

/* Let the output written so far go: when everything staged is durable, or at once when nothing is awaited. */
int output_waits(vespiary_core *core, uint32_t handle, bool for_all)
{
    connection *c = &core->connections[handle];
    bool is_waiting = c->notes_pending || (for_all ? !is_all_durable(core) : c->last_block > core->durable_sequence);
    if (!is_waiting) {
        connection_released(core, handle, c->output_base + c->output_end);
        return 0;
    }
    mark_urgent(core);
    return note_connection(core, handle);
}

int vespiary_core_receipt(vespiary_core *core, uint32_t handle, const uint8_t *data, uint32_t length)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open)
        return -EINVAL;
    uint8_t *at = output_room(core, handle, length);
    if (!at)
        return -ENOMEM;
    memcpy(at, data, length);
    return output_waits(core, handle, true);
}

/* Move what is left to the front. */
static void output_taken(connection *c)
{
    uint32_t taken = (uint32_t)(c->released - c->output_base);
    memmove(c->output, c->output + taken, c->output_end - taken);
    c->output_end -= taken;
    c->output_base = c->released;
}

int vespiary_core_take_receipt(vespiary_core *core, uint32_t *handle, const uint8_t **data, uint32_t *length)
{
    while (core->released_count) {
        uint32_t which = core->released[core->released_count - 1];
        connection *c = &core->connections[which];
        if (!c->is_listed) { /* its bytes were handed out by the call before */
            core->released_count--;
            if (c->is_open && c->released > c->output_base)
                output_taken(c);
            continue;
        }
        c->is_listed = false;
        if (!c->is_open || c->released == c->output_base)
            continue;
        *handle = which;
        *data = c->output;
        *length = (uint32_t)(c->released - c->output_base);
        return 1;
    }
    return 0;
}

/* --- routes ------------------------------------------------------------------------------------------------------------- */
static void route_clear(route *from)
{
    for (uint32_t i = 0; i < from->count; i++)
        from->queues[i]->routes--;
    from->count = from->durable = 0;
}

static void route_add(vespiary_core *core, route *to, queue *q)
{
    to->queues[to->count++] = q;
    to->durable += q->is_durable;
    q->led_by[q->routes++ & 1] = (uint32_t)(to - core->routes);
}

static int route_fill(vespiary_core *core, route *to, const uint32_t *queue_ids, uint32_t count)
{
    uint32_t capacity = count ? count : 1;
    queue **queues = calloc(capacity, sizeof *queues);
    if (!queues)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        if (!queue_find(core, queue_ids[i])) {
            free(queues);
            return -EINVAL;
        }
    route_clear(to);
    free(to->queues);
    to->queues = queues;
    to->capacity = capacity;
    for (uint32_t i = 0; i < count; i++)
        route_add(core, to, queue_find(core, queue_ids[i]));
    return 0;
}

int vespiary_core_open_route(vespiary_core *core, const uint32_t *queue_ids, uint32_t count)
{
    uint32_t handle = handle_next(&core->routes_free, core->routes_count);
    int bad = grow_array((void **)&core->routes, &core->routes_capacity, handle, sizeof(route));
    if (!bad)
        bad = handles_reserve(&core->routes_free, core->routes_capacity);
    while (!bad && core->unrouted_capacity < core->routes_capacity)
        bad = grow_array((void **)&core->unrouted, &core->unrouted_capacity, core->unrouted_capacity, sizeof(uint32_t));
    if (!bad)
        bad = route_fill(core, &core->routes[handle], queue_ids, count);
    if (bad)
        return bad;
    core->routes[handle].is_open = true;
    core->routes[handle].is_switch = false;
    core->routes[handle].withheld = 0;
    core->routes[handle].generation++;
    if (handle == core->routes_count)
        core->routes_count++;
    else
        handle_taken(&core->routes_free);
    return (int)handle;
}

int vespiary_core_set_route(vespiary_core *core, uint32_t handle, const uint32_t *queue_ids, uint32_t count)
{
    if (handle >= core->routes_count || !core->routes[handle].is_open || core->routes[handle].is_switch)
        return -EINVAL;
    return route_fill(core, &core->routes[handle], queue_ids, count);
}

int vespiary_core_extend_route(vespiary_core *core, uint32_t handle, uint32_t queue_id)
{
    queue *q = queue_find(core, queue_id);
    if (!q || handle >= core->routes_count || !core->routes[handle].is_open || core->routes[handle].is_switch)
        return -EINVAL;
    route *to = &core->routes[handle];
    for (uint32_t i = 0; q->routes && i < to->count; i++)
        if (to->queues[i] == q)
            return 0;
    int bad = grow_array((void **)&to->queues, &to->capacity, to->count, sizeof(queue *));
    if (bad)
        return bad;
    route_add(core, to, q);
    return 1;
}

int vespiary_core_withhold(vespiary_core *core, uint32_t handle, uint32_t queues)
{
    if (handle >= core->routes_count || !core->routes[handle].is_open || core->routes[handle].is_switch)
        return -EINVAL;
    core->routes[handle].withheld = queues;
    return 0;
}

uint64_t vespiary_core_withheld(const vespiary_core *core)
{
    return core->withheld;
}

int vespiary_core_close_route(vespiary_core *core, uint32_t handle)
{
    if (handle >= core->routes_count || !core->routes[handle].is_open)
        return -EINVAL;
    route *to = &core->routes[handle];
    to->is_open = false;
    to->generation++; /* who was taught it asks again */
    route_clear(to);
    for (uint32_t i = 0; to->unrouted && i < core->unrouted_count; i++)
        if (core->unrouted[i] == handle) {
            core->unrouted[i] = core->unrouted[--core->unrouted_count];
            to->unrouted = 0;
        }
    handle_freed(&core->routes_free, handle);
    return 0;
}

void count_unrouted(vespiary_core *core, const route *to)
{
    uint32_t handle = (uint32_t)(to - core->routes);
    if (!core->routes[handle].unrouted++)
        core->unrouted[core->unrouted_count++] = handle;
}

int vespiary_core_take_unrouted(vespiary_core *core, vespiary_unrouted *out, uint32_t room)
{
    uint32_t given = 0;
    while (core->unrouted_count && given < room) {
        uint32_t handle = core->unrouted[--core->unrouted_count];
        out[given++] = (vespiary_unrouted){core->routes[handle].unrouted, handle};
        core->routes[handle].unrouted = 0;
    }
    return (int)given;
}

/* --- connections and buffers ----------------------------------------------------------------------------------------------- */
int vespiary_core_open_connection(vespiary_core *core)
{
    uint32_t handle = 0;
    while (handle < core->connections_count &&
           (core->connections[handle].is_open || core->connections[handle].notes_pending ||
            core->connections[handle].is_listed))
        handle++;
    int bad = grow_array((void **)&core->connections, &core->connections_capacity, handle, sizeof(connection));
    while (!bad && core->released_capacity < core->connections_capacity)
        bad = grow_array((void **)&core->released, &core->released_capacity, core->released_capacity,
                         sizeof(uint32_t));
    if (bad)
        return bad;
    core->connections[handle] = (connection){.is_open = true};
    if (handle == core->connections_count)
        core->connections_count++;
    return (int)handle;
}

int vespiary_core_set_ready(vespiary_core *core, uint32_t handle, uint32_t version, uint32_t header_lines,
                            uint32_t header_line_bytes, uint32_t headers_bytes, uint32_t body_bytes)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open)
        return -EINVAL;
    connection *c = &core->connections[handle];
    c->is_ready = true;
    c->version = (uint8_t)version;
    c->header_lines_max = header_lines;
    c->header_line_max = header_line_bytes;
    c->headers_max = headers_bytes;
    c->body_max = body_bytes;
    return 0;
}

int vespiary_core_close_connection(vespiary_core *core, uint32_t handle)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open)
        return -EINVAL;
    connection *c = &core->connections[handle];
    bool is_listed = c->is_listed;
    core->switched_count = 0; /* it may be its */
    connection_clear(c);
    c->is_listed = is_listed; /* the slot is used again when nothing refers to it */
    return 0;
}

int vespiary_core_attach_buffer(vespiary_core *core, const uint8_t *memory, uint64_t length)
{
    uint32_t handle = 0;
    while (handle < core->buffers_count && core->buffers[handle].is_open)
        handle++;
    int bad = grow_array((void **)&core->buffers, &core->buffers_capacity, handle, sizeof(read_buffer));
    if (bad)
        return bad;
    core->buffers[handle] = (read_buffer){memory, length, true};
    if (handle == core->buffers_count)
        core->buffers_count++;
    return (int)handle;
}

int vespiary_core_detach_buffer(vespiary_core *core, uint32_t handle)
{
    if (handle >= core->buffers_count || !core->buffers[handle].is_open)
        return -EINVAL;
    core->buffers[handle].is_open = false;
    core->switched_count = 0; /* it may stand there */
    return 0;
}
