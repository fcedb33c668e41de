/* The cache against a plain list, by random operations; and the heap against
 * sorting. */
#include "sim_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define CAPACITY 12u
#define IDS      30u
#define OPS      20000

/* Oldest first; pins by id. */
struct model {
    uint64_t order[CAPACITY];
    uint32_t count, pins[IDS];
};

static int find(const struct model *m, uint64_t id)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (m->order[i] == id)
            return (int)i;
    return -1;
}

static void take_out(struct model *m, uint32_t at)
{
    memmove(&m->order[at], &m->order[at + 1],
            (m->count - at - 1) * sizeof(m->order[0]));
    m->count--;
}

static void put_last(struct model *m, uint64_t id)
{
    m->order[m->count++] = id;
}

static uint64_t oldest_free(const struct model *m)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (m->pins[m->order[i]] == 0)
            return m->order[i];
    return UINT64_MAX;
}

static void step(struct sim_cache *c, struct model *m, struct bt_rng *rng)
{
    uint64_t id = bt_rng_below(rng, IDS), what = bt_rng_below(rng, 3);
    uint32_t at = sim_cache_find(c, id);
    int in = find(m, id);

    assert_int_equal(at != SIM_NONE, in >= 0);
    if (at == SIM_NONE && m->count == CAPACITY) {
        assert_int_equal(sim_cache_insert(c, id), SIM_NONE);
        if (oldest_free(m) == UINT64_MAX)
            return;
        assert_int_equal(c->blocks[c->oldest].id, oldest_free(m));
        take_out(m, (uint32_t)find(m, oldest_free(m)));
        sim_cache_remove(c, c->oldest);
        return;
    }
    if (at == SIM_NONE) {
        assert_int_not_equal(sim_cache_insert(c, id), SIM_NONE);
        put_last(m, id);
        m->pins[id] = 1;
    } else if (what == 0) {
        sim_cache_pin(c, at);
        m->pins[id]++;
    } else if (m->pins[id] > 0) {
        sim_cache_unpin(c, at);
        if (--m->pins[id] == 0) { /* last used now */
            take_out(m, (uint32_t)in);
            put_last(m, id);
        }
    }
}

static void test_cache(void **state)
{
    struct model m = {0};
    struct sim_cache c;
    struct bt_rng rng;

    (void)state;
    bt_rng_seed(&rng, 7);
    assert_true(sim_cache_init(&c, CAPACITY));
    for (int i = 0; i < OPS; i++) {
        uint32_t pinned = 0;

        step(&c, &m, &rng);
        for (uint32_t id = 0; id < IDS; id++)
            pinned += find(&m, id) >= 0 && m.pins[id] > 0;
        assert_int_equal(c.count, m.count);
        assert_int_equal(c.pinned, pinned);
        if (oldest_free(&m) == UINT64_MAX)
            assert_int_equal(c.oldest, SIM_NONE);
        else
            assert_int_equal(c.blocks[c.oldest].id, oldest_free(&m));
    }
    sim_cache_fini(&c);
}

static void test_leading(void **state)
{
    const uint64_t ids[] = {5, 6, 7, 8};
    struct sim_cache c;

    (void)state;
    assert_true(sim_cache_init(&c, 4));
    assert_int_equal(sim_cache_leading(&c, ids, 4), 0);
    (void)sim_cache_insert(&c, 5);
    (void)sim_cache_insert(&c, 6);
    (void)sim_cache_insert(&c, 8);
    assert_int_equal(sim_cache_leading(&c, ids, 4), 2);
    sim_cache_fini(&c);
}

static void test_heap(void **state)
{
    struct sim_heap heap = {0};
    struct sim_event e, last = {.at_ns = -1};
    struct bt_rng rng;
    uint32_t n = 0;

    (void)state;
    bt_rng_seed(&rng, 3);
    for (uint32_t i = 0; i < 5000; i++) {
        e = (struct sim_event){.at_ns = (int64_t)bt_rng_below(&rng, 50),
                               .a = i};
        assert_true(sim_heap_push(&heap, e));
    }
    for (; sim_heap_pop(&heap, &e); n++) {
        assert_true(e.at_ns >= last.at_ns);
        if (e.at_ns == last.at_ns)
            assert_true(e.a > last.a);
        last = e;
    }
    assert_int_equal(n, 5000);
    sim_heap_fini(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_leading),
        cmocka_unit_test(test_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
