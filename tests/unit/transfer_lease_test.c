/* Leases: each end by a worked example, and random calls against a model that
 * keeps plain arrays and looks through all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/base/rng.h"
#include "baton/transfer/lease.h"

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bt_leases *make(const struct bt_leases_config *config,
                              void **memory_out)
{
    size_t bytes = bt_leases_bytes(config);
    struct bt_arena arena;
    struct bt_leases *leases = NULL;

    *memory_out = calloc(1, bytes);
    assert_non_null(*memory_out);
    bt_arena_init(&arena, *memory_out, bytes);
    assert_int_equal(bt_leases_init(&arena, config, &leases), BT_OK);
    return leases;
}

static void test_limits(void **state)
{
    const struct bt_leases_config config = {2, 5, 1};
    const uint64_t b[] = {7, 1, UINT64_MAX, 9, 2, 3};
    const uint64_t twice[] = {4, 5, 4};
    char id[131];
    void *memory;
    struct bt_leases *leases = make(&config, &memory);
    struct bt_arena small;
    struct bt_leases *none = NULL;
    unsigned char little[64] = {0};

    (void)state;
    memset(id, 'x', sizeof(id));
    id[129] = '\0';
    assert_int_equal(bt_lease_publish(leases, "", b, 1, 9, NULL), BT_INVALID);
    assert_int_equal(bt_lease_publish(leases, id, b, 1, 9, NULL), BT_INVALID);
    id[128] = '\0';
    assert_int_equal(bt_lease_publish(leases, "a", twice, 3, 9, NULL),
                     BT_INVALID);
    assert_int_equal(bt_lease_blocks(leases), 0);
    assert_int_equal(bt_lease_publish(leases, "a", b, 6, 9, NULL), BT_LIMIT);
    assert_int_equal(bt_lease_publish(leases, id, b, 4, 9, NULL), BT_OK);
    assert_int_equal(bt_lease_publish(leases, id, b, 1, 9, NULL), BT_EXISTS);
    assert_int_equal(bt_lease_publish(leases, "b", b, 2, 9, NULL), BT_LIMIT);
    /* The same block may be in two leases. */
    assert_int_equal(bt_lease_publish(leases, "b", b, 1, 9, NULL), BT_OK);
    assert_int_equal(bt_lease_publish(leases, "c", NULL, 0, 9, NULL), BT_LIMIT);
    assert_int_equal(bt_lease_count(leases), 2);
    assert_int_equal(bt_lease_blocks(leases), 5);
    free(memory);
    bt_arena_init(&small, little, sizeof(little));
    assert_int_equal(bt_leases_init(&small, &config, &none), BT_NO_MEMORY);
    assert_int_equal(
        bt_leases_init(&small, &(struct bt_leases_config){0, 5, 1}, &none),
        BT_INVALID);
    assert_int_equal(
        bt_leases_init(&small, &(struct bt_leases_config){1, 0, 1}, &none),
        BT_INVALID);
    assert_null(none);
}

static void assert_over(struct bt_leases *leases, int64_t now_ns,
                        const char *id, enum bt_lease_why why)
{
    struct bt_lease_over over;

    assert_true(bt_lease_reap(leases, now_ns, &over));
    assert_string_equal(over.id, id);
    assert_int_equal(over.why, why);
    assert_int_equal(over.block_count, 2);
    assert_ptr_equal(over.owner, leases);
}

static void assert_none(struct bt_leases *leases, int64_t now_ns)
{
    struct bt_lease_over over;

    assert_false(bt_lease_reap(leases, now_ns, &over));
}

static void test_ends(void **state)
{
    const struct bt_leases_config config = {4, 100, 1};
    const uint64_t b[] = {3, 8}, other[] = {8, 4};
    void *memory;
    struct bt_leases *leases = make(&config, &memory);

    (void)state;
    assert_int_equal(bt_lease_next(leases), INT64_MAX);
    assert_int_equal(bt_lease_publish(leases, "a", b, 2, 100, leases), BT_OK);
    assert_int_equal(bt_lease_publish(leases, "b", b, 2, 50, leases), BT_OK);
    assert_int_equal(bt_lease_next(leases), 50);
    /* Checks of a read. */
    assert_int_equal(bt_lease_read(leases, "x", b, 2, 10), BT_NOT_FOUND);
    assert_int_equal(bt_lease_read(leases, "a", other, 2, 10), BT_NOT_FOUND);
    assert_int_equal(bt_lease_read(leases, "b", b, 2, 50), BT_LEASE_EXPIRED);
    assert_int_equal(bt_lease_read(leases, "a", b, 2, 10), BT_OK);
    /* Released under a reader: over when it leaves; no new reader. */
    assert_int_equal(bt_lease_release(leases, "a"), BT_OK);
    assert_int_equal(bt_lease_release(leases, "a"), BT_NOT_FOUND);
    assert_int_equal(bt_lease_read(leases, "a", b, 1, 10), BT_NOT_FOUND);
    assert_int_equal(bt_lease_publish(leases, "a", b, 2, 9, NULL), BT_EXISTS);
    assert_none(leases, 49);
    bt_lease_left(leases, "a");
    bt_lease_left(leases, "a"); /* one too many changes nothing */
    assert_over(leases, 49, "a", BT_LEASE_RELEASED);
    assert_none(leases, 49);
    assert_int_equal(bt_lease_release(leases, "a"), BT_NOT_FOUND);
    /* Expiry, at its very moment; renewed it lives longer, never shorter. */
    assert_int_equal(bt_lease_renew(leases, "b", 60), BT_OK);
    assert_int_equal(bt_lease_renew(leases, "b", 40), BT_OK);
    assert_int_equal(bt_lease_next(leases), 60);
    assert_none(leases, 59);
    assert_over(leases, 60, "b", BT_LEASE_EXPIRES);
    assert_int_equal(bt_lease_count(leases), 0);
    assert_int_equal(bt_lease_blocks(leases), 0);
    /* Remembered: one id here, the latest. */
    assert_int_equal(bt_lease_read(leases, "b", b, 2, 61), BT_LEASE_EXPIRED);
    assert_int_equal(bt_lease_renew(leases, "b", 99), BT_LEASE_EXPIRED);
    assert_int_equal(bt_lease_publish(leases, "c", b, 2, 70, leases), BT_OK);
    assert_over(leases, 70, "c", BT_LEASE_EXPIRES);
    assert_int_equal(bt_lease_read(leases, "b", b, 2, 71), BT_NOT_FOUND);
    assert_int_equal(bt_lease_read(leases, "c", b, 2, 71), BT_LEASE_EXPIRED);
    /* An expired id may come again, then it is live. */
    assert_int_equal(bt_lease_publish(leases, "c", b, 2, 90, leases), BT_OK);
    assert_int_equal(bt_lease_read(leases, "c", b, 2, 72), BT_OK);
    /* Withdrawn under a reader. */
    assert_int_equal(bt_lease_withdraw(leases, "c"), BT_OK);
    assert_none(leases, 1000);
    assert_int_equal(bt_lease_blocks(leases), 2);
    bt_lease_left(leases, "c");
    assert_over(leases, 1000, "c", BT_LEASE_WITHDRAWN);
    assert_int_equal(bt_lease_read(leases, "c", b, 2, 71), BT_NOT_FOUND);
    free(memory);
}

/* Expired under a reader: no revival, no new reader, over when it leaves. */
static void test_expired_under_read(void **state)
{
    const struct bt_leases_config config = {4, 100, 4};
    const uint64_t b[] = {3, 8};
    void *memory;
    struct bt_leases *leases = make(&config, &memory);

    (void)state;
    assert_int_equal(bt_lease_publish(leases, "a", b, 2, 50, leases), BT_OK);
    assert_int_equal(bt_lease_publish(leases, "b", b, 2, 40, leases), BT_OK);
    assert_int_equal(bt_lease_read(leases, "a", b, 2, 10), BT_OK);
    assert_int_equal(bt_lease_read(leases, "a", b, 1, 10), BT_OK);
    assert_over(leases, 60, "b", BT_LEASE_EXPIRES);
    assert_none(leases, 60);
    assert_int_equal(bt_lease_renew(leases, "a", 99), BT_LEASE_EXPIRED);
    assert_int_equal(bt_lease_read(leases, "a", b, 1, 20), BT_LEASE_EXPIRED);
    bt_lease_left(leases, "a");
    assert_none(leases, 60);
    bt_lease_left(leases, "a");
    assert_over(leases, 60, "a", BT_LEASE_EXPIRES);
    free(memory);
}

/* ---- random calls against a model ---- */

#define IDS    24
#define BLOCKS 40 /* block numbers */
#define STEPS  200000

enum phase { ABSENT, LIVE, CLOSING, REMEMBERED };
struct model {
    enum phase phase;
    enum bt_lease_why why;
    bool has[BLOCKS];
    uint32_t count, readers;
    int64_t expires_ns;
    uint64_t since; /* when it was remembered */
};
static struct model models[IDS];
static const struct bt_leases_config random_config = {10, 120, 5};
static uint64_t step;

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what))                                                           \
            fail_msg("step %llu: %s", (unsigned long long)step, #what);        \
    } while (0)

static uint32_t held(uint64_t *blocks_out)
{
    uint32_t count = 0;

    *blocks_out = 0;
    for (int i = 0; i < IDS; i++) {
        if (models[i].phase != LIVE && models[i].phase != CLOSING)
            continue;
        count++;
        *blocks_out += models[i].count;
    }
    return count;
}

static size_t draw(struct bt_rng *rng, uint64_t *blocks)
{
    size_t count = bt_rng_below(rng, 30);

    for (size_t i = 0; i < count; i++)
        blocks[i] = bt_rng_below(rng, 30) == 0 && i > 0
                        ? blocks[i - 1]
                        : bt_rng_below(rng, BLOCKS);
    return count;
}

static void do_publish(struct bt_leases *leases, struct bt_rng *rng, int who,
                       int64_t now_ns)
{
    struct model *m = &models[who], want = {.phase = LIVE};
    uint64_t blocks[BLOCKS], used, first = bt_rng_below(rng, BLOCKS);
    size_t count = bt_rng_below(rng, 20);
    enum bt_status right = BT_OK;
    char id[16];

    for (size_t i = 0; i < count; i++)
        blocks[i] = (first + 3 * i) % BLOCKS;
    if (count > 1 && bt_rng_below(rng, 20) == 0) {
        blocks[count - 1] = blocks[0];
        right = BT_INVALID;
    }
    if (held(&used) == random_config.leases_max ||
        used + count > random_config.blocks_max)
        right = BT_LIMIT;
    if (m->phase == LIVE || m->phase == CLOSING)
        right = BT_EXISTS;
    want.expires_ns = now_ns + (int64_t)bt_rng_below(rng, 200);
    snprintf(id, sizeof(id), "r%d", who);
    CHECK(bt_lease_publish(leases, id, blocks, count, want.expires_ns, m) ==
          right);
    if (right != BT_OK)
        return;
    want.count = (uint32_t)count;
    for (size_t i = 0; i < count; i++)
        want.has[blocks[i]] = true;
    *m = want;
}

static enum bt_status answer(const struct model *m)
{
    switch (m->phase) {
    case ABSENT:
        return BT_NOT_FOUND;
    case LIVE:
        return BT_OK;
    case CLOSING:
    case REMEMBERED:
        break;
    }
    return m->why == BT_LEASE_EXPIRES ? BT_LEASE_EXPIRED : BT_NOT_FOUND;
}

static void do_read(struct bt_leases *leases, struct bt_rng *rng, int who,
                    int64_t now_ns)
{
    struct model *m = &models[who];
    uint64_t blocks[BLOCKS];
    size_t count = draw(rng, blocks), all = 0;
    enum bt_status right = answer(m);
    char id[16];

    if (bt_rng_below(rng, 2) == 0) { /* what it has */
        for (uint64_t b = 0; b < BLOCKS; b++) {
            if (m->has[b])
                blocks[all++] = b;
        }
        count = all;
    }
    if (right == BT_OK && m->expires_ns <= now_ns)
        right = BT_LEASE_EXPIRED;
    for (size_t i = 0; i < count && right == BT_OK; i++) {
        if (!m->has[blocks[i]])
            right = BT_NOT_FOUND;
    }
    snprintf(id, sizeof(id), "r%d", who);
    CHECK(bt_lease_read(leases, id, blocks, count, now_ns) == right);
    m->readers += right == BT_OK;
}

static void do_end(struct bt_leases *leases, struct bt_rng *rng, int who,
                   int64_t now_ns)
{
    struct model *m = &models[who];
    enum bt_status right = answer(m);
    int64_t until = now_ns + (int64_t)bt_rng_below(rng, 300) - 50;
    char id[16];

    snprintf(id, sizeof(id), "r%d", who);
    switch (bt_rng_below(rng, 6)) {
    case 0:
        CHECK(bt_lease_release(leases, id) == right);
        m->why = right == BT_OK ? BT_LEASE_RELEASED : m->why;
        break;
    case 1:
        CHECK(bt_lease_withdraw(leases, id) == right);
        m->why = right == BT_OK ? BT_LEASE_WITHDRAWN : m->why;
        break;
    case 2:
    case 3:
        CHECK(bt_lease_renew(leases, id, until) == right);
        if (right == BT_OK && until > m->expires_ns)
            m->expires_ns = until;
        return;
    default:
        bt_lease_left(leases, id);
        if ((m->phase == LIVE || m->phase == CLOSING) && m->readers > 0)
            m->readers--;
        return;
    }
    if (right == BT_OK)
        m->phase = CLOSING;
}

static void forget_oldest(void)
{
    struct model *oldest = NULL;
    uint32_t count = 0;

    for (int i = 0; i < IDS; i++) {
        if (models[i].phase != REMEMBERED)
            continue;
        count++;
        if (oldest == NULL || models[i].since < oldest->since)
            oldest = &models[i];
    }
    if (count > random_config.expired_max)
        oldest->phase = ABSENT;
}

static void do_reap(struct bt_leases *leases, int64_t now_ns)
{
    static uint64_t reaped;
    struct bt_lease_over over;

    for (int i = 0; i < IDS; i++) {
        if (models[i].phase != LIVE || models[i].expires_ns > now_ns)
            continue;
        models[i].phase = CLOSING;
        models[i].why = BT_LEASE_EXPIRES;
    }
    while (bt_lease_reap(leases, now_ns, &over)) {
        struct model *m = over.owner;

        CHECK(m == &models[strtol(over.id + 1, NULL, 10)]);
        CHECK(m->phase == CLOSING && m->readers == 0);
        CHECK(m->why == over.why && m->count == over.block_count);
        m->phase = over.why == BT_LEASE_EXPIRES ? REMEMBERED : ABSENT;
        m->since = ++reaped;
        memset(m->has, 0, sizeof(m->has));
        forget_oldest();
    }
    for (int i = 0; i < IDS; i++)
        CHECK(models[i].phase != CLOSING || models[i].readers > 0);
}

static void check_totals(const struct bt_leases *leases)
{
    int64_t next = INT64_MAX;
    uint64_t blocks;
    uint32_t count = held(&blocks);

    for (int i = 0; i < IDS; i++) {
        if (models[i].phase == LIVE && models[i].expires_ns < next)
            next = models[i].expires_ns;
    }
    CHECK(bt_lease_count(leases) == count);
    CHECK(bt_lease_blocks(leases) == blocks);
    CHECK(bt_lease_next(leases) == next);
}

static void test_model(void **state)
{
    const uint64_t seed = 20261130;
    struct bt_rng rng;
    int64_t now_ns = 1000;
    void *memory;
    struct bt_leases *leases = make(&random_config, &memory);

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    for (step = 0; step < STEPS; step++) {
        int who = (int)bt_rng_below(&rng, IDS);

        now_ns += (int64_t)bt_rng_below(&rng, 5);
        switch (bt_rng_below(&rng, 5)) {
        case 0:
            do_publish(leases, &rng, who, now_ns);
            break;
        case 1:
            do_read(leases, &rng, who, now_ns);
            break;
        case 2:
        case 3:
            do_end(leases, &rng, who, now_ns);
            break;
        default:
            do_reap(leases, now_ns);
            break;
        }
        check_totals(leases);
    }
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_expired_under_read),
        cmocka_unit_test(test_model),
    };

    return cmocka_run_group_tests_name("lease", tests, NULL, NULL);
}
