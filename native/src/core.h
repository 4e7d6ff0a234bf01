/* The core: journal image, queues, connections (contract: vespiary_native/abc.py, class Core; the Python
 * twin is the specification). Functions return 0 or a handle or a count, or -errno:
 *   -ENOSPC  no slab or no file for the record now; nothing was changed
 *   -EMSGSIZE the record is larger than allowed
 *   -EINVAL  an argument is not what the contract says
 *   -ENOMEM  no memory for a table
 * Memory passed in is only read during the call. Pointers handed out are valid until the next call that the
 * comment names. One thread calls. */
#ifndef VESPIARY_CORE_H
#define VESPIARY_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef-begin */
typedef struct vespiary_core vespiary_core;

typedef struct {
    uint64_t file_id, offset, address, length, sequence;
} vespiary_write;

typedef struct {
    uint64_t head, next, available, tail, ready, delivering, prepared, aside;
    uint64_t added, acknowledged, redelivered, put_back, resolved, live_bytes, paged, paged_prepared;
} vespiary_queue_statistics;

typedef struct {
    uint64_t slabs_total, slabs_free, slabs_max, files_ahead, blocks_unwritten, unwritten_bytes;
    uint64_t sequence_sealed, sequence_durable, records_added, payload_bytes, live_bytes;
} vespiary_image_statistics;

typedef struct {
    uint64_t next, bytes; /* next: the block to go on with, 0 when nothing live is left behind `offset` in the slab */
    uint32_t next_record; /* records of that block that were looked at already */
    uint32_t places, is_absent;
} vespiary_relocation;

typedef struct {
    int32_t status; /* ScanStatus or DeliverStatus */
    uint32_t detail;
    uint64_t position; /* scan: taken up to here; deliver: length of the frames */
} vespiary_result;

typedef struct {
    uint64_t offset, length, sequence, watermark, time_ms;
    uint32_t previous_crc, crc, records, is_seal;
} vespiary_block_facts;

typedef struct {
    uint64_t id, size, sequence; /* sequence: the message's in its queue */
    uint32_t crc, head_length;   /* head: its frame up to the body */
} vespiary_large;

typedef struct {
    uint32_t type, offset, length; /* body of a record within the block */
} vespiary_other_record;

typedef struct {
    uint64_t transaction, block;
    uint32_t records, places, missing, is_whole, outcome;
} vespiary_branch_facts;

typedef struct {
    uint64_t sequence;
    uint32_t queue_id;
    uint8_t is_acknowledgement, is_missing;
} vespiary_branch_member;

typedef struct {
    uint64_t bytes_max, bytes_low, messages_max, messages_low; /* UINT64_MAX: none */
    uint32_t is_holding;
} vespiary_account_limits;

typedef struct {
    uint64_t bytes, messages;
    uint32_t is_full;
} vespiary_account_statistics;

typedef struct {
    uint64_t messages;
    uint32_t route;
} vespiary_unrouted;

typedef struct {
    uint64_t sequence;
    uint32_t queue_id, packet_id;
} vespiary_sent;

typedef struct {
    uint32_t channel, handle, messages;
} vespiary_taken;

typedef struct {
    uint64_t sequence;
    uint32_t id, consumer;
} vespiary_amqp_sent;

typedef struct { /* without padding: Python unpacks an array of these at once */
    uint64_t sequence;
    uint8_t is_returned, is_held, is_aside, zero;
    uint16_t deliveries;
    uint8_t priority, protocol;
    uint64_t time_ms;
    uint8_t is_journalled, is_special, is_large, is_escaped;
    uint32_t body_length, properties_at, properties_end; /* positions in all that was handed out */
} vespiary_view;

typedef struct {
    uint64_t next_sequence, absent_file, length; /* length: of the views and the properties behind them */
    uint32_t absent_slab, count;
} vespiary_look;

typedef struct {
    uint64_t next_sequence, absent_file, length; /* length: of the records; absent_file 0: none */
    uint32_t absent_slab, records, runs, is_full;
} vespiary_range;

typedef struct {
    uint64_t next_sequence, copied_bytes, absent_file; /* absent_file 0: none */
    uint32_t copied_records, absent_slab, is_full;
} vespiary_page_fill;

typedef struct {
    uint64_t page_id;
    uint32_t queue_id;
} vespiary_page_wish;

typedef struct {
    uint64_t page_id, salt, size, places, record_file;
    uint32_t state;
} vespiary_page_facts;

typedef struct {
    uint64_t page_id, first, last;
    uint32_t places, is_open;
} vespiary_extent_facts;

vespiary_core *vespiary_core_new(uint32_t slab_bytes, uint32_t block_bytes, uint32_t slabs_max,
                                 uint32_t record_bytes_max);
void vespiary_core_free(vespiary_core *core);
void vespiary_core_set_time(vespiary_core *core, uint64_t now_ms);

/* image and files */
int vespiary_core_add_file(vespiary_core *core, uint64_t file_id, uint64_t salt, uint64_t size);
int vespiary_core_start(vespiary_core *core, uint64_t sequence, uint32_t previous_crc, uint64_t durable);
int vespiary_core_grow(vespiary_core *core, uint32_t slabs);
/* Make the memory of a slab and touch all of it; NULL: none to be had. Any thread. Hand it to add_slab. */
uint8_t *vespiary_slab_map(uint32_t bytes);
/* Take such memory as a free slab: 1 taken, 0 not wanted and unmapped. */
int vespiary_core_add_slab(vespiary_core *core, uint8_t *memory);
void vespiary_core_hold_adds(vespiary_core *core, int held);
uint32_t vespiary_core_files_ahead(const vespiary_core *core);
uint64_t vespiary_core_current_file(const vespiary_core *core);
int64_t vespiary_core_live_places(const vespiary_core *core, uint64_t file_id);
int64_t vespiary_core_live_bytes(const vespiary_core *core, uint64_t file_id);
int vespiary_core_relocate(vespiary_core *core, uint64_t file_id, uint32_t index, uint64_t offset, uint32_t record,
                           uint64_t max_bytes, uint32_t max_places, vespiary_relocation *out);
int vespiary_core_cancels(const vespiary_core *core, uint64_t file_id, uint64_t *out, uint32_t room);
int vespiary_core_forget_file(vespiary_core *core, uint64_t file_id);
void vespiary_core_image_statistics(const vespiary_core *core, vespiary_image_statistics *out);
int vespiary_core_load_begin(vespiary_core *core, uint64_t file_id, uint32_t index, vespiary_write *out);
int vespiary_core_load_done(vespiary_core *core, uint64_t file_id, uint32_t index, int good);

/* writing */
int vespiary_core_has_unwritten(const vespiary_core *core);
int vespiary_core_is_urgent(const vespiary_core *core);
int vespiary_core_seal_write(vespiary_core *core, vespiary_write *out); /* 1 filled, 0 nothing to write */
int vespiary_core_write_done(vespiary_core *core, uint64_t sequence);
void vespiary_core_stage_empty_block(vespiary_core *core);
int64_t vespiary_core_append_record(vespiary_core *core, uint32_t type, uint32_t flags, const uint8_t *body,
                                    uint32_t length, int urgent);

/* queues and routes */
int vespiary_core_open_queue(vespiary_core *core, uint32_t id, uint64_t tail, int durable);
int vespiary_core_drop_queue(vespiary_core *core, uint32_t id);
int64_t vespiary_core_purge_queue(vespiary_core *core, uint32_t id);
int vespiary_core_queue_statistics(const vespiary_core *core, uint32_t id, vespiary_queue_statistics *out);
/* What all queues that are open have taken and had acknowledged since the recovery. */
void vespiary_core_queue_totals(const vespiary_core *core, uint64_t *added, uint64_t *acknowledged);
int64_t vespiary_core_queue_states(const vespiary_core *core, uint8_t *out, uint64_t room); /* bytes needed */
int vespiary_core_open_route(vespiary_core *core, const uint32_t *queue_ids, uint32_t count);
int vespiary_core_set_route(vespiary_core *core, uint32_t handle, const uint32_t *queue_ids, uint32_t count);
int vespiary_core_extend_route(vespiary_core *core, uint32_t handle, uint32_t queue_id); /* 1, or 0: it led there */
int vespiary_core_withhold(vespiary_core *core, uint32_t handle, uint32_t queues);
uint64_t vespiary_core_withheld(const vespiary_core *core);
int vespiary_core_close_route(vespiary_core *core, uint32_t handle);
/* Messages that were sent to routes without queues, since the last call; fills in at most `room`, and returns how many. */
int vespiary_core_take_unrouted(vespiary_core *core, vespiary_unrouted *out, uint32_t room);
int vespiary_core_open_switch(vespiary_core *core);

/* accounts */
int vespiary_core_open_account(vespiary_core *core);
int vespiary_core_close_account(vespiary_core *core, uint32_t handle);
int vespiary_core_limit_account(vespiary_core *core, uint32_t handle, const vespiary_account_limits *limits);
int vespiary_core_join_account(vespiary_core *core, uint32_t queue_id, uint32_t handle);
int vespiary_core_account_statistics(const vespiary_core *core, uint32_t handle, vespiary_account_statistics *out);
int vespiary_core_is_held(const vespiary_core *core, uint32_t route);
int vespiary_core_take_changed_accounts(vespiary_core *core, uint32_t *out, uint32_t room);
uint64_t vespiary_core_account_share(const vespiary_core *core, uint64_t budget_bytes);

/* connections */
int vespiary_core_open_connection(vespiary_core *core);
int vespiary_core_set_ready(vespiary_core *core, uint32_t handle, uint32_t version, uint32_t header_lines,
                            uint32_t header_line_bytes, uint32_t headers_bytes, uint32_t body_bytes);
int vespiary_core_teach(vespiary_core *core, uint32_t handle, const uint8_t *destination, uint32_t length,
                        uint32_t route);
int vespiary_core_close_connection(vespiary_core *core, uint32_t handle);
int vespiary_core_attach_buffer(vespiary_core *core, const uint8_t *memory, uint64_t length);
int vespiary_core_detach_buffer(vespiary_core *core, uint32_t handle);
int vespiary_core_scan_stomp(vespiary_core *core, uint32_t handle, uint32_t buffer, uint64_t start, uint64_t end,
                             vespiary_result *out);
/* MQTT: see vespiary_native/abc_mqtt.py */
int vespiary_core_set_ready_mqtt(vespiary_core *core, uint32_t handle, uint32_t version, uint32_t packet_bytes,
                                 uint32_t body_bytes, uint32_t receive_maximum);
int vespiary_core_teach_mqtt(vespiary_core *core, uint32_t handle, const uint8_t *topic, uint32_t topic_length,
                             const uint8_t *line, uint32_t line_length, uint32_t route);
int vespiary_core_scan_mqtt(vespiary_core *core, uint32_t handle, uint32_t buffer, uint64_t start, uint64_t end,
                            vespiary_result *out);
int vespiary_core_encode_mqtt(vespiary_core *core, uint32_t consumer, uint32_t qos, uint32_t packet_bytes,
                              uint64_t stored_below, const uint8_t *topic, uint32_t topic_length,
                              const uint8_t *prefixes, uint32_t prefixes_length);
int vespiary_core_stop_encoding(vespiary_core *core, uint32_t consumer);
int vespiary_core_set_window(vespiary_core *core, uint32_t handle, uint32_t messages);
int64_t vespiary_core_unanswered(const vespiary_core *core, uint32_t handle);
int64_t vespiary_core_sent_count(vespiary_core *core, uint32_t handle);
int vespiary_core_reserve_packet_id(vespiary_core *core, uint32_t handle, uint32_t packet_id, int is_reserved);
int vespiary_core_take_packet_id(vespiary_core *core, uint32_t handle); /* reserved; 0: there is none */
int vespiary_core_take_puback(vespiary_core *core, uint32_t handle, uint32_t packet_id); /* 1 taken, 0 not one of C's */
int64_t vespiary_core_sent(vespiary_core *core, uint32_t handle, vespiary_sent *out, uint64_t room); /* how many */
/* AMQP: see vespiary_native/abc_amqp.py */
int vespiary_core_set_ready_amqp(vespiary_core *core, uint32_t handle, uint32_t frame_bytes, uint32_t body_bytes);
int vespiary_core_scan_amqp(vespiary_core *core, uint32_t handle, uint32_t buffer, uint64_t start, uint64_t end,
                            vespiary_result *out);
int vespiary_core_set_amqp_window(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t transfers);
int vespiary_core_forget_amqp_session(vespiary_core *core, uint32_t handle, uint32_t channel);
int vespiary_core_set_amqp_credit(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t link_handle,
                                  uint32_t messages, int is_settled);
int vespiary_core_forget_amqp_link(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t link_handle);
/* `ranges`: six numbers each, as AmqpRange has them. 1 taught, 0 there is no room for more. */
int vespiary_core_teach_amqp(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t link_handle,
                             const uint8_t *key, uint32_t key_length, const uint8_t *stored, uint32_t stored_length,
                             uint32_t route, int is_persistent, int is_escaped, const uint32_t *ranges, uint32_t count);
int vespiary_core_taken_amqp(vespiary_core *core, uint32_t handle, vespiary_taken *out, uint32_t room); /* how many */
/* AMQP, messages out: see vespiary_native/abc_amqp_sending.py */
int vespiary_core_encode_amqp(vespiary_core *core, uint32_t consumer, uint32_t channel, uint32_t link_handle,
                              uint32_t frame_bytes, int is_settled, int is_stored);
int vespiary_core_set_amqp_link_credit(vespiary_core *core, uint32_t consumer, uint32_t messages);
int vespiary_core_set_amqp_room(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t frames);
int64_t vespiary_core_next_amqp_delivery(vespiary_core *core, uint32_t handle, uint32_t channel);
/* How many there are; with room for them they are taken. */
int64_t vespiary_core_take_amqp_sent(vespiary_core *core, uint32_t handle, uint32_t channel, uint32_t first,
                                     uint32_t last, vespiary_amqp_sent *out, uint64_t room);
/* What the last scan left to a switch, as vespiary_core_look hands it out; and their routes. */
int vespiary_core_switched(vespiary_core *core, vespiary_look *out, const uint8_t **data);
int vespiary_core_send_switched(vespiary_core *core, const uint32_t *routes, uint32_t count, vespiary_result *out);
int vespiary_core_receipt(vespiary_core *core, uint32_t handle, const uint8_t *data, uint32_t length);
/* Takes the next connection with output: 1 filled (valid until the next call), 0 none left. */
int vespiary_core_take_receipt(vespiary_core *core, uint32_t *handle, const uint8_t **data, uint32_t *length);
int vespiary_core_take_ready_queues(vespiary_core *core, uint32_t *out, uint32_t room);

/* the slow path */
int vespiary_core_publish(vespiary_core *core, uint32_t route, const uint8_t *properties, uint32_t properties_length,
                          const uint8_t *body, uint32_t body_length, int persistent, uint32_t protocol,
                          uint32_t priority, int escaped, int large, int special, uint64_t transaction);
int vespiary_core_begin(vespiary_core *core, uint64_t transaction, uint64_t size, uint64_t records, int is_branch);
int vespiary_core_commit(vespiary_core *core, uint64_t transaction);
int vespiary_core_abort(vespiary_core *core, uint64_t transaction);

/* prepared branches */
/* Both return the sequence of the block that has to be durable. */
int64_t vespiary_core_prepare(vespiary_core *core, uint64_t transaction, const uint8_t *data, uint32_t length);
int64_t vespiary_core_resolve(vespiary_core *core, uint64_t transaction, int commit);
/* These return how many there are, and fill in at most `room`. */
int64_t vespiary_core_branches(const vespiary_core *core, vespiary_branch_facts *out, uint32_t room);
int64_t vespiary_core_branch_members(const vespiary_core *core, uint64_t transaction, vespiary_branch_member *out,
                                     uint32_t room);
/* Returns the length of what the PREPARE record ends in; *data is valid until the branch goes. */
int vespiary_core_branch_data(const vespiary_core *core, uint64_t transaction, const uint8_t **data);
/* Returns the block with the PREPARE of the copies; 0: *file_id and *index are to be loaded first. */
int64_t vespiary_core_branch_copy(vespiary_core *core, uint64_t transaction, uint64_t members_id, uint64_t *file_id,
                                  uint32_t *index);
int vespiary_core_branches_in(const vespiary_core *core, uint64_t file_id, uint64_t *out, uint32_t room);

/* consumers */
int vespiary_core_open_consumer(vespiary_core *core, uint32_t connection, uint32_t queue_id, uint32_t mode,
                                uint32_t credit, const uint8_t *subscription, uint32_t subscription_length,
                                uint32_t version);
/* Returns the number of messages; their frames are at *frames, valid until the next deliver. */
int vespiary_core_deliver(vespiary_core *core, uint32_t handle, uint32_t max_messages, uint64_t max_bytes,
                          vespiary_result *out, const uint8_t **frames);
/* Messages as they are stored, up to the first one that deliver encodes. */
int vespiary_core_deliver_stored(vespiary_core *core, uint32_t handle, uint32_t max_messages, uint64_t max_bytes,
                                 vespiary_result *out, const uint8_t **frames);
/* Give the large message at which deliver stopped; its frame up to the body is at *head, valid until the next deliver
 * or take_large. 1 given, 0 there is none, or nothing can be given now. */
int vespiary_core_take_large(vespiary_core *core, uint32_t handle, vespiary_large *out, const uint8_t **head);
/* What take_large would give, without giving it: 1 filled, 0 the next message is not large. */
int vespiary_core_next_large(const vespiary_core *core, uint32_t handle, vespiary_large *out);
/* Ids of the bodies that nobody needs any more, durably. */
int vespiary_core_take_done_large(vespiary_core *core, uint64_t *out, uint32_t room);
int64_t vespiary_core_live_large(const vespiary_core *core, vespiary_large *out, uint64_t room); /* number there is */
void vespiary_core_absent_slab(const vespiary_core *core, uint32_t handle, uint64_t *file_id, uint32_t *index);
int64_t vespiary_core_acknowledge(vespiary_core *core, uint32_t handle, uint64_t sequence, uint64_t transaction);
int vespiary_core_holder(const vespiary_core *core, uint32_t connection, uint32_t queue_id, uint64_t sequence);
int64_t vespiary_core_give_back(vespiary_core *core, uint32_t handle, uint64_t sequence, int counted);
int vespiary_core_set_credit(vespiary_core *core, uint32_t handle, uint32_t credit);
int64_t vespiary_core_close_consumer(vespiary_core *core, uint32_t handle, int counted);

/* deliveries that are counted: see vespiary_native/abc_counts.py */
void vespiary_core_count_deliveries(vespiary_core *core, int ahead, uint32_t records_max); /* UINT32_MAX: any number */
int vespiary_core_limit_deliveries(vespiary_core *core, uint32_t queue_id, uint32_t attempts); /* 0: none */
int64_t vespiary_core_output_waiting(const vespiary_core *core, uint32_t handle);

/* inspection: see vespiary_native/abc_inspection.py */
/* Views, then their properties, at *data, valid until the next deliver, give or look. */
int vespiary_core_look(vespiary_core *core, uint32_t queue_id, uint64_t sequence, uint32_t max_messages,
                       int everything, int returned_only, int special_only, uint32_t min_priority,
                       vespiary_look *out, const uint8_t **data);
/* What a consumer holds, pairs of (sequence, deliveries); returns how many there are. */
int64_t vespiary_core_held(const vespiary_core *core, uint32_t handle, uint64_t sequence, uint32_t deliveries,
                           uint64_t *out, uint64_t room);
int64_t vespiary_core_held_count(const vespiary_core *core, uint32_t handle);
int64_t vespiary_core_next_deliverable(vespiary_core *core, uint32_t queue_id);
/* Returns the length of the body at *data, NULL: there is none; valid until the next call. */
int64_t vespiary_core_body(vespiary_core *core, uint32_t queue_id, uint64_t sequence, const uint8_t **data);
int vespiary_core_absent_for(vespiary_core *core, uint32_t queue_id, uint64_t sequence, uint64_t *file_id,
                             uint32_t *index);
/* As deliver; *passed: how many of `sequences` were gone through. */
int vespiary_core_give(vespiary_core *core, uint32_t handle, const uint64_t *sequences, uint32_t count,
                       uint64_t max_bytes, vespiary_result *out, uint32_t *passed, const uint8_t **frames);
int vespiary_core_give_large(vespiary_core *core, uint32_t handle, uint64_t sequence, vespiary_large *out,
                             const uint8_t **head); /* as take_large */
int vespiary_core_finish(vespiary_core *core, uint32_t queue_id, const uint64_t *sequences, uint32_t count,
                         uint64_t transaction);
int vespiary_core_finish_held(vespiary_core *core, uint32_t handle, uint64_t sequence, uint64_t transaction);
int vespiary_core_specials_seen(vespiary_core *core, uint32_t queue_id);
int vespiary_core_set_aside(vespiary_core *core, uint32_t queue_id, uint64_t sequence); /* 1 done, 0 not */
int vespiary_core_put_back(vespiary_core *core, uint32_t queue_id, uint64_t sequence);  /* 1 done, 0 not */

/* ranges: see vespiary_native/abc_ranges.py */
/* Records at *data, valid until the next deliver, give or look; pairs of (first, last) in `runs`. */
int vespiary_core_copy_range(vespiary_core *core, uint32_t queue_id, uint64_t sequence, uint64_t end,
                             uint64_t max_bytes, int is_first_whole, uint64_t *runs, uint32_t runs_room,
                             vespiary_range *out, const uint8_t **data);
int vespiary_core_finish_below(vespiary_core *core, uint32_t queue_id, uint64_t end, uint32_t max_messages);

/* pages: see vespiary_native/abc_pages.py. Those that return a count fill in at most `room`. */
int vespiary_core_page_open(vespiary_core *core, uint64_t page_id, uint64_t salt, uint64_t size,
                            const uint32_t *queue_ids, uint32_t count);
int vespiary_core_page_fill(vespiary_core *core, uint64_t page_id, uint32_t queue_id, uint64_t sequence,
                            uint64_t up_to, uint64_t max_bytes, uint64_t max_places, vespiary_page_fill *out);
/* Pieces to write, addresses in memory; `room` is 1 for each slab of the page's bound, and 3 more. */
int vespiary_core_page_close(vespiary_core *core, uint64_t page_id, vespiary_write *out, uint32_t room);
int64_t vespiary_core_page_commit(vespiary_core *core, uint64_t page_id);
int vespiary_core_page_abandon(vespiary_core *core, uint64_t page_id);
int vespiary_core_page_wanted(vespiary_core *core, vespiary_page_wish *out, uint32_t room);
int64_t vespiary_core_page_enter(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                                 uint32_t length);
int vespiary_core_page_leave(vespiary_core *core, uint64_t page_id, uint32_t queue_id); /* 1 left, 0 something is held */
/* As look, at a closed extent; nothing of an open one. */
int vespiary_core_page_look(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                            uint32_t footer_length, uint64_t sequence, uint32_t max_messages, uint32_t min_priority,
                            vespiary_look *out, const uint8_t **data);
/* As copy_range, of a closed extent; nothing of an open one. */
int vespiary_core_page_copy(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                            uint32_t footer_length, uint64_t sequence, uint64_t end, uint64_t max_bytes,
                            int is_first_whole, uint64_t *runs, uint32_t runs_room, vespiary_range *out,
                            const uint8_t **data);
/* The bodies of the first of some places, which ascend, one behind the other; returns how many. */
int vespiary_core_page_bodies(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                              uint32_t footer_length, const uint64_t *sequences, uint32_t count, uint32_t max_bytes,
                              uint32_t *lengths, const uint8_t **data);
/* `sequences` ascend; returns how many came into the ring. */
int vespiary_core_page_pick(vespiary_core *core, uint64_t page_id, uint32_t queue_id, const uint8_t *footer,
                            uint32_t footer_length, const uint64_t *sequences, uint32_t count);
int vespiary_core_page_keep(vespiary_core *core, uint32_t queue_id, const uint64_t *sequences, uint32_t count,
                            int is_kept);
int64_t vespiary_core_page_done(vespiary_core *core, uint64_t *out, uint64_t room);
int64_t vespiary_core_page_end(vespiary_core *core, uint64_t page_id);
int vespiary_core_page_forget(vespiary_core *core, uint64_t page_id);
int64_t vespiary_core_page_restage(vespiary_core *core, uint64_t page_id);
uint32_t vespiary_core_pages(const vespiary_core *core, vespiary_page_facts *out, uint32_t room);
int vespiary_core_extents(const vespiary_core *core, uint32_t queue_id, uint32_t begin, vespiary_extent_facts *out,
                          uint32_t room); /* how many there are from the begin-th on; the first of them in out */
/* How many extents stand in front of the first one that ends at or behind a sequence. */
int vespiary_core_extent_index(const vespiary_core *core, uint32_t queue_id, uint64_t sequence);
int vespiary_core_extent(const vespiary_core *core, uint64_t page_id, uint32_t queue_id, vespiary_extent_facts *out);
/* Length of its latest PAGE record; 0 without one. */
int64_t vespiary_core_page_record_bytes(const vespiary_core *core, uint64_t page_id);
int vespiary_core_pages_in(const vespiary_core *core, uint64_t file_id, uint64_t *out, uint32_t room);

/* recovery */
int vespiary_core_restore_file(vespiary_core *core, uint64_t file_id, uint64_t salt, uint64_t size);
/* Returns the number of other records written to `others`; -EBADMSG: malformed, *bad_offset tells where. */
int vespiary_core_restore_block(vespiary_core *core, uint64_t file_id, uint64_t offset, const uint8_t *block,
                                uint32_t length, vespiary_other_record *others, uint32_t room,
                                uint32_t *bad_offset);
int vespiary_core_restore_done(vespiary_core *core);
int vespiary_verify_blocks(const uint8_t *data, uint64_t length, uint64_t offset, uint64_t salt, uint64_t file_id,
                           vespiary_block_facts *out, uint32_t room);
/* cdef-end */

#endif
