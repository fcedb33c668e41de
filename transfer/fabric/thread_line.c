/* One direction of the decorator thread: a bounded ring and the messages that
 * wait for room in it, in order. A message that waits is embedded in what it
 * is about (a get, a connection, a frame that counts against its connection),
 * so waiting takes no memory and nothing is lost. Decides when the other side
 * is woken. */
#include "thread.h"

void bt_thr_append(struct bt_tevent ***last, struct bt_tevent *event)
{
    event->next = NULL;
    **last = event;
    *last = &event->next;
}

bool bt_thr_line_init(struct thr_line *line, uint32_t capacity)
{
    line->first = NULL;
    line->last = &line->first;
    atomic_init(&line->waits, 0);
    if (!bt_ring_init(&line->ring, capacity))
        return false;
    (void)bt_ring_sleep(&line->ring);
    return true;
}

void bt_thr_line_fini(struct thr_line *line)
{
    bt_ring_fini(&line->ring);
}

static bool put(struct thr_line *line, struct bt_tevent *event)
{
    bool wake, is_put = bt_ring_put(&line->ring, event, &wake);

    if (wake)
        ev_async_send(line->to, line->wake);
    return is_put;
}

void bt_thr_post(struct thr_line *line, struct bt_tevent *event)
{
    if (bt_thr_flush(line) && put(line, event))
        return;
    bt_thr_append(&line->last, event);
    atomic_fetch_add_explicit(&line->waits, 1, memory_order_relaxed);
}

bool bt_thr_flush(struct thr_line *line)
{
    struct bt_tevent *event, *next;

    while ((event = line->first) != NULL) {
        next = event->next; /* once put, the event is the consumer's */
        if (!put(line, event))
            return false;
        line->first = next;
        if (next == NULL)
            line->last = &line->first;
    }
    return true;
}

struct bt_tevent *bt_thr_take(struct thr_line *line, struct thr_line *back)
{
    bool room;
    struct bt_tevent *event = bt_ring_take(&line->ring, &room);

    if (room)
        ev_async_send(back->to, back->wake);
    return event;
}
