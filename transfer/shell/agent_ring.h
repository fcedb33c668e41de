/* Bounded ring of equal items between threads: any number of writers, any
 * number of readers, first in first out. Kept by a mutex that is held for one
 * copy; nobody waits for room or for an item. Callers are threads we do not
 * know, which fabric/ring.h (one thread on each side, no lock) cannot have, and
 * its items' descriptor has to change together with the count, so a lock is
 * needed in any case. */
#ifndef BATON_TRANSFER_SHELL_AGENT_RING_H
#define BATON_TRANSFER_SHELL_AGENT_RING_H

#include "baton/base/status.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bt_agent_ring {
    pthread_mutex_t lock;
    unsigned char *items;
    size_t item_bytes;
    uint32_t room, count, head;
    int fd; /* readable while items wait; -1: none */
};
/* with_fd: an eventfd that follows the ring. NO_MEMORY, IO. */
enum bt_status bt_agent_ring_init(struct bt_agent_ring *ring, uint32_t room,
                                  size_t item_bytes, bool with_fd);
void bt_agent_ring_fini(struct bt_agent_ring *ring);
/* BT_LIMIT: full. */
enum bt_status bt_agent_ring_push(struct bt_agent_ring *ring, const void *item);
/* How many more fit; stable for the only writer's thread. */
uint32_t bt_agent_ring_room(struct bt_agent_ring *ring);
/* Up to max of them, oldest first; returns how many. *was_full: writers may
 * have been sent away since. */
size_t bt_agent_ring_pop(struct bt_agent_ring *ring, void *items, size_t max,
                         bool *was_full);

#endif
