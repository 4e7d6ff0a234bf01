/* Memory of slabs that is used again, in the place of mmap and munmap: with two worlds for each input the kernel would
 * do most of the work. The core's sources are compiled with -Dmmap=recycled_mmap and so on (Makefile); this file is not.
 *
 * The core asks for twice a slab and gives back what is not aligned. It gets a block that is, so it gives back the upper
 * half at once; that stays poisoned, as does a slab that nobody has: what reads or writes there is a finding. */
#include <stdint.h>
#include <stdlib.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include "../tests/check.h"

enum { SLAB = 16 * 1024, BLOCK = 2 * SLAB, SPARE_MAX = 256 };

void *recycled_mmap(void *at, size_t bytes, int protection, int flags, int descriptor, off_t offset);
int recycled_munmap(void *at, size_t bytes);
int recycled_madvise(void *at, size_t bytes, int advice);

static void *spare[SPARE_MAX];
static size_t spare_count;

void *recycled_mmap(void *at, size_t bytes, int protection, int flags, int descriptor, off_t offset)
{
    CHECK(!at && bytes == BLOCK && descriptor == -1 && !offset && protection == (PROT_READ | PROT_WRITE) &&
          flags == (MAP_PRIVATE | MAP_ANONYMOUS));
    void *block = spare_count ? spare[--spare_count] : aligned_alloc(BLOCK, BLOCK);
    CHECK(block);
    ASAN_UNPOISON_MEMORY_REGION(block, BLOCK);
    return block;
}

int recycled_munmap(void *at, size_t bytes)
{
    CHECK_EQUAL(bytes, SLAB);
    ASAN_POISON_MEMORY_REGION(at, bytes);
    if ((uintptr_t)at % BLOCK == 0) { /* the slab; else the half above it */
        CHECK(spare_count < SPARE_MAX);
        spare[spare_count++] = at;
    }
    return 0;
}

int recycled_madvise(void *at, size_t bytes, int advice)
{
    (void)at, (void)bytes, (void)advice;
    return 0;
}
