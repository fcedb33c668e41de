/* Stands in for libFuzzer in normal builds: replays each seed of the target,
 * every prefix of the short ones, and a fixed number of mutants from a seeded
 * generator. FUZZ_SEED in the environment picks another sequence; the seed is
 * printed. With --dump DIR it writes the seeds as files instead, and some
 * inputs that the target makes itself.
 *
 * --runs N makes N inputs, each from FUZZ_SEED and its number alone: whole ones
 * by the target if it makes any, else mutants of a seed or of two seeds joined.
 * An aborted run prints the number; --input I replays that one. Sanitizers
 * abort only with ASAN_OPTIONS=abort_on_error=1.
 */
#include "fuzz.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INPUT_MAX        4096
#define MUTANTS_PER_SEED 400
#define SEEDS_MAX        256
#define MADE             128 /* inputs of the target's own in a dump */

static uint64_t state;

uint64_t fuzz_next(void)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static size_t below(size_t bound)
{
    return bound > 0 ? (size_t)(fuzz_next() % bound) : 0;
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

size_t fuzz_mutate(uint8_t *data, size_t size, size_t max)
{
    static const uint8_t odd[] = {0,   0x7f, 0x80, 0xff, '"',  '\\', '{',
                                  '}', '[',  ']',  ',',  ':',  'e',  '-',
                                  '0', '\n', '\r', 0xc0, 0xdd, 0xdf, 0xcf};
    size_t at = below(size), n;
    if (size == 0)
        return 0;
    switch (fuzz_next() % 5) {
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
        if (size + n > max)
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
            n = fuzz_mutate(data, n, sizeof data);
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

/* The seeds, and some of the inputs that the target makes itself. */
static void dump_all(const char *dir, size_t seeds)
{
    uint8_t data[INPUT_MAX];
    for (size_t i = 0; i < seeds; i++)
        dump(dir, i, data, fuzz_seed(i, data, sizeof data));
    for (size_t i = 0; fuzz_make != NULL && i < MADE; i++)
        dump(dir, seeds + i, data, fuzz_make(data, sizeof data));
}

static uint64_t first_state, input;

/* Only what a signal handler may do. */
static void on_abort(int signal_number)
{
    char text[32] = {0};
    size_t at = sizeof text;
    (void)signal_number;
    text[--at] = '\n';
    for (uint64_t n = input; at == sizeof text - 1 || n > 0; n /= 10)
        text[--at] = (char)('0' + n % 10);
    (void)!write(STDERR_FILENO, "--input ", 8);
    (void)!write(STDERR_FILENO, text + at, sizeof text - at);
}

static size_t any_seed(size_t count, uint8_t *out, size_t max)
{
    return fuzz_seed(below(count), out, max);
}

static size_t input_make(size_t seeds, uint8_t *data)
{
    size_t n = 0;
    if (fuzz_make != NULL && fuzz_next() % 4 != 0)
        return fuzz_make(data, INPUT_MAX);
    n = any_seed(seeds, data, INPUT_MAX);
    if (fuzz_next() % 4 ==
        0) { /* join the head of one to the tail of another */
        uint8_t tail[INPUT_MAX];
        size_t head = below(n + 1), m = any_seed(seeds, tail, INPUT_MAX);
        size_t from = below(m + 1);
        n = head + m - from <= INPUT_MAX ? head + m - from : head;
        memcpy(data + head, tail + from, n - head);
    }
    for (size_t k = below(5); k > 0; k--)
        n = fuzz_mutate(data, n, INPUT_MAX);
    return n;
}

static void run(size_t seeds, uint64_t from, uint64_t to)
{
    static uint8_t data[INPUT_MAX];
    clock_t start = clock();
    uint64_t bytes = 0;
    for (input = from; input < to; input++) {
        state = first_state ^ (input * 0xd1342543de82ef95u + 1);
        size_t n = input_make(seeds, data);
        bytes += n;
        feed(data, n);
        if ((input + 1) % 1000000 == 0)
            fprintf(stderr, "%llu\n", (unsigned long long)input + 1);
    }
    printf("%llu inputs, %llu bytes, %.1f s of processor\n",
           (unsigned long long)(to - from), (unsigned long long)bytes,
           (double)(clock() - start) / CLOCKS_PER_SEC);
    if (fuzz_report != NULL)
        fuzz_report();
}

static size_t seed_count(void)
{
    uint8_t seed[INPUT_MAX];
    size_t count = 0;
    while (count < SEEDS_MAX && fuzz_seed(count, seed, sizeof seed) > 0)
        count++;
    return count;
}

int main(int argc, char **argv)
{
    uint8_t seed[INPUT_MAX];
    const char *chosen = getenv("FUZZ_SEED");
    const char *mode = argc == 3 ? argv[1] : "";
    size_t seeds = seed_count();
    state = first_state = chosen != NULL ? strtoull(chosen, NULL, 0) : 20260922;
    printf("FUZZ_SEED=%llu\n", (unsigned long long)first_state);
    printf("%zu seeds\n", seeds);
    if (seeds == 0)
        return 1;
    (void)signal(SIGABRT, on_abort);
    if (strcmp(mode, "--runs") == 0) {
        run(seeds, 0, strtoull(argv[2], NULL, 0));
        return 0;
    }
    if (strcmp(mode, "--input") == 0) {
        run(seeds, strtoull(argv[2], NULL, 0), strtoull(argv[2], NULL, 0) + 1);
        return 0;
    }
    if (strcmp(mode, "--dump") == 0) {
        dump_all(argv[2], seeds);
        return 0;
    }
    for (size_t i = 0; i < seeds; i++) {
        size_t size = fuzz_seed(i, seed, sizeof seed);
        replay(seed, size);
    }
    feed(seed, 0);
    return 0;
}
