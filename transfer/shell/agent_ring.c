/* See agent_ring.h. Decides nothing but order and when the eventfd is set: it
 * holds 1 exactly while items wait, changed under the lock, so that a reader
 * that polls neither misses an item nor turns on an empty ring. */
#include "agent_ring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum bt_status bt_agent_ring_init(struct bt_agent_ring *ring, uint32_t room,
                                  size_t item_bytes, bool with_fd)
{
    memset(ring, 0, sizeof(*ring));
    ring->fd = -1;
    ring->room = room;
    ring->item_bytes = item_bytes;
    ring->items = calloc(room, item_bytes);
    if (ring->items == NULL)
        return BT_NO_MEMORY;
    if (with_fd)
        ring->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (with_fd && ring->fd < 0) {
        free(ring->items);
        ring->items = NULL;
        return BT_IO;
    }
    (void)pthread_mutex_init(&ring->lock, NULL);
    return BT_OK;
}

void bt_agent_ring_fini(struct bt_agent_ring *ring)
{
    if (ring->items == NULL)
        return;
    if (ring->fd >= 0)
        close(ring->fd);
    (void)pthread_mutex_destroy(&ring->lock);
    free(ring->items);
    ring->items = NULL;
}

static void set_fd(const struct bt_agent_ring *ring, bool readable)
{
    uint64_t value = 1;
    ssize_t n;

    if (ring->fd < 0)
        return;
    n = readable ? write(ring->fd, &value, sizeof(value))
                 : read(ring->fd, &value, sizeof(value));
    assert(n == (ssize_t)sizeof(value));
}

enum bt_status bt_agent_ring_push(struct bt_agent_ring *ring, const void *item)
{
    enum bt_status status = BT_LIMIT;

    pthread_mutex_lock(&ring->lock);
    if (ring->count < ring->room) {
        uint32_t at = (ring->head + ring->count) % ring->room;

        memcpy(ring->items + at * ring->item_bytes, item, ring->item_bytes);
        if (ring->count++ == 0)
            set_fd(ring, true);
        status = BT_OK;
    }
    pthread_mutex_unlock(&ring->lock);
    return status;
}

uint32_t bt_agent_ring_room(struct bt_agent_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    uint32_t room = ring->room - ring->count;
    pthread_mutex_unlock(&ring->lock);
    return room;
}

size_t bt_agent_ring_pop(struct bt_agent_ring *ring, void *items, size_t max,
                         bool *was_full)
{
    unsigned char *to = items;
    size_t n = 0;

    pthread_mutex_lock(&ring->lock);
    *was_full = ring->count == ring->room;
    for (; n < max && ring->count > 0; n++) {
        memcpy(to + n * ring->item_bytes,
               ring->items + ring->head * ring->item_bytes, ring->item_bytes);
        ring->head = (ring->head + 1) % ring->room;
        if (--ring->count == 0)
            set_fd(ring, false);
    }
    pthread_mutex_unlock(&ring->lock);
    return n;
}
