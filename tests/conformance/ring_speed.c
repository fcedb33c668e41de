/* Times of the bounded ring (ring.h) beside a queue with a mutex and a
 * condition, in the same run: nanoseconds per message one way in a stream, and
 * per round trip of two threads that sleep when there is nothing. Argument:
 * messages. Both sleepers use a condition variable, so that only the queue
 * differs. Prints; judges nothing. */
#include "ring.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CAPACITY 1024u

/* One direction, in two makes. */
struct lane {
    struct bt_ring ring;
    pthread_mutex_t lock;
    pthread_cond_t more, room;
    unsigned int wakes, room_wakes;
    void *slots[CAPACITY];
    uint32_t head, tail;
    bool is_locked;
};

static struct lane lanes[2];
static uint64_t messages = 1000000;

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void wake(struct lane *l, unsigned int *count, pthread_cond_t *cond)
{
    pthread_mutex_lock(&l->lock);
    (*count)++;
    pthread_cond_signal(cond);
    pthread_mutex_unlock(&l->lock);
}

static void nap(struct lane *l, unsigned int *count, pthread_cond_t *cond)
{
    pthread_mutex_lock(&l->lock);
    while (*count == 0)
        pthread_cond_wait(cond, &l->lock);
    (*count)--;
    pthread_mutex_unlock(&l->lock);
}

static void ring_put(struct lane *l, void *item)
{
    bool must_wake;

    while (!bt_ring_put(&l->ring, item, &must_wake))
        nap(l, &l->room_wakes, &l->room);
    if (must_wake)
        wake(l, &l->wakes, &l->more);
}

static void *ring_take(struct lane *l)
{
    for (;;) {
        bool has_room;
        void *item = bt_ring_take(&l->ring, &has_room);

        if (has_room)
            wake(l, &l->room_wakes, &l->room);
        if (item != NULL)
            return item;
        if (bt_ring_sleep(&l->ring))
            nap(l, &l->wakes, &l->more);
    }
}

static void locked_put(struct lane *l, void *item)
{
    pthread_mutex_lock(&l->lock);
    while (l->tail - l->head == CAPACITY)
        pthread_cond_wait(&l->room, &l->lock);
    l->slots[l->tail++ % CAPACITY] = item;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
}

static void *locked_take(struct lane *l)
{
    void *item;

    pthread_mutex_lock(&l->lock);
    while (l->tail == l->head)
        pthread_cond_wait(&l->more, &l->lock);
    item = l->slots[l->head++ % CAPACITY];
    pthread_cond_signal(&l->room);
    pthread_mutex_unlock(&l->lock);
    return item;
}

static void put(struct lane *l, void *item)
{
    if (l->is_locked)
        locked_put(l, item);
    else
        ring_put(l, item);
}

static void *take(struct lane *l)
{
    return l->is_locked ? locked_take(l) : ring_take(l);
}

static void *echo(void *arg)
{
    for (uint64_t i = 0; i < *(uint64_t *)arg; i++)
        put(&lanes[1], take(&lanes[0]));
    return NULL;
}

static void *sink(void *arg)
{
    for (uint64_t i = 0; i < *(uint64_t *)arg; i++)
        (void)take(&lanes[0]);
    return NULL;
}

static double timed(bool is_locked, bool is_echo, uint64_t count)
{
    pthread_t thread;
    double begun;

    for (int i = 0; i < 2; i++) {
        lanes[i].is_locked = is_locked;
        if (!bt_ring_init(&lanes[i].ring, CAPACITY))
            abort();
    }
    begun = now_ns();
    if (pthread_create(&thread, NULL, is_echo ? echo : sink, &count) != 0)
        abort();
    for (uint64_t i = 0; i < count; i++) {
        put(&lanes[0], &lanes);
        if (is_echo)
            (void)take(&lanes[1]);
    }
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++)
        bt_ring_fini(&lanes[i].ring);
    return (now_ns() - begun) / (double)count;
}

/* What it costs when nobody has to be woken. */
static double alone(bool is_locked)
{
    double begun;

    lanes[0].is_locked = is_locked;
    if (!bt_ring_init(&lanes[0].ring, CAPACITY))
        abort();
    begun = now_ns();
    for (uint64_t i = 0; i < messages; i++) {
        put(&lanes[0], &lanes);
        (void)take(&lanes[0]);
    }
    begun = (now_ns() - begun) / (double)messages;
    bt_ring_fini(&lanes[0].ring);
    return begun;
}

static void row(const char *what, double ring, double locked)
{
    printf("%-28s ring %8.1f ns  mutex+cond %8.1f ns  ratio %.2f\n", what, ring,
           locked, locked / ring);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        messages = strtoull(argv[1], NULL, 10);
    for (int i = 0; i < 2; i++) {
        pthread_mutex_init(&lanes[i].lock, NULL);
        pthread_cond_init(&lanes[i].more, NULL);
        pthread_cond_init(&lanes[i].room, NULL);
    }
    row("put + take, one thread", alone(false), alone(true));
    row("stream, two threads", timed(false, false, messages),
        timed(true, false, messages));
    row("round trip, two threads", timed(false, true, messages / 10),
        timed(true, true, messages / 10));
    return 0;
}
