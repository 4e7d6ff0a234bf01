/*
 * A ring of asynchronous reads, writes and flushes over the kernel's AIO system calls, and memory that
 * such calls may use.
 *
 * Contract
 *   - Every accepted request yields exactly one completion: a byte count, or -errno. That holds for
 *     what the kernel refuses at once (a bad descriptor) as for what fails later. No result is dropped
 *     and none is interpreted: a short count is handed up as it is.
 *   - The caller keeps the descriptor open and the memory in place until the completion was taken.
 *   - The result -EAGAIN has one meaning: the kernel had no room for the request, or for the sync of a
 *     durable write, and what it did not take it did not do. The same request may be submitted again.
 *     What ran and ended with -EAGAIN (no filesystem should) is reported as -EIO.
 *   - Requests run in any order. A sync covers the writes whose completions were taken before it was
 *     submitted, and promises nothing about the others.
 *   - With O_DIRECT, address, length and offset are multiples of the device's logical block (use 4096),
 *     or the completion is -EINVAL.
 *   - A ring belongs to the thread that uses it and to the process that made it: in a forked child
 *     every call but vespiary_ring_destroy() returns -ECHILD.
 *   - Functions return 0 or -errno; out-parameters come last and are written only as said.
 *   - Nothing is retried into success: a failed flush is reported once and is final for the caller.
 */
#ifndef VESPIARY_AIO_H
#define VESPIARY_AIO_H

#include <stddef.h>
#include <stdint.h>

/* cdef-begin */

typedef struct vespiary_ring vespiary_ring;

enum {
    /* Kinds of request. */
    VESPIARY_RING_READ = 0,
    VESPIARY_RING_WRITE = 1, /* completes when the device has accepted the data: not durable */
    VESPIARY_RING_DURABLE_WRITE = 2, /* completes when the data survives a power cut */
    VESPIARY_RING_SYNC = 3, /* fdatasync of the descriptor; address, length, offset are ignored */

    /* Flags of vespiary_ring_create(). */
    VESPIARY_RING_WRITE_THEN_SYNC = 1, /* durable writes never use RWF_DSYNC */

    VESPIARY_RING_DEPTH_MAX = 4194304,
    VESPIARY_RING_LENGTH_MAX = 2147479552, /* what Linux moves in one call: INT_MAX less a page */

    /* Flags of vespiary_buffer_create(). */
    VESPIARY_BUFFER_POPULATE = 1, /* touch every page now: no page fault later */
    VESPIARY_BUFFER_HUGE_PAGES = 2, /* 2 MiB aligned, huge pages where the kernel grants them */

    VESPIARY_BUFFER_ALIGNMENT = 4096
};

typedef struct vespiary_request {
    uint64_t token;   /* handed back with the completion; any value, need not be unique */
    uintptr_t address;
    int64_t offset;   /* bytes from the start of the file, >= 0 */
    uint32_t length;  /* bytes, 1 to VESPIARY_RING_LENGTH_MAX */
    int32_t fd;
    uint32_t kind;    /* VESPIARY_RING_READ to VESPIARY_RING_SYNC */
} vespiary_request;

typedef struct vespiary_completion {
    uint64_t token;
    int64_t result;   /* bytes moved, 0 for a sync, or -errno */
} vespiary_completion;

/*
 * Make a ring for up to `depth` outstanding requests (1 to VESPIARY_RING_DEPTH_MAX).
 * Allocates all that it will ever need.
 *
 * -EAGAIN  `depth` more would pass fs.aio-max-nr (compare fs.aio-nr)
 * -ENOSYS  the kernel has no AIO;  -EPERM  a filter forbids the call
 * -EINVAL  depth or flags;  -ENOMEM, -EMFILE, -ENFILE as usual
 */
int vespiary_ring_create(uint32_t depth, uint32_t flags, vespiary_ring **ring_out);

/*
 * Wait until the kernel has let go of every outstanding request, then free the ring. Completions not
 * taken before are lost, and the second half of a write-then-sync may not have happened. In a forked
 * child it frees memory and waits for nothing. `ring` may be NULL.
 */
void vespiary_ring_destroy(vespiary_ring *ring);

/* The eventfd that is readable while completions wait. It belongs to the ring: do not close it. */
int vespiary_ring_eventfd(const vespiary_ring *ring);

/* Requests accepted whose completions were not yet taken, 0 to depth. */
uint32_t vespiary_ring_outstanding(const vespiary_ring *ring);

/*
 * Hand `count` requests to the kernel in as few calls as it allows. `accepted_out` is
 * always written: the first that many were accepted, fewer than `count` when the ring is full.
 *
 * A durable write is one write with RWF_DSYNC. Where the kernel or the filesystem refuses that flag
 * (-EOPNOTSUPP, -EINVAL), or the ring was made with VESPIARY_RING_WRITE_THEN_SYNC, it is a write and,
 * when all of it was written, an fdatasync; the completion comes after both and carries either error.
 *
 * 0        accepted_out >= 1, or count was 0
 * -EAGAIN  the ring was full before the first: take completions
 * -EINVAL  a kind, length or offset is out of range: none accepted
 * -ECHILD  the ring was made by another process: none accepted
 */
int vespiary_ring_submit(vespiary_ring *ring, const vespiary_request *requests, uint32_t count,
                         uint32_t *accepted_out);

/* The same for one request in plain arguments. */
int vespiary_ring_submit_one(vespiary_ring *ring, uint32_t kind, int32_t fd, uintptr_t address,
                             uint32_t length, int64_t offset, uint64_t token);

/*
 * Take up to `capacity` completions without waiting, in the order in which they arrived.
 * `count_out` is always written, also beside an error: those completions are valid.
 * Resets the eventfd; leaves it readable when `capacity` was reached and requests are outstanding.
 *
 * -ECHILD  the ring was made by another process
 * other    the kernel refused to hand out completions: the ring is broken, destroy it
 */
int vespiary_ring_completions(vespiary_ring *ring, vespiary_completion *completions,
                              uint32_t capacity, uint32_t *count_out);

/*
 * Map zeroed memory aligned to VESPIARY_BUFFER_ALIGNMENT (2 MiB with VESPIARY_BUFFER_HUGE_PAGES).
 * The caller frees it with vespiary_buffer_destroy() and the same size.
 *
 * -EINVAL  size 0 or unknown flags;  -ENOMEM  no memory, also when populating failed
 */
int vespiary_buffer_create(size_t size_bytes, uint32_t flags, void **address_out);

/* Unmap what vespiary_buffer_create() mapped. `address` may be NULL. */
void vespiary_buffer_destroy(void *address, size_t size_bytes);

/* cdef-end */

#include <linux/aio_abi.h>

/*
 * The system calls below a ring, each returning its result or -errno. Tests hand in their own to see
 * what happens when the kernel takes half a batch, has no RWF_DSYNC, or is interrupted.
 */
typedef struct vespiary_aio_calls {
    int (*setup)(uint32_t depth, aio_context_t *context_out);
    int (*destroy)(aio_context_t context);
    long (*submit)(aio_context_t context, long count, struct iocb **iocbs);
    /* Never waits. */
    long (*getevents)(aio_context_t context, long capacity, struct io_event *events);
} vespiary_aio_calls;

/* vespiary_ring_create() over other system calls; `calls` is copied, NULL means the real ones. */
int vespiary_ring_create_over(uint32_t depth, uint32_t flags, const vespiary_aio_calls *calls,
                              vespiary_ring **ring_out);

#endif
