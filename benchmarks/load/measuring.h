/* What every load generator measures with: a clock, buffers, histograms of latency, counts, and their part of the report.
 *
 * Owns nothing but memory that it hands out. Must never: know a protocol. Called by stompload and protocolload. */
#ifndef LOAD_MEASURING_H
#define LOAD_MEASURING_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NS 1000000000ull
#define SLOTS (37u * 1024u)

enum { EXIT_CHECK = 1, EXIT_USAGE = 2, EXIT_LOST = 3 };

struct buffer { char *data; size_t start, end, size; };
struct histogram { uint64_t count, sum_ns, max_ns, slots[SLOTS]; };
struct counts { uint64_t sent, confirmed, delivered, acknowledged; };
struct snapshot { uint64_t time_ns; struct counts counts; double user_s, system_s; };

extern const char PROGRAM[]; /* the program's name, in front of all that it complains about */

void die(int code, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
void *allocate(size_t count, size_t size);
uint64_t now_ns(void);
uint64_t to_ns(double seconds);

/* Return room for `room` more bytes at the end; moves or grows the buffer when it has to. */
void *reserve(struct buffer *b, size_t room);
void append(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Log-linear, 1024 steps a power of two: three digits from 1 ns to 19 hours, like HdrHistogram. */
void record(struct histogram *h, uint64_t ns);
double percentile_us(const struct histogram *h, double share);

void take_snapshot(struct snapshot *s, struct counts counts, uint64_t now);

/* Members of the report's JSON object, each with a comma behind it. */
void print_text(const char *name, const char *text);
void print_latency(const char *name, const struct histogram *h);
void print_counts(const char *name, struct counts from, struct counts to);
#endif
