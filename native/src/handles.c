/* Handles that are free again: a heap, lowest first, so that one is found at once however many are in use. A table gives
 * the lowest free handle, else the one behind its last: tables stay as short as they can. */
#include <errno.h>
#include <stdlib.h>

#include "state.h"

uint32_t handle_next(const free_handles *from, uint32_t used) { return from->count ? from->items[0] : used; }

int handles_reserve(free_handles *in, uint32_t handles)
{
    while (in->capacity < handles) {
        int bad = grow_array((void **)&in->items, &in->capacity, in->capacity, sizeof *in->items);
        if (bad)
            return bad;
    }
    return 0;
}

void handle_taken(free_handles *from)
{
    if (!from->count)
        return;
    uint32_t last = from->items[--from->count], at = 0;
    for (uint32_t below = 1; below < from->count; below = 2 * at + 1) {
        if (below + 1 < from->count && from->items[below + 1] < from->items[below])
            below++;
        if (last <= from->items[below])
            break;
        from->items[at] = from->items[below];
        at = below;
    }
    from->items[at] = last;
}

void handle_freed(free_handles *to, uint32_t handle)
{
    uint32_t at = to->count++;
    while (at && handle < to->items[(at - 1) / 2]) {
        to->items[at] = to->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    to->items[at] = handle;
}
