/* Damaged configuration files: whatever bytes are changed, removed, doubled or
 * inserted, bt_config_load answers ok, or a fault that names a place inside
 * the file. Run under the sanitizers it also shows that nothing is read or
 * freed wrongly. Seed: argv[1], else 1; printed. */
#include "baton/base/rng.h"
#include "baton/orchestrator/config.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS   1500u
#define TEXT_MAX 8192u

static uint64_t seed = 1;

static size_t read_example(char *text)
{
    FILE *file = fopen(BATON_SOURCE_DIR "/deploy/config/baton.yaml", "re");
    assert_non_null(file);
    size_t size = fread(text, 1, TEXT_MAX / 2, file);
    fclose(file);
    assert_true(size > 100);
    return size;
}

/* One damage at a random place; returns the new size. */
static size_t damage(struct bt_rng *rng, char *text, size_t size)
{
    static const char pieces[] = ":{}[],-\n #&*!|>'\"%@`?\t\0\x01\xff\xc3<0a";
    size_t at = (size_t)bt_rng_below(rng, size);
    size_t length = 1 + (size_t)bt_rng_below(rng, 40);
    if (length > size - at)
        length = size - at;
    switch (bt_rng_below(rng, 4)) {
    case 0: /* another byte */
        text[at] = pieces[bt_rng_below(rng, sizeof(pieces) - 1)];
        return size;
    case 1: /* a piece removed */
        memmove(text + at, text + at + length, size - at - length);
        return size - length;
    case 2: /* a piece doubled */
        if (size + length > TEXT_MAX)
            return size;
        memmove(text + at + length, text + at, size - at);
        return size + length;
    default: /* a byte more */
        if (size + 1 > TEXT_MAX)
            return size;
        memmove(text + at + 1, text + at, size - at);
        text[at] = pieces[bt_rng_below(rng, sizeof(pieces) - 1)];
        return size + 1;
    }
}

static unsigned long lines_of(const char *text, size_t size)
{
    unsigned long lines = 1;
    /* YAML also breaks lines at \r, NEL, LS and PS; count generously. */
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n' || text[i] == '\r' || (text[i] & 0x80);
    return lines;
}

static void check_place(const char *error, const char *path,
                        unsigned long lines)
{
    char *end = NULL;
    assert_memory_equal(error, path, strlen(path));
    const char *rest = error + strlen(path);
    assert_true(*rest == ':');
    unsigned long line = strtoul(rest + 1, &end, 10);
    assert_true(end != rest + 1 && *end == ':');
    rest = end;
    unsigned long column = strtoul(rest + 1, &end, 10);
    assert_true(end != rest + 1 && strncmp(end, ": ", 2) == 0);
    assert_true(strlen(end) > 3);
    assert_in_range(line, 1, lines + 1);
    assert_in_range(column, 1, TEXT_MAX + 1);
}

static void try_once(struct bt_rng *rng, const char *original, size_t size)
{
    static char text[TEXT_MAX + 64];
    char path[] = "/tmp/baton-config-XXXXXX", error[512];
    struct bt_config *config = NULL;
    memcpy(text, original, size);
    for (uint64_t n = 1 + bt_rng_below(rng, 3); n > 0 && size > 1; n--)
        size = damage(rng, text, size);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, size), (ssize_t)size);
    close(fd);
    enum bt_status status = bt_config_load(path, &config, error, sizeof(error));
    unlink(path);
    if (status == BT_OK)
        bt_config_destroy(config);
    else
        check_place(error, path, lines_of(text, size));
}

static void damaged_files_have_faults_with_places(void **state)
{
    (void)state;
    static char original[TEXT_MAX];
    struct bt_rng rng;
    size_t size = read_example(original);
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (unsigned int i = 0; i < ROUNDS; i++)
        try_once(&rng, original, size);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_files_have_faults_with_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
