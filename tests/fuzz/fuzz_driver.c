/* Stands in for libFuzzer in normal builds: replays each seed of the target,
 * every prefix of the short ones, and a fixed number of mutants from a seeded
 * generator. FUZZ_SEED in the environment picks another sequence; the seed is
 * printed. With --dump DIR it writes the seeds as files instead.
 */
#include "fuzz.h"

#include <string.h>

#define INPUT_MAX        4096
#define MUTANTS_PER_SEED 400
#define SEEDS_MAX        256

static uint64_t state;

static uint64_t next(void)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static size_t below(size_t bound)
{
    return bound > 0 ? (size_t)(next() % bound) : 0;
}

/* An exact heap copy, so that a sanitizer sees a read beyond the end. */
static void feed(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    FUZZ_CHECK(copy != NULL);
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

/* One small change; the new size. */
static size_t mutate(uint8_t *data, size_t size)
{
    static const uint8_t odd[] = {0,   0x7f, 0x80, 0xff, '"',  '\\', '{',
                                  '}', '[',  ']',  ',',  ':',  'e',  '-',
                                  '0', '\n', '\r', 0xc0, 0xdd, 0xdf, 0xcf};
    size_t at = below(size), n;
    if (size == 0)
        return 0;
    switch (next() % 5) {
    case 0:
        data[at] ^= (uint8_t)(1u << below(8));
        return size;
    case 1:
        data[at] = odd[below(sizeof odd)];
        return size;
    case 2: /* cut */
        return at;
    case 3: /* drop a piece */
        n = 1 + below(size - at);
        memmove(data + at, data + at + n, size - at - n);
        return size - n;
    default: /* repeat a piece */
        n = 1 + below(size - at);
        if (size + n > INPUT_MAX)
            return size;
        memmove(data + at + n, data + at, size - at);
        return size + n;
    }
}

static void replay(const uint8_t *seed, size_t size)
{
    uint8_t data[INPUT_MAX];
    feed(seed, size);
    for (size_t n = 0; n < size && size <= 512; n++)
        feed(seed, n);
    for (int i = 0; i < MUTANTS_PER_SEED; i++) {
        size_t n = size;
        memcpy(data, seed, size);
        for (size_t k = 1 + below(4); k > 0; k--)
            n = mutate(data, n);
        feed(data, n);
    }
}

static void dump(const char *dir, size_t index, const uint8_t *seed,
                 size_t size)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/seed-%03zu", dir, index);
    FILE *f = fopen(path, "wb");
    FUZZ_CHECK(f != NULL && fwrite(seed, 1, size, f) == size);
    FUZZ_CHECK(fclose(f) == 0);
}

int main(int argc, char **argv)
{
    uint8_t seed[INPUT_MAX];
    const char *chosen = getenv("FUZZ_SEED");
    state = chosen != NULL ? strtoull(chosen, NULL, 0) : 20260922;
    printf("FUZZ_SEED=%llu\n", (unsigned long long)state);
    size_t size, index = 0;
    for (; index < SEEDS_MAX; index++) {
        size = fuzz_seed(index, seed, sizeof seed);
        if (size == 0)
            break;
        if (argc == 3 && strcmp(argv[1], "--dump") == 0)
            dump(argv[2], index, seed, size);
        else
            replay(seed, size);
    }
    feed(seed, 0);
    printf("%zu seeds\n", index);
    return index > 0 ? 0 : 1;
}
