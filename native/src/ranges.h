/* Copies of records for readers of ranges, wherever the records stand: in the ring (ranges.c) or in a page
 * (page_looking.c). For the core's own C files only. */
#ifndef VESPIARY_RANGES_H
#define VESPIARY_RANGES_H

#include "state.h"

/* What an answer may have. */
typedef struct {
    uint64_t max_bytes;
    bool is_first_whole; /* the first record comes even if it is larger */
    uint64_t *runs;      /* pairs of (first, last) */
    uint32_t runs_room;
} range_room;

/* Copy a message's record behind those in `scratch`; 1: there is no room for it, -errno, else 0. */
int range_put(vespiary_core *core, const queue *q, uint64_t sequence, const entry *item, const uint8_t *record,
              const range_room *room, vespiary_range *out);

#endif
