/* SENDs (and PUBLISHes) to a switch: a route without queues, whose messages Python looks at before it says where each goes
 * (vespiary_native/abc_switching.py). The scanner keeps those that follow one another; nothing of them is staged before
 * Python has chosen, so a frame that finds no room then is scanned again. */
#include <errno.h>
#include <string.h>

#include "state.h"

enum { SWITCHED_MAX = 512, SWITCHED_BYTES_MAX = 1024 * 1024 }; /* abc_switching.py has both */

int vespiary_core_open_switch(vespiary_core *core)
{
    int handle = vespiary_core_open_route(core, NULL, 0);
    if (handle >= 0)
        core->routes[handle].is_switch = true;
    return handle;
}

bool switch_takes(const vespiary_core *core, uint32_t to)
{
    if (!core->switched_count)
        return true;
    uint32_t at_most = core->connections[core->switched_connection].switched_max;
    const switched_send *first = &core->switched[0], *last = &core->switched[core->switched_count - 1];
    return to == core->switched_route && core->switched_count < (at_most ? at_most : SWITCHED_MAX) &&
           last->position + last->length - first->position < SWITCHED_BYTES_MAX;
}

int switch_keep(vespiary_core *core, uint32_t to, const switched_send *what)
{
    int bad = grow_array((void **)&core->switched, &core->switched_capacity, core->switched_count, sizeof *what);
    if (bad)
        return bad;
    core->switched[core->switched_count++] = *what;
    core->switched_route = to;
    return 0;
}

int vespiary_core_switched(vespiary_core *core, vespiary_look *out, const uint8_t **data)
{
    uint64_t used = core->switched_count * sizeof(vespiary_view);
    int bad = scratch_room(core, 0, used);
    for (uint32_t i = 0; i < core->switched_count && !bad; i++) {
        const message *m = &core->switched[i].message;
        uint64_t start = used;
        for (size_t j = 0; j < sizeof m->properties / sizeof m->properties[0] && !bad; j++) {
            bad = scratch_room(core, used, m->properties[j].length);
            if (!bad && m->properties[j].length)
                memcpy(core->scratch + used, m->properties[j].data, m->properties[j].length);
            used += m->properties[j].length;
        }
        vespiary_view view = {
            .priority = m->priority,
            .protocol = m->protocol,
            .time_ms = core->now_ms,
            .is_journalled = m->is_persistent,
            .is_special = (m->flags & FLAG_SPECIAL) != 0,
            .is_escaped = (m->flags & FLAG_ESCAPED) != 0,
            .body_length = m->body.length,
            .properties_at = (uint32_t)start,
            .properties_end = (uint32_t)used,
        };
        if (!bad)
            memcpy(core->scratch + i * sizeof view, &view, sizeof view);
    }
    *out = (vespiary_look){.length = used, .count = core->switched_count};
    *data = core->scratch;
    return bad ? bad : (int)core->switched_count;
}

int vespiary_core_send_switched(vespiary_core *core, const uint32_t *routes, uint32_t count, vespiary_result *out)
{
    uint32_t handle = core->switched_connection;
    if (!count || count > core->switched_count || !core->connections[handle].is_open || core->transaction)
        return -EINVAL;
    for (uint32_t i = 0; i < count; i++)
        if (routes[i] >= core->routes_count || !core->routes[routes[i]].is_open || core->routes[routes[i]].is_switch)
            return -EINVAL;
    bool is_part = count < core->switched_count; /* Python had no time for the others */
    core->switched_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const switched_send *s = &core->switched[i];
        *out = (vespiary_result){.status = FRAME, .detail = s->length, .position = s->position};
        int left = stage_send(core, handle, &core->routes[routes[i]], &s->message, s->receipt);
        if (left == -ENOSPC)
            out->status = BLOCKED;
        if (left) { /* the next one may find none either: to choose for all behind it each time would be quadratic */
            core->connections[handle].switched_max = 1;
            return left == -ENOSPC || left == 1 ? 0 : left;
        }
    }
    uint32_t wider = is_part ? count : core->connections[handle].switched_max * 2;
    core->connections[handle].switched_max = wider < SWITCHED_MAX ? wider : 0;
    *out = (vespiary_result){.status = NEED_DATA,
                             .position = core->switched[count - 1].position + core->switched[count - 1].length};
    return 0;
}
