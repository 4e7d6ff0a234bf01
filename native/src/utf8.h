/* UTF-8 as Python's decoder reads it: what is valid, and how much of what is not one U+FFFD stands for. */
#ifndef VESPIARY_UTF8_H
#define VESPIARY_UTF8_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Length of the character at `at`, of `left` bytes, 1 or more; with `is_valid` false of the longest begin of one (Unicode 15,
 * §3.9, table 3-7 and "U+FFFD Substitution of Maximal Subparts"). */
static inline uint32_t utf8_step(const uint8_t *at, uint64_t left, bool *is_valid)
{
    uint8_t lead = at[0], low = 0x80, high = 0xBF;
    *is_valid = lead < 0x80;
    if (lead < 0xC2 || lead > 0xF4)
        return 1;
    uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead == 0xE0)
        low = 0xA0;
    else if (lead == 0xED)
        high = 0x9F;
    else if (lead == 0xF0)
        low = 0x90;
    else if (lead == 0xF4)
        high = 0x8F;
    for (uint32_t i = 1; i < length; i++, low = 0x80, high = 0xBF)
        if (i >= left || at[i] < low || at[i] > high)
            return i;
    *is_valid = true;
    return length;
}

static inline bool is_utf8(const uint8_t *at, uint64_t length)
{
    bool is_valid = true;
    for (uint64_t i = 0; i < length && is_valid;) {
        uint64_t next;
        if (length - i >= sizeof next) { /* mostly it is ASCII */
            memcpy(&next, at + i, sizeof next);
            if (!(next & 0x8080808080808080u)) {
                i += sizeof next;
                continue;
            }
        }
        i += utf8_step(at + i, length - i, &is_valid);
    }
    return is_valid;
}

#endif
