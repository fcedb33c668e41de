/* Copies of device memory, private to transfer/tier: started, then polled by
 * the loop of whoever started them. */
#ifndef TIER_DEVICE_H
#define TIER_DEVICE_H

#include "baton/transfer/tier.h"

enum bt_copy_kind { BT_COPY_TO_DEVICE, BT_COPY_FROM_DEVICE, BT_COPY_WITHIN };
struct bt_device_copy {
    enum bt_copy_kind kind;
    void *to;
    const void *from;
    uint64_t bytes;
    struct bt_device *peer; /* WITHIN: the device of `to`, NULL the same */
};
/* *ticket_out until bt_device_poll says other than BT_AGAIN. BT_LIMIT: 256 are
 * out; BT_IO: the driver refused (bt_device_error has its word). */
enum bt_status bt_device_copy(struct bt_device *device,
                              const struct bt_device_copy *copy,
                              uint32_t *ticket_out);
/* BT_AGAIN: under way. BT_OK, BT_IO: ended, the ticket is gone. */
enum bt_status bt_device_poll(struct bt_device *device, uint32_t ticket);
/* Can `device` copy straight into memory of `peer`? */
bool bt_device_reaches(struct bt_device *device, struct bt_device *peer);
/* Text of the last driver error; "" none. */
const char *bt_device_error(const struct bt_device *device);

#endif
