/*
 * Records as columns: blocks of a journal in, one buffer for each field out (journal-format.md §2 and §3).
 *
 * Pure functions over memory that the caller keeps; any thread. Nothing in a window is trusted before its block's
 * checksum held, and lengths are checked after that too. Specification: vespiary_codec/journal/column_scan.py and
 * column_parts.py.
 */
#ifndef VESPIARY_COLUMNS_H
#define VESPIARY_COLUMNS_H

#include <stdint.h>

/* cdef-begin */

/* Where a scan ended: at a seal; for want of bytes; with as many rows as were asked for; at no valid block. */
enum { VESPIARY_SCAN_END, VESPIARY_SCAN_WINDOW, VESPIARY_SCAN_ROWS, VESPIARY_SCAN_INVALID };

typedef struct {
    uint64_t offset; /* of the window in its file */
    uint64_t salt, file_id;
    uint64_t previous_sequence; /* of the block before the window, with has_previous */
    uint64_t rows_max;
    uint32_t previous_crc;
    uint8_t has_previous;
    uint8_t members;    /* members and ends of transactions are wanted, whatever their kind */
    uint8_t kinds[256]; /* 1: records of that type are wanted */
} vespiary_scan_request;

/* Columns in the order of vespiary_codec.journal.columns.Columns: 4 of u8, 16 of i64, and those of the places. */
typedef struct {
    uint64_t rows, places;
    uint8_t *octets[4];
    int64_t *numbers[16];
    int32_t *places_from; /* rows + 1 */
    int64_t *place_numbers[3];
    uint64_t stop;         /* offset in the file of the next block */
    uint64_t needed_bytes; /* with VESPIARY_SCAN_WINDOW: of the next block; 0: its header is not there */
    uint64_t blocks, records, sequence, watermark, time_ms;
    uint32_t crc, reason;
    uint64_t rows_room, places_room;
} vespiary_columns;

/* Byte strings in Arrow's layout. */
typedef struct {
    int32_t *offsets; /* rows + 1 */
    uint8_t *data;
    uint8_t *valid; /* a bitmap */
    uint64_t rows, nulls, rows_room, data_room;
} vespiary_strings;

/* Walk blocks. `out` is all zeros before; what is in it afterwards is the caller's, who gives each buffer to
 * vespiary_columns_free. 0; -ENOMEM, -EOVERFLOW (more than 2^31 - 1 places): then there is nothing to free. */
int vespiary_columns_scan(const uint8_t *window, uint64_t length, const vespiary_scan_request *request,
                          vespiary_columns *out);

/* Copy entries out of a window; `chosen`: 0 makes one null, NULL takes all. `out` as above. 0; -ENOMEM, -EINVAL (an
 * entry is not in the window), -EOVERFLOW (more than 2^31 - 1 bytes). */
int vespiary_columns_gather(const uint8_t *window, uint64_t length, const int64_t *at, const int64_t *lengths,
                            const uint8_t *chosen, uint64_t rows, vespiary_strings *out);

/* Headers of ADD records. With `name`: the values of that one, into `values`. Without: all, names into `keys`, and
 * `entries` (rows + 1) says from which entry on those of a row stand. Errors as above. */
int vespiary_columns_headers(const uint8_t *window, uint64_t length, const uint8_t *kind, const uint8_t *flags,
                             const int64_t *at, const int64_t *lengths, uint64_t rows, const uint8_t *name,
                             uint32_t name_length, int32_t *entries, vespiary_strings *keys, vespiary_strings *values);

void vespiary_columns_free(void *buffer);

/* cdef-end */

#endif
