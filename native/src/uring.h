/*
 * The same ring as aio.h over io_uring: requests, kinds, completions and promises are those of aio.h,
 * word for word, but for what stands here.
 *
 *   - A ring takes nothing of fs.aio-max-nr. Many container profiles forbid it (-EPERM), and so does
 *     kernel.io_uring_disabled; kernels before 5.6 lack what is needed (-EOPNOTSUPP).
 *   - It makes no thread of its own. The kernel may run a request in one of its workers (a sync
 *     always), and counts that as this process's.
 *   - A request's completion is run by the kernel in the thread that submitted it: that thread must
 *     not end while requests are outstanding, or they may be cancelled (-ECANCELED).
 *   - What the kernel did not take becomes that request's completion, -EBUSY as -EAGAIN.
 */
#ifndef VESPIARY_URING_H
#define VESPIARY_URING_H

#include "aio.h"

/* cdef-begin */

typedef struct vespiary_uring vespiary_uring;

enum {
    VESPIARY_URING_DEPTH_MAX = 65536 /* the kernel's bound of a completion queue */
};

/*
 * Make a ring for up to `depth` outstanding requests (1 to VESPIARY_URING_DEPTH_MAX). Flags as for
 * vespiary_ring_create(). Allocates all that it will ever need.
 *
 * -EPERM       a filter or kernel.io_uring_disabled forbids it
 * -ENOSYS      the kernel has no io_uring;  -EOPNOTSUPP  it is older than Linux 5.6
 * -ENOMEM      no memory; before Linux 5.12 also RLIMIT_MEMLOCK
 * -EINVAL      depth or flags;  -EMFILE, -ENFILE as usual
 */
int vespiary_uring_create(uint32_t depth, uint32_t flags, vespiary_uring **ring_out);

/* As vespiary_ring_destroy(). */
void vespiary_uring_destroy(vespiary_uring *ring);

/* As vespiary_ring_eventfd(). */
int vespiary_uring_eventfd(const vespiary_uring *ring);

/* As vespiary_ring_outstanding(). */
uint32_t vespiary_uring_outstanding(const vespiary_uring *ring);

/* As vespiary_ring_submit_one(), -EOPNOTSUPP alone making a durable write a write and a sync. */
int vespiary_uring_submit_one(vespiary_uring *ring, uint32_t kind, int32_t fd, uintptr_t address,
                              uint32_t length, int64_t offset, uint64_t token);

/* As vespiary_ring_completions(); nothing but -ECHILD can be wrong. */
int vespiary_uring_completions(vespiary_uring *ring, vespiary_completion *completions,
                               uint32_t capacity, uint32_t *count_out);

/* cdef-end */

#include <linux/io_uring.h>

/*
 * The system calls below a ring, each returning its result or -errno. Tests hand in a kernel of
 * their own, which reads and writes the queues that `map` gave.
 */
typedef struct vespiary_uring_calls {
    int (*setup)(uint32_t entries, struct io_uring_params *params);
    int (*enter)(int fd, uint32_t to_submit, uint32_t min_complete, uint32_t flags);
    int (*register_eventfd)(int fd, int event_fd);
    /* NULL when it can't be had. */
    void *(*map)(int fd, size_t size_bytes, uint64_t offset);
    void (*unmap)(void *address, size_t size_bytes);
    void (*close)(int fd);
} vespiary_uring_calls;

/* vespiary_uring_create() over other system calls; `calls` is copied, NULL means the real ones. */
int vespiary_uring_create_over(uint32_t depth, uint32_t flags, const vespiary_uring_calls *calls,
                               vespiary_uring **ring_out);

#endif
