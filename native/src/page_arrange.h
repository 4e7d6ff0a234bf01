/*
 * A page in order of priority: the same messages, the highest first (journal-format.md §7).
 *
 * Pure functions over a page that is closed and not yet written; any thread. So that no second page need be in memory, the
 * new one is made part by part. 4 bytes are allocated for each record, and freed.
 */
#ifndef VESPIARY_PAGE_ARRANGE_H
#define VESPIARY_PAGE_ARRANGE_H

#include "page_sketch.h"

/* cdef-begin */

/* Where the next part of the new page begins; zeros at first. */
typedef struct {
    uint32_t part, record; /* numbers of the next ones */
    uint64_t sequence;     /* of the latest block */
    uint32_t crc;          /* of that block */
    uint32_t reserved;
} vespiary_page_cursor;

/* Begin: write the footer of the new page into `footer`, as long as it is, but offsets of records as they stand in
 * `parts`, and without checksums. 1; 0: the page is in order as it is, or does not fit into its length in this order;
 * -EINVAL: the parts are no page; -ENOMEM. */
int vespiary_page_arrange(const vespiary_page_part *parts, uint32_t count, uint8_t *footer);

/* Write what stands where the part `at->part` stood into `out`, as much as it has, and complete `footer` as far as that
 * goes; with the last part of blocks it is whole. `parts` and `footer` are those of vespiary_page_arrange, which returned
 * 1, and no part is left out. 0; -EINVAL: there is no such part. */
int vespiary_page_arrange_part(const vespiary_page_part *parts, uint32_t count, uint64_t salt, uint8_t *footer,
                               vespiary_page_cursor *at, uint8_t *out);

/* cdef-end */

#endif
