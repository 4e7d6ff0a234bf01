/*
 * The number that the Python part compares with its own at import, so that a stale build is an error
 * with a cure and not a crash.
 *
 * Raise VESPIARY_ABI, and `ABI` in vespiary_native/loader.py with it, whenever a declaration between
 * the cdef marks of any header changes its meaning or its arguments.
 */
#ifndef VESPIARY_ABI_H
#define VESPIARY_ABI_H

#include <stdint.h>

#define VESPIARY_ABI 20u

/* cdef-begin */

/* The VESPIARY_ABI of the headers that this library was compiled from. */
uint32_t vespiary_abi(void);

/* cdef-end */

#endif
