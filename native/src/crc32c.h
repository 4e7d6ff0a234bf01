/*
 * CRC32C (Castagnoli, RFC 3720 appendix B.4), the checksum of journal and page blocks.
 *
 * The `crc` argument is the finished value of what came before, 0 at the start, as with zlib's crc32():
 * crc(ab) == crc(crc(0, a), b). The result equals `crc32c.crc32c(data, value)` of the PyPI package.
 *
 * Any alignment, any length. `data` may be NULL when `len` is 0. Pure functions: any thread.
 */
#ifndef VESPIARY_CRC32C_H
#define VESPIARY_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* cdef-begin */

/* The CRC32C of `len` bytes at `data`, by the fastest way that this processor has. */
uint32_t vespiary_crc32c(uint32_t crc, const void *data, size_t len);

/* The same by tables alone: what runs without CRC instructions, and what tests compare with. */
uint32_t vespiary_crc32c_portable(uint32_t crc, const void *data, size_t len);

/* 1 if vespiary_crc32c() uses instructions of this processor, 0 if it uses the tables. */
int vespiary_crc32c_is_hardware(void);

/* cdef-end */

#endif
