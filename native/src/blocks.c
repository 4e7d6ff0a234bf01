/* Blocks: where records go, how a block is closed, what is written next (docs/internals/journal-format.md §2). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "state.h"

enum { CACHE_LINE = 64, PREFETCH_MOST = 4096 };

static uint32_t data_end(const file *f) { return (uint32_t)f->size - SEAL_ROOM; }

static uint32_t region_end(const vespiary_core *core, const file *f, uint32_t position)
{
    uint64_t slab_end = ((uint64_t)(position >> core->slab_shift) + 1U) << core->slab_shift;
    return slab_end < data_end(f) ? (uint32_t)slab_end : data_end(f);
}

static int blocks_push(vespiary_core *core, sealed_block b)
{
    if (core->blocks_end - core->blocks_first == core->blocks_capacity) {
        uint64_t wider = core->blocks_capacity ? core->blocks_capacity * 2 : 64;
        sealed_block *made = malloc(wider * sizeof *made);
        if (!made)
            return -ENOMEM;
        for (uint64_t i = core->blocks_first; i < core->blocks_end; i++)
            made[i % wider] = core->blocks[i % core->blocks_capacity];
        free(core->blocks);
        core->blocks = made;
        core->blocks_capacity = wider;
    }
    core->blocks[core->blocks_end++ % core->blocks_capacity] = b;
    return 0;
}

uint32_t write_block_header(const vespiary_core *core, const file *f, const block_facts *facts, uint8_t *at)
{
    uint64_t seed[2] = {f->salt, facts->offset};
    memset(at + facts->used, 0, align_page(facts->used) - facts->used);
    memset(at, 0, BLOCK_HEADER);
    put32(at, BLOCK_MAGIC);
    put16(at + 4, FORMAT_VERSION);
    put16(at + 6, facts->flags);
    put64(at + 8, facts->sequence);
    put64(at + 16, f->file_id);
    put64(at + 24, facts->watermark);
    put32(at + 32, facts->used - BLOCK_HEADER);
    put32(at + 36, facts->records);
    put32(at + 40, facts->previous_crc);
    put64(at + 48, core->now_ms);
    uint32_t crc = vespiary_crc32c(0, seed, sizeof seed);
    crc = vespiary_crc32c(crc, at, facts->used);
    put32(at + 44, crc);
    return crc;
}

/* Close the block of `used` bytes at `offset` of the current file: header, checksum, zeros up to the page. */
static int close_block(vespiary_core *core, uint32_t offset, uint32_t used, uint32_t records, uint16_t flags)
{
    file *f = core->current;
    slab *s = &f->slabs[offset >> core->slab_shift];
    uint32_t length = (uint32_t)align_page(used);
    int bad = blocks_push(core, (sealed_block){core->next_sequence, f->slot, offset, length});
    if (bad)
        return bad;
    block_facts facts = {core->next_sequence, core->durable_sequence, core->previous_crc, offset, used, records, flags};
    core->previous_crc = write_block_header(core, f, &facts, s->memory + (offset & (core->slab_bytes - 1)));
    s->last_sequence = core->next_sequence++;
    core->unwritten_bytes += length;
    core->position = offset + length;
    if (!(core->position & (core->slab_bytes - 1)))
        slab_close(core, f, offset >> core->slab_shift);
    return 0;
}

static int close_filling(vespiary_core *core)
{
    filling_block *b = &core->filling;
    if (!b->is_open)
        return 0;
    int bad = close_block(core, b->offset, b->used, b->records, 0);
    if (!bad)
        b->is_open = false;
    return bad;
}

static int slab_present(vespiary_core *core, uint32_t position)
{
    slab *s = &core->current->slabs[position >> core->slab_shift];
    if (s->memory)
        return 0;
    int bad = slab_take(core, &s->memory);
    if (!bad)
        s->state = SLAB_FILLING;
    return bad;
}

/* Close the rest of a slab with a block that holds nothing. */
static int pad_slab(vespiary_core *core, uint32_t end)
{
    int bad = slab_present(core, core->position);
    if (bad)
        return bad;
    uint8_t *at = core->current->slabs[core->position >> core->slab_shift].memory +
                  (core->position & (core->slab_bytes - 1));
    memset(at, 0, end - core->position);
    return close_block(core, core->position, end - core->position, 0, 0);
}

static int seal_file(vespiary_core *core)
{
    int bad = slab_present(core, core->position);
    if (bad)
        return bad;
    uint32_t index = core->position >> core->slab_shift;
    uint8_t *at = core->current->slabs[index].memory + (core->position & (core->slab_bytes - 1)) + BLOCK_HEADER;
    memset(at, 0, 16);
    put32(at, 16);
    at[4] = RECORD_SEAL;
    bad = close_block(core, core->position, BLOCK_HEADER + 16, 1, BLOCK_IS_SEAL);
    if (bad)
        return bad;
    if (core->current->slabs[index].state == SLAB_FILLING)
        slab_close(core, core->current, index);
    return 0;
}

static void next_file(vespiary_core *core)
{
    core->current_index = core->current ? core->current_index + 1 : core->files_count - core->files_ahead;
    core->current = core->files[core->current_index];
    core->files_ahead--;
    core->position = FILE_HEADER;
}

/* An ADD must leave this much of the last file to acknowledgements and checkpoints. */
static bool is_reserved(const file *f, uint32_t end, uint32_t ahead)
{
    uint32_t reserve = (uint32_t)f->size / 8 < 1024 * 1024 ? (uint32_t)f->size / 8 : 1024 * 1024;
    return !ahead && end > data_end(f) - reserve;
}

/* Where a new block of `need` bytes would stand: checks all room and changes nothing. */
static int plan_block(const vespiary_core *core, uint32_t need, bool is_add)
{
    const file *f = core->current;
    uint32_t ahead = core->files_ahead, slabs = 0, rolls = 0;
    uint32_t position = core->filling.is_open ? core->filling.offset + (uint32_t)align_page(core->filling.used)
                                              : core->position;
    uint32_t touched = UINT32_MAX; /* the slab of the current file that is counted already */
    for (;;) {
        if (f) {
            uint32_t end = region_end(core, f, position);
            bool is_fresh = !f->slabs[position >> core->slab_shift].memory && position >> core->slab_shift != touched;
            if (is_fresh)
                slabs++, touched = position >> core->slab_shift;
            if (position + need <= end)
                break;
            if (end != data_end(f)) {
                if (is_fresh && position == end)
                    return -EMSGSIZE;
                position = end;
                continue;
            }
            if (++rolls == 2)
                return -EMSGSIZE;
        }
        if (!ahead)
            return -ENOSPC;
        if (!f)
            rolls = 1;
        f = f ? core->files[core->current_index + rolls] : core->files[core->files_count - ahead];
        ahead--;
        position = FILE_HEADER;
        touched = UINT32_MAX;
    }
    if (is_add && is_reserved(f, position + need, ahead))
        return -ENOSPC;
    return slabs_obtainable(core, slabs) ? 0 : -ENOSPC;
}

/* Close what is open and open a block with room for `padded` bytes of records. */
static int open_block(vespiary_core *core, uint32_t padded, bool is_add)
{
    uint32_t need = (uint32_t)align_page(BLOCK_HEADER + (uint64_t)padded);
    int bad = need > core->slab_bytes - FILE_HEADER ? -EMSGSIZE : plan_block(core, need, is_add);
    if (!bad)
        bad = close_filling(core);
    if (!bad && !core->current)
        next_file(core);
    while (!bad && core->position + need > region_end(core, core->current, core->position)) {
        uint32_t end = region_end(core, core->current, core->position);
        if (end != data_end(core->current)) {
            bad = pad_slab(core, end);
        } else {
            bad = seal_file(core);
            if (!bad)
                next_file(core);
        }
    }
    if (!bad)
        bad = slab_present(core, core->position);
    if (bad)
        return bad;
    file *f = core->current;
    uint32_t room = region_end(core, f, core->position) - core->position;
    uint32_t most = BLOCK_HEADER + padded > core->block_bytes ? BLOCK_HEADER + padded : core->block_bytes;
    core->filling = (filling_block){
        .is_open = true,
        .slot = f->slot,
        .offset = core->position,
        .used = BLOCK_HEADER,
        .end = most < room ? most : room,
        .memory = f->slabs[core->position >> core->slab_shift].memory + (core->position & (core->slab_bytes - 1)),
    };
    return 0;
}

int reserve_record(vespiary_core *core, uint32_t padded, bool is_add)
{
    const filling_block *b = &core->filling;
    if (is_add && core->are_adds_held)
        return -ENOSPC;
    if (!b->is_open || b->used + padded > b->end)
        return open_block(core, padded, is_add);
    bool is_refused = is_add && is_reserved(core->current, b->offset + (uint32_t)align_page(b->used + padded),
                                            core->files_ahead);
    return is_refused ? -ENOSPC : 0;
}

/* Ask for the memory where the next record will stand, taken to be as long as this one, so that it comes while the
 * next frame is parsed: a slab is colder than any cache, and copying into it waited for it longer than for all else. */
static void prefetch_next(const filling_block *b, uint32_t padded)
{
    uint32_t ahead = padded < PREFETCH_MOST ? padded : PREFETCH_MOST;
    uint32_t end = b->end - b->used < ahead ? b->end : b->used + ahead;
    for (uint32_t at = b->used; at < end; at += CACHE_LINE) {
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(b->memory[at])); /* the builtin asks for it to be read */
#else
        __builtin_prefetch(b->memory + at, 1, 3);
#endif
    }
}

int place_record(vespiary_core *core, uint32_t length, bool is_add, placed *out)
{
    uint32_t padded = (uint32_t)align8(length);
    filling_block *b = &core->filling;
    int bad = reserve_record(core, padded, is_add);
    if (bad)
        return bad;
    out->memory = b->memory + b->used;
    out->slot = b->slot;
    out->offset = b->offset + b->used;
    memset(out->memory + length, 0, padded - length);
    b->used += padded;
    prefetch_next(b, padded);
    b->records++;
    core->records_added++;
    core->payload_bytes += length;
    return 0;
}

int64_t vespiary_core_append_record(vespiary_core *core, uint32_t type, uint32_t flags, const uint8_t *body,
                                    uint32_t length, int urgent)
{
    placed at;
    bool is_member = type == RECORD_DUPLICATE && (flags & FLAG_TRANSACTIONAL);
    if (length > core->slab_bytes - FILE_HEADER - BLOCK_HEADER - 8)
        return -EMSGSIZE;
    if (is_member && (length < 16 || !is_own_transaction(core, body, length)))
        return -EINVAL;
    int bad = place_record(core, length + 8, false, &at);
    if (bad)
        return bad;
    put32(at.memory, length + 8);
    at.memory[4] = (uint8_t)type;
    at.memory[5] = (uint8_t)flags;
    put16(at.memory + 6, 0);
    memcpy(at.memory + 8, body, length);
    if (is_member && (bad = join_transaction(core, &at, length + 8)))
        return bad;
    if (urgent)
        mark_urgent(core);
    return (int64_t)core->next_sequence;
}

void vespiary_core_hold_adds(vespiary_core *core, int held) { core->are_adds_held = held != 0; }

void mark_urgent(vespiary_core *core)
{
    core->urgent_sequence = core->filling.is_open ? core->next_sequence : core->next_sequence - 1;
}

bool is_all_durable(const vespiary_core *core)
{
    return !(core->filling.is_open && core->filling.records) && core->next_sequence - 1 == core->durable_sequence;
}

/* --- writing -------------------------------------------------------------------------------------------- */
int vespiary_core_has_unwritten(const vespiary_core *core)
{
    return core->blocks_next != core->blocks_end || (core->filling.is_open && core->filling.records) ||
           core->is_empty_block_wanted;
}

int vespiary_core_is_urgent(const vespiary_core *core) { return core->urgent_sequence > core->handed_sequence; }

void vespiary_core_stage_empty_block(vespiary_core *core) { core->is_empty_block_wanted = true; }

static bool is_neighbour(const vespiary_core *core, const sealed_block *first, uint64_t length, uint32_t slot,
                         uint32_t offset, uint64_t more)
{
    return slot == first->slot && offset == first->offset + length &&
           offset >> core->slab_shift == first->offset >> core->slab_shift && length + more <= WRITE_LIMIT;
}

int vespiary_core_seal_write(vespiary_core *core, vespiary_write *out)
{
    int bad = 0;
    if (core->blocks_next == core->blocks_end) {
        if (core->filling.is_open && core->filling.records) {
            bad = close_filling(core);
        } else if (core->is_empty_block_wanted) {
            core->is_empty_block_wanted = false;
            bad = open_block(core, 0, false);
            if (bad == -ENOSPC)
                return 0; /* only a better watermark: without room for it nothing is lost */
            if (!bad)
                bad = close_filling(core);
        } else {
            return 0;
        }
        if (bad)
            return bad;
    }
    core->is_empty_block_wanted = false;
    const sealed_block first = core->blocks[core->blocks_next++ % core->blocks_capacity];
    uint64_t length = first.length, sequence = first.sequence;
    while (core->blocks_next != core->blocks_end) {
        const sealed_block *next = &core->blocks[core->blocks_next % core->blocks_capacity];
        if (!is_neighbour(core, &first, length, next->slot, next->offset, next->length))
            break;
        length += next->length;
        sequence = next->sequence;
        core->blocks_next++;
    }
    const filling_block *b = &core->filling;
    if (core->blocks_next == core->blocks_end && b->is_open && b->records &&
        is_neighbour(core, &first, length, b->slot, b->offset, align_page(b->used))) {
        uint32_t more = (uint32_t)align_page(b->used);
        bad = close_filling(core);
        if (!bad) {
            length += more;
            sequence = core->next_sequence - 1;
            core->blocks_next++;
        }
    }
    core->handed_sequence = sequence;
    const file *f = core->slots[first.slot];
    const slab *s = &f->slabs[first.offset >> core->slab_shift];
    *out = (vespiary_write){f->file_id, first.offset,
                            (uint64_t)(uintptr_t)(s->memory + (first.offset & (core->slab_bytes - 1))), length,
                            sequence};
    return 1;
}

int vespiary_core_start(vespiary_core *core, uint64_t sequence, uint32_t previous_crc, uint64_t durable)
{
    if (core->current || core->filling.is_open || !sequence || durable >= sequence)
        return -EINVAL;
    core->next_sequence = sequence;
    core->previous_crc = previous_crc;
    core->durable_sequence = durable;
    core->handed_sequence = sequence - 1;
    core->urgent_sequence = 0;
    return 0;
}

/* --- checking ---------------------------------------------------------------------------------------------- */
int vespiary_verify_blocks(const uint8_t *data, uint64_t length, uint64_t offset, uint64_t salt, uint64_t file_id,
                           vespiary_block_facts *out, uint32_t room)
{
    uint32_t count = 0;
    uint64_t at = 0;
    while (count < room && at + BLOCK_HEADER <= length) {
        const uint8_t *b = data + at;
        uint8_t header[BLOCK_HEADER];
        uint32_t magic, payload, crc;
        uint16_t version, flags;
        uint64_t owner, seed[2] = {salt, offset + at};
        memcpy(header, b, sizeof header);
        memcpy(&magic, b, 4);
        memcpy(&version, b + 4, 2);
        memcpy(&flags, b + 6, 2);
        memcpy(&owner, b + 16, 8);
        memcpy(&payload, b + 32, 4);
        memcpy(&crc, b + 44, 4);
        if (magic != BLOCK_MAGIC || version != FORMAT_VERSION || owner != file_id ||
            align_page(BLOCK_HEADER + (uint64_t)payload) > length - at)
            break;
        memset(header + 44, 0, 4);
        uint32_t sum = vespiary_crc32c(0, seed, sizeof seed);
        sum = vespiary_crc32c(sum, header, sizeof header);
        if (vespiary_crc32c(sum, b + BLOCK_HEADER, payload) != crc)
            break;
        vespiary_block_facts *facts = &out[count++];
        *facts = (vespiary_block_facts){.offset = offset + at, .crc = crc};
        facts->length = align_page(BLOCK_HEADER + (uint64_t)payload);
        memcpy(&facts->sequence, b + 8, 8);
        memcpy(&facts->watermark, b + 24, 8);
        memcpy(&facts->records, b + 36, 4);
        memcpy(&facts->previous_crc, b + 40, 4);
        memcpy(&facts->time_ms, b + 48, 8);
        facts->is_seal = flags & BLOCK_IS_SEAL ? 1 : 0;
        at += facts->length;
        if (facts->is_seal)
            break;
    }
    return (int)count;
}
