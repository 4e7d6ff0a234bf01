/* The io_uring ring over real files with O_DIRECT, and over a kernel that misbehaves in known ways. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "uring.h"

enum { PAGE = 4096, FILE_BYTES = 64 * PAGE };

static int open_file(void)
{
    const char *folder = getenv("TMPDIR");
    char path[512];
    int plain, direct;
    static const char zeros[FILE_BYTES];

    CHECK(snprintf(path, sizeof path, "%s/vespiary-uring-XXXXXX", folder ? folder : "/tmp") < 512);
    plain = mkstemp(path);
    CHECK(plain >= 0);
    CHECK_EQUAL(write(plain, zeros, FILE_BYTES), FILE_BYTES);
    CHECK_EQUAL(fsync(plain), 0);
    direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    CHECK_EQUAL(unlink(path), 0);
    if (direct < 0)
        return plain;
    CHECK_EQUAL(close(plain), 0);
    return direct;
}

static vespiary_uring *make_ring(uint32_t depth, uint32_t flags, const vespiary_uring_calls *calls)
{
    vespiary_uring *ring = NULL;
    CHECK_EQUAL(vespiary_uring_create_over(depth, flags, calls, &ring), 0);
    return ring;
}

static char *make_buffer(size_t size_bytes)
{
    void *address = NULL;
    CHECK_EQUAL(vespiary_buffer_create(size_bytes, VESPIARY_BUFFER_POPULATE, &address), 0);
    return address;
}

/* Waits for the eventfd, takes up to `capacity` completions until `count` have come. */
static void take(vespiary_uring *ring, vespiary_completion *completions, uint32_t count,
                 uint32_t capacity)
{
    uint32_t have = 0;

    while (have < count) {
        struct pollfd waiting = {.fd = vespiary_uring_eventfd(ring), .events = POLLIN};
        uint32_t taken, room = count - have < capacity ? count - have : capacity;
        int ready = poll(&waiting, 1, 10000);
        if (ready < 0 && errno == EINTR) /* the kernel finishes requests in this thread */
            continue;
        CHECK_EQUAL(ready, 1);
        CHECK_EQUAL(vespiary_uring_completions(ring, completions + have, room, &taken), 0);
        have += taken;
    }
}

static int64_t run_one(vespiary_uring *ring, uint32_t kind, int fd, const char *address,
                       uint32_t length, int64_t offset)
{
    vespiary_completion completion;
    CHECK_EQUAL(vespiary_uring_submit_one(ring, kind, fd, (uintptr_t)address, length, offset, 77), 0);
    CHECK_EQUAL(vespiary_uring_outstanding(ring), 1);
    take(ring, &completion, 1, 1);
    CHECK_EQUAL(completion.token, 77);
    CHECK_EQUAL(vespiary_uring_outstanding(ring), 0);
    return completion.result;
}

static void test_write_read_sync(uint32_t flags)
{
    const int fd = open_file();
    vespiary_uring *ring = make_ring(4, flags, NULL);
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
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_DURABLE_WRITE, -1, out, PAGE, 0), -EBADF);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_SYNC, -1, NULL, 0, 0), -EBADF);
    CHECK_EQUAL(run_one(ring, VESPIARY_RING_READ, fd, (char *)PAGE, PAGE, 0), -EFAULT);
    if (fcntl(fd, F_GETFL) & O_DIRECT)
        CHECK_EQUAL(run_one(ring, VESPIARY_RING_DURABLE_WRITE, fd, out + 1, PAGE, 0), -EINVAL);
    vespiary_buffer_destroy(out, 2 * PAGE);
    vespiary_buffer_destroy(in, 2 * PAGE);
    vespiary_uring_destroy(ring);
    CHECK_EQUAL(close(fd), 0);
}

/* Many requests of all kinds at once, taken three at a time: each token comes back exactly once. */
static void test_many_outstanding(uint32_t flags)
{
    enum { COUNT = 200 };
    const int fd = open_file();
    vespiary_uring *ring = make_ring(COUNT, flags, NULL);
    char *buffer = make_buffer(FILE_BYTES);
    vespiary_completion completions[COUNT];
    uint8_t seen[COUNT] = {0};

    for (uint32_t i = 0; i < COUNT; i++)
        CHECK_EQUAL(vespiary_uring_submit_one(ring, i % 4, i % 10 == 9 ? -1 : fd,
                                              (uintptr_t)buffer + i % 64 * PAGE, PAGE, i % 64 * PAGE,
                                              UINT64_MAX - i),
                    0);
    CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_SYNC, fd, 0, 0, 0, 1), -EAGAIN);
    take(ring, completions, COUNT, 3);
    CHECK_EQUAL(vespiary_uring_outstanding(ring), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint64_t number = UINT64_MAX - completions[i].token;
        CHECK(number < COUNT && !seen[number]);
        seen[number] = 1;
        CHECK_EQUAL(completions[i].result, number % 10 == 9  ? -EBADF
                                           : number % 4 == VESPIARY_RING_SYNC ? 0
                                                                              : PAGE);
    }
    vespiary_buffer_destroy(buffer, FILE_BYTES);
    vespiary_uring_destroy(ring);
    CHECK_EQUAL(close(fd), 0);
}

/* destroy() may return only when the kernel no longer needs the memory. */
static void test_destroy_with_outstanding(uint32_t flags)
{
    const int fd = open_file();

    for (int round = 0; round < 20; round++) {
        vespiary_uring *ring = make_ring(64, flags, NULL);
        char *buffer = make_buffer(FILE_BYTES);
        for (uint32_t i = 0; i < 64; i++)
            CHECK_EQUAL(vespiary_uring_submit_one(ring, i % 4, fd, (uintptr_t)buffer + i * PAGE,
                                                  PAGE, i * PAGE, i),
                        0);
        vespiary_uring_destroy(ring);
        vespiary_buffer_destroy(buffer, FILE_BYTES);
    }
    CHECK_EQUAL(close(fd), 0);
}

static void test_arguments(void)
{
    vespiary_uring *ring = NULL;
    vespiary_completion completion;
    uint32_t count = 9;

    CHECK_EQUAL(vespiary_uring_create(0, 0, &ring), -EINVAL);
    CHECK_EQUAL(vespiary_uring_create(VESPIARY_URING_DEPTH_MAX + 1u, 0, &ring), -EINVAL);
    CHECK_EQUAL(vespiary_uring_create(1, 2, &ring), -EINVAL);
    CHECK(ring == NULL);
    vespiary_uring_destroy(NULL);

    ring = make_ring(VESPIARY_URING_DEPTH_MAX, 0, NULL);
    CHECK_EQUAL(vespiary_uring_submit_one(ring, 4, 0, 0, 1, 0, 0), -EINVAL);
    CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_READ, 0, 0, 0, 0, 0), -EINVAL);
    CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_READ, 0, 0, 1, -1, 0), -EINVAL);
    CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_WRITE, 0, 0, 0x7ffff001u, 0, 0),
                -EINVAL);
    CHECK_EQUAL(vespiary_uring_outstanding(ring), 0);
    CHECK_EQUAL(vespiary_uring_completions(ring, &completion, 1, &count), 0);
    CHECK_EQUAL(count, 0);
    vespiary_uring_destroy(ring);
}

static void test_fork_is_refused(void)
{
    const int fd = open_file();
    vespiary_uring *ring = make_ring(2, 0, NULL);
    char *buffer = make_buffer(PAGE);
    vespiary_completion completion;
    int status;
    pid_t child;

    CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_DURABLE_WRITE, fd, (uintptr_t)buffer,
                                          PAGE, 0, 5),
                0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uint32_t count = 7;
        CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_SYNC, fd, 0, 0, 0, 1), -ECHILD);
        CHECK_EQUAL(vespiary_uring_completions(ring, &completion, 1, &count), -ECHILD);
        CHECK_EQUAL(count, 0);
        vespiary_uring_destroy(ring);
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    take(ring, &completion, 1, 1);
    CHECK_EQUAL(completion.token, 5);
    CHECK_EQUAL(completion.result, PAGE);
    vespiary_buffer_destroy(buffer, PAGE);
    vespiary_uring_destroy(ring);
    CHECK_EQUAL(close(fd), 0);
}

/* --- a kernel that misbehaves ---------------------------------------------------------------------- */

/* A kernel that finishes requests at once, as its script says. One ring at a time. */
static struct script {
    struct io_uring_sqe taken[64]; /* every entry accepted, in order */
    uint32_t taken_count, enter_calls, waits;
    int setup_result;       /* -errno; 0: works */
    uint32_t features_less; /* features that it lacks */
    int failing_map;        /* 1 or 2: that mapping can't be had */
    int register_result;
    int enter_result;       /* -errno of the first `enter_failures` calls, before taking anything */
    int enter_failures;
    int late_result;        /* said by each call after it took the entry; 0: 1 taken */
    int32_t dsync_result;   /* result of a write with RWF_DSYNC; 0: its length */
    int32_t sync_result;
    int32_t write_shortage; /* bytes that a write falls short */
    bool holds;             /* completions come only with a call that waits */
} script;

static struct {
    uint32_t sq_head, sq_tail, sq_mask, sq_array[2], cq_head, cq_tail, cq_mask;
    struct io_uring_cqe cqes[8];
} queues;
static struct io_uring_sqe entries[2];
static uint32_t held; /* completions written behind the tail, not yet shown */
static int maps, unmaps, closes, registered;

static int scripted_setup(uint32_t count, struct io_uring_params *params)
{
    CHECK_EQUAL(count, 1);
    if (script.setup_result < 0)
        return script.setup_result;
    memset(&queues, 0, sizeof queues);
    held = 0;
    queues.cq_mask = 7;
    params->sq_entries = 1;
    params->cq_entries = 8;
    params->features =
        (IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS)
        & ~script.features_less;
#define AT(field) (uint32_t)((char *)&queues.field - (char *)&queues)
    params->sq_off = (struct io_sqring_offsets){
        .head = AT(sq_head), .tail = AT(sq_tail), .ring_mask = AT(sq_mask), .array = AT(sq_array)};
    params->cq_off = (struct io_cqring_offsets){
        .head = AT(cq_head), .tail = AT(cq_tail), .ring_mask = AT(cq_mask), .cqes = AT(cqes)};
    return 1000;
}

static void complete(uint64_t user_data, int32_t result)
{
    queues.cqes[(queues.cq_tail + held) & queues.cq_mask] =
        (struct io_uring_cqe){.user_data = user_data, .res = result};
    held++;
}

static void show(void)
{
    const uint64_t one = 1;
    if (held > 0)
        CHECK_EQUAL(write(registered, &one, sizeof one), sizeof one);
    queues.cq_tail += held;
    held = 0;
}

static int scripted_enter(int fd, uint32_t to_submit, uint32_t min_complete, uint32_t flags)
{
    const struct io_uring_sqe *entry = &entries[queues.sq_array[0]];

    CHECK_EQUAL(fd, 1000);
    script.enter_calls++;
    if (script.enter_failures > 0) {
        script.enter_failures--;
        return script.enter_result;
    }
    if (min_complete > 0) {
        CHECK_EQUAL(flags, IORING_ENTER_GETEVENTS);
        script.waits++;
        show();
        return 0;
    }
    CHECK_EQUAL(to_submit, 1);
    CHECK_EQUAL(queues.sq_tail - queues.sq_head, 1);
    script.taken[script.taken_count++] = *entry;
    queues.sq_head++;
    if (entry->opcode == IORING_OP_FSYNC)
        complete(entry->user_data, script.sync_result);
    else if (entry->rw_flags == RWF_DSYNC && script.dsync_result != 0)
        complete(entry->user_data, script.dsync_result);
    else
        complete(entry->user_data, (int32_t)entry->len - script.write_shortage);
    if (!script.holds)
        show();
    return script.late_result != 0 ? script.late_result : 1;
}

static int scripted_register(int fd, int event_fd)
{
    CHECK_EQUAL(fd, 1000);
    registered = event_fd;
    return script.register_result;
}

static void *scripted_map(int fd, size_t size_bytes, uint64_t offset)
{
    CHECK_EQUAL(fd, 1000);
    if (++maps == script.failing_map)
        return NULL;
    if (offset == IORING_OFF_SQES) {
        CHECK(size_bytes <= sizeof entries);
        return entries;
    }
    CHECK_EQUAL(offset, IORING_OFF_SQ_RING);
    CHECK(size_bytes <= sizeof queues);
    return &queues;
}

static void scripted_unmap(void *address, size_t size_bytes)
{
    (void)address;
    (void)size_bytes;
    unmaps++;
}

static void scripted_close(int fd)
{
    CHECK_EQUAL(fd, 1000);
    closes++;
}

static const vespiary_uring_calls scripted_calls = {
    .setup = scripted_setup,
    .enter = scripted_enter,
    .register_eventfd = scripted_register,
    .map = scripted_map,
    .unmap = scripted_unmap,
    .close = scripted_close,
};

static void begin(struct script plan)
{
    script = plan;
    maps = unmaps = closes = 0;
}

static void test_creation_gives_back_what_it_took(void)
{
    const struct {
        struct script plan;
        int result, maps, closes;
    } cases[] = {
        {{.setup_result = -EPERM}, -EPERM, 0, 0},
        {{.setup_result = -ENOSYS}, -ENOSYS, 0, 0},
        {{.setup_result = -EINVAL}, -EOPNOTSUPP, 0, 0},
        {{.features_less = IORING_FEAT_RW_CUR_POS}, -EOPNOTSUPP, 0, 1},
        {{.features_less = IORING_FEAT_NODROP}, -EOPNOTSUPP, 0, 1},
        {{.failing_map = 1}, -ENOMEM, 0, 1},
        {{.failing_map = 2}, -ENOMEM, 1, 1},
        {{.register_result = -EBUSY}, -EBUSY, 2, 1},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        vespiary_uring *ring = NULL;
        begin(cases[i].plan);
        CHECK_EQUAL(vespiary_uring_create_over(1, 0, &scripted_calls, &ring), cases[i].result);
        CHECK(ring == NULL);
        CHECK_EQUAL(unmaps, cases[i].maps);
        CHECK_EQUAL(closes, cases[i].closes);
    }
}

/* Runs one durable write of a page by the script and returns its result. */
static int64_t scripted_write(struct script plan, uint32_t flags)
{
    vespiary_uring *ring;
    vespiary_completion completion = {0};
    uint32_t count = 0;
    struct pollfd waiting = {.events = POLLIN};

    begin(plan);
    ring = make_ring(1, flags, &scripted_calls);
    waiting.fd = vespiary_uring_eventfd(ring);
    CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_DURABLE_WRITE, 3, PAGE, PAGE, 0, 8), 0);
    for (int calls = 0; count == 0; calls++) {
        CHECK(calls < 4);
        CHECK_EQUAL(poll(&waiting, 1, 0), 1); /* nothing ends without a signal */
        CHECK_EQUAL(vespiary_uring_completions(ring, &completion, 1, &count), 0);
    }
    CHECK_EQUAL(completion.token, 8);
    CHECK_EQUAL(vespiary_uring_outstanding(ring), 0);
    CHECK_EQUAL(queues.sq_tail, queues.sq_head); /* no entry is left behind for a later call */
    vespiary_uring_destroy(ring);
    CHECK_EQUAL(unmaps, 2);
    CHECK_EQUAL(closes, 1);
    return completion.result;
}

/* What was handed to the scripted kernel: W write, D write with RWF_DSYNC, S fdatasync. */
static const char *trace(void)
{
    static char letters[65];
    for (uint32_t i = 0; i < script.taken_count; i++) {
        const struct io_uring_sqe *entry = &script.taken[i];
        if (entry->opcode == IORING_OP_FSYNC)
            CHECK_EQUAL(entry->fsync_flags, IORING_FSYNC_DATASYNC);
        letters[i] = entry->opcode == IORING_OP_FSYNC ? 'S'
                     : entry->rw_flags == RWF_DSYNC   ? 'D'
                                                      : 'W';
    }
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
    CHECK_EQUAL(scripted_write((struct script){.dsync_result = -EOPNOTSUPP}, 0), PAGE);
    CHECK_TRACE("DWS");
    /* Other errors are final; EINVAL is misalignment here and no reason to try again. */
    CHECK_EQUAL(scripted_write((struct script){.dsync_result = -EINVAL}, 0), -EINVAL);
    CHECK_TRACE("D");
    CHECK_EQUAL(scripted_write((struct script){.dsync_result = -EIO}, 0), -EIO);
    CHECK_TRACE("D");
    /* What ran and says EAGAIN is no refusal: nobody may take it for one and try again. */
    CHECK_EQUAL(scripted_write((struct script){.dsync_result = -EAGAIN}, 0), -EIO);
    CHECK_EQUAL(scripted_write((struct script){.sync_result = -EAGAIN}, then_sync), -EIO);
    /* A failed sync is the write's failure; a short write is not synced and says so. */
    CHECK_EQUAL(scripted_write((struct script){.sync_result = -EIO}, then_sync), -EIO);
    CHECK_TRACE("WS");
    CHECK_EQUAL(scripted_write((struct script){.write_shortage = 512}, then_sync), PAGE - 512);
    CHECK_TRACE("W");
    CHECK_EQUAL(scripted_write((struct script){.write_shortage = 512}, 0), PAGE - 512);
    CHECK_TRACE("D");
}

static void test_submissions_that_the_kernel_refuses(void)
{
    struct script plan = {.enter_result = -EINTR, .enter_failures = 3};

    /* Interrupted before it took the entry: asked again, and taken once. */
    CHECK_EQUAL(scripted_write(plan, 0), PAGE);
    CHECK_TRACE("D");
    /* Taken, whatever the call says: the completion counts, and nothing is handed over twice. */
    CHECK_EQUAL(scripted_write((struct script){.late_result = -EINTR}, 0), PAGE);
    CHECK_TRACE("D");
    CHECK_EQUAL(scripted_write((struct script){.late_result = -EAGAIN}, 0), PAGE);
    CHECK_TRACE("D");
    /* Not taken: the refusal is the completion. */
    plan = (struct script){.enter_result = -EAGAIN, .enter_failures = 1};
    CHECK_EQUAL(scripted_write(plan, 0), -EAGAIN);
    CHECK_TRACE("");
    plan = (struct script){.enter_result = -EBUSY, .enter_failures = 1};
    CHECK_EQUAL(scripted_write(plan, 0), -EAGAIN);
    CHECK_TRACE("");
    plan = (struct script){.enter_result = 0, .enter_failures = 1};
    CHECK_EQUAL(scripted_write(plan, 0), -EAGAIN);
    CHECK_TRACE("");
}

static void test_a_refused_sync_fails_its_write(void)
{
    vespiary_uring *ring;
    vespiary_completion completion;
    uint32_t count;

    begin((struct script){0});
    ring = make_ring(2, VESPIARY_RING_WRITE_THEN_SYNC, &scripted_calls);
    CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_DURABLE_WRITE, 3, PAGE, PAGE, 0, 8), 0);
    script.enter_result = -ENOMEM;
    script.enter_failures = 1;
    CHECK_EQUAL(vespiary_uring_completions(ring, &completion, 1, &count), 0);
    CHECK_EQUAL(count, 0);
    CHECK_EQUAL(vespiary_uring_completions(ring, &completion, 1, &count), 0);
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(completion.result, -ENOMEM);
    CHECK_TRACE("W");
    vespiary_uring_destroy(ring);
}

/* The end waits for all that the kernel has, through interruptions, and submits nothing new. */
static void test_destroy_waits(void)
{
    vespiary_uring *ring;

    begin((struct script){.holds = true});
    ring = make_ring(4, VESPIARY_RING_WRITE_THEN_SYNC, &scripted_calls);
    for (uint64_t token = 0; token < 3; token++)
        CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_DURABLE_WRITE, 3, PAGE, PAGE, 0,
                                              token),
                    0);
    script.enter_result = -EINTR;
    script.enter_failures = 2;
    vespiary_uring_destroy(ring);
    CHECK_EQUAL(script.waits, 1);
    CHECK_TRACE("WWW");
    CHECK_EQUAL(closes, 1);
}

/* The indexes of the queues run past 2^32, and the entries around the end of their array. */
static void test_indexes_wrap(void)
{
    vespiary_uring *ring;
    vespiary_completion completion;
    uint32_t count;

    begin((struct script){0});
    ring = make_ring(8, 0, &scripted_calls);
    queues.sq_head = queues.sq_tail = UINT32_MAX - 5;
    queues.cq_head = queues.cq_tail = UINT32_MAX - 3;
    for (uint64_t token = 0; token < 20; token++) {
        CHECK_EQUAL(vespiary_uring_submit_one(ring, VESPIARY_RING_SYNC, 3, 0, 0, 0, token), 0);
        CHECK_EQUAL(vespiary_uring_completions(ring, &completion, 1, &count), 0);
        CHECK_EQUAL(count, 1);
        CHECK_EQUAL(completion.token, token);
    }
    vespiary_uring_destroy(ring);
}

static bool is_to_be_had(void)
{
    vespiary_uring *ring = NULL;
    const int result = vespiary_uring_create(1, 0, &ring);

    vespiary_uring_destroy(ring);
    if (result < 0)
        printf("uring: not to be had here (%s): real files not tried\n", strerror(-result));
    return result == 0;
}

int main(void)
{
    test_creation_gives_back_what_it_took();
    test_durable_write_paths();
    test_submissions_that_the_kernel_refuses();
    test_a_refused_sync_fails_its_write();
    test_destroy_waits();
    test_indexes_wrap();
    if (is_to_be_had()) {
        for (uint32_t flags = 0; flags <= VESPIARY_RING_WRITE_THEN_SYNC; flags++) {
            test_write_read_sync(flags);
            test_many_outstanding(flags);
            test_destroy_with_outstanding(flags);
        }
        test_arguments();
        test_fork_is_refused();
    }
    printf("uring: ok\n");
    return 0;
}
