/* Pages and extents, for the core's own C files only (contract: vespiary_native/abc_pages.py).
 *
 * A page is a file with slabs like a journal's; `file.page` holds what only pages have. An extent is what one queue has in
 * one page. Ownership: the core owns pages, a queue owns its extents. */
#ifndef VESPIARY_PAGES_H
#define VESPIARY_PAGES_H

#include "state.h"

enum {
    PAGE_PLACES_MAX = 32768,
    PAGE_RECORD_MAX = 32768,    /* bytes of a PAGE record, as they are counted while the page is filled */
    PAGED_HEAD = 40,            /* of a PAGE record */
    PAGED_QUEUE = 40,           /* of each queue in it */
    PAGED_LARGE = 32,
    PAGED_COUNT = 16,
    PAGED_SPAN_MAX = 1 << 24,
    INDEX_QUEUE = 32,
    INDEX_PLACE = 8,
    INDEX_RECORD = 16,
    TRAILER = 64,
    PURGE_RANGES = 64
};

typedef enum { PAGE_FILLING = 0, PAGE_CLOSED, PAGE_LIVE, PAGE_ENDED } page_state;

typedef struct {
    uint32_t id, count;
    uint64_t first, last; /* of its places, if it has any */
    bool is_dropped;      /* the queue went since */
} page_queue;

typedef struct {
    uint64_t sequence;
    uint32_t queue, record; /* index in queues, in records */
} page_place;

struct page {
    uint64_t page_id, limit;
    page_state state;
    page_queue *queues; /* by id */
    uint32_t queues_count;
    page_place *places;
    uint32_t places_count, places_capacity;
    uint8_t *records; /* as they stand in the index */
    uint32_t records_count, records_capacity;
    uint64_t record_bytes; /* what its PAGE record may need */
    filling_block filling; /* of it: is_open, offset, used, end, records */
    uint32_t offset;       /* of the next block */
    uint64_t sequence;     /* of the next block */
    uint32_t previous_crc;
    uint8_t *footer;
    uint32_t footer_length;
    uint32_t record_slot;  /* file of its latest PAGE record; UINT32_MAX: none */
    uint32_t latest_bytes; /* length of that record */
    bool is_looked_at; /* somebody looks through a closed extent, and goes on */
    bool has_block;
    uint64_t block; /* that must be durable before its file may go */
};

/* What a queue has in a page; while it is open, `bits` is what it was, and the ring says what is left. Of a closed one
 * single places may stand in the ring too (page_pick): its bits do not have them. */
struct extent {
    uint64_t first, last;
    uint32_t slot; /* of the page */
    uint32_t live : 31; /* places that are not done, while it is closed */
    uint32_t is_open : 1;
    uint64_t *bits;          /* those of first to last; NULL: all */
    uint64_t *volatile_bits; /* those that need not survive; NULL: none */
    number_map notes;   /* sequence: deliveries, and NOTE_LOCKED if a prepared branch acknowledges it */
};
_Static_assert(sizeof(extent) <= 64, "an extent is what a queue has in a page, and all that a page costs it in memory");
#define EXTENT_LIVE_MAX 0x7FFFFFFFU
#define NOTE_LOCKED 0x10000U

/* image.c */
void record_mark(vespiary_core *core, entry *item);   /* it was copied into a page that is not live yet */
void record_unmark(vespiary_core *core, entry *item); /* that page is live, or never will be */

/* page_extents.c */
bool extent_has(const extent *e, uint64_t sequence);
bool extent_is_volatile(const extent *e, uint64_t sequence);
uint32_t extent_note(const extent *e, uint64_t sequence);
int extent_set_note(extent *e, uint64_t sequence, uint32_t value);
int extent_make_bits(extent *e, uint64_t **bits, bool are_set);
uint64_t extent_next(const extent *e, uint64_t from); /* the first live one from there on, UINT64_MAX without one */
uint64_t extent_words(const extent *e);
extent *extent_of(const queue *q, uint32_t slot);
extent *extent_holding(const queue *q, uint64_t sequence);
uint32_t extents_before(const queue *q, uint64_t sequence); /* the first ones, which all end in front of it */
int extent_reserve(queue *q);
void extent_insert(const vespiary_core *core, queue *q, extent made); /* there is room: extent_reserve */
void extent_clear(extent *e);                                         /* free what it has */
void extent_remove(queue *q, extent *e);
void extents_update(queue *q);
/* A place of a closed extent is done: its bits are its own (extent_make_bits). extents_update follows. */
void extent_end(vespiary_core *core, queue *q, extent *e, uint64_t sequence);
entry *open_place(const queue *q, const extent *e, uint64_t sequence); /* its live entry in the ring */
uint32_t extent_places(const queue *q, const extent *e);

/* A page's index: its tables, and where the blocks end that it points into. */
typedef struct {
    const uint8_t *queues, *places, *records;
    uint32_t queues_count, places_count, records_count;
    uint64_t data_end;
} page_index;

int index_open(const file *f, const uint8_t *footer, uint32_t length, page_index *out);
bool index_record_fits(const vespiary_core *core, const page_index *in, const uint8_t *record);
/* Make the entry of a place; its extent is closed, and has it. */
int place_enter(vespiary_core *core, queue *q, const extent *e, uint64_t sequence, const uint8_t *record);
/* Walk what the index has of a queue. With `is_made` the entries are made, else they are checked and counted. */
int index_walk(vespiary_core *core, const page_index *in, queue *q, const extent *e, bool is_made, uint32_t *found);

/* pages.c */
file *page_find(const vespiary_core *core, uint64_t page_id);
int page_register(vespiary_core *core, uint64_t page_id, uint64_t salt, uint64_t size, page_state state, file **out);
void page_release(vespiary_core *core, file *f); /* the memory that was to be written */
void page_drop(vespiary_core *core, file *f);    /* forget it; nothing refers to it */
void page_forget_cancels(vespiary_core *core, const file *f);

/* page_records.c */
typedef struct {
    queue *q;
    extent e; /* what it is to have in the page: `bits`, or all of first to last */
} paged_queue;

typedef struct {
    paged_queue *items;
    uint32_t count;
    uint8_t *body;
    uint64_t used, capacity;
    uint64_t counted; /* bytes of the record so far, for the bound of the counts */
} paged_record;

void paged_free(paged_record *r);
/* Stage the PAGE record. The sequence of its block, or -errno and nothing is changed. */
int64_t stage_paged(vespiary_core *core, const file *f, paged_record *r);
/* The page has no latest record any more; the file of a record that says so, `own`, depends on the one that it was in. */
int page_unrecord(vespiary_core *core, file *f, file *own);
/* Its latest record is the one of `length` bytes that was staged in `own`. */
int page_recorded(vespiary_core *core, file *f, file *own, uint32_t length);

#endif
