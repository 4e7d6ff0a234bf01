#include "measuring.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

void die(int code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: ", PROGRAM);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(code);
}

void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        die(EXIT_CHECK, "no memory for %zu x %zu bytes", count, size);
    return memory;
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

uint64_t to_ns(double seconds) { return (uint64_t)(seconds * 1e9); }

void *reserve(struct buffer *b, size_t room)
{
    if (b->start == b->end)
        b->start = b->end = 0;
    if (b->size - b->end < room && b->start > 0) {
        memmove(b->data, b->data + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
    }
    if (b->size - b->end < room) {
        char *data = realloc(b->data, b->end + room);
        if (data == NULL)
            die(EXIT_CHECK, "no memory for a buffer of %zu bytes", b->end + room);
        b->data = data;
        b->size = b->end + room;
    }
    return b->data + b->end;
}

void append(struct buffer *b, const char *format, ...)
{
    va_list list;
    char text[2048];
    va_start(list, format);
    int size = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (size < 0 || (size_t)size >= sizeof text)
        die(EXIT_USAGE, "a frame's headers exceed %zu bytes: shorten the names given", sizeof text);
    memcpy(reserve(b, (size_t)size), text, (size_t)size);
    b->end += (size_t)size;
}

void record(struct histogram *h, uint64_t ns)
{
    uint64_t v = ns < (1ull << 46) ? ns : (1ull << 46) - 1;
    unsigned shift = v < 2048 ? 0 : 53u - (unsigned)__builtin_clzll(v);
    h->slots[shift * 1024u + (v >> shift)]++;
    h->count++;
    h->sum_ns += ns;
    if (ns > h->max_ns)
        h->max_ns = ns;
}

double percentile_us(const struct histogram *h, double share)
{
    uint64_t target = (uint64_t)(share * (double)h->count + 0.999999), seen = 0;
    for (uint64_t slot = 0; slot < SLOTS; slot++) {
        seen += h->slots[slot];
        if (seen >= target && seen > 0) {
            unsigned shift = slot < 2048 ? 0 : (unsigned)(slot / 1024 - 1);
            uint64_t edge = ((slot - shift * 1024u + 1) << shift) - 1;
            return (double)(edge < h->max_ns ? edge : h->max_ns) / 1e3;
        }
    }
    return 0;
}

void take_snapshot(struct snapshot *s, struct counts counts, uint64_t now)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    *s = (struct snapshot){now, counts,
        (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6,
        (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6};
}

void print_text(const char *name, const char *text)
{
    printf("\"%s\":\"", name);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar((unsigned char)*text < 32 || (unsigned char)*text > 126 ? ' ' : *text);
    }
    fputs("\",", stdout);
}

void print_latency(const char *name, const struct histogram *h)
{
    printf("\"%s\":{\"count\":%" PRIu64 ",\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,"
           "\"p999\":%.1f,\"max\":%.1f},", name, h->count,
           h->count > 0 ? (double)h->sum_ns / (double)h->count / 1e3 : 0, percentile_us(h, 0.5),
           percentile_us(h, 0.9), percentile_us(h, 0.99), percentile_us(h, 0.999),
           (double)h->max_ns / 1e3);
}

void print_counts(const char *name, struct counts from, struct counts to)
{
    printf("\"%s\":{\"sent\":%" PRIu64 ",\"confirmed\":%" PRIu64 ",\"delivered\":%" PRIu64
           ",\"acknowledged\":%" PRIu64 "},", name, to.sent - from.sent, to.confirmed - from.confirmed,
           to.delivered - from.delivered, to.acknowledged - from.acknowledged);
}
