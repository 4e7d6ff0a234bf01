/* Replays what the scanners' fuzzers keep (tests/fuzz/corpus), under sanitizers, where there is no libFuzzer too. Run from
 * the repository's root, as `make native-test` does. */
#include <dirent.h>
#include <stdio.h>

#include "../fuzz/scanner_target.h"
#include "check.h"

enum { LEAST = 20 };

static void replay(const char *folder, const char *name)
{
    static uint8_t data[2 * STREAM_MAX];
    char path[512];
    CHECK(snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path);
    FILE *input = fopen(path, "rb");
    CHECK(input);
    size_t length = fread(data, 1, sizeof data, input);
    CHECK(!ferror(input) && length < sizeof data);
    CHECK_EQUAL(fclose(input), 0);
    fuzz_one(data, length);
}

int main(void)
{
    for (size_t i = 0; i < FUZZ_PROTOCOLS_COUNT; i++) {
        const char *name = FUZZ_PROTOCOLS[i].name;
        char folder[256];
        uint32_t count = 0;
        CHECK(fuzz_choose(name));
        CHECK(snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s_scanner", name) < (int)sizeof folder);
        DIR *inputs = opendir(folder);
        if (!inputs) {
            fprintf(stderr, "there is no %s: run this from the repository's root, where each scanner has a corpus\n", folder);
            return 1;
        }
        for (struct dirent *each; (each = readdir(inputs));)
            if (each->d_name[0] != '.') {
                replay(folder, each->d_name);
                count++;
            }
        CHECK_EQUAL(closedir(inputs), 0);
        CHECK(count >= LEAST); /* fewer reach little: `make corpus` */
        printf("%s: %u inputs\n", name, count);
    }
    return 0;
}
