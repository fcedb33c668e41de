/* What a fuzz target offers to its driver: libFuzzer's entry point and seeds.
 * A broken property aborts. */
#ifndef BATON_FUZZ_H
#define BATON_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Seed `index` into out (at most max bytes); its size, or 0 when there is no
 * such seed. */
size_t fuzz_seed(size_t index, uint8_t *out, size_t max);

/* Of the driver that stands in for libFuzzer (not there in libFuzzer's builds):
 * its generator, and one small change to data; returns the new size, at most
 * max. */
uint64_t fuzz_next(void);
size_t fuzz_mutate(uint8_t *data, size_t size, size_t max);
/* What a target may add for the driver's long runs: whole inputs of its own
 * kind, and a line on what came of them. */
size_t fuzz_make(uint8_t *out, size_t max) __attribute__((weak));
void fuzz_report(void) __attribute__((weak));

#define FUZZ_CHECK(condition)                                                  \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            abort();                                                           \
        }                                                                      \
    } while (0)

#endif
