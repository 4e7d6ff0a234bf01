/* Accounts: what the messages of an address cost in memory, and whether that is too much (contract:
 * vespiary_native/abc_accounts.py). Account 0 is the sum of all.
 *
 * A message in several queues counts once for each account whose queues have it: how many of its places live there
 * stands in a table of its file, by offset. Messages in one queue need no table. Nothing here decides what becomes of a
 * message: it says "full" to the scanner, which then leaves the frame to Python. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

/* --- messages in several queues: live places by offset and account (open addressing, count 0: empty) ------- */
static uint32_t shared_home(const shared_table *table, uint32_t offset, uint32_t owner)
{
    uint64_t key = (uint64_t)owner << 32 | offset;
    return (uint32_t)((key * 0x9E3779B97F4A7C15U) >> 32) & (table->capacity - 1);
}

/* Where the message stands, or the empty place where it would. The table has room. */
static shared_message *shared_find(const shared_table *table, uint32_t offset, uint32_t owner)
{
    uint32_t i = shared_home(table, offset, owner);
    while (table->items[i].places && (table->items[i].offset != offset || table->items[i].account != owner))
        i = (i + 1) & (table->capacity - 1);
    return &table->items[i];
}

static int shared_grow(shared_table *table)
{
    shared_table wider = {.capacity = table->capacity ? table->capacity * 2 : 64, .used = table->used};
    wider.items = calloc(wider.capacity, sizeof *wider.items);
    if (!wider.items)
        return -ENOMEM;
    for (uint32_t i = 0; i < table->capacity; i++)
        if (table->items[i].places)
            *shared_find(&wider, table->items[i].offset, table->items[i].account) = table->items[i];
    free(table->items);
    *table = wider;
    return 0;
}

/* One live place more; returns whether it is the first. Where there is no memory for the table the place counts without
 * its message, then and when it leaves. */
static bool shared_enter(shared_table *table, uint32_t offset, uint32_t owner)
{
    if (table->used * 4 >= table->capacity * 3 && shared_grow(table))
        return false;
    shared_message *at = shared_find(table, offset, owner);
    table->used += !at->places;
    at->offset = offset;
    at->account = owner;
    return ++at->places == 1;
}

/* One live place less; returns whether it was the last. */
static bool shared_leave(shared_table *table, uint32_t offset, uint32_t owner)
{
    shared_message *at = table->used ? shared_find(table, offset, owner) : NULL;
    if (!at || !at->places || --at->places)
        return false;
    table->used--;
    uint32_t mask = table->capacity - 1;
    for (uint32_t k = ((uint32_t)(at - table->items) + 1) & mask; table->items[k].places; k = (k + 1) & mask) {
        shared_message moved = table->items[k]; /* close the gap */
        table->items[k].places = 0;
        *shared_find(table, moved.offset, moved.account) = moved;
    }
    return true;
}

void shared_free(shared_table *table) { free(table->items); }

/* --- counting ------------------------------------------------------------------------------------------------ */
static void account_changed(vespiary_core *core, uint32_t handle, bool is_full)
{
    account *a = &core->accounts[handle];
    a->is_full = is_full;
    core->accounts_full += is_full ? 1U : -1U;
    if (!a->is_listed) { /* the list has room for every account: account_make grows it */
        a->is_listed = true;
        core->changed[core->changed_count++] = handle;
    }
}

static bool is_too_large(const account *a) { return a->bytes >= a->bytes_max || a->messages >= a->messages_max; }

/* Whether a full account is so no longer; one that may hold nothing always is. */
static bool is_low(const account *a)
{
    return a->bytes <= a->bytes_low && a->messages <= a->messages_low && !is_too_large(a);
}

static void account_check(vespiary_core *core, uint32_t handle)
{
    const account *a = &core->accounts[handle];
    if (a->is_full ? is_low(a) : is_too_large(a))
        account_changed(core, handle, !a->is_full);
}

static void account_add(vespiary_core *core, uint32_t handle, uint64_t bytes, bool is_message)
{
    account *a = &core->accounts[handle];
    a->bytes += bytes;
    a->messages += is_message;
    if (!a->is_full && is_too_large(a))
        account_changed(core, handle, true);
}

static void account_take(vespiary_core *core, uint32_t handle, uint64_t bytes, bool is_message)
{
    account *a = &core->accounts[handle];
    a->bytes -= bytes;
    a->messages -= is_message;
    if (a->is_full && is_low(a))
        account_changed(core, handle, false);
}

/* What a place costs: its piece of the record and its entry; the first of a message also the rest of the record. */
static uint64_t cost(const entry *item, bool is_message)
{
    uint64_t bytes = PLACE_BYTES + sizeof(entry);
    return is_message ? bytes + ADD_HEADER + item->properties_length + item->body_length : bytes;
}

void account_enter(vespiary_core *core, uint32_t handle, const entry *item)
{
    bool is_message = item->places == 1 || shared_enter(&core->slots[item->slot]->shared, item->offset, handle);
    uint64_t bytes = cost(item, is_message);
    account_add(core, handle, bytes, is_message);
    if (handle)
        account_add(core, 0, bytes, is_message);
}

void account_leave(vespiary_core *core, uint32_t handle, const entry *item)
{
    bool is_message = item->places == 1 || shared_leave(&core->slots[item->slot]->shared, item->offset, handle);
    uint64_t bytes = cost(item, is_message);
    account_take(core, handle, bytes, is_message);
    if (handle)
        account_take(core, 0, bytes, is_message);
}

bool is_route_held(const vespiary_core *core, const route *to)
{
    for (uint32_t i = 0; i < to->count; i++) {
        const account *a = &core->accounts[to->queues[i]->account];
        if (a->is_holding && (a->is_full || (core->accounts[0].is_full && a->messages)))
            return true;
    }
    return false;
}

/* --- accounts ------------------------------------------------------------------------------------------------ */
int account_make(vespiary_core *core)
{
    uint32_t handle = handle_next(&core->accounts_free, core->accounts_count);
    int bad = grow_array((void **)&core->accounts, &core->accounts_capacity, handle, sizeof(account));
    while (!bad && core->changed_capacity < core->accounts_capacity)
        bad = grow_array((void **)&core->changed, &core->changed_capacity, core->changed_capacity, sizeof(uint32_t));
    if (!bad)
        bad = handles_reserve(&core->accounts_free, core->accounts_capacity);
    if (bad)
        return bad;
    core->accounts[handle] = (account){.is_open = true,
                                       .is_listed = core->accounts[handle].is_listed,
                                       .bytes_max = UINT64_MAX,
                                       .bytes_low = UINT64_MAX,
                                       .messages_max = UINT64_MAX,
                                       .messages_low = UINT64_MAX};
    if (handle == core->accounts_count)
        core->accounts_count++;
    else
        handle_taken(&core->accounts_free);
    return (int)handle;
}

static account *account_of(const vespiary_core *core, uint32_t handle)
{
    return handle < core->accounts_count && core->accounts[handle].is_open ? &core->accounts[handle] : NULL;
}

int vespiary_core_open_account(vespiary_core *core) { return account_make(core); }

int vespiary_core_close_account(vespiary_core *core, uint32_t handle)
{
    account *a = account_of(core, handle);
    if (!a || !handle || a->queues)
        return -EINVAL;
    if (a->is_full)
        account_changed(core, handle, false);
    a->is_open = false;
    handle_freed(&core->accounts_free, handle);
    return 0;
}

int vespiary_core_limit_account(vespiary_core *core, uint32_t handle, const vespiary_account_limits *limits)
{
    account *a = account_of(core, handle);
    if (!a || limits->bytes_low > limits->bytes_max || limits->messages_low > limits->messages_max ||
        (!handle && limits->is_holding))
        return -EINVAL;
    a->bytes_max = limits->bytes_max;
    a->bytes_low = limits->bytes_low;
    a->messages_max = limits->messages_max;
    a->messages_low = limits->messages_low;
    a->is_holding = limits->is_holding != 0;
    account_check(core, handle);
    return 0;
}

int vespiary_core_join_account(vespiary_core *core, uint32_t queue_id, uint32_t handle)
{
    queue *q = queue_find(core, queue_id);
    account *to = account_of(core, handle);
    if (!q || !to)
        return -EINVAL;
    if (q->account == handle)
        return 0;
    for (const segment *s = segments_from(&q->segments, 0); s; s = segments_from(&q->segments, s->number + 1))
        for (uint32_t k = 0; k < SEGMENT_ENTRIES; k++)
            if (s->entries[k].state != ENTRY_NONE && s->entries[k].state != ENTRY_DONE) {
                account_leave(core, q->account, &s->entries[k]);
                account_enter(core, handle, &s->entries[k]);
            }
    core->accounts[q->account].queues--;
    to->queues++;
    q->account = handle;
    return 0;
}

int vespiary_core_account_statistics(const vespiary_core *core, uint32_t handle, vespiary_account_statistics *out)
{
    const account *a = account_of(core, handle);
    if (!a)
        return -EINVAL;
    *out = (vespiary_account_statistics){.bytes = a->bytes, .messages = a->messages, .is_full = a->is_full};
    return 0;
}

int vespiary_core_is_held(const vespiary_core *core, uint32_t handle)
{
    if (handle >= core->routes_count || !core->routes[handle].is_open)
        return -EINVAL;
    return core->accounts_full && is_route_held(core, &core->routes[handle]);
}

int vespiary_core_take_changed_accounts(vespiary_core *core, uint32_t *out, uint32_t room)
{
    uint32_t given = 0;
    while (core->changed_count && given < room) {
        uint32_t handle = core->changed[--core->changed_count];
        core->accounts[handle].is_listed = false;
        if (core->accounts[handle].is_open)
            out[given++] = handle;
    }
    return (int)given;
}

/* Accounts are sorted into classes by the length of what they hold in bits; within one, each is taken to hold the share. */
uint64_t vespiary_core_account_share(const vespiary_core *core, uint64_t budget)
{
    uint64_t counts[65] = {0}, sums[65] = {0}, above = 0;
    for (uint32_t i = 1; i < core->accounts_count; i++) {
        const account *a = &core->accounts[i];
        if (!a->is_open || !a->bytes)
            continue;
        unsigned length = 64U - (unsigned)__builtin_clzll(a->bytes);
        counts[length]++;
        sums[length] += a->bytes;
        above++;
    }
    uint64_t left = budget;
    for (unsigned length = 1; length < 64 && above; length++) {
        uint64_t more = above - counts[length];
        if (sums[length] > left || (more && (UINT64_C(1) << length) > (left - sums[length]) / more))
            return left / above;
        left -= sums[length];
        above = more;
    }
    return budget;
}
