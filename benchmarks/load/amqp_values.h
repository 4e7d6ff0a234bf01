/* Values of AMQP 1.0 (OASIS 2012, part 1), as far as a load needs them: any is read over, few are written.
 *
 * Owns nothing: values point into the bytes that were read. Must never: read behind their end. Called by amqp.c. */
#ifndef LOAD_AMQP_VALUES_H
#define LOAD_AMQP_VALUES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cursor { const uint8_t *at, *end; };

struct value {
    uint8_t code;                         /* its constructor; NONE where a list has ended */
    bool is_null, is_true;
    uint64_t descriptor;                  /* of a described value, if it is a number; 0 for others */
    uint64_t number;                      /* of an unsigned integer */
    const uint8_t *data;                  /* of a string, symbol, binary; items of a list or map */
    size_t size;
};
enum { NONE = 0xff };

/* Read one value; false when it is malformed or cut off. */
bool next_value(struct cursor *c, struct value *v);

/* Read the next field of a list; one that was left out at its end is null. False when malformed. */
bool next_field(struct cursor *c, struct value *v);

/* Return a place to read the items of a list from. */
struct cursor items_of(const struct value *list);

uint32_t read_u32(const uint8_t *at);
uint8_t *put_u32(uint8_t *at, uint32_t number);

/* Each returns the place behind what it has written. */
uint8_t *put_uint(uint8_t *at, uint32_t number);
uint8_t *put_string(uint8_t *at, uint8_t code, const char *text); /* at most 255 bytes */
uint8_t *put_list(uint8_t *at, uint8_t descriptor);               /* its size comes with `end_list` */
uint8_t *end_list(uint8_t *list, uint8_t *at, uint8_t count);     /* `list`: where `put_list` began */
#endif
