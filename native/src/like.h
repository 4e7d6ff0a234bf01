/*
 * LIKE: the parts of a pattern between its first and its last `%`, where some have a `_`.
 *
 * Each part is searched with one bit for each of its characters (Shift-And), leftmost, from behind the part before it.
 * No place of the text is looked at twice, so a match costs the text's length times the longest part's words of 64
 * characters, whatever both of them are.
 */
#ifndef VESPIARY_LIKE_H
#define VESPIARY_LIKE_H

#include <stdint.h>

/* cdef-begin */

typedef struct vespiary_like vespiary_like;

/* Make a search. `characters` has the code points of all parts, one part after the other; UINT32_MAX is `_`. `lengths` has
 * the length of each part, 1 to 1024. NULL: a length is out of range, or there is no memory. */
vespiary_like *vespiary_like_open(const uint32_t *characters, const uint32_t *lengths, uint32_t parts);

void vespiary_like_close(vespiary_like *like);

/* 1 if all parts are found in order between two places of a text (code points); else 0. */
int vespiary_like_match(const vespiary_like *like, const uint32_t *text, uint32_t from, uint32_t end);

/* cdef-end */

#endif
