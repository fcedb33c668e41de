/* The bounded ring between two threads: order, fullness, wake-ups. The model
 * is a counter: what is taken must be 1, 2, 3, ... */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "ring.h"

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#define ITEMS 200000u

static void *item(uintptr_t i)
{
    return (void *)i;
}

static void test_full_and_empty(void **state)
{
    struct bt_ring ring;
    bool wake, room;

    (void)state;
    assert_true(bt_ring_init(&ring, 4));
    for (uintptr_t round = 0; round < 10; round++) {
        assert_null(bt_ring_take(&ring, &room));
        assert_false(room);
        for (uintptr_t i = 1; i <= 4; i++)
            assert_true(bt_ring_put(&ring, item(round * 10 + i), &wake));
        assert_int_equal(bt_ring_count(&ring), 4);
        assert_false(bt_ring_put(&ring, item(99), &wake));
        assert_false(wake);
        for (uintptr_t i = 1; i <= 4; i++) {
            assert_ptr_equal(bt_ring_take(&ring, &room), item(round * 10 + i));
            /* asked for once, when half is taken */
            assert_int_equal(room, i == 2);
        }
        assert_int_equal(bt_ring_count(&ring), 0);
    }
    bt_ring_fini(&ring);
}

static void test_indices_wrap(void **state)
{
    struct bt_ring ring;
    bool wake, room;

    (void)state;
    assert_true(bt_ring_init(&ring, 8));
    ring.head_seen = ring.tail_seen = UINT32_MAX - 3;
    atomic_store(&ring.head, UINT32_MAX - 3);
    atomic_store(&ring.tail, UINT32_MAX - 3);
    for (uintptr_t i = 1; i <= 8; i++)
        assert_true(bt_ring_put(&ring, item(i), &wake));
    assert_false(bt_ring_put(&ring, item(9), &wake));
    assert_int_equal(bt_ring_count(&ring), 8);
    for (uintptr_t i = 1; i <= 8; i++)
        assert_ptr_equal(bt_ring_take(&ring, &room), item(i));
    assert_null(bt_ring_take(&ring, &room));
    bt_ring_fini(&ring);
}

/* Only a sleeping consumer is woken, and only once. */
static void test_wakes(void **state)
{
    struct bt_ring ring;
    bool wake, room;

    (void)state;
    assert_true(bt_ring_init(&ring, 4));
    assert_true(bt_ring_put(&ring, item(1), &wake));
    assert_false(wake);
    assert_false(bt_ring_sleep(&ring)); /* there is something */
    assert_true(bt_ring_put(&ring, item(2), &wake));
    assert_false(wake);
    assert_non_null(bt_ring_take(&ring, &room));
    assert_non_null(bt_ring_take(&ring, &room));
    assert_true(bt_ring_sleep(&ring));
    assert_true(bt_ring_put(&ring, item(3), &wake));
    assert_true(wake);
    assert_true(bt_ring_put(&ring, item(4), &wake));
    assert_false(wake);
    bt_ring_fini(&ring);
}

/* Two threads that really sleep: a lost wake-up hangs until the time-out. */
struct pair {
    struct bt_ring ring;
    sem_t more, room;
    unsigned int sleeps;
};

static void *produce(void *arg)
{
    struct pair *p = arg;
    bool wake;

    for (uintptr_t i = 1; i <= ITEMS; i++) {
        while (!bt_ring_put(&p->ring, item(i), &wake))
            sem_wait(&p->room);
        if (wake)
            sem_post(&p->more);
        if (i % 1000 == 0)
            sched_yield();
    }
    return NULL;
}

static void consume(struct pair *p)
{
    uintptr_t want = 1;
    void *got;
    bool room;

    while (want <= ITEMS) {
        got = bt_ring_take(&p->ring, &room);
        if (room)
            sem_post(&p->room);
        if (got != NULL)
            assert_ptr_equal(got, item(want++));
        else if (bt_ring_sleep(&p->ring)) {
            p->sleeps++;
            sem_wait(&p->more);
        }
    }
}

static void run_pair(uint32_t capacity)
{
    struct pair p = {.sleeps = 0};
    pthread_t thread;
    bool room;

    assert_true(bt_ring_init(&p.ring, capacity));
    sem_init(&p.more, 0, 0);
    sem_init(&p.room, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, produce, &p), 0);
    consume(&p);
    pthread_join(thread, NULL);
    assert_null(bt_ring_take(&p.ring, &room));
    sem_destroy(&p.more);
    sem_destroy(&p.room);
    bt_ring_fini(&p.ring);
}

static void test_two_threads(void **state)
{
    (void)state;
    run_pair(2);
    run_pair(64);
    run_pair(4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_and_empty),
        cmocka_unit_test(test_indices_wrap),
        cmocka_unit_test(test_wakes),
        cmocka_unit_test(test_two_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
