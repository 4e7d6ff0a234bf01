/*
 * The sketch of a page: bounds and Bloom filters over its messages' headers (journal-format.md §7.4).
 *
 * A pure function over a page that is closed and not yet written; any thread. It allocates 112 KiB and frees them.
 */
#ifndef VESPIARY_PAGE_SKETCH_H
#define VESPIARY_PAGE_SKETCH_H

#include <stdint.h>

/* cdef-begin */

/* A part of a page in memory; blocks are never cut, and the last part is the footer. */
typedef struct {
    uint64_t memory; /* address */
    uint64_t offset; /* in the file */
    uint64_t length;
} vespiary_page_part;

/* Write the sketch into `out`, of at most `room` bytes. Its length; 0: there is none for such a page;
 * -EINVAL: the parts are no page; -ENOMEM. */
int vespiary_page_sketch(const vespiary_page_part *parts, uint32_t count, uint8_t *out, uint32_t room);

/* cdef-end */

#endif
