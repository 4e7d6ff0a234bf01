#include "crc32c.h"

#include <string.h>

#include "crc32c_table.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#elif defined(__aarch64__) && defined(__AARCH64EL__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

/* --- tables: any processor, any byte order ---------------------------------------------------- */

static uint32_t load_u32_le(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16
           | (uint32_t)bytes[3] << 24;
}

uint32_t vespiary_crc32c_portable(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *bytes = data;
    const uint32_t(*slices)[256] = vespiary_crc32c_slices;

    crc = ~crc;
    for (; len >= 8; len -= 8, bytes += 8) {
        const uint32_t low = load_u32_le(bytes) ^ crc;
        const uint32_t high = load_u32_le(bytes + 4);
        crc = slices[7][low & 0xff] ^ slices[6][low >> 8 & 0xff] ^ slices[5][low >> 16 & 0xff]
              ^ slices[4][low >> 24] ^ slices[3][high & 0xff] ^ slices[2][high >> 8 & 0xff]
              ^ slices[1][high >> 16 & 0xff] ^ slices[0][high >> 24];
    }
    for (; len > 0; len--, bytes++)
        crc = crc >> 8 ^ slices[0][(crc ^ *bytes) & 0xff];
    return ~crc;
}

/* --- instructions ------------------------------------------------------------------------------ */

/*
 * One CRC instruction has a latency of 3 cycles and can start every cycle, so three independent streams
 * run side by side and are joined: crc(abc) = crc(a)·x^(8·2n) + crc(b)·x^(8n) + crc(c), n bytes each.
 * The two processors differ in what a step is called and in how one multiplies modulo the polynomial.
 */

#if defined(__x86_64__)

#if defined(__clang__)
#define CRC_TARGET __attribute__((target("sse4.2,crc32,pclmul")))
#else
#define CRC_TARGET __attribute__((target("sse4.2,pclmul")))
#endif
#define STRIDE_COUNT 3

static inline CRC_TARGET uint32_t step_u64(uint32_t crc, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(crc, word);
}

static inline CRC_TARGET uint32_t step_u8(uint32_t crc, uint8_t byte)
{
    return _mm_crc32_u8(crc, byte);
}

static inline CRC_TARGET uint64_t carryless_product(uint32_t a, uint32_t b)
{
    const __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

static inline CRC_TARGET uint32_t join(uint32_t first, uint32_t second, uint32_t third,
                                       const vespiary_crc32c_stride *stride)
{
    const uint64_t product = carryless_product(first, stride->fold_two)
                             ^ carryless_product(second, stride->fold_one);
    return step_u64(0, product) ^ third;
}

static int has_instructions(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#elif defined(__aarch64__) && defined(__AARCH64EL__)

#if defined(__clang__)
#define CRC_TARGET __attribute__((target("crc")))
#else
#define CRC_TARGET __attribute__((target("+crc")))
#endif
/* Joining costs about 64 short steps here: below 3 × 512 bytes one stream is as fast. */
#define STRIDE_COUNT 2

static inline CRC_TARGET uint32_t step_u64(uint32_t crc, uint64_t word)
{
    return __crc32cd(crc, word);
}

static inline CRC_TARGET uint32_t step_u8(uint32_t crc, uint8_t byte)
{
    return __crc32cb(crc, byte);
}

/* a·b modulo the polynomial, both reflected. Without PMULL, which not every arm64 has. */
static inline uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (int bit = 0; bit < 32; bit++) {
        product ^= b & (0u - (a >> 31));
        a <<= 1;
        b = b >> 1 ^ (0x82f63b78u & (0u - (b & 1u)));
    }
    return product;
}

static inline uint32_t join(uint32_t first, uint32_t second, uint32_t third,
                            const vespiary_crc32c_stride *stride)
{
    return multiply(first, stride->shift_two) ^ multiply(second, stride->shift_one) ^ third;
}

static int has_instructions(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

#endif

#if defined(CRC_TARGET)

static inline uint64_t load_u64(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static CRC_TARGET uint32_t crc32c_instructions(uint32_t crc, const uint8_t *bytes, size_t len)
{
    crc = ~crc;
    for (size_t i = 0; i < STRIDE_COUNT; i++) {
        const vespiary_crc32c_stride *stride = &vespiary_crc32c_strides[i];
        const size_t n = stride->stride;
        while (len >= 3 * n) {
            uint32_t second = 0, third = 0;
            for (const uint8_t *end = bytes + n; bytes < end; bytes += 8) {
                crc = step_u64(crc, load_u64(bytes));
                second = step_u64(second, load_u64(bytes + n));
                third = step_u64(third, load_u64(bytes + 2 * n));
            }
            crc = join(crc, second, third, stride);
            bytes += 2 * n;
            len -= 3 * n;
        }
    }
    for (; len >= 8; len -= 8, bytes += 8)
        crc = step_u64(crc, load_u64(bytes));
    for (; len > 0; len--, bytes++)
        crc = step_u8(crc, *bytes);
    return ~crc;
}

uint32_t vespiary_crc32c(uint32_t crc, const void *data, size_t len)
{
    if (has_instructions())
        return crc32c_instructions(crc, data, len);
    return vespiary_crc32c_portable(crc, data, len);
}

int vespiary_crc32c_is_hardware(void)
{
    return has_instructions();
}

#else

uint32_t vespiary_crc32c(uint32_t crc, const void *data, size_t len)
{
    return vespiary_crc32c_portable(crc, data, len);
}

int vespiary_crc32c_is_hardware(void)
{
    return 0;
}

#endif
