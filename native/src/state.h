/* What the core keeps, for its own C files only (accounts.c, handles.c, image.c, blocks.c, segments.c, queue.c, publish.c, large.c, branches.c, core.c,
 * consumer.c, counts.c, taught.c, stomp_scan.c, mqtt_scan.c, amqp_scan.c, amqp_send.c, delivery.c, inspection.c, ranges.c, recovery.c, compaction.c;
 * connections.h has what belongs to connections; pages.h is for page*.c). The contract that callers see stands in core.h and
 * vespiary_native/abc.py.
 *
 * Ownership: one vespiary_core owns everything here; one thread calls it. Memory is taken at creation, when
 * tables grow, and slab by slab (ahead of need by vespiary_core_grow); never per message. */
#ifndef VESPIARY_STATE_H
#define VESPIARY_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "connections.h"
#include "core.h"
#include "little_endian.h"

enum {
    PAGE = 4096,
    FILE_HEADER = 4096,
    SEAL_ROOM = 4096,
    BLOCK_HEADER = 64,
    BLOCK_MAGIC = 0x4B4C4256, /* "VBLK" */
    FORMAT_VERSION = 1,
    BLOCK_IS_SEAL = 1,
    ADD_HEADER = 24,
    PLACE_BYTES = 16,
    RECORD_ADD = 1,
    RECORD_ACK = 2,
    RECORD_COUNT = 3,
    RECORD_COMMIT = 4,
    RECORD_FILES = 5,
    RECORD_QUEUES = 6,
    RECORD_SEAL = 7,
    RECORD_PREPARE = 8,
    RECORD_ROLLBACK = 9,
    BRANCH_DATA_MAX = 4096,
    RECORD_DUPLICATE = 11,
    RECORD_PAGE_DONE = 13,
    RECORD_PAGE = 140,
    FLAG_TRANSACTIONAL = 1,
    FLAG_ESCAPED = 2,
    FLAG_LARGE = 4,       /* the body is a reference to a file */
    LARGE_REFERENCE = 24,
    FLAG_MOVED = 8, /* a copy that compaction made */
    FLAG_SPECIAL = 16,    /* Python looks at it before it is given */
    FLAG_VOLATILE = 32,   /* in a page: it need not survive */
    FLAG_KEPT = 128,      /* of an entry: it is not to move to a page */
    FLAG_PAGING = 64,     /* of an entry: copied into a page that is not live yet */
    COUNT_BYTES = 24,
    WRITE_LIMIT = 1024 * 1024,
    SEGMENT_ENTRIES = 64, /* 1.5 KiB: what a queue takes from its first message on */
    PROTECTED_SLABS = 4, /* the slabs closed last are about to be read by consumers that keep up */
    SLABS_LEFT = 4,      /* at most; a quarter of a small image: see slabs_left */
    SPARE_SLABS = 64     /* free slabs kept; more go back to the system */
};

#define PAGE_BIT ((uint64_t)1 << 62) /* in the file ids of pages */
/* The highest sequence of a queue: `tail`, one above it, is still no number that means "none". Records with a higher one are
 * malformed, and no message gets one, so a journal is never rejected for what the core wrote. */
#define SEQUENCE_MAX ((uint64_t)INT64_MAX)

static inline uint64_t align8(uint64_t n) { return (n + 7U) & ~(uint64_t)7; }
static inline uint64_t align_page(uint64_t n) { return (n + PAGE - 1U) & ~(uint64_t)(PAGE - 1); }

/* --- a map from numbers to pointers (open addressing, key 0 allowed) ------------------------------ */
typedef struct {
    uint64_t *keys;
    void **values; /* NULL: empty */
    uint32_t capacity, count;
} number_map;

void *map_get(const number_map *map, uint64_t key);
int map_put(number_map *map, uint64_t key, void *value);
void map_remove(number_map *map, uint64_t key);
void map_free(number_map *map);

/* --- handles that are free again (handles.c) ------------------------------------------------------- */
typedef struct {
    uint32_t *items; /* a heap, lowest first */
    uint32_t count, capacity;
} free_handles;

/* --- the image -------------------------------------------------------------------------------------- */
typedef enum { SLAB_ABSENT = 0, SLAB_FILLING, SLAB_CLOSED, SLAB_LOADING, SLAB_LOADED } slab_state;

typedef struct {
    uint8_t *memory;        /* NULL unless present or loading */
    uint32_t live;          /* places whose record stands here */
    uint32_t copied;        /* those of them that were copied into a page which is not live yet (FLAG_PAGING) */
    slab_state state;
    uint64_t last_sequence; /* of the last block here; durable when it is */
} slab;

typedef struct {
    uint32_t offset, account, places; /* places: of the record at `offset` that live in queues of the account */
} shared_message;

typedef struct {
    shared_message *items;
    uint32_t capacity, used;
} shared_table;

typedef struct {
    uint64_t file_id, salt;
    uint64_t size;
    uint32_t slot;       /* index in core->slots */
    uint32_t slab_count;
    uint64_t live;       /* places whose message stands in this file, and one for each branch that needs it */
    uint64_t live_bytes; /* of their records; each place has an equal share */
    uint32_t pins;       /* prepared branches that need it */
    struct page *page;   /* of a page: what only pages have (pages.h); else NULL */
    bool is_volatile;    /* one slab of messages that need not survive; no file on disk */
    bool is_closed;      /* volatile: full */
    uint32_t *cancels;   /* slots of files whose messages records of this file end (or commit) */
    uint32_t cancels_count, cancels_capacity;
    shared_table shared;
    slab slabs[];
} file;

typedef struct {
    uint32_t slot, index;
} slab_id;

typedef struct {
    slab_id *items;
    uint32_t count, capacity;
} slab_list;

typedef struct {
    uint64_t sequence;
    uint32_t slot, offset, length; /* length as written: a multiple of PAGE */
} sealed_block;

typedef struct {
    bool is_open;
    uint32_t slot, offset;
    uint32_t used;    /* header and payload so far */
    uint32_t end;     /* limit of `used` for this block: block size, slab end, file end */
    uint32_t records;
    uint8_t *memory;
} filling_block;

/* --- large messages ------------------------------------------------------------------------------------- */
typedef struct large_message {
    uint64_t id, size;
    uint64_t block; /* that must be durable before the body may go; UINT64_MAX: the COMMIT to come */
    uint32_t crc;
    uint32_t places; /* live ones */
    struct large_message *next; /* of those that are done */
} large_message;

/* --- queues ------------------------------------------------------------------------------------------- */
typedef enum {
    ENTRY_NONE = 0,
    ENTRY_READY,
    ENTRY_DELIVERED,
    ENTRY_RETURNED,
    ENTRY_DONE,
    ENTRY_RESERVED, /* a branch has added it, and is not committed */
    ENTRY_LOCKED,   /* a branch has acknowledged it, and is not committed */
    ENTRY_ASIDE     /* given to nobody until it is put back */
} entry_state;

typedef struct {
    uint32_t slot;   /* file */
    uint32_t offset; /* of the record in the file */
    uint32_t body_length;
    uint32_t owner; /* consumer, while delivered */
    uint16_t properties_length;
    uint16_t deliveries;
    uint8_t state;
    uint8_t flags; /* FLAG_ESCAPED, FLAG_LARGE, FLAG_SPECIAL */
    uint16_t places;
} entry;
_Static_assert(sizeof(entry) == 24, "an entry is 24 bytes: it is what a queued message costs");

typedef struct {
    uint64_t number;         /* of its first sequence, divided by SEGMENT_ENTRIES */
    uint32_t live, returned; /* entries in use; those of them in ENTRY_RETURNED */
    entry entries[SEGMENT_ENTRIES];
} segment;

/* The segments of a queue that are there, by number (segments.c). */
typedef uintptr_t segment_link;
typedef struct {
    segment_link root;
    segment *newest, *found; /* put last, found last: mostly where the queue grows, and where it is consumed */
} segments;

typedef struct extent extent;
typedef struct mqtt_encoding mqtt_encoding;
typedef struct amqp_out_link amqp_out_link;
typedef struct amqp_outgoing amqp_outgoing;

typedef struct {
    uint32_t id;
    bool is_durable, is_listed; /* listed: stands in core->ready */
    bool has_special;           /* a special message may be deliverable, maybe behind others */
    uint64_t head, next, available, tail;
    uint64_t staged_tail;  /* one above the last sequence that waits for a flush */
    segments segments;
    uint64_t live, delivering, returned, returned_from;
    uint64_t reserved, locked, aside; /* entries in these states */
    uint64_t added, acknowledged, redelivered, put_back, resolved, live_bytes;
    uint64_t note;       /* number of its latest note plus 1 */
    uint64_t ack_block;  /* sequence of the block with its latest ACK record, 0 none */
    uint32_t ack_offset; /* of that record in the block */
    uint32_t consumers;
    uint32_t attempts_max; /* 0: none */
    uint32_t account; /* that its messages count for */
    uint32_t routes;    /* that lead to it */
    uint32_t led_by[2]; /* handles of routes that were led to it of late, and may not lead to it any more */
    bool is_touched_by_transaction, waits_for_slab;
    number_map large; /* its large messages by sequence */
    extent *extents;  /* what it has in pages, by first sequence */
    uint64_t *extents_reach; /* of each: the highest last sequence of it and those before it */
    uint32_t extents_count, extents_capacity, reach_capacity;
    uint64_t paged_next;   /* the lowest place in a closed extent, UINT64_MAX without one */
    uint64_t paged;        /* places in closed extents */
    uint64_t paged_locked; /* those of them that prepared branches acknowledge */
    bool is_page_wanted;   /* stands in core->wanted */
} queue;

/* What messages cost in memory, and how much they may. */
typedef struct {
    uint64_t bytes, messages;
    uint64_t bytes_max, bytes_low, messages_max, messages_low; /* UINT64_MAX: none */
    uint32_t queues;
    bool is_open, is_full, is_holding, is_listed; /* listed: stands in core->changed */
} account;

typedef struct {
    bool is_open;
    uint8_t mode, version;
    uint32_t connection;
    uint32_t credit;
    uint64_t held;
    uint64_t held_from; /* no held message has a lower sequence */
    queue *queue;
    /* Cumulative consumers: what they hold, in the order of giving, once that is not ascending. */
    bool is_listed;
    uint64_t given_last; /* sequence of the message given last */
    uint64_t *order;
    uint32_t order_first, order_end, order_capacity;
    amqp_out_link *amqp; /* of AMQP: its link (amqp_send.h) */
    mqtt_encoding *mqtt; /* how `deliver` encodes its messages (mqtt.h); NULL: by `version` */
    char *prefix; /* "MESSAGE\nsubscription:S\nmessage-id:Q-" */
    uint32_t prefix_length, subscription_at, subscription_length; /* where S stands in the prefix */
} consumer;

typedef struct {
    bool is_open;
    bool is_switch; /* it has no queues: Python says of each message where it goes */
    uint32_t generation, count, capacity;
    uint32_t durable; /* so many of the queues are */
    uint64_t unrouted; /* messages that were sent to it while it had no queue, and are not taken note of yet */
    uint32_t withheld; /* queues that do not take its messages: their users may not consume there */
    queue **queues;
} route;

typedef struct {
    uint64_t block;  /* sequence */
    uint64_t value;  /* queue: tail; connection: position in its output */
    queue *queue;    /* NULL: a connection's note */
    uint32_t connection;
} note;

typedef struct {
    note *items;
    uint64_t first, end; /* numbers; items[number % capacity] */
    uint64_t capacity;   /* power of two */
} note_ring;

/* --- recovery: transactions that wait for their COMMIT ----------------------------------------------------- */
typedef struct {
    bool is_ack, is_other; /* other: a record that Python keeps */
    uint32_t queue_id;
    uint64_t sequence, count; /* count: acknowledgements */
    entry entry;
    uint64_t record; /* number of its record within the transaction */
    uint8_t reference[LARGE_REFERENCE];
} pending_member;

typedef struct {
    uint64_t id;
    bool has_other; /* members that Python keeps: it is told of the COMMIT */
    bool is_cut; /* blocks are missing right before one of its members: a reclaimed file */
    bool is_prepared, is_whole, is_good;        /* by its PREPARE record */
    uint32_t prepare_slot, named, named_digest; /* of that record */
    uint8_t *data; /* what it ends in */
    uint32_t data_length;
    uint64_t gaps;                              /* places without blocks that were met up to its last member */
    uint32_t digest, records;
    pending_member *members;
    uint32_t count, capacity;
} pending_transaction;

/* --- prepared branches --------------------------------------------------------------------------------------- */
typedef struct {
    uint64_t sequence;
    uint32_t queue_id;
    uint32_t slot; /* file of its record; UINT32_MAX: not journalled */
    bool is_ack, is_missing;
    /* While it is staged, of an acknowledgement: what an abort restores. */
    uint8_t state;     /* of its entry before */
    uint32_t order_at; /* index in its consumer's `order`; UINT32_MAX: it was in none */
} branch_member;

typedef struct {
    uint64_t id, block;  /* block: of its PREPARE, then of the record that ends it */
    uint64_t journal_id; /* in its records: those of a copy have another than `id` */
    uint32_t records, digest;
    uint64_t ended;     /* number of its end among all */
    uint8_t outcome; /* 0, 1 committed, 2 rolled back: staged, and not durable yet */
    bool is_whole;
    branch_member *members;
    uint32_t count, capacity;
    uint8_t *data; /* what its PREPARE record ends in */
    uint32_t data_length;
    uint32_t *pins; /* slots of files that must stay until its end is durable */
    uint32_t pins_count, pins_capacity;
} branch;

typedef struct {
    const uint8_t *memory;
    uint64_t length;
    bool is_open;
} read_buffer;

struct vespiary_core {
    uint32_t slab_bytes, slab_shift, block_bytes, slabs_max, record_bytes_max;
    uint64_t now_ms;
    bool counts_ahead;   /* deliveries are counted in the journal before they happen */
    uint32_t counts_max; /* the highest count that is journalled */

    /* image */
    file **slots;
    uint32_t slots_count, slots_capacity;
    file **files; /* journal files by file id */
    uint32_t files_count, files_capacity;
    uint8_t **free_slabs;
    uint32_t free_count, free_capacity, slabs_total;
    uint64_t copied_places; /* of all slabs: see slab.copied */
    slab_list closed, loaded;
    file **pages; /* by file id */
    uint32_t pages_count, pages_capacity;
    file *current;
    uint32_t current_index;  /* of `current` in files */
    uint32_t files_ahead;
    uint32_t position;       /* offset of the next block in `current` */
    filling_block filling;
    sealed_block *blocks; /* sealed and not durable, a ring */
    uint64_t blocks_first, blocks_end, blocks_capacity, blocks_next; /* next: first not handed out */
    uint64_t next_sequence, durable_sequence, handed_sequence, urgent_sequence;
    uint64_t withheld; /* messages that queues did not take, as their routes say */
    uint32_t previous_crc;
    bool is_empty_block_wanted, are_adds_held;
    uint64_t unwritten_bytes, records_added, payload_bytes;
    uint64_t live_bytes; /* of all journal files: what their live places count for */
    file *volatile_current;
    uint32_t volatile_position;

    /* accounts; 0 is the sum of all */
    account *accounts;
    uint32_t accounts_count, accounts_capacity, accounts_full;
    free_handles accounts_free;
    uint32_t *changed; /* accounts that became full, or are no longer */
    uint32_t changed_count, changed_capacity;

    /* queues, consumers, routes, connections */
    number_map queues;
    consumer *consumers;
    uint32_t consumers_count, consumers_capacity;
    free_handles consumers_free;
    route *routes;
    uint32_t routes_count, routes_capacity;
    free_handles routes_free;
    uint32_t *unrouted; /* routes that have unrouted messages; has room for every route */
    uint32_t unrouted_count, unrouted_capacity;
    connection *connections;
    uint32_t connections_count, connections_capacity;
    read_buffer *buffers;
    uint32_t buffers_count, buffers_capacity;
    note_ring notes;
    switched_send *switched; /* frames of the last scan that Python has to choose for (stomp_switch.c) */
    uint32_t switched_count, switched_capacity, switched_connection, switched_route;
    uint32_t *wanted; /* ids of queues whose consumers met a closed extent */
    uint32_t wanted_count, wanted_capacity;
    uint32_t *ready; /* ids of queues to look at */
    uint32_t ready_count, ready_capacity;
    uint32_t *released; /* connections with output */
    uint32_t released_count, released_capacity;
    segment *spare_segment;
    uint8_t *scratch; /* encoded frames */
    uint64_t scratch_capacity;
    slab_id absent;

    /* large messages: with live places by id; without any, until their end is durable */
    number_map large;
    large_message *large_done, *large_done_last;

    /* the transaction being staged */
    uint64_t transaction;
    uint32_t transaction_digest, transaction_records;
    bool is_branch; /* it will be prepared */
    branch staged;  /* its places; acknowledged ones are ENTRY_LOCKED until it ends */
    branch *branches; /* prepared ones */
    uint32_t branches_count, branches_capacity, branches_ending;
    uint64_t branches_ended; /* ever */
    queue **transaction_queues;
    uint32_t transaction_queues_count, transaction_queues_capacity;
    uint32_t *transaction_slots;
    uint32_t transaction_slots_count, transaction_slots_capacity;

    /* recovery */
    uint64_t restored_sequence, gaps;
    bool is_after_gap;
    pending_transaction *pending;
    uint32_t pending_count, pending_capacity;
    number_map pending_at; /* by id: index in `pending` plus 1 */
};

/* Where a staged record went: to be filled in by the caller of place_record. */
typedef struct {
    uint8_t *memory;
    uint32_t slot, offset;
} placed;

/* core.c */
void count_unrouted(vespiary_core *core, const route *to); /* a message was sent to a route without queues */

/* Make room for `count + 1` items in an array that grows by doubling; 0 or -ENOMEM. */
int grow_array(void **items, uint32_t *capacity, uint32_t count, size_t item_bytes);

/* image.c */
file *file_find(const vespiary_core *core, uint64_t file_id);
file *file_new(vespiary_core *core, uint64_t file_id, uint64_t salt, uint64_t size);
void file_free(vespiary_core *core, file *which);
void slab_give(vespiary_core *core, uint8_t *memory);
void cancels_remove(vespiary_core *core, uint32_t slot);
int slab_take(vespiary_core *core, uint8_t **memory); /* a free slab, evicting if need be; -ENOSPC */
bool slabs_obtainable(const vespiary_core *core, uint32_t count);
/* Slabs that messages which need not survive leave to others: theirs are never evicted, and nothing but a page that is
 * written, and named in the journal, takes them out of memory. A page leaves half of them while it is filled: for its end,
 * and for the journal. */
uint32_t slabs_left(const vespiary_core *core);
void slab_close(vespiary_core *core, file *owner, uint32_t index);
void record_pin(vespiary_core *core, const queue *q, const entry *item);   /* one live place more */
void record_unpin(vespiary_core *core, const queue *q, const entry *item); /* one live place less */
void slabs_release_durable(vespiary_core *core, uint64_t above);
void slabs_release_unused(vespiary_core *core, file *f); /* those that were loaded, and have no live place */
uint8_t *record_memory(const vespiary_core *core, const entry *item); /* NULL: absent */
int place_volatile(vespiary_core *core, uint32_t length, placed *out);
int add_cancel(file *from, uint32_t slot);

/* blocks.c */
typedef struct {
    uint64_t sequence, watermark;
    uint32_t previous_crc, offset, used, records;
    uint16_t flags;
} block_facts;

/* Write the header of a block of `used` bytes at `at`, and zeros behind it up to the page; returns its checksum. */
uint32_t write_block_header(const vespiary_core *core, const file *f, const block_facts *facts, uint8_t *at);
int place_record(vespiary_core *core, uint32_t length, bool is_add, placed *out);
/* Have `padded` bytes free in the filling block; then place_record finds room. */
int reserve_record(vespiary_core *core, uint32_t padded, bool is_add);
void mark_urgent(vespiary_core *core);
bool is_all_durable(const vespiary_core *core);

/* handles.c */
uint32_t handle_next(const free_handles *from, uint32_t used); /* the lowest free handle of a table of `used` */
int handles_reserve(free_handles *in, uint32_t handles);       /* room for so many to become free; 0 or -ENOMEM */
void handle_taken(free_handles *from);                         /* what handle_next said is in use now */
void handle_freed(free_handles *to, uint32_t handle);          /* room was reserved */

/* accounts.c */
int account_make(vespiary_core *core); /* a handle, or -ENOMEM */
void account_enter(vespiary_core *core, uint32_t handle, const entry *item); /* a place with this entry is live */
void account_leave(vespiary_core *core, uint32_t handle, const entry *item); /* it no longer is */
bool is_route_held(const vespiary_core *core, const route *to);
void shared_free(shared_table *table);

/* segments.c */
segment *segments_search(const segments *in, uint64_t number); /* NULL: no such */
segment *segments_from(const segments *in, uint64_t number); /* the first one from there on, NULL: none */
int segments_put(segments *in, segment *made);               /* one whose number is not there; 0 or -ENOMEM */
void segments_remove(segments *in, uint64_t number);         /* one that is there; it is not freed */
void segments_free(segments *in);                            /* all of them, too */

static inline segment *segments_find(const segments *in, uint64_t number)
{
    if (in->newest && in->newest->number == number)
        return in->newest;
    if (in->found && in->found->number == number)
        return in->found;
    return segments_search(in, number);
}

/* queue.c */
/* The first sequence of the next segment that is there, from a sequence without one; UINT64_MAX: none follows. */
uint64_t queue_next_segment(const queue *q, uint64_t sequence);
entry *queue_entry(const queue *q, uint64_t sequence); /* NULL: no such */
entry *queue_append(vespiary_core *core, queue *q);    /* the entry of `tail`, which grows; NULL: no memory */
entry *queue_restore(vespiary_core *core, queue *q, uint64_t sequence, uint32_t *before);
void entry_done(vespiary_core *core, queue *q, uint64_t sequence, entry *item);
void entry_forget(vespiary_core *core, queue *q, uint64_t sequence, entry *item); /* it goes, and is not done */
entry *queue_place(vespiary_core *core, queue *q, uint64_t sequence); /* an entry of any sequence; NULL: no memory */
void queue_advance_head(queue *q);
void entry_put_first(queue *q, uint64_t sequence, entry *item);
void entry_returned(queue *q, uint64_t sequence, entry *item);
void entry_leave(queue *q, uint64_t sequence, const entry *item); /* it is not counted in its state any more */
uint64_t queue_next_returned(const queue *q, uint64_t from);      /* the first one from there on, or `available` */
void queue_skip(queue *q); /* let `next` pass over what is not deliverable there */
void queue_ready(vespiary_core *core, queue *q);
queue *queue_find(const vespiary_core *core, uint32_t id);
void queue_free(vespiary_core *core, queue *q);

/* large.c */
int large_place(vespiary_core *core, queue *q, uint64_t sequence, const uint8_t *reference);
void large_done(vespiary_core *core, queue *q, uint64_t sequence); /* a place of a queue ended, if it was large */
void large_void(vespiary_core *core, queue *q, uint64_t sequence); /* a place was never there, if it was large */
void large_drop(vespiary_core *core, queue *q);                    /* all of its places ended */
void large_committed(vespiary_core *core);                         /* the COMMIT stands in the filling block */
void large_forget_done(vespiary_core *core);
void large_free(vespiary_core *core);

/* consumer.c */
/* Before and after a message is given to a cumulative consumer. */
int order_prepare(consumer *by, uint32_t handle, uint64_t sequence);
void order_given(consumer *by, uint64_t sequence);
void order_forget(consumer *by, uint64_t sequence); /* it ends by itself */
uint32_t order_find(const consumer *by, uint64_t sequence); /* its index; UINT32_MAX: the order is not kept */
void order_restore(consumer *by, uint64_t sequence, uint32_t at); /* it is held again, where it was */

static inline bool is_held(const entry *item, uint32_t handle)
{
    return item && item->state == ENTRY_DELIVERED && item->owner == handle;
}

/* Whether an entry below `available` may be given to a consumer now. */
static inline bool is_free(const entry *item)
{
    return item && (item->state == ENTRY_READY || item->state == ENTRY_RETURNED);
}

/* core.c */
int note_queue(vespiary_core *core, queue *q);
int note_connection(vespiary_core *core, uint32_t handle);
uint8_t *output_room(vespiary_core *core, uint32_t handle, uint32_t length);
int output_waits(vespiary_core *core, uint32_t handle, bool for_all);

/* publish.c */
int transaction_end(vespiary_core *core);
void transaction_abandon(vespiary_core *core);
bool is_ack_journalled(const vespiary_core *core, const queue *q, const entry *item);

/* branches.c */
int branch_reserve(branch *to, uint32_t more); /* branch_add finds room for so many */
int branch_add(branch *to, branch_member member);
int branch_pin(vespiary_core *core, branch *to, uint32_t slot);
branch *branch_find(const vespiary_core *core, uint64_t id);
branch *branch_make(vespiary_core *core, uint64_t id);
void branches_written(vespiary_core *core);
void branch_clear(branch *which);

int publish(vespiary_core *core, const route *to, const message *m, uint64_t *block);
/* One message is done, whoever has it: journalled if it is. *block: the sequence of its record's block, untouched if there
 * is none. 0 or -errno, and nothing is changed. */
int message_finish(vespiary_core *core, queue *q, uint64_t sequence, entry *item, uint64_t *block);
int acknowledge(vespiary_core *core, consumer *by, uint64_t sequence, uint64_t *block);
bool is_own_transaction(const vespiary_core *core, const uint8_t *body, uint32_t length);
int join_transaction(vespiary_core *core, const placed *at, uint32_t length);
int transaction_slot(vespiary_core *core, uint32_t slot); /* a file that the transaction being staged needs */
int place_ack(vespiary_core *core, uint32_t queue_id, uint64_t sequence, placed *at);

/* page_extents.c, page_recovery.c, pages.c */
file *page_file_find(const vespiary_core *core, uint64_t file_id);
void extents_drop(queue *q); /* their memory alone */
void extents_free(vespiary_core *core, queue *q);
int64_t extents_finish(vespiary_core *core, queue *q, uint64_t end, uint64_t most); /* how many places, or -errno */
void pages_forget_queue(vespiary_core *core, uint32_t id);
void page_free(struct page *p);
bool page_is_looked_at(const file *f); /* its slabs stay without entries of theirs */
void page_want(vespiary_core *core, queue *q); /* a consumer met a closed extent */
int apply_paged(vespiary_core *core, file *in, const uint8_t *record, uint32_t length);
int apply_page_done(vespiary_core *core, file *in, uint64_t page_id);
int extents_ack(vespiary_core *core, queue *q, file *in, file *commit, uint64_t first, uint64_t end);
int extents_count(queue *q, file *in, uint64_t sequence, uint32_t deliveries);
/* Places in closed extents that prepared branches acknowledge. */
bool paged_is_locked(const queue *q, uint64_t sequence, uint32_t *slot);
int paged_lock(queue *q, uint64_t sequence, uint32_t *slot); /* 1 locked, 0 it is not there, or -ENOMEM */
uint32_t paged_count_delivery(queue *q, uint64_t sequence);  /* how often now */
void paged_let_go(vespiary_core *core, queue *q, uint64_t sequence, bool is_commit);

/* taught.c */
const taught *taught_find(connection *c, piece destination, piece type); /* NULL: it was not taught */
const route *taught_route(const vespiary_core *core, const taught *t);   /* NULL: nothing, or not any more */
int taught_put(vespiary_core *core, uint32_t handle, piece key, piece lines, uint32_t to);

/* stomp_scan.c, stomp_switch.c, mqtt_scan.c */
enum scan_status { NEED_DATA = 0, FRAME = 1, ODD = 2, BLOCKED = 3, SWITCHED = 4 };
int stage_send(vespiary_core *core, uint32_t handle, const route *to, const message *m, piece receipt);
bool switch_takes(const vespiary_core *core, uint32_t to); /* whether what waits goes through it, if anything does */
int switch_keep(vespiary_core *core, uint32_t to, const switched_send *what);
int stage_puback(vespiary_core *core, uint32_t handle, piece id); /* id: the two bytes of a packet id */

/* amqp_scan.c */
void amqp_free(connection *c); /* what is kept of its sessions */

/* delivery.c */
const uint8_t *properties_of(const entry *item, const uint8_t *record);
int scratch_room(vespiary_core *core, uint64_t used, uint64_t more);

#endif
