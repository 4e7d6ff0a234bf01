/* Parts of LIKE patterns under sanitizers: random parts and texts, each in a block of memory that ends where it does, held
 * against a search that tries every place. Lengths that are out of range are refused. */
#include "like.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { RUNS = 20000, PARTS_MAX = 4, LENGTH_MAX = 200, PART_LONGEST = 1024 };

static uint64_t state = 88172645463325252ULL;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 11) % n);
}

/* Few characters, so that parts are found; NUL, the last one of ASCII, the first behind it, a surrogate, the last of all. */
static uint32_t character(void)
{
    static const uint32_t some[] = {'a', 'a', 'a', 'b', 0, 127, 128, 0xDC80, 0x10FFFF};
    return some[below(sizeof some / sizeof *some)];
}

static uint32_t *block(uint32_t count)
{
    uint32_t *made = malloc(count ? count * sizeof *made : 1);
    CHECK(made);
    return made;
}

static bool expected(const uint32_t *characters, const uint32_t *lengths, uint32_t parts, const uint32_t *text,
                     uint32_t from, uint32_t end)
{
    for (uint32_t i = 0; i < parts; characters += lengths[i++]) {
        bool is_found = false;
        for (; !is_found && from + lengths[i] <= end; from++) {
            uint32_t same = 0;
            while (same < lengths[i] && (characters[same] == UINT32_MAX || characters[same] == text[from + same]))
                same++;
            is_found = same == lengths[i];
            if (is_found)
                from += lengths[i] - 1;
        }
        if (!is_found)
            return false;
    }
    return true;
}

static void run(void)
{
    uint32_t parts = 1 + below(PARTS_MAX), lengths[PARTS_MAX], count = 0;
    uint32_t longest = below(20) ? 1 + below(6) : 1 + below(150);
    for (uint32_t i = 0; i < parts; i++)
        count += lengths[i] = 1 + below(longest);
    uint32_t *characters = block(count), *own = block(parts);
    memcpy(own, lengths, parts * sizeof *own);
    for (uint32_t i = 0; i < count; i++)
        characters[i] = below(3) ? character() : UINT32_MAX;
    uint32_t length = below(LENGTH_MAX), *text = block(length);
    for (uint32_t i = 0; i < length; i++)
        text[i] = character();
    vespiary_like *like = vespiary_like_open(characters, own, parts);
    CHECK(like);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t from = below(length + 1), end = below(length + 1); /* `from` behind `end`: nothing is there */
        CHECK_EQUAL(vespiary_like_match(like, text, from, end), expected(characters, lengths, parts, text, from, end));
    }
    vespiary_like_close(like);
    free(characters);
    free(own);
    free(text);
}

/* The longest part, with as many characters as it has places. */
static void longest(void)
{
    uint32_t length = PART_LONGEST, *characters = block(length), *text = block(2 * length);
    for (uint32_t i = 0; i < length; i++)
        characters[i] = 1000 + i;
    characters[7] = UINT32_MAX;
    for (uint32_t i = 0; i < 2 * length; i++)
        text[i] = i < length - 5 ? 'x' : 1000 + i - (length - 5);
    vespiary_like *like = vespiary_like_open(characters, &length, 1);
    CHECK(like);
    CHECK_EQUAL(vespiary_like_match(like, text, 0, 2 * length), 1);
    CHECK_EQUAL(vespiary_like_match(like, text, 0, 2 * length - 6), 0);
    CHECK_EQUAL(vespiary_like_match(like, text, length, 2 * length), 0);
    vespiary_like_close(like);
    free(characters);
    free(text);
}

int main(void)
{
    uint32_t one = 'a', none = 0, many = PART_LONGEST + 1, two[] = {1, 0};
    CHECK(!vespiary_like_open(&one, &none, 1));
    CHECK(!vespiary_like_open(&one, &many, 1));
    CHECK(!vespiary_like_open(&one, two, 2)); /* the first one is given back */
    vespiary_like_close(NULL);
    for (uint32_t i = 0; i < RUNS; i++)
        run();
    longest();
    return 0;
}
