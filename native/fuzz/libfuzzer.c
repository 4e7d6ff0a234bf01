/* What libFuzzer calls. The program's own name says which scanner it feeds: stomp_scanner, mqtt_scanner, ... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scanner_target.h"

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    const char *slash = strrchr((*arguments)[0], '/');
    char name[32];
    (void)count;
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : (*arguments)[0]);
    name[strcspn(name, "_")] = 0;
    if (!fuzz_choose(name)) {
        fprintf(stderr, "'%s' is no scanner: call this program as NAME_scanner\n", name);
        exit(2);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    fuzz_one(data, length);
    return 0;
}
