/* Frames of STOMP 1.2, as a broker sends them, and the numbers in them.
 *
 * Owns nothing: spans point into the bytes that were parsed. Must never: know a load. Called by stompload and
 * protocolload. */
#ifndef LOAD_STOMP_FRAMES_H
#define LOAD_STOMP_FRAMES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct span { const char *data; size_t size; };
struct frame { char command; bool has_length; size_t length, needed; struct span receipt, ack,
               subscription, message, body; };

size_t put_number(char *to, uint64_t value);

/* Parse a decimal number that fills the span; false for anything else. */
bool get_number(struct span text, uint64_t *value);

/* Parse one frame. Returns its bytes; 0 when `f->needed` bytes are needed; -1 when malformed. */
ssize_t parse_frame(const char *data, size_t size, struct frame *f);
#endif
