/* What a connection was taught: destinations of STOMP and topics of MQTT that its client may send to without Python being
 * asked, and the routes that they lead to. Read by the scanners. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "state.h"

static uint32_t key_hash(piece destination, piece type)
{
    uint32_t hash = vespiary_crc32c(0, destination.data, destination.length);
    return type.data ? vespiary_crc32c(hash ^ 1, type.data, type.length) : hash;
}

static bool is_key(const taught *t, piece destination, piece type)
{
    uint32_t length = destination.length + (type.data ? 1 + type.length : 0);
    return t->key && t->key_length == length && !memcmp(t->key, destination.data, destination.length) &&
           (!type.data || (t->key[destination.length] == 0 &&
                           !memcmp(t->key + destination.length + 1, type.data, type.length)));
}

const taught *taught_find(connection *c, piece destination, piece type)
{
    if (!c->table_capacity)
        return NULL;
    const taught *t = &c->table[c->last_taught];
    if (!is_key(t, destination, type)) {
        uint32_t mask = c->table_capacity - 1, i = key_hash(destination, type) & mask;
        while (c->table[i].key && !is_key(&c->table[i], destination, type))
            i = (i + 1) & mask;
        t = &c->table[i];
        if (!t->key)
            return NULL;
        c->last_taught = i;
    }
    return t;
}

const route *taught_route(const vespiary_core *core, const taught *t)
{
    const route *to = t ? &core->routes[t->route] : NULL;
    return to && to->is_open && to->generation == t->generation ? to : NULL;
}

static void table_insert(connection *c, taught made)
{
    const uint8_t *zero = memchr(made.key, 0, made.key_length);
    piece destination = {made.key, zero ? (uint32_t)(zero - made.key) : made.key_length};
    piece type = {zero ? zero + 1 : NULL, zero ? made.key_length - destination.length - 1 : 0};
    uint32_t mask = c->table_capacity - 1, i = key_hash(destination, type) & mask;
    while (c->table[i].key && !is_key(&c->table[i], destination, type))
        i = (i + 1) & mask;
    if (c->table[i].key)
        free(c->table[i].key);
    else
        c->table_count++;
    c->table[i] = made;
}

static void table_empty(connection *c)
{
    for (uint32_t i = 0; i < c->table_capacity; i++)
        free(c->table[i].key);
    memset(c->table, 0, c->table_capacity * sizeof *c->table);
    c->table_count = 0;
}

static int table_room(connection *c)
{
    if (c->table_count >= TAUGHT_MAX) /* bounded: who uses more destinations than this asks again */
        table_empty(c);
    if (c->table_count * 2 < c->table_capacity)
        return 0;
    connection wider = {.table_capacity = c->table_capacity ? c->table_capacity * 2 : 8};
    wider.table = calloc(wider.table_capacity, sizeof *wider.table);
    if (!wider.table)
        return -ENOMEM;
    for (uint32_t i = 0; i < c->table_capacity; i++)
        if (c->table[i].key)
            table_insert(&wider, c->table[i]);
    free(c->table);
    c->table = wider.table;
    c->table_capacity = wider.table_capacity;
    c->last_taught = 0;
    return 0;
}

/* Remember a key, with the header lines that its messages are stored with (STOMP brings its own). */
int taught_put(vespiary_core *core, uint32_t handle, piece key, piece lines, uint32_t to)
{
    if (handle >= core->connections_count || !core->connections[handle].is_open || !key.length ||
        to >= core->routes_count || !core->routes[to].is_open)
        return -EINVAL;
    if (lines.length)
        core->switched_count = 0; /* what waits for a switch may have the lines that are replaced */
    connection *c = &core->connections[handle];
    int bad = table_room(c);
    uint8_t *kept = bad ? NULL : malloc((size_t)key.length + lines.length);
    if (!kept)
        return -ENOMEM;
    memcpy(kept, key.data, key.length);
    if (lines.length)
        memcpy(kept + key.length, lines.data, lines.length);
    table_insert(c, (taught){kept, key.length, lines.length, to, core->routes[to].generation});
    return 0;
}

int vespiary_core_teach(vespiary_core *core, uint32_t handle, const uint8_t *destination, uint32_t length,
                        uint32_t to)
{
    return taught_put(core, handle, (piece){destination, length}, (piece){NULL, 0}, to);
}
