/* What the scanners' fuzz target and its rows share: see scanner_target.c. */
#ifndef VESPIARY_SCANNER_TARGET_H
#define VESPIARY_SCANNER_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core.h"

enum { ROUTES = 4, QUEUES = 3, HELD_MESSAGES = 3, STREAM_MAX = 4096 };

typedef struct {
    uint8_t version; /* 0 to 2: the row knows which one that is */
    bool has_full_queue;    /* queue 2 is full after one message: routes that lead there are held */
    bool has_little_room;   /* memory for a few blocks */
    bool has_small_limits;  /* of the connection */
    bool gives_in_order;    /* acknowledgements are cumulative, where the protocol has that */
} fuzz_settings;

typedef struct {
    vespiary_core *core;
    fuzz_settings settings;
    uint32_t connection, switch_route;
    uint32_t routes[ROUTES]; /* to no queue; to 1; to 1, 2 and 3; to 3, which is not durable */
} fuzz_world;

/* One scanner. A new one is a row here, a folder tests/fuzz/corpus/NAME_scanner, and a name in the Makefile's SCANNERS. */
typedef struct {
    const char *name;
    /* Make the connection one of this protocol, teach it what it may send to, and give it HELD_MESSAGES of queue 1. */
    void (*open)(fuzz_world *w);
    int (*scan)(vespiary_core *core, uint32_t connection, uint32_t buffer, uint64_t start, uint64_t end,
                vespiary_result *out);
    /* The length of the whole answer that `data` begins with; 0: it is none. */
    size_t (*answer)(const uint8_t *data, size_t length);
    /* Put into `out` what answers say, whatever pieces brought them about; NULL: their bytes are the same in any case. */
    size_t (*said)(const uint8_t *answers, size_t length, uint8_t *out, size_t room);
} fuzz_protocol;

extern const fuzz_protocol FUZZ_PROTOCOLS[];
extern const size_t FUZZ_PROTOCOLS_COUNT;

/* Choose the row of this name; false: there is none. */
bool fuzz_choose(const char *name);
/* Run one input: three bytes of settings and cuts, then the stream. Ends the program at a finding. */
void fuzz_one(const uint8_t *data, size_t length);

#endif
