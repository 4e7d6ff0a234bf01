/* The little that the C tests share. A failed check prints its place and ends the test program. */
#ifndef VESPIARY_TESTS_CHECK_H
#define VESPIARY_TESTS_CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program unless `condition` holds. */
#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);           \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* Ends the program unless two integers are equal; prints both. */
#define CHECK_EQUAL(actual, expected)                                                               \
    do {                                                                                            \
        const int64_t actual_ = (int64_t)(actual), expected_ = (int64_t)(expected);                 \
        if (actual_ != expected_) {                                                                 \
            fprintf(stderr, "%s:%d: %s is %" PRId64 ", expected %s = %" PRId64 "\n", __FILE__,      \
                    __LINE__, #actual, actual_, #expected, expected_);                              \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

#endif
