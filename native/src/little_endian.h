/* Numbers in records and page indexes: little-endian, wherever they stand (docs/internals/journal-format.md). */
#ifndef VESPIARY_LITTLE_ENDIAN_H
#define VESPIARY_LITTLE_ENDIAN_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the journal is little-endian and this code writes it with the machine's own order"
#endif

static inline uint16_t get16(const uint8_t *at)
{
    uint16_t v;
    memcpy(&v, at, 2);
    return v;
}
static inline uint32_t get32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, 4);
    return v;
}
static inline uint64_t get64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, 8);
    return v;
}

/* The lower 16 bits of `v`. */
static inline void put16(uint8_t *at, uint32_t v)
{
    uint16_t low = (uint16_t)v;
    memcpy(at, &low, 2);
}
static inline void put32(uint8_t *at, uint32_t v) { memcpy(at, &v, 4); }
static inline void put64(uint8_t *at, uint64_t v) { memcpy(at, &v, 8); }

#endif
