/* Options of commands that move KV bytes: rails, the shared key, the fabric. */
#ifndef BATON_CLI_TRANSFER_OPTIONS_H
#define BATON_CLI_TRANSFER_OPTIONS_H

#include "baton/transfer/kv.h"
#include <stdbool.h>
#include <stdint.h>

#define TRANSFER_KEY  32
#define TRANSFER_HOST 64

struct transfer_rails {
    struct bt_rail_config rails[BT_RAILS_MAX];
    char texts[BT_RAILS_MAX][256];           /* their strings */
    char hosts[BT_RAILS_MAX][TRANSFER_HOST]; /* addresses, once resolved */
    uint32_t count;
};
/* What --help shows of it. */
#define TRANSFER_RAIL "NAME=ADDRESS[@DEVICE][,KEY=VALUE]..."
/* Add a rail from its word; ADDRESS may be empty before a DEVICE. Keys: gid,
 * partition, mtu, class, rate, transports (baton(1), RAILS). False: error_out
 * (>= 160 bytes) says what is wrong, with the column in the word; nothing is
 * added. At most 8, each with a name of its own. */
bool transfer_rail_add(struct transfer_rails *rails, const char *text,
                       char *error_out, size_t error_size);
/* A host as people write it (a name, 127.1, fd00::1) into the numeric address
 * that fabrics take; `localhost` stays. Asks the resolver, which may block: for
 * start-up only. False: said on stderr, with the option. */
bool transfer_host(const char *command, const char *option, const char *host,
                   char out[TRANSFER_HOST]);
/* The same for every rail's address; the sim fabric's are names of its own. */
bool transfer_rails_resolve(const char *command, const char *fabric,
                            struct transfer_rails *rails);
bool transfer_fabric_known(const char *kind);
/* The key in a file: 64 hex digits, or 32 bytes. False: said on stderr. A file
 * that others may read is said too, and taken. */
bool transfer_key_read(const char *command, const char *path,
                       uint8_t key_out[TRANSFER_KEY]);

#endif
