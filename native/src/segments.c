/* The segments of a queue by their numbers: a tree that forks only where the numbers of its segments differ.
 *
 * What it costs depends on the segments that are there and never on how far apart their numbers are: each needs at most one
 * fork. A fork has 64 children, by six bits of the number; whatever the numbers, a path has at most ten forks. */
#include <errno.h>
#include <stdlib.h>

#include "state.h"

enum { DIGIT_BITS = 6, CHILDREN = 1 << DIGIT_BITS };

typedef struct {
    uint64_t first; /* the lowest number that it covers */
    uint64_t used;  /* bit d: children[d] is there */
    uint32_t shift; /* of its digit; above it all numbers here are those of `first` */
    segment_link children[CHILDREN];
} fork;

/* A link is 0, a segment, or a fork with the lowest bit set. */
static fork *fork_of(segment_link link) { return link & 1 ? (fork *)(link - 1) : NULL; }

static segment *segment_of(segment_link link) { return link & 1 ? NULL : (segment *)link; }

static uint32_t digit_of(const fork *f, uint64_t number) { return number >> f->shift & (CHILDREN - 1); }

static bool covers(const fork *f, uint64_t number) { return !((f->first ^ number) >> f->shift >> DIGIT_BITS); }

static uint64_t first_of(segment_link link)
{
    const fork *f = fork_of(link);
    return f ? f->first : segment_of(link)->number;
}

segment *segments_search(const segments *in, uint64_t number)
{
    segment_link at = in->root;
    for (const fork *f = fork_of(at); f; f = fork_of(at))
        at = f->children[digit_of(f, number)];
    segment *found = segment_of(at);
    if (!found || found->number != number)
        return NULL;
    ((segments *)in)->found = found; /* a note for the next search, which changes no answer */
    return found;
}

static segment *lowest(segment_link at)
{
    for (const fork *f = fork_of(at); f; f = fork_of(at))
        at = f->children[__builtin_ctzll(f->used)];
    return segment_of(at);
}

segment *segments_from(const segments *in, uint64_t number)
{
    segment_link at = in->root, after = 0; /* after: what comes next if nothing below `at` does */
    for (const fork *f = fork_of(at); f; f = fork_of(at)) {
        if (!covers(f, number))
            return lowest(f->first > number ? at : after);
        uint32_t digit = digit_of(f, number);
        uint64_t later = f->used & ~(uint64_t)1 << digit;
        if (later)
            after = f->children[__builtin_ctzll(later)];
        at = f->children[digit];
    }
    segment *found = segment_of(at);
    return found && found->number >= number ? found : lowest(after);
}

/* A fork for what is at `link` and for a segment that does not belong below it. */
static fork *fork_make(segment_link link, uint64_t number)
{
    fork *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    uint64_t other = first_of(link);
    made->shift = (uint32_t)(63 - __builtin_clzll(other ^ number)) / DIGIT_BITS * DIGIT_BITS;
    made->first = number >> made->shift >> DIGIT_BITS << DIGIT_BITS << made->shift;
    made->children[digit_of(made, other)] = link;
    made->used = (uint64_t)1 << digit_of(made, other);
    return made;
}

static int link_put(segments *in, segment *made)
{
    segment_link *at = &in->root;
    fork *f = fork_of(*at);
    while (f && covers(f, made->number)) {
        uint32_t digit = digit_of(f, made->number);
        if (!(f->used >> digit & 1)) {
            f->children[digit] = (segment_link)made;
            f->used |= (uint64_t)1 << digit;
            return 0;
        }
        at = &f->children[digit];
        f = fork_of(*at);
    }
    if (!*at) {
        *at = (segment_link)made;
        return 0;
    }
    f = fork_make(*at, made->number);
    if (!f)
        return -ENOMEM;
    f->children[digit_of(f, made->number)] = (segment_link)made;
    f->used |= (uint64_t)1 << digit_of(f, made->number);
    *at = (segment_link)f + 1;
    return 0;
}

int segments_put(segments *in, segment *made)
{
    int bad = link_put(in, made);
    if (!bad)
        in->newest = made;
    return bad;
}

void segments_remove(segments *in, uint64_t number)
{
    if (in->newest && in->newest->number == number)
        in->newest = NULL;
    if (in->found && in->found->number == number)
        in->found = NULL;
    segment_link *at = &in->root, *above = NULL;
    for (fork *f = fork_of(*at); f; f = fork_of(*at)) {
        above = at;
        at = &f->children[digit_of(f, number)];
    }
    *at = 0;
    fork *f = above ? fork_of(*above) : NULL;
    if (!f)
        return;
    f->used &= ~((uint64_t)1 << digit_of(f, number));
    if (f->used & (f->used - 1))
        return;
    *above = f->children[__builtin_ctzll(f->used)]; /* a single child needs no fork */
    free(f);
}

static void link_free(segment_link link) /* at most eleven deep */
{
    fork *f = fork_of(link);
    for (uint64_t left = f ? f->used : 0; left; left &= left - 1)
        link_free(f->children[__builtin_ctzll(left)]);
    if (f)
        free(f);
    else
        free(segment_of(link));
}

void segments_free(segments *in)
{
    link_free(in->root);
    *in = (segments){0};
}
