#include "uring.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* One at a time is submitted, so one entry is enough; completions have room for all outstanding. */
#define SUBMISSIONS 1u
#define NO_SLOT UINT32_MAX
/* One mapping for both queues (5.4), completions never dropped (5.5), IORING_OP_READ and _WRITE (5.6). */
#define FEATURES_NEEDED (IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS)

/* What the kernel is doing with a slot's request now. */
typedef enum phase {
    PHASE_ONLY,        /* the one call that the request needs */
    PHASE_DSYNC_WRITE, /* a write with RWF_DSYNC; may turn into the next one */
    PHASE_WRITE,       /* the write of a write-then-sync */
    PHASE_SYNC,        /* the sync of a write-then-sync; `result` holds the write's result */
} phase;

/* One accepted request. A slot is in the kernel's hands, in the failed list, or in the free list. */
typedef struct slot {
    vespiary_request request;
    int64_t result;  /* PHASE_SYNC: bytes written before it; in the failed list: the -errno */
    uint32_t next;   /* next slot of the free or the failed list */
    phase phase;
} slot;

struct vespiary_uring {
    vespiary_uring_calls calls;
    pid_t owner;
    int fd;
    int event_fd;
    uint32_t depth;
    uint32_t flags;
    uint32_t outstanding;
    uint32_t in_kernel; /* slots whose completion the kernel still owes */
    uint32_t free_head;
    /* Requests that the kernel refused at submission, oldest first. */
    uint32_t failed_head;
    uint32_t failed_tail;
    /* The queues, shared with the kernel. Each index has one writer: tails the producer, heads the
     * consumer. The other side's is read with acquire, our own is written with release. */
    char *queues;
    size_t queues_bytes;
    struct io_uring_sqe *submissions;
    size_t submissions_bytes;
    uint32_t *submission_head; /* the kernel's */
    uint32_t *submission_tail; /* ours */
    uint32_t submission_mask;
    uint32_t *submission_array;
    uint32_t *completion_head; /* ours */
    uint32_t *completion_tail; /* the kernel's */
    uint32_t completion_mask;
    struct io_uring_cqe *completions;
    slot slots[];
};

/* --- system calls ------------------------------------------------------------------------------ */

static int call_setup(uint32_t entries, struct io_uring_params *params)
{
    const long fd = syscall(SYS_io_uring_setup, entries, params);
    return fd >= 0 ? (int)fd : -errno;
}

static int call_enter(int fd, uint32_t to_submit, uint32_t min_complete, uint32_t flags)
{
    const long taken = syscall(SYS_io_uring_enter, fd, to_submit, min_complete, flags, NULL, 0L);
    return taken >= 0 ? (int)taken : -errno;
}

static int call_register_eventfd(int fd, int event_fd)
{
    return syscall(SYS_io_uring_register, fd, IORING_REGISTER_EVENTFD, &event_fd, 1) == 0 ? 0
                                                                                       : -errno;
}

static void *call_map(int fd, size_t size_bytes, uint64_t offset)
{
    void *mapped = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                        (off_t)offset);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static void call_unmap(void *address, size_t size_bytes)
{
    (void)munmap(address, size_bytes);
}

static void call_close(int fd)
{
    (void)close(fd);
}

static const vespiary_uring_calls kernel_calls = {
    .setup = call_setup,
    .enter = call_enter,
    .register_eventfd = call_register_eventfd,
    .map = call_map,
    .unmap = call_unmap,
    .close = call_close,
};

/* Make the eventfd readable. It cannot fail usefully: a full counter is readable as well. */
static void signal_waiting(const vespiary_uring *ring)
{
    const uint64_t one = 1;
    while (write(ring->event_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

/* --- creation ---------------------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Map both queues and the entries of submissions, and find what is where in them. */
static int map_queues(vespiary_uring *ring, const struct io_uring_params *params)
{
    const struct io_sqring_offsets *sq = &params->sq_off;
    const struct io_cqring_offsets *cq = &params->cq_off;

    ring->queues_bytes = larger(sq->array + params->sq_entries * sizeof(uint32_t),
                                cq->cqes + params->cq_entries * sizeof(struct io_uring_cqe));
    ring->queues = ring->calls.map(ring->fd, ring->queues_bytes, IORING_OFF_SQ_RING);
    if (ring->queues == NULL)
        return -ENOMEM;
    ring->submissions_bytes = params->sq_entries * sizeof(struct io_uring_sqe);
    ring->submissions = ring->calls.map(ring->fd, ring->submissions_bytes, IORING_OFF_SQES);
    if (ring->submissions == NULL)
        return -ENOMEM;
    ring->submission_head = (uint32_t *)(void *)(ring->queues + sq->head);
    ring->submission_tail = (uint32_t *)(void *)(ring->queues + sq->tail);
    ring->submission_mask = *(uint32_t *)(void *)(ring->queues + sq->ring_mask);
    ring->submission_array = (uint32_t *)(void *)(ring->queues + sq->array);
    ring->completion_head = (uint32_t *)(void *)(ring->queues + cq->head);
    ring->completion_tail = (uint32_t *)(void *)(ring->queues + cq->tail);
    ring->completion_mask = *(uint32_t *)(void *)(ring->queues + cq->ring_mask);
    ring->completions = (struct io_uring_cqe *)(void *)(ring->queues + cq->cqes);
    return 0;
}

/* Give back all that creation took; what was not taken is NULL or -1. */
static void release(vespiary_uring *ring)
{
    if (ring->submissions != NULL)
        ring->calls.unmap(ring->submissions, ring->submissions_bytes);
    if (ring->queues != NULL)
        ring->calls.unmap(ring->queues, ring->queues_bytes);
    if (ring->fd >= 0)
        ring->calls.close(ring->fd);
    if (ring->event_fd >= 0)
        (void)close(ring->event_fd);
    free(ring);
}

int vespiary_uring_create_over(uint32_t depth, uint32_t flags, const vespiary_uring_calls *calls,
                               vespiary_uring **ring_out)
{
    struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE, .cq_entries = depth};
    vespiary_uring *ring;
    int result;

    if (depth == 0 || depth > VESPIARY_URING_DEPTH_MAX)
        return -EINVAL;
    if ((flags & ~(uint32_t)VESPIARY_RING_WRITE_THEN_SYNC) != 0)
        return -EINVAL;
    ring = calloc(1, sizeof *ring + depth * sizeof ring->slots[0]);
    if (ring == NULL)
        return -ENOMEM;
    ring->calls = calls != NULL ? *calls : kernel_calls;
    ring->owner = getpid();
    ring->depth = depth;
    ring->flags = flags;
    ring->failed_head = ring->failed_tail = NO_SLOT;
    ring->fd = -1;
    ring->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->event_fd < 0) {
        result = -errno;
        goto failed;
    }
    result = ring->fd = ring->calls.setup(SUBMISSIONS, &params);
    if (result == -EINVAL) /* IORING_SETUP_CQSIZE is of 5.5, and nothing else here can be wrong */
        result = -EOPNOTSUPP;
    if (result < 0)
        goto failed;
    if ((params.features & FEATURES_NEEDED) != FEATURES_NEEDED) {
        result = -EOPNOTSUPP;
        goto failed;
    }
    result = map_queues(ring, &params);
    if (result < 0)
        goto failed;
    result = ring->calls.register_eventfd(ring->fd, ring->event_fd);
    if (result < 0)
        goto failed;
    for (uint32_t i = 0; i < depth; i++)
        ring->slots[i].next = i + 1 < depth ? i + 1 : NO_SLOT;
    *ring_out = ring;
    return 0;

failed:
    release(ring);
    return result;
}

int vespiary_uring_create(uint32_t depth, uint32_t flags, vespiary_uring **ring_out)
{
    return vespiary_uring_create_over(depth, flags, NULL, ring_out);
}

int vespiary_uring_eventfd(const vespiary_uring *ring)
{
    return ring->event_fd;
}

uint32_t vespiary_uring_outstanding(const vespiary_uring *ring)
{
    return ring->outstanding;
}

/* --- slots ------------------------------------------------------------------------------------- */

static uint32_t take_slot(vespiary_uring *ring, const vespiary_request *request)
{
    const uint32_t index = ring->free_head;
    slot *taken = &ring->slots[index];

    ring->free_head = taken->next;
    ring->outstanding++;
    taken->request = *request;
    taken->next = NO_SLOT;
    if (request->kind != VESPIARY_RING_DURABLE_WRITE)
        taken->phase = PHASE_ONLY;
    else
        taken->phase =
            ring->flags & VESPIARY_RING_WRITE_THEN_SYNC ? PHASE_WRITE : PHASE_DSYNC_WRITE;
    return index;
}

/* Report `result` for a request that the kernel did not take. */
static void fail_slot(vespiary_uring *ring, uint32_t index, int64_t result)
{
    ring->slots[index].result = result;
    ring->slots[index].next = NO_SLOT;
    if (ring->failed_head == NO_SLOT)
        ring->failed_head = index;
    else
        ring->slots[ring->failed_tail].next = index;
    ring->failed_tail = index;
    signal_waiting(ring);
}

/* --- submission -------------------------------------------------------------------------------- */

static void prepare(const vespiary_uring *ring, uint32_t index, struct io_uring_sqe *entry)
{
    const slot *from = &ring->slots[index];

    memset(entry, 0, sizeof *entry);
    entry->fd = from->request.fd;
    entry->user_data = index;
    if (from->phase == PHASE_SYNC || from->request.kind == VESPIARY_RING_SYNC) {
        entry->opcode = IORING_OP_FSYNC;
        entry->fsync_flags = IORING_FSYNC_DATASYNC;
        return;
    }
    entry->opcode =
        from->request.kind == VESPIARY_RING_READ ? IORING_OP_READ : IORING_OP_WRITE;
    entry->addr = from->request.address;
    entry->len = from->request.length;
    entry->off = (uint64_t)from->request.offset;
    if (from->phase == PHASE_DSYNC_WRITE)
        entry->rw_flags = RWF_DSYNC;
}

/* Hand one slot to the kernel, or put it into the failed list. */
static void push(vespiary_uring *ring, uint32_t index)
{
    const uint32_t tail = *ring->submission_tail;
    const uint32_t at = tail & ring->submission_mask;
    int taken;

    prepare(ring, index, &ring->submissions[at]);
    ring->submission_array[at] = at;
    __atomic_store_n(ring->submission_tail, tail + 1, __ATOMIC_RELEASE);
    do
        taken = ring->calls.enter(ring->fd, 1, 0, 0);
    while (taken == -EINTR && __atomic_load_n(ring->submission_head, __ATOMIC_ACQUIRE) == tail);
    /* The queue's head, not the call's result, says whether the entry was taken: if it was, its
     * completion comes whatever the call returned. The kernel reads the queue only within the call,
     * so an entry that it left can be taken back. */
    if (__atomic_load_n(ring->submission_head, __ATOMIC_ACQUIRE) == tail + 1) {
        ring->in_kernel++;
        return;
    }
    __atomic_store_n(ring->submission_tail, tail, __ATOMIC_RELEASE);
    /* -EBUSY: the kernel wants completions to be taken first, which the caller does in any case. */
    fail_slot(ring, index, taken < 0 && taken != -EBUSY ? taken : -EAGAIN);
}

static bool is_valid(const vespiary_request *request)
{
    if (request->kind == VESPIARY_RING_SYNC)
        return true;
    return request->kind < VESPIARY_RING_SYNC && request->length > 0
           && request->length <= VESPIARY_RING_LENGTH_MAX && request->offset >= 0;
}

int vespiary_uring_submit_one(vespiary_uring *ring, uint32_t kind, int32_t fd, uintptr_t address,
                              uint32_t length, int64_t offset, uint64_t token)
{
    const vespiary_request request = {
        .token = token,
        .address = address,
        .offset = offset,
        .length = length,
        .fd = fd,
        .kind = kind,
    };

    if (ring->owner != getpid())
        return -ECHILD;
    if (!is_valid(&request))
        return -EINVAL;
    if (ring->outstanding == ring->depth)
        return -EAGAIN;
    push(ring, take_slot(ring, &request));
    return 0;
}

/* --- completion -------------------------------------------------------------------------------- */

/*
 * Take one completion of the kernel. True when the request is finished and `result_out` holds its
 * result, false when it went back to the kernel (or to the failed list) for its next phase.
 */
static bool finish(vespiary_uring *ring, uint32_t index, int64_t result, int64_t *result_out)
{
    slot *at = &ring->slots[index];

    switch (at->phase) {
    case PHASE_DSYNC_WRITE:
        if (result == -EOPNOTSUPP) {
            at->phase = PHASE_WRITE;
            push(ring, index);
            return false;
        }
        break;
    case PHASE_WRITE:
        if (result == (int64_t)at->request.length) {
            at->result = result;
            at->phase = PHASE_SYNC;
            push(ring, index);
            return false;
        }
        break;
    case PHASE_SYNC:
        if (result >= 0)
            result = at->result;
        break;
    case PHASE_ONLY:
        break;
    }
    *result_out = result;
    return true;
}

static void deliver(vespiary_uring *ring, uint32_t index, int64_t result,
                    vespiary_completion *completion)
{
    slot *from = &ring->slots[index];

    completion->token = from->request.token;
    completion->result = result;
    from->next = ring->free_head;
    ring->free_head = index;
    ring->outstanding--;
}

/* Take the oldest completion out of the queue; false when there is none. */
static bool pop(vespiary_uring *ring, uint32_t *index_out, int64_t *result_out)
{
    const uint32_t head = *ring->completion_head;
    const struct io_uring_cqe *entry;

    if (head == __atomic_load_n(ring->completion_tail, __ATOMIC_ACQUIRE))
        return false;
    entry = &ring->completions[head & ring->completion_mask];
    *index_out = (uint32_t)entry->user_data;
    *result_out = entry->res;
    /* Release: the entry was read before the kernel may write to it again. */
    __atomic_store_n(ring->completion_head, head + 1, __ATOMIC_RELEASE);
    ring->in_kernel--;
    return true;
}

int vespiary_uring_completions(vespiary_uring *ring, vespiary_completion *completions,
                               uint32_t capacity, uint32_t *count_out)
{
    uint64_t signalled;
    uint32_t count = 0, index;
    int64_t result;

    *count_out = 0;
    if (ring->owner != getpid())
        return -ECHILD;
    /* First the eventfd, then the queue: what arrives in between signals again. */
    while (read(ring->event_fd, &signalled, sizeof signalled) < 0 && errno == EINTR)
        continue;
    while (count < capacity && ring->failed_head != NO_SLOT) {
        index = ring->failed_head;
        ring->failed_head = ring->slots[index].next;
        deliver(ring, index, ring->slots[index].result, &completions[count]);
        count++;
    }
    while (count < capacity && pop(ring, &index, &result)) {
        if (result == -EAGAIN)
            result = -EIO; /* -EAGAIN is kept for what the kernel did not take */
        if (finish(ring, index, result, &result)) {
            deliver(ring, index, result, &completions[count]);
            count++;
        }
    }
    if (count == capacity && ring->outstanding > 0)
        signal_waiting(ring);
    *count_out = count;
    return 0;
}

/* --- the end ----------------------------------------------------------------------------------- */

void vespiary_uring_destroy(vespiary_uring *ring)
{
    uint32_t index;
    int64_t result;

    if (ring == NULL)
        return;
    /* Closing alone would not wait, and a forked child may hold the descriptor. The kernel has no
     * reason to refuse this call; were it to, waiting for ever would be worse. */
    if (ring->owner == getpid())
        while (ring->in_kernel > 0) {
            int waited;
            while (ring->in_kernel > 0 && pop(ring, &index, &result))
                continue;
            if (ring->in_kernel == 0)
                break;
            waited = ring->calls.enter(ring->fd, 0, 1, IORING_ENTER_GETEVENTS);
            if (waited < 0 && waited != -EINTR && waited != -EAGAIN && waited != -EBUSY)
                break;
        }
    release(ring);
}
