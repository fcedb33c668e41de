/* The agent's ring: order, bound, and an eventfd that tells the truth, with
 * four writers at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent_ring.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#define WRITERS 4u
#define EACH    20000u

struct item {
    uint32_t writer, serial;
    char filling[40];
};

static bool readable(const struct bt_agent_ring *ring)
{
    struct pollfd p = {.fd = ring->fd, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

static void bound_and_order(void **state)
{
    struct bt_agent_ring ring;
    uint32_t items[8], v;
    bool was_full = true;

    (void)state;
    assert_int_equal(bt_agent_ring_init(&ring, 3, sizeof(v), true), BT_OK);
    assert_false(readable(&ring));
    assert_int_equal(bt_agent_ring_pop(&ring, items, 8, &was_full), 0);
    assert_false(was_full);
    for (uint32_t turn = 0; turn < 5; turn++) { /* the head goes round */
        for (v = 0; v < 3; v++) {
            assert_int_equal(bt_agent_ring_room(&ring), 3 - v);
            assert_int_equal(bt_agent_ring_push(&ring, &v), BT_OK);
            assert_true(readable(&ring));
        }
        assert_int_equal(bt_agent_ring_push(&ring, &v), BT_LIMIT);
        assert_int_equal(bt_agent_ring_pop(&ring, items, 2, &was_full), 2);
        assert_true(was_full);
        assert_int_equal(items[0], 0);
        assert_int_equal(items[1], 1);
        assert_true(readable(&ring));
        assert_int_equal(bt_agent_ring_pop(&ring, items, 8, &was_full), 1);
        assert_false(was_full);
        assert_int_equal(items[0], 2);
        assert_false(readable(&ring));
    }
    bt_agent_ring_fini(&ring);
}

struct writer {
    struct bt_agent_ring *ring;
    uint32_t index;
};

static void *write_all(void *arg)
{
    const struct writer *w = arg;
    struct item item = {.writer = w->index};

    for (item.serial = 0; item.serial < EACH; item.serial++) {
        memset(item.filling, (int)(item.serial & 0x7f), sizeof(item.filling));
        while (bt_agent_ring_push(w->ring, &item) != BT_OK)
            sched_yield();
    }
    return NULL;
}

static void take(const struct item *item, uint32_t *seen)
{
    assert_true(item->writer < WRITERS);
    assert_int_equal(item->serial, seen[item->writer]);
    seen[item->writer]++;
    for (size_t i = 0; i < sizeof(item->filling); i++)
        assert_int_equal(item->filling[i], item->serial & 0x7f);
}

static void many_writers(void **state)
{
    struct bt_agent_ring ring;
    pthread_t threads[WRITERS];
    struct writer writers[WRITERS];
    uint32_t seen[WRITERS] = {0}, sum = 0;

    (void)state;
    assert_int_equal(bt_agent_ring_init(&ring, 64, sizeof(struct item), true),
                     BT_OK);
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){&ring, i};
        assert_int_equal(
            pthread_create(&threads[i], NULL, write_all, &writers[i]), 0);
    }
    while (sum < WRITERS * EACH) {
        struct pollfd p = {.fd = ring.fd, .events = POLLIN};
        struct item items[16];
        bool was_full;

        assert_int_equal(poll(&p, 1, 10000), 1);
        size_t n = bt_agent_ring_pop(&ring, items, 16, &was_full);
        assert_true(n > 0); /* readable: there is one, and we alone read */
        for (size_t i = 0; i < n; i++)
            take(&items[i], seen);
        sum += (uint32_t)n;
    }
    for (uint32_t i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    assert_false(readable(&ring));
    bt_agent_ring_fini(&ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bound_and_order),
        cmocka_unit_test(many_writers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
