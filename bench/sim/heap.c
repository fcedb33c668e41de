/* Events of the world in order of time; those of one instant in the order in
 * which they were scheduled, so that a run repeats itself. What an event means
 * is its handler's matter; one that is out of date is not removed but told by
 * the version it carries.
 */
#include "sim_priv.h"

#include <stdlib.h>

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static bool grow(struct sim_heap *heap)
{
    size_t capacity = heap->capacity == 0 ? 1024 : heap->capacity * 2;
    struct sim_event *items;

    if (heap->count >= SIM_HEAP_MAX)
        return false;
    items = realloc(heap->items, capacity * sizeof(*items));
    if (items == NULL)
        return false;
    heap->items = items;
    heap->capacity = capacity;
    return true;
}

bool sim_heap_push(struct sim_heap *heap, struct sim_event event)
{
    size_t at = heap->count;

    if (heap->count == heap->capacity && !grow(heap))
        return false;
    event.seq = heap->seq++;
    heap->count++;
    while (at > 0) {
        size_t parent = (at - 1) / 2;

        if (!before(&event, &heap->items[parent]))
            break;
        heap->items[at] = heap->items[parent];
        at = parent;
    }
    heap->items[at] = event;
    return true;
}

bool sim_heap_pop(struct sim_heap *heap, struct sim_event *out)
{
    struct sim_event last;
    size_t at = 0;

    if (heap->count == 0)
        return false;
    *out = heap->items[0];
    last = heap->items[--heap->count];
    while (2 * at + 1 < heap->count) {
        size_t child = 2 * at + 1;

        if (child + 1 < heap->count &&
            before(&heap->items[child + 1], &heap->items[child]))
            child++;
        if (!before(&heap->items[child], &last))
            break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    return true;
}

void sim_heap_fini(struct sim_heap *heap)
{
    free(heap->items);
    *heap = (struct sim_heap){0};
}
