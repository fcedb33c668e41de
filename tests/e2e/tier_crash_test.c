/* Real processes, killed at random moments amid stores and drops: the file is
 * opened again each time, every block served is one that was stored under its
 * key, none that was called back is missing. And two processes of one file.
 * The child is this program executed anew: it says each step on its standard
 * output before or after taking it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "tier_bed.h"
#include <cmocka.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK    65536u
#define CAPACITY 32u
#define KEYS     24u /* all have room */
#define JOBS     4u
#define ROUNDS   40u
#define VERSIONS 100000u

static struct tier_bed bed;
static unsigned char *mem;

static uint64_t seed_of(uint64_t key, uint32_t version)
{
    return key * VERSIONS + version;
}

/* ---- child ---- */

struct job {
    enum bt_status status;
    bool out;
    uint64_t key;
    uint32_t version;
};

static void say(char what, uint64_t key, uint32_t version)
{
    char line[64];
    int n = snprintf(line, sizeof(line), "%c %u %u\n", what, (unsigned)key,
                     version);

    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        _exit(9);
}

static void on_stored(void *arg, enum bt_status status)
{
    struct job *j = arg;

    j->status = status;
    j->out = false;
    if (status == BT_OK)
        say('C', j->key, j->version);
}

static void child_step(struct bt_nvme_pool *pool, struct job *jobs,
                       struct bt_rng *rng, uint32_t version)
{
    uint32_t n = (uint32_t)bt_rng_below(rng, JOBS);
    uint64_t key = bt_rng_below(rng, KEYS);
    struct job *j = &jobs[n];

    while (j->out)
        ev_run(bed.loop, EVRUN_ONCE);
    for (uint32_t i = 0; i < JOBS; i++)
        if (jobs[i].out && jobs[i].key == key)
            return;
    if (bt_nvme_has(pool, key)) {
        say('D', key, 0);
        bt_nvme_drop(pool, key);
        return;
    }
    *j = (struct job){TIER_PENDING, true, key, version};
    tier_fill(mem + (size_t)n * BLOCK, BLOCK, seed_of(key, version));
    say('S', key, version);
    if (bt_nvme_store(pool, key, mem + (size_t)n * BLOCK, on_stored, j) !=
        BT_OK)
        _exit(8);
}

static int child(const char *path, const char *seed, bool idle)
{
    struct bt_nvme_config config;
    struct job jobs[JOBS] = {0};
    struct bt_nvme_pool *pool;
    struct bt_rng rng;
    char error[256];
    uint32_t version = (uint32_t)strtoul(seed, NULL, 10);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bt_rng_seed(&rng, version);
    bed.loop = ev_loop_new(EVFLAG_AUTO);
    bed.block_bytes = BLOCK;
    config = tier_bed_config(&bed, CAPACITY);
    config.path = path;
    config.depth = 2;
    if (bt_nvme_pool_open(bed.loop, &config, &pool, error, sizeof(error)) !=
        BT_OK)
        return 7;
    say('O', 0, 0);
    for (;;)
        if (idle)
            ev_run(bed.loop, EVRUN_ONCE);
        else
            child_step(pool, jobs, &rng, ++version);
}

/* ---- parent ---- */

struct process {
    pid_t pid;
    FILE *lines;
};

static struct process start(uint32_t seed, const char *mode)
{
    char path[] = "/proc/self/exe", number[16];
    char *argv[] = {path, bed.path, number, (char *)(uintptr_t)mode, NULL};
    posix_spawn_file_actions_t actions;
    struct process p;
    int ends[2];

    snprintf(number, sizeof(number), "%u", seed);
    assert_int_equal(pipe(ends), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    assert_int_equal(
        posix_spawn(&p.pid, "/proc/self/exe", &actions, NULL, argv, environ),
        0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    p.lines = fdopen(ends[0], "r");
    return p;
}

static void kill_it(const struct process *p)
{
    int status;

    kill(p->pid, SIGKILL);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    assert_true(WIFSIGNALED(status));
}

struct known {
    uint32_t started[KEYS]; /* newest version */
    uint32_t sure[KEYS];    /* called back and not dropped; 0 none */
};

static bool take_line(struct known *k, FILE *from)
{
    char line[64], what, *next;
    uint32_t key, version;

    if (!fgets(line, sizeof(line), from) || !strchr(line, '\n'))
        return false;
    what = line[0];
    key = (uint32_t)strtoul(line + 1, &next, 10);
    version = (uint32_t)strtoul(next, &next, 10);
    assert_int_equal(*next, '\n');
    assert_true(key < KEYS);
    if (what == 'S')
        k->started[key] = version;
    if (what == 'S' || what == 'D')
        k->sure[key] = 0;
    if (what == 'C')
        k->sure[key] = version;
    return true;
}

/* The version that is served, 0 none. */
static uint32_t served(struct bt_nvme_pool *pool, const struct known *k,
                       uint64_t key)
{
    enum bt_status status = tier_load(&bed, pool, key, mem);
    uint32_t version = k->started[key];

    if (status == BT_NOT_FOUND || status == BT_CHECKSUM)
        return 0;
    assert_int_equal(status, BT_OK);
    while (version > 0 && !tier_is(mem, BLOCK, seed_of(key, version)))
        version--;
    if (version == 0)
        fail_msg("key %u: bytes that were never stored", (unsigned)key);
    return version;
}

static uint32_t check(struct known *k)
{
    const struct bt_nvme_config config = tier_bed_config(&bed, CAPACITY);
    struct bt_nvme_pool *pool = tier_bed_open(&bed, &config);
    uint32_t count = 0;

    for (uint64_t key = 0; key < KEYS; key++) {
        uint32_t version = served(pool, k, key);

        if (k->sure[key] && version != k->sure[key])
            fail_msg("key %u: version %u was called back, %u is served",
                     (unsigned)key, k->sure[key], version);
        k->sure[key] = version;
        count += version > 0;
    }
    bt_nvme_pool_close(pool);
    return count;
}

static void test_kills(void **state)
{
    struct known known = {0};
    uint32_t total = 0;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 31);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t lines = 1 + bt_rng_below(&rng, 60);
        struct process p = start(1 + round * 1000, "work");

        for (uint64_t i = 0; i < lines; i++)
            assert_true(take_line(&known, p.lines));
        kill_it(&p);
        while (take_line(&known, p.lines))
            ;
        fclose(p.lines);
        total += check(&known);
    }
    assert_true(total > ROUNDS);
}

static void test_two_processes(void **state)
{
    const struct bt_nvme_config config = tier_bed_config(&bed, CAPACITY);
    struct process p = start(1, "idle");
    struct bt_nvme_pool *pool = NULL;
    char error[256] = "", line[64];

    (void)state;
    assert_non_null(fgets(line, sizeof(line), p.lines));
    assert_int_equal(
        bt_nvme_pool_open(bed.loop, &config, &pool, error, sizeof(error)),
        BT_EXISTS);
    assert_non_null(strstr(error, "in use by another pool"));
    kill_it(&p);
    fclose(p.lines);
    bt_nvme_pool_close(tier_bed_open(&bed, &config));
}

static int set_up(void **state)
{
    (void)state;
    tier_bed_init(&bed, BLOCK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tier_bed_fini(&bed);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kills, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_two_processes, set_up, tear_down),
    };
    int failed;

    mem = aligned_alloc(4096, JOBS * BLOCK);
    if (!mem)
        return 1;
    if (argc == 4)
        return child(argv[1], argv[2], strcmp(argv[3], "idle") == 0);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(mem);
    return failed;
}
