/* See like.h. A part's characters get numbers (classes), so a step is one look for the class of the text's character, and
 * one row of bits for it; class 0 has the bits of `_` alone. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "like.h"

enum { ANY = -1, PART_MAX = 1024, WORD = 64, WORDS_MAX = PART_MAX / WORD, QUICK = 128 };

typedef struct {
    uint32_t length, words, classes;
    uint16_t quick[QUICK]; /* classes of ASCII */
    uint32_t *characters;  /* ascending; the class of each is its place here, plus 1 */
    uint64_t *rows;        /* `words` for each class, from class 0 on */
} part;

struct vespiary_like {
    uint32_t count;
    part parts[];
};

static int ascending(const void *a, const void *b)
{
    uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;
    return one < other ? -1 : one > other;
}

static uint32_t class_of(const part *p, uint32_t character)
{
    uint32_t low = 0, high = p->classes;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->characters[middle] < character)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->classes && p->characters[low] == character ? low + 1 : 0;
}

static bool prepare(part *p, const uint32_t *characters, uint32_t length)
{
    p->length = length;
    p->words = (length + WORD - 1) / WORD;
    p->characters = malloc(length * sizeof *p->characters);
    if (!p->characters)
        return false;
    for (uint32_t i = 0; i < length; i++)
        if (characters[i] != (uint32_t)ANY)
            p->characters[p->classes++] = characters[i];
    qsort(p->characters, p->classes, sizeof *p->characters, ascending);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->classes; i++)
        if (!kept || p->characters[kept - 1] != p->characters[i])
            p->characters[kept++] = p->characters[i];
    p->classes = kept;
    for (uint32_t i = 0; i < QUICK; i++)
        p->quick[i] = (uint16_t)class_of(p, i);
    p->rows = calloc((size_t)(kept + 1) * p->words, sizeof *p->rows);
    if (!p->rows)
        return false;
    for (uint32_t i = 0; i < length; i++) {
        uint64_t bit = UINT64_C(1) << i % WORD, *row = p->rows + i / WORD;
        if (characters[i] != (uint32_t)ANY)
            row[(size_t)class_of(p, characters[i]) * p->words] |= bit;
        else
            for (uint32_t class = 0; class <= kept; class++)
                row[(size_t)class * p->words] |= bit;
    }
    return true;
}

vespiary_like *vespiary_like_open(const uint32_t *characters, const uint32_t *lengths, uint32_t parts)
{
    vespiary_like *like = calloc(1, sizeof *like + (size_t)parts * sizeof like->parts[0]);
    if (!like)
        return NULL;
    like->count = parts;
    for (uint32_t i = 0; i < parts; i++) {
        if (!lengths[i] || lengths[i] > PART_MAX || !prepare(&like->parts[i], characters, lengths[i])) {
            vespiary_like_close(like);
            return NULL;
        }
        characters += lengths[i];
    }
    return like;
}

void vespiary_like_close(vespiary_like *like)
{
    for (uint32_t i = 0; like && i < like->count; i++) {
        free(like->parts[i].characters);
        free(like->parts[i].rows);
    }
    free(like);
}

/* Where the first match of a part ends; `end` + 1: there is none. */
static uint32_t search(const part *p, const uint32_t *text, uint32_t from, uint32_t end)
{
    uint64_t state[WORDS_MAX] = {0}, last = UINT64_C(1) << (p->length - 1) % WORD;
    uint32_t words = p->words;
    for (uint32_t at = from; at < end; at++) {
        uint32_t class = text[at] < QUICK ? p->quick[text[at]] : class_of(p, text[at]);
        const uint64_t *row = p->rows + (size_t)class * words;
        uint64_t carry = 1;
        for (uint32_t i = 0; i < words; i++) {
            uint64_t before = state[i];
            state[i] = (before << 1 | carry) & row[i];
            carry = before >> (WORD - 1);
        }
        if (state[words - 1] & last)
            return at + 1;
    }
    return end + 1;
}

int vespiary_like_match(const vespiary_like *like, const uint32_t *text, uint32_t from, uint32_t end)
{
    for (uint32_t i = 0; i < like->count; i++) {
        from = search(&like->parts[i], text, from, end);
        if (from > end)
            return 0;
    }
    return 1;
}
