/* The ring over real files with O_DIRECT, and over system calls that misbehave in known ways. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"
#include "aio.h"
#include "check.h"

enum { PAGE = 4096, FILE_BYTES = 64 * PAGE };

static int open_file(void)
{
    const char *folder = getenv("TMPDIR");
    char path[512];
    int plain, direct;
    static const char zeros[FILE_BYTES];

    CHECK(snprintf(path, sizeof path, "%s/vespiary-aio-XXXXXX", folder ? folder : "/tmp") < 512);
    plain = mkstemp(path);
    CHECK(plain >= 0);
    CHECK_EQUAL(write(plain, zeros, FILE_BYTES), FILE_BYTES);
    CHECK_EQUAL(fsync(plain), 0);
    direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    CHECK_EQUAL(unlink(path), 0);
    if (direct < 0) {
        printf("aio: %s has no O_DIRECT: buffered\n", folder ? folder : "/tmp");
        return plain;
    }
    CHECK_EQUAL(close(plain), 0);
    return direct;
}

static vespiary_ring *make_ring(uint32_t depth, uint32_t flags, const vespiary_aio_calls *calls)
{
    vespiary_ring *ring = NULL;
    CHECK_EQUAL(vespiary_ring_create_over(depth, flags, calls, &ring), 0);
    return ring;
}

static char *make_buffer(size_t size_bytes)
{
    void *address = NULL;
    CHECK_EQUAL(vespiary_buffer_create(size_bytes, VESPIARY_BUFFER_POPULATE, &address), 0);
    CHECK_EQUAL((uintptr_t)address % VESPIARY_BUFFER_ALIGNMENT, 0);
    return address;
}

/* Waits for the eventfd, takes up to `capacity` completions until `count` have come. */
static void take(vespiary_ring *ring, vespiary_completion *completions, uint32_t count,
                 uint32_t capacity)
{
    uint32_t have = 0;

    while (have < count) {
        struct pollfd waiting = {.fd = vespiary_ring_eventfd(ring), .events = POLLIN};
        uint32_t taken, room = count - have < capacity ? count - have : capacity;
        CHECK_EQUAL(poll(&waiting, 1, 10000), 1);
        CHECK_EQUAL(vespiary_ring_completions(ring, completions + have, room, &taken), 0);
        have += taken;
    }
}

static int64_t run_one(vespiary_ring *ring, uint32_t kind, int fd, const char *address,
                       uint32_t length, int64_t offset)
{
    vespiary_completion completion;
    CHECK_EQUAL(vespiary_ring_submit_one(ring, kind, fd, (uintptr_t)address, length, offset, 77), 0);
    CHECK_EQUAL(vespiary_ring_outstanding(ring), 1);
    take(ring, &completion, 1, 1);
    CHECK_EQUAL(completion.token, 77);
    CHECK_EQUAL(vespiary_ring_outstanding(ring), 0);
    return completion.result;
}

static void test_write_read_sync(uint32_t flags)
{
    const int fd = open_file();
    vespiary_ring *ring = make_ring(4, flags, NULL);
    char *out = make_buffer(2 * PAGE), *in = make_buffer(2 * PAGE);

    memset(out, 0x5a, 2 * PAGE);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_DURABLE_WRITE, fd, out, 2 * PAGE, PAGE), 2 * PAGE);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_READ, fd, in, 2 * PAGE, PAGE), 2 * PAGE);
    CHECK(memcmp(in, out, 2 * PAGE) == 0);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_WRITE, fd, out, PAGE, 0), PAGE);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_SYNC, fd, NULL, 0, 0), 0);
    /* A short result is handed up as it is: the file ends one page into this read. */
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_READ, fd, in, 2 * PAGE, FILE_BYTES - PAGE), PAGE);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_READ, fd, in, PAGE, FILE_BYTES + PAGE), 0);
    vespiary_buffer_destroy(out, 2 * PAGE);
    vespiary_buffer_destroy(in, 2 * PAGE);
    vespiary_ring_destroy(ring);
    CHECK_EQUAL(close(fd), 0);
}

static void test_errors_are_completions(uint32_t flags)
{
    const int fd = open_file();
    const int read_only = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    vespiary_ring *ring = make_ring(2, flags, NULL);
    char *buffer = make_buffer(2 * PAGE);

    CHECK_EQUAL(run_one(ring, VESPIARY_RING_DURABLE_WRITE, -1, buffer, PAGE, 0), -EBADF);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_READ, 1000000, buffer, PAGE, 0), -EBADF);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_SYNC, -1, NULL, 0, 0), -EBADF);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_DURABLE_WRITE, read_only, buffer, PAGE, 0), -EBADF);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_READ, fd, (char *)PAGE, PAGE, 0), -EFAULT);
    if (fcntl(fd, F_GETFL) & O_DIRECT)
        CHECK_EQUAL(run_one(ring, VESPIARY_RING_DURABLE_WRITE, fd, buffer + 1, PAGE, 0), -EINVAL);
    vespiary_buffer_destroy(buffer, 2 * PAGE);
    vespiary_ring_destroy(ring);
    CHECK_EQUAL(close(read_only), 0);
    CHECK_EQUAL(close(fd), 0);
}

static void test_arguments(void)
{
    vespiary_ring *ring = NULL;
    vespiary_completion completion;
    uint32_t count = 9;
    const vespiary_request good = {.kind = VESPIARY_RING_SYNC, .fd = -1, .token = 1};
    vespiary_request pair[2] = {good, good};

    CHECK_EQUAL(vespiary_ring_create(0, 0, &ring), -EINVAL);
    CHECK_EQUAL(vespiary_ring_create(VESPIARY_RING_DEPTH_MAX + 1u, 0, &ring), -EINVAL);
    CHECK_EQUAL(vespiary_ring_create(1, 2, &ring), -EINVAL);
    CHECK(ring == NULL);
    vespiary_ring_destroy(NULL);

    ring = make_ring(1, 0, NULL);
    CHECK_EQUAL(vespiary_ring_submit_one(ring, 4, 0, 0, 1, 0, 0), -EINVAL);
    CHECK_EQUAL(vespiary_ring_submit_one(ring, VESPIARY_RING_READ, 0, 0, 0, 0, 0), -EINVAL);
    CHECK_EQUAL(vespiary_ring_submit_one(ring, VESPIARY_RING_READ, 0, 0, 1, -1, 0), -EINVAL);
    CHECK_EQUAL(vespiary_ring_submit_one(ring, VESPIARY_RING_WRITE, 0, 0, 0x7ffff001u, 0, 0), -EINVAL);
    /* One bad request in a batch: nothing of it is accepted. */
    pair[1].kind = 4;
    CHECK_EQUAL(vespiary_ring_submit(ring, pair, 2, &count), -EINVAL);
    CHECK_EQUAL(count, 0);
    CHECK_EQUAL(vespiary_ring_outstanding(ring), 0);
    CHECK_EQUAL(vespiary_ring_submit(ring, NULL, 0, &count), 0);
    /* Two into a ring of one: the first is accepted, then it is full. */
    pair[1].kind = VESPIARY_RING_SYNC;
    CHECK_EQUAL(vespiary_ring_submit(ring, pair, 2, &count), 0);
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(vespiary_ring_submit(ring, pair, 1, &count), -EAGAIN);
    CHECK_EQUAL(count, 0);
    take(ring, &completion, 1, 1);
    CHECK_EQUAL(completion.result, -EBADF);
    CHECK_EQUAL(vespiary_ring_completions(ring, &completion, 1, &count), 0);
    CHECK_EQUAL(count, 0);
    vespiary_ring_destroy(ring);
}

static void test_exhaustion(void)
{
    FILE *setting = fopen("/proc/sys/fs/aio-max-nr", "r");
    unsigned long maximum = 0;
    vespiary_ring *ring = NULL;

    CHECK(setting != NULL);
    CHECK_EQUAL(fscanf(setting, "%lu", &maximum), 1);
    CHECK_EQUAL(fclose(setting), 0);
    if (maximum >= VESPIARY_RING_DEPTH_MAX) {
        printf("aio: fs.aio-max-nr is %lu: exhaustion not tried\n", maximum);
        return;
    }
    CHECK_EQUAL(vespiary_ring_create((uint32_t)maximum + 1, 0, &ring), -EAGAIN);
    CHECK(ring == NULL);
    /* A closed ring gives its share back: nine eighths of the maximum in all. */
    for (int round = 0; round < 9; round++)
        vespiary_ring_destroy(make_ring((uint32_t)maximum / 8, 0, NULL));
}

/* Many requests of all kinds at once, taken three at a time: each token comes back exactly once. */
static void test_many_outstanding(uint32_t flags)
{
    enum { COUNT = 200 };
    const int fd = open_file();
    vespiary_ring *ring = make_ring(COUNT, flags, NULL);
    char *buffer = make_buffer(FILE_BYTES);
    vespiary_request requests[COUNT];
    vespiary_completion completions[COUNT];
    uint8_t seen[COUNT] = {0};
    uint32_t accepted;

    for (uint32_t i = 0; i < COUNT; i++)
        requests[i] = (vespiary_request){
            .token = UINT64_MAX - i,
            .address = (uintptr_t)buffer + i % 64 * PAGE,
            .offset = i % 64 * PAGE,
            .length = PAGE,
            .fd = i % 10 == 9 ? -1 : fd,
            .kind = i % 4,
        };
    CHECK_EQUAL(vespiary_ring_submit(ring, requests, COUNT, &accepted), 0);
    CHECK_EQUAL(accepted, COUNT);
    take(ring, completions, COUNT, 3);
    CHECK_EQUAL(vespiary_ring_outstanding(ring), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint64_t number = UINT64_MAX - completions[i].token;
        CHECK(number < COUNT && !seen[number]);
        seen[number] = 1;
        CHECK_EQUAL(completions[i].result, number % 10 == 9  ? -EBADF
                                           : number % 4 == VESPIARY_RING_SYNC ? 0
                                                                              : PAGE);
    }
    vespiary_buffer_destroy(buffer, FILE_BYTES);
    vespiary_ring_destroy(ring);
    CHECK_EQUAL(close(fd), 0);
}

/* destroy() may return only when the kernel no longer needs the memory. */
static void test_destroy_with_outstanding(uint32_t flags)
{
    const int fd = open_file();

    for (int round = 0; round < 20; round++) {
        vespiary_ring *ring = make_ring(64, flags, NULL);
        char *buffer = make_buffer(FILE_BYTES);
        for (uint32_t i = 0; i < 64; i++)
            CHECK_EQUAL(vespiary_ring_submit_one(ring, i % 4, fd, (uintptr_t)buffer + i * PAGE, PAGE,
                                                 i * PAGE, i),
                        0);
        vespiary_ring_destroy(ring);
        vespiary_buffer_destroy(buffer, FILE_BYTES);
    }
    CHECK_EQUAL(close(fd), 0);
}

static void test_fork_is_refused(void)
{
    const int fd = open_file();
    vespiary_ring *ring = make_ring(2, 0, NULL);
    char *buffer = make_buffer(PAGE);
    vespiary_completion completion;
    int status;
    pid_t child;

    CHECK_EQUAL(vespiary_ring_submit_one(ring, VESPIARY_RING_DURABLE_WRITE, fd, (uintptr_t)buffer,
                                         PAGE, 0, 5),
                0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uint32_t count = 7;
        CHECK_EQUAL(vespiary_ring_submit_one(ring, VESPIARY_RING_SYNC, fd, 0, 0, 0, 1), -ECHILD);
        CHECK_EQUAL(vespiary_ring_completions(ring, &completion, 1, &count), -ECHILD);
        CHECK_EQUAL(count, 0);
        vespiary_ring_destroy(ring);
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    take(ring, &completion, 1, 1);
    CHECK_EQUAL(completion.token, 5);
    CHECK_EQUAL(completion.result, PAGE);
    vespiary_buffer_destroy(buffer, PAGE);
    vespiary_ring_destroy(ring);
    CHECK_EQUAL(close(fd), 0);
}

/* --- system calls that misbehave ------------------------------------------------------------------ */

/* A kernel that finishes requests at once, as its script says. One at a time, for this file only. */
static struct script {
    struct io_event ready[256];
    struct iocb taken[256]; /* every iocb accepted, in order */
    uint32_t ready_count, taken_count, submit_calls;
    long interruptions;     /* so many submissions end with EINTR first */
    long submit_limit;      /* takes at most so many per call; 0: no limit */
    long refuse_dsync;      /* -errno for a write with RWF_DSYNC at submission, 0: takes it */
    int64_t dsync_result;   /* result of such a write when it is not refused; 0: its length */
    int64_t sync_result;
    long sync_refusal;      /* -errno at the submission of a sync */
    int64_t write_shortage; /* bytes that a write falls short */
    int64_t res2;
    long getevents_error;   /* said once */
} script;

static int scripted_setup(uint32_t depth, aio_context_t *context_out)
{
    *context_out = depth;
    return 0;
}

static int scripted_destroy(aio_context_t context)
{
    (void)context;
    return 0;
}

static long scripted_submit(aio_context_t context, long count, struct iocb **iocbs)
{
    long taken = 0;

    (void)context;
    script.submit_calls++;
    if (script.interruptions > 0) {
        script.interruptions--;
        return -EINTR;
    }
    for (; taken < count && (script.submit_limit == 0 || taken < script.submit_limit); taken++) {
        const struct iocb *iocb = iocbs[taken];
        const bool sync = iocb->aio_lio_opcode == IOCB_CMD_FDSYNC;
        const bool dsync = (iocb->aio_rw_flags & RWF_DSYNC) != 0;
        int64_t result = sync ? script.sync_result : (int64_t)iocb->aio_nbytes - script.write_shortage;

        CHECK(iocb->aio_flags & IOCB_FLAG_RESFD);
        if (dsync && script.refuse_dsync != 0)
            return taken > 0 ? taken : script.refuse_dsync;
        if (sync && script.sync_refusal != 0)
            return taken > 0 ? taken : script.sync_refusal;
        if (dsync && script.dsync_result != 0)
            result = script.dsync_result;
        script.taken[script.taken_count++] = *iocb;
        script.ready[script.ready_count++] =
            (struct io_event){.data = iocb->aio_data, .res = result, .res2 = script.res2};
    }
    return taken;
}

static long scripted_getevents(aio_context_t context, long capacity, struct io_event *events)
{
    const long error = script.getevents_error;
    uint32_t count = script.ready_count < (uint32_t)capacity ? script.ready_count : (uint32_t)capacity;

    (void)context;
    script.getevents_error = 0;
    if (error != 0)
        return error;
    memcpy(events, script.ready, count * sizeof *events);
    memmove(script.ready, script.ready + count, (script.ready_count - count) * sizeof *events);
    script.ready_count -= count;
    return (long)count;
}

static const vespiary_aio_calls scripted_calls = {
    .setup = scripted_setup,
    .destroy = scripted_destroy,
    .submit = scripted_submit,
    .getevents = scripted_getevents,
};

/* Runs one durable write of a page by the script and returns its result. */
static int64_t scripted_write(struct script plan, uint32_t flags)
{
    vespiary_ring *ring = make_ring(1, flags, &scripted_calls);
    vespiary_completion completion = {0};
    uint32_t count = 0;

    script = plan;
    CHECK_EQUAL(vespiary_ring_submit_one(ring, VESPIARY_RING_DURABLE_WRITE, 3, PAGE, PAGE, 0, 8), 0);
    for (int calls = 0; count == 0; calls++) {
        CHECK(calls < 4);
        CHECK_EQUAL(vespiary_ring_completions(ring, &completion, 1, &count), 0);
    }
    CHECK_EQUAL(completion.token, 8);
    CHECK_EQUAL(vespiary_ring_outstanding(ring), 0);
    vespiary_ring_destroy(ring);
    return completion.result;
}

/* What was handed to the scripted kernel: W write, D write with RWF_DSYNC, S sync. */
static const char *trace(void)
{
    static char letters[257];
    for (uint32_t i = 0; i < script.taken_count; i++)
        letters[i] = script.taken[i].aio_lio_opcode == IOCB_CMD_FDSYNC ? 'S'
                     : script.taken[i].aio_rw_flags & RWF_DSYNC        ? 'D'
                                                                       : 'W';
    letters[script.taken_count] = 0;
    return letters;
}

#define CHECK_TRACE(expected) CHECK(strcmp(trace(), expected) == 0)

static void test_durable_write_paths(void)
{
    const uint32_t then_sync = VESPIARY_RING_WRITE_THEN_SYNC;

    CHECK_EQUAL(scripted_write((struct script){0}, 0), PAGE);
    CHECK_TRACE("D");
    CHECK_EQUAL(scripted_write((struct script){0}, then_sync), PAGE);
    CHECK_TRACE("WS");
    /* Refused at submission, by a filesystem (EOPNOTSUPP) or by an old kernel (EINVAL). */
    CHECK_EQUAL(scripted_write((struct script){.refuse_dsync = -EOPNOTSUPP}, 0), PAGE);
    CHECK_TRACE("WS");
    CHECK_EQUAL(scripted_write((struct script){.refuse_dsync = -EINVAL}, 0), PAGE);
    CHECK_TRACE("WS");
    /* Refused when it ran. EINVAL there is misalignment and no reason to try again. */
    CHECK_EQUAL(scripted_write((struct script){.dsync_result = -EOPNOTSUPP}, 0), PAGE);
    CHECK_TRACE("DWS");
    CHECK_EQUAL(scripted_write((struct script){.dsync_result = -EINVAL}, 0), -EINVAL);
    CHECK_TRACE("D");
    /* Other errors are final. */
    CHECK_EQUAL(scripted_write((struct script){.refuse_dsync = -EAGAIN}, 0), -EAGAIN);
    CHECK_TRACE("");
    CHECK_EQUAL(scripted_write((struct script){.dsync_result = -EIO}, 0), -EIO);
    CHECK_TRACE("D");
    /* What ran and says EAGAIN is no refusal: nobody may take it for one and try again. */
    CHECK_EQUAL(scripted_write((struct script){.dsync_result = -EAGAIN}, 0), -EIO);
    CHECK_EQUAL(scripted_write((struct script){.sync_result = -EAGAIN}, then_sync), -EIO);
    /* Interrupted before the kernel took anything: handed over again, once. */
    CHECK_EQUAL(scripted_write((struct script){.interruptions = 2}, 0), PAGE);
    CHECK_TRACE("D");
    /* A failed or refused sync is the write's failure; a short write is not synced and says so. */
    CHECK_EQUAL(scripted_write((struct script){.sync_result = -EIO}, then_sync), -EIO);
    CHECK_TRACE("WS");
    CHECK_EQUAL(scripted_write((struct script){.sync_refusal = -EINVAL}, then_sync), -EINVAL);
    CHECK_TRACE("W");
    CHECK_EQUAL(scripted_write((struct script){.write_shortage = 512}, then_sync), PAGE - 512);
    CHECK_TRACE("W");
    CHECK_EQUAL(scripted_write((struct script){.write_shortage = 512}, 0), PAGE - 512);
    CHECK_TRACE("D");
    CHECK_EQUAL(scripted_write((struct script){.res2 = -EIO}, 0), -EIO);
    /* A pending signal is not an error. */
    CHECK_EQUAL(scripted_write((struct script){.getevents_error = -EINTR}, 0), PAGE);
    CHECK_TRACE("D");
}

static void test_interruption_leaves_the_eventfd_readable(void)
{
    vespiary_ring *ring = make_ring(1, 0, &scripted_calls);
    struct pollfd waiting = {.fd = vespiary_ring_eventfd(ring), .events = POLLIN};
    vespiary_completion completion;
    uint32_t count;

    script = (struct script){.getevents_error = -EINTR};
    CHECK_EQUAL(vespiary_ring_submit_one(ring, VESPIARY_RING_SYNC, 3, 0, 0, 0, 8), 0);
    CHECK_EQUAL(vespiary_ring_completions(ring, &completion, 1, &count), 0);
    CHECK_EQUAL(count, 0);
    CHECK_EQUAL(poll(&waiting, 1, 0), 1);
    script.getevents_error = -EINVAL;
    CHECK_EQUAL(vespiary_ring_completions(ring, &completion, 1, &count), -EINVAL);
    CHECK_EQUAL(count, 0);
    CHECK_EQUAL(vespiary_ring_outstanding(ring), 1);
    vespiary_ring_destroy(ring);
}

static void test_partial_submission(void)
{
    enum { COUNT = 150 };
    vespiary_ring *ring = make_ring(COUNT, 0, &scripted_calls);
    vespiary_request requests[COUNT];
    vespiary_completion completions[COUNT];
    uint32_t accepted, count;

    for (uint32_t i = 0; i < COUNT; i++)
        requests[i] = (vespiary_request){
            .token = i, .address = PAGE, .length = PAGE, .fd = 3, .kind = VESPIARY_RING_DURABLE_WRITE};
    script = (struct script){0};
    CHECK_EQUAL(vespiary_ring_submit(ring, requests, COUNT, &accepted), 0);
    CHECK_EQUAL(accepted, COUNT);
    CHECK_EQUAL(script.submit_calls, 3); /* 64 + 64 + 22 */
    CHECK_EQUAL(vespiary_ring_completions(ring, completions, COUNT, &count), 0);
    CHECK_EQUAL(count, COUNT);

    /* Seven at a time, every DSYNC refused: all are still written and synced, each once. */
    script = (struct script){.submit_limit = 7, .refuse_dsync = -EOPNOTSUPP};
    CHECK_EQUAL(vespiary_ring_submit(ring, requests, 100, &accepted), 0);
    CHECK_EQUAL(accepted, 100);
    CHECK_EQUAL(script.taken_count, 100);
    for (uint32_t have = 0; have < 100; have += count)
        CHECK_EQUAL(vespiary_ring_completions(ring, completions + have, 100 - have, &count), 0);
    for (uint32_t i = 0; i < 100; i++) {
        CHECK_EQUAL(completions[i].token, i);
        CHECK_EQUAL(completions[i].result, PAGE);
    }
    CHECK_EQUAL(script.taken_count, 200);

    /* A kernel that takes none at all: errors, not an endless loop. */
    script = (struct script){.refuse_dsync = -ENOMEM};
    CHECK_EQUAL(vespiary_ring_submit(ring, requests, COUNT, &accepted), 0);
    CHECK_EQUAL(accepted, COUNT);
    CHECK_EQUAL(vespiary_ring_completions(ring, completions, COUNT, &count), 0);
    CHECK_EQUAL(count, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_EQUAL(completions[i].token, i);
        CHECK_EQUAL(completions[i].result, -ENOMEM);
    }
    vespiary_ring_destroy(ring);
}

static void test_buffers(void)
{
    const size_t sizes[] = {1, PAGE, PAGE + 1, 2 << 20, (5 << 20) + 4096};
    void *address = NULL;

    CHECK_EQUAL(vespiary_buffer_create(0, 0, &address), -EINVAL);
    CHECK_EQUAL(vespiary_buffer_create(SIZE_MAX, 0, &address), -EINVAL);
    CHECK_EQUAL(vespiary_buffer_create(PAGE, 4, &address), -EINVAL);
    CHECK_EQUAL(vespiary_buffer_create((size_t)1 << 60, 0, &address), -ENOMEM);
    CHECK(address == NULL);
    vespiary_buffer_destroy(NULL, PAGE);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (uint32_t flags = 0; flags < 4; flags++) {
            const uintptr_t alignment = flags & VESPIARY_BUFFER_HUGE_PAGES ? 2 << 20 : PAGE;
            char *bytes;
            CHECK_EQUAL(vespiary_buffer_create(sizes[i], flags, &address), 0);
            CHECK_EQUAL((uintptr_t)address % alignment, 0);
            bytes = address;
            CHECK_EQUAL(bytes[0] | bytes[sizes[i] - 1], 0);
            bytes[0] = bytes[sizes[i] - 1] = 1;
            vespiary_buffer_destroy(address, sizes[i]);
        }
}

int main(void)
{
    CHECK_EQUAL(vespiary_abi(), VESPIARY_ABI);
    for (uint32_t flags = 0; flags <= VESPIARY_RING_WRITE_THEN_SYNC; flags++) {
        test_write_read_sync(flags);
        test_errors_are_completions(flags);
        test_many_outstanding(flags);
        test_destroy_with_outstanding(flags);
    }
    test_arguments();
    test_exhaustion();
    test_fork_is_refused();
    test_durable_write_paths();
    test_interruption_leaves_the_eventfd_readable();
    test_partial_submission();
    test_buffers();
    printf("aio: ok\n");
    return 0;
}
