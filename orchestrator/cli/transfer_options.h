/* Options of commands that move KV bytes: rails, the shared key, the fabric. */
#ifndef BATON_CLI_TRANSFER_OPTIONS_H
#define BATON_CLI_TRANSFER_OPTIONS_H

#include "baton/transfer/kv.h"
#include <stdbool.h>
#include <stdint.h>

#define TRANSFER_KEY 32

struct transfer_rails {
    struct bt_rail_config rails[BT_RAILS_MAX];
    char texts[BT_RAILS_MAX][160]; /* their strings */
    uint32_t count;
};
/* NAME=ADDRESS[@DEVICE]; ADDRESS may be empty. False: malformed, a name twice,
 * or too many. */
bool transfer_rail_add(struct transfer_rails *rails, const char *text);
bool transfer_fabric_known(const char *kind);
/* The key in a file: 64 hex digits, or 32 bytes. False: said on stderr. A file
 * that others may read is said too, and taken. */
bool transfer_key_read(const char *command, const char *path,
                       uint8_t key_out[TRANSFER_KEY]);

#endif
