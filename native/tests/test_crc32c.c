/* CRC32C: the vectors of RFC 3720 B.4, the tables bit by bit, and instructions against tables. */
#include <string.h>

#include "check.h"
#include "crc32c.h"
#include "crc32c_table.h"

static uint32_t times_x(uint32_t value)
{
    return value >> 1 ^ (value & 1u ? 0x82f63b78u : 0u);
}

static uint32_t bit_by_bit(uint32_t crc, const uint8_t *bytes, size_t len)
{
    crc = ~crc;
    for (size_t i = 0; i < len; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = times_x(crc);
    }
    return ~crc;
}

static void check_both(const uint8_t *bytes, size_t len, uint32_t expected)
{
    CHECK_EQUAL(vespiary_crc32c(0, bytes, len), expected);
    CHECK_EQUAL(vespiary_crc32c_portable(0, bytes, len), expected);
    CHECK_EQUAL(bit_by_bit(0, bytes, len), expected);
}

static void test_vectors(void)
{
    static const uint8_t scsi_read[48] = {
        0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18,
        0x28, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    };
    uint8_t bytes[32];

    memset(bytes, 0, sizeof bytes);
    check_both(bytes, sizeof bytes, 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    check_both(bytes, sizeof bytes, 0x62a8ab43u);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = i;
    check_both(bytes, sizeof bytes, 0x46dd794eu);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = (uint8_t)(31 - i);
    check_both(bytes, sizeof bytes, 0x113fdb5cu);
    check_both(scsi_read, sizeof scsi_read, 0xd9963a56u);
    check_both((const uint8_t *)"123456789", 9, 0xe3069283u);
    CHECK_EQUAL(vespiary_crc32c(0x12345678u, NULL, 0), 0x12345678u);
    CHECK_EQUAL(vespiary_crc32c_portable(0x12345678u, NULL, 0), 0x12345678u);
}

static void test_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int slice = 0; slice < 8; slice++) {
            for (int bit = 0; bit < 8; bit++)
                value = times_x(value);
            CHECK_EQUAL(vespiary_crc32c_slices[slice][byte], value);
        }
    }
    for (size_t i = 0; i < sizeof vespiary_crc32c_strides / sizeof vespiary_crc32c_strides[0]; i++) {
        const vespiary_crc32c_stride *stride = &vespiary_crc32c_strides[i];
        uint32_t value = 0x80000000u;
        CHECK(stride->stride % 8 == 0);
        for (uint32_t power = 0; power <= 16 * stride->stride; power++) {
            if (power == 8 * stride->stride - 33)
                CHECK_EQUAL(stride->fold_one, value);
            if (power == 8 * stride->stride)
                CHECK_EQUAL(stride->shift_one, value);
            if (power == 16 * stride->stride - 33)
                CHECK_EQUAL(stride->fold_two, value);
            if (power == 16 * stride->stride)
                CHECK_EQUAL(stride->shift_two, value);
            value = times_x(value);
        }
    }
}

/* Every length around each border of the three-stream loops, at every alignment, split and whole. */
static void test_instructions_against_tables(void)
{
    enum { SIZE = 40000 };
    uint8_t *bytes = malloc(SIZE);
    uint64_t random = 0x9e3779b97f4a7c15u;

    CHECK(bytes != NULL);
    for (size_t i = 0; i < SIZE; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(random >> 56);
    }
    for (size_t len = 0; len < 3 * 512 + 40; len++)
        CHECK_EQUAL(vespiary_crc32c(1, bytes + len % 16, len),
                    vespiary_crc32c_portable(1, bytes + len % 16, len));
    for (size_t len = 3 * 2048 - 20; len < 3 * 2048 + 20; len++)
        for (size_t start = 0; start < 16; start++)
            CHECK_EQUAL(vespiary_crc32c(7, bytes + start, len),
                        vespiary_crc32c_portable(7, bytes + start, len));
    for (size_t cut = 0; cut < SIZE; cut += 997) {
        const uint32_t head = vespiary_crc32c(0, bytes, cut);
        CHECK_EQUAL(vespiary_crc32c(head, bytes + cut, SIZE - cut), bit_by_bit(0, bytes, SIZE));
        CHECK_EQUAL(vespiary_crc32c_portable(head, bytes + cut, SIZE - cut),
                    bit_by_bit(0, bytes, SIZE));
    }
    free(bytes);
}

int main(void)
{
    test_vectors();
    test_tables();
    test_instructions_against_tables();
    printf("crc32c: ok (%s)\n", vespiary_crc32c_is_hardware() ? "instructions" : "tables");
    return 0;
}
