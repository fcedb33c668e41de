/* Topic prefixes of the engines that connect to us, longest match first. */
#ifndef BATON_EVENTS_TOPICS_H
#define BATON_EVENTS_TOPICS_H

#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

#define TOPIC_MAX 512 /* bytes of a topic that are looked at */

struct topics {
    struct topic {
        char *text; /* owned */
        size_t bytes;
        uint32_t source;
    } * sorted;
    uint32_t count, max;
};

/* BT_NO_MEMORY. */
enum bt_status topics_init(struct topics *t, uint32_t max);
void topics_fini(struct topics *t);
/* BT_INVALID: empty, too long, or there already. BT_LIMIT, BT_NO_MEMORY. */
enum bt_status topics_add(struct topics *t, const char *text, uint32_t source);
void topics_remove(struct topics *t, uint32_t source);
/* BT_NOT_FOUND. */
enum bt_status topics_find(const struct topics *t, const char *topic,
                           size_t bytes, uint32_t *source_out);

#endif
