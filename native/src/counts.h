/* How often messages were given out (counts.c), for the core's own C files. */
#ifndef VESPIARY_COUNTS_H
#define VESPIARY_COUNTS_H

#include "state.h"

uint32_t journalled_deliveries(const vespiary_core *core, const entry *item); /* as the journal is to say it */
int count_ahead(vespiary_core *core, const queue *q, uint64_t sequence, const entry *item); /* it is about to be given */
void count_delivery(vespiary_core *core, queue *q, uint64_t sequence, entry *item);
void count_back(vespiary_core *core, queue *q, uint64_t sequence, entry *item, bool is_counted); /* a consumer held it */
int stage_count(vespiary_core *core, const queue *q, uint64_t sequence, const entry *item);
int stage_count_of(vespiary_core *core, const queue *q, uint64_t sequence, uint32_t deliveries, uint32_t slot);

#endif
