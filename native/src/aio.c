#include "aio.h"

#include <errno.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Events fetched by one io_getevents: enough for a batch, small enough for the stack. */
#define EVENTS_PER_CALL 64u
/* iocbs prepared for one io_submit. */
#define IOCBS_PER_CALL 64u
#define NO_SLOT UINT32_MAX

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

struct vespiary_ring {
    vespiary_aio_calls calls;
    aio_context_t context;
    pid_t owner;
    int event_fd;
    uint32_t depth;
    uint32_t flags;
    uint32_t outstanding;
    uint32_t free_head;
    /* Requests that the kernel refused at submission, oldest first. */
    uint32_t failed_head;
    uint32_t failed_tail;
    slot slots[];
};

/* --- system calls ------------------------------------------------------------------------------ */

static int call_setup(uint32_t depth, aio_context_t *context_out)
{
    *context_out = 0;
    return syscall(SYS_io_setup, depth, context_out) == 0 ? 0 : -errno;
}

static int call_destroy(aio_context_t context)
{
    return syscall(SYS_io_destroy, context) == 0 ? 0 : -errno;
}

static long call_submit(aio_context_t context, long count, struct iocb **iocbs)
{
    const long submitted = syscall(SYS_io_submit, context, count, iocbs);
    return submitted >= 0 ? submitted : -errno;
}

static long call_getevents(aio_context_t context, long capacity, struct io_event *events)
{
    struct timespec no_wait = {0, 0};
    const long taken = syscall(SYS_io_getevents, context, 0L, capacity, events, &no_wait);
    return taken >= 0 ? taken : -errno;
}

static const vespiary_aio_calls kernel_calls = {
    .setup = call_setup,
    .destroy = call_destroy,
    .submit = call_submit,
    .getevents = call_getevents,
};

/* Make the eventfd readable. It cannot fail usefully: a full counter is readable as well. */
static void signal_waiting(const vespiary_ring *ring)
{
    const uint64_t one = 1;
    while (write(ring->event_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

/* --- creation ---------------------------------------------------------------------------------- */

int vespiary_ring_create_over(uint32_t depth, uint32_t flags, const vespiary_aio_calls *calls,
                              vespiary_ring **ring_out)
{
    vespiary_ring *ring;
    int result;

    if (depth == 0 || depth > VESPIARY_RING_DEPTH_MAX)
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
    ring->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->event_fd < 0) {
        result = -errno;
        goto failed;
    }
    result = ring->calls.setup(depth, &ring->context);
    if (result < 0)
        goto failed;
    ring->free_head = 0;
    for (uint32_t i = 0; i < depth; i++)
        ring->slots[i].next = i + 1 < depth ? i + 1 : NO_SLOT;
    *ring_out = ring;
    return 0;

failed:
    if (ring->event_fd >= 0)
        (void)close(ring->event_fd);
    free(ring);
    return result;
}

int vespiary_ring_create(uint32_t depth, uint32_t flags, vespiary_ring **ring_out)
{
    return vespiary_ring_create_over(depth, flags, NULL, ring_out);
}

void vespiary_ring_destroy(vespiary_ring *ring)
{
    if (ring == NULL)
        return;
    /* A child has no context of its own: its parent's goes on undisturbed. */
    if (ring->owner == getpid())
        (void)ring->calls.destroy(ring->context); /* can fail only for a context that is not ours */
    (void)close(ring->event_fd);
    free(ring);
}

int vespiary_ring_eventfd(const vespiary_ring *ring)
{
    return ring->event_fd;
}

uint32_t vespiary_ring_outstanding(const vespiary_ring *ring)
{
    return ring->outstanding;
}

/* --- slots ------------------------------------------------------------------------------------- */

static uint32_t take_slot(vespiary_ring *ring, const vespiary_request *request)
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

static void give_back_slot(vespiary_ring *ring, uint32_t index)
{
    ring->slots[index].next = ring->free_head;
    ring->free_head = index;
    ring->outstanding--;
}

/* Report `result` for a request that the kernel did not take. */
static void fail_slot(vespiary_ring *ring, uint32_t index, int64_t result)
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

static void prepare_iocb(const vespiary_ring *ring, uint32_t index, struct iocb *iocb)
{
    const slot *from = &ring->slots[index];
    const bool sync = from->phase == PHASE_SYNC || from->request.kind == VESPIARY_RING_SYNC;

    *iocb = (struct iocb){
        .aio_data = index,
        .aio_fildes = (uint32_t)from->request.fd,
        .aio_flags = IOCB_FLAG_RESFD,
        .aio_resfd = (uint32_t)ring->event_fd,
    };
    if (sync) {
        iocb->aio_lio_opcode = IOCB_CMD_FDSYNC;
        return;
    }
    iocb->aio_lio_opcode =
        from->request.kind == VESPIARY_RING_READ ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
    iocb->aio_buf = from->request.address;
    iocb->aio_nbytes = from->request.length;
    iocb->aio_offset = from->request.offset;
    if (from->phase == PHASE_DSYNC_WRITE)
        iocb->aio_rw_flags = RWF_DSYNC;
}

/*
 * Hand slots to the kernel until each was taken or has failed. The kernel stops at the first iocb that
 * it refuses, and says so only when that is the first of the call: hence the loop.
 */
static void push(vespiary_ring *ring, const uint32_t *indices, uint32_t count)
{
    struct iocb iocbs[IOCBS_PER_CALL];
    struct iocb *pointers[IOCBS_PER_CALL];
    uint32_t done = 0;

    for (uint32_t i = 0; i < count; i++) {
        prepare_iocb(ring, indices[i], &iocbs[i]);
        pointers[i] = &iocbs[i];
    }
    while (done < count) {
        const long submitted =
            ring->calls.submit(ring->context, (long)(count - done), pointers + done);
        if (submitted > 0) {
            done += (uint32_t)submitted;
            continue;
        }
        if (submitted == -EINTR) /* before it took any: nothing was done */
            continue;
        slot *refused = &ring->slots[indices[done]];
        if (refused->phase == PHASE_DSYNC_WRITE
            && (submitted == -EOPNOTSUPP || submitted == -EINVAL)) {
            refused->phase = PHASE_WRITE;
            prepare_iocb(ring, indices[done], &iocbs[done]);
            continue;
        }
        /* 0 for a count above 0 does not happen; taken as "not now" it cannot loop for ever. */
        fail_slot(ring, indices[done], submitted == 0 ? -EAGAIN : submitted);
        done++;
    }
}

static bool is_valid(const vespiary_request *request)
{
    if (request->kind == VESPIARY_RING_SYNC)
        return true;
    return request->kind < VESPIARY_RING_SYNC && request->length > 0
           && request->length <= VESPIARY_RING_LENGTH_MAX && request->offset >= 0;
}

int vespiary_ring_submit(vespiary_ring *ring, const vespiary_request *requests, uint32_t count,
                         uint32_t *accepted_out)
{
    uint32_t indices[IOCBS_PER_CALL];
    uint32_t accepted = 0;

    *accepted_out = 0;
    if (ring->owner != getpid())
        return -ECHILD;
    for (uint32_t i = 0; i < count; i++)
        if (!is_valid(&requests[i]))
            return -EINVAL;
    if (count > 0 && ring->outstanding == ring->depth)
        return -EAGAIN;
    while (accepted < count && ring->outstanding < ring->depth) {
        uint32_t batch = 0;
        while (batch < IOCBS_PER_CALL && accepted + batch < count
               && ring->outstanding < ring->depth) {
            indices[batch] = take_slot(ring, &requests[accepted + batch]);
            batch++;
        }
        push(ring, indices, batch);
        accepted += batch;
    }
    *accepted_out = accepted;
    return 0;
}

int vespiary_ring_submit_one(vespiary_ring *ring, uint32_t kind, int32_t fd, uintptr_t address,
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
    uint32_t accepted;
    return vespiary_ring_submit(ring, &request, 1, &accepted);
}

/* --- completion -------------------------------------------------------------------------------- */

/*
 * Take one event of the kernel. True when the request is finished and `result_out` holds its result,
 * false when it went back to the kernel (or to the failed list) for its next phase.
 */
static bool finish(vespiary_ring *ring, uint32_t index, int64_t result, int64_t *result_out)
{
    slot *at = &ring->slots[index];

    switch (at->phase) {
    case PHASE_DSYNC_WRITE:
        if (result == -EOPNOTSUPP) {
            at->phase = PHASE_WRITE;
            push(ring, &index, 1);
            return false;
        }
        break;
    case PHASE_WRITE:
        if (result == (int64_t)at->request.length) {
            at->result = result;
            at->phase = PHASE_SYNC;
            push(ring, &index, 1);
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

static void deliver(vespiary_ring *ring, uint32_t index, int64_t result,
                    vespiary_completion *completion)
{
    completion->token = ring->slots[index].request.token;
    completion->result = result;
    give_back_slot(ring, index);
}

static uint32_t take_failed(vespiary_ring *ring, vespiary_completion *completions,
                            uint32_t capacity)
{
    uint32_t count = 0;

    while (count < capacity && ring->failed_head != NO_SLOT) {
        const uint32_t index = ring->failed_head;
        ring->failed_head = ring->slots[index].next;
        deliver(ring, index, ring->slots[index].result, &completions[count]);
        count++;
    }
    return count;
}

int vespiary_ring_completions(vespiary_ring *ring, vespiary_completion *completions,
                              uint32_t capacity, uint32_t *count_out)
{
    struct io_event events[EVENTS_PER_CALL];
    uint64_t signalled;
    uint32_t count;
    int result = 0;

    *count_out = 0;
    if (ring->owner != getpid())
        return -ECHILD;
    /* First the eventfd, then the events: what arrives in between signals again. */
    while (read(ring->event_fd, &signalled, sizeof signalled) < 0 && errno == EINTR)
        continue;
    count = take_failed(ring, completions, capacity);
    while (count < capacity) {
        const uint32_t room = capacity - count;
        const long wanted = (long)(room < EVENTS_PER_CALL ? room : EVENTS_PER_CALL);
        const long taken = ring->calls.getevents(ring->context, wanted, events);
        if (taken == -EINTR) {
            /* "A signal is pending", said in place of "none": the next call may know more. */
            signal_waiting(ring);
            break;
        }
        if (taken < 0) {
            result = (int)taken;
            break;
        }
        for (long i = 0; i < taken; i++) {
            const uint32_t index = (uint32_t)events[i].data;
            /* res2 is a second status that some drivers use; an error in it is an error. */
            int64_t reported = events[i].res2 < 0 ? events[i].res2 : events[i].res;
            int64_t final;
            if (reported == -EAGAIN)
                reported = -EIO; /* -EAGAIN is kept for what the kernel did not take */
            if (finish(ring, index, reported, &final)) {
                deliver(ring, index, final, &completions[count]);
                count++;
            }
        }
        if (taken < wanted)
            break;
    }
    if (count == capacity && ring->outstanding > 0)
        signal_waiting(ring);
    *count_out = count;
    return result;
}

/* --- memory ------------------------------------------------------------------------------------ */

#define HUGE_PAGE_BYTES ((size_t)2 * 1024 * 1024)

/* Give every page of the mapping its memory now. */
static int populate(char *mapped, size_t size_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

#ifdef MADV_POPULATE_WRITE
    if (madvise(mapped, size_bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL) /* EINVAL: before Linux 5.14 the advice is unknown */
        return -ENOMEM;
#endif
    for (size_t at = 0; at < size_bytes; at += page)
        ((volatile char *)mapped)[at] = 0;
    return 0;
}

/* Cut a mapping of size_bytes + 2 MiB down to one of size_bytes that starts at a multiple of 2 MiB. */
static char *trim_to_huge_page(char *mapped, size_t size_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t head = (HUGE_PAGE_BYTES - (uintptr_t)mapped % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    const size_t kept = (size_bytes + page - 1) / page * page;
    const size_t rest = size_bytes + HUGE_PAGE_BYTES - head;

    if (head > 0)
        (void)munmap(mapped, head);
    mapped += head;
    if (rest > kept)
        (void)munmap(mapped + kept, rest - kept);
    return mapped;
}

int vespiary_buffer_create(size_t size_bytes, uint32_t flags, void **address_out)
{
    const bool huge = (flags & VESPIARY_BUFFER_HUGE_PAGES) != 0;
    /* mmap aligns to a page, a multiple of 4096; more has to be cut out of a larger piece. */
    const size_t slack = huge ? HUGE_PAGE_BYTES : 0;
    char *mapped;

    if (size_bytes == 0 || size_bytes > SIZE_MAX - HUGE_PAGE_BYTES)
        return -EINVAL;
    if ((flags & ~(uint32_t)(VESPIARY_BUFFER_POPULATE | VESPIARY_BUFFER_HUGE_PAGES)) != 0)
        return -EINVAL;
    mapped = mmap(NULL, size_bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                  0);
    if (mapped == MAP_FAILED)
        return -ENOMEM;
    if (huge) {
        mapped = trim_to_huge_page(mapped, size_bytes);
        (void)madvise(mapped, size_bytes, MADV_HUGEPAGE); /* advice: without it pages are small */
    }
    if ((flags & VESPIARY_BUFFER_POPULATE) && populate(mapped, size_bytes) < 0) {
        (void)munmap(mapped, size_bytes);
        return -ENOMEM;
    }
    *address_out = mapped;
    return 0;
}

void vespiary_buffer_destroy(void *address, size_t size_bytes)
{
    if (address != NULL)
        (void)munmap(address, size_bytes);
}
