/* A tap on every transport of a test: it counts, and does harm on order.
 * Exact where the fault decorator draws lots: "flip a bit of the next frame of
 * rail 1's sink". Install before the fabrics are made. */
#ifndef BATON_TESTS_CONFORMANCE_KV_TAP_H
#define BATON_TESTS_CONFORMANCE_KV_TAP_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>

#define TAP_RAILS 2

/* What happens on a rail, to both ends of it. */
struct tap_rail {
    int connects, sends, gets, posted; /* counted; posted: gets out */
    int flip_get;   /* > 0: a bit of what the next n gets brought */
    int fail_get;   /* > 0: the next n end with BT_PEER_ERROR */
    bool hold_gets; /* gets do not come back */
    bool cut;       /* nothing passes: frames are lost, gets held */
    bool refuse;    /* connects fail */
    uint8_t type;   /* frame type to harm, of the sends below */
    int flip_send;  /* > 0: a bit of the next n such frames */
    int twice_send; /* > 0: the next n such frames go out twice */
    int drop_send;  /* > 0: the next n such frames are lost */
};
struct tap {
    struct tap_rail rails[TAP_RAILS];
};
extern struct tap tap;

void tap_install(void); /* and clear */
void tap_remove(void);
/* Every connection of the rail fails now, from the loop. */
void tap_break(struct ev_loop *loop, uint32_t rail);
/* Held gets go on. */
void tap_release(uint32_t rail);

#endif
