/* rawwrite: what the disk gives to whoever writes durably, without a journal.
 *
 * One write in flight, O_DIRECT with RWF_DSYNC by the kernel's AIO calls, block after block over files that exist and
 * are filled: exactly what the journal submits, and nothing else. Prints one JSON object. It writes only to the files
 * that it is given, and refuses one that is shorter than a block.
 *
 *     rawwrite BLOCK_BYTES SECONDS FILE...
 *
 * Exit codes: 0 good, 1 a call failed, 2 usage. */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, SAMPLES_MAX = 4 << 20 };

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static int fail(const char *what)
{
    fprintf(stderr, "rawwrite: %s: %s\n", what, strerror(errno));
    return 1;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int write_durably(aio_context_t context, int file, void *memory, size_t length, int64_t offset)
{
    struct iocb request = {
        .aio_lio_opcode = IOCB_CMD_PWRITE,
        .aio_fildes = (uint32_t)file,
        .aio_buf = (uint64_t)(uintptr_t)memory,
        .aio_nbytes = length,
        .aio_offset = offset,
        .aio_rw_flags = RWF_DSYNC,
    };
    struct iocb *list[1] = {&request};
    struct io_event event;
    if (syscall(SYS_io_submit, context, 1, list) != 1) {
        return -1;
    }
    long got;
    do {
        got = syscall(SYS_io_getevents, context, 1, 1, &event, NULL);
    } while (got < 0 && errno == EINTR);
    if (got != 1) {
        return -1;
    }
    if (event.res != (int64_t)length) {
        errno = event.res < 0 ? (int)-event.res : EIO;
        return -1;
    }
    return 0;
}

static int run(aio_context_t context, uint8_t *memory, size_t block, double seconds, char **names, int count)
{
    uint32_t *samples = malloc(SAMPLES_MAX * sizeof(*samples));
    if (!samples) {
        return fail("memory");
    }
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), last = begin;
    size_t done = 0;
    for (int index = 0; last < end && done < SAMPLES_MAX; index = (index + 1) % count) {
        int file = open(names[index], O_WRONLY | O_DIRECT);
        struct stat facts;
        if (file < 0 || fstat(file, &facts) < 0 || facts.st_size < (off_t)(PAGE + block)) {
            errno = file < 0 ? errno : EINVAL;
            return fail(names[index]);
        }
        for (int64_t at = PAGE; last < end && done < SAMPLES_MAX && at + (int64_t)block <= facts.st_size;
             at += (int64_t)block) {
            memory[0] = (uint8_t)(memory[0] + 1); /* no two writes are alike */
            if (write_durably(context, file, memory, block, at) < 0) {
                return fail("write");
            }
            uint64_t now = now_ns();
            samples[done++] = (uint32_t)((now - last) / 10);
            last = now;
        }
        if (close(file) < 0) {
            return fail("close");
        }
        last = now_ns();
    }
    double lasted = (double)(last - begin) / 1e9;
    qsort(samples, done, sizeof(*samples), compare);
    printf("{\"count\": %zu, \"bytes\": %zu, \"seconds\": %.6f, \"p50_us\": %.2f, \"p99_us\": %.2f}\n", done, done * block,
           lasted, samples[done / 2] / 100.0, samples[done - 1 - done / 100] / 100.0);
    free(samples);
    return 0;
}

int main(int argc, char **argv)
{
    size_t block = argc > 3 ? strtoul(argv[1], NULL, 10) : 0;
    double seconds = argc > 3 ? strtod(argv[2], NULL) : 0;
    if (block == 0 || block % PAGE || seconds <= 0 || seconds > 600) {
        fprintf(stderr, "usage: rawwrite BLOCK_BYTES SECONDS FILE...\n");
        return 2;
    }
    void *memory;
    aio_context_t context = 0;
    if (posix_memalign(&memory, PAGE, block)) {
        return fail("memory");
    }
    memset(memory, 0x5a, block);
    if (syscall(SYS_io_setup, 1, &context) < 0) {
        return fail("io_setup");
    }
    int code = run(context, memory, block, seconds, argv + 3, argc - 3);
    syscall(SYS_io_destroy, context);
    free(memory);
    return code;
}
