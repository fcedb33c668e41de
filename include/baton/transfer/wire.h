/* Control frames between a KV source and a KV sink (see kv.h for the order in
 * which they travel). Pure: bytes in, struct out, and back.
 *
 * A frame is one transport message. Little endian, packed:
 *
 *   0  u16 magic 0x4B42 ("BK")     2  u8 version     3  u8 type
 *   4  u32 size of the whole frame, these 8 bytes included
 *   8  payload by type:
 *      HELLO    str name, layout
 *      WELCOME  str name, layout, u64 region, u32 blocks, u16 n, n key bytes
 *      NO       u64 pull (0: the connection), u32 status, str text
 *      OPEN     u64 pull, str request, u32 total, u32 offset, u32 n, n * u32
 *      GRANT    u64 pull, u32 total, u32 offset, u32 n, n * u64
 *      DONE     str request            BEAT  str request
 *      PING     u64 token              PONG  u64 token
 *   str is u8 length + bytes without NUL; layout is u32 version, u32 tokens,
 *   u64 bytes, u64 model.
 *
 * OPEN and GRANT of long lists are split: offset and n say which part. */
#ifndef BATON_TRANSFER_WIRE_H
#define BATON_TRANSFER_WIRE_H

#include "baton/base/status.h"
#include "baton/transfer/kv.h"
#include <stddef.h>
#include <stdint.h>

#define BT_WIRE_VERSION    1
#define BT_WIRE_FRAME_MAX  65536 /* bytes, every type */
#define BT_WIRE_KEY_MAX    1024  /* packed remote key */
#define BT_WIRE_TEXT_MAX   255   /* reason of a NO */
#define BT_WIRE_OPEN_PART  16000 /* blocks in one OPEN */
#define BT_WIRE_GRANT_PART 8000  /* checksums in one GRANT */
#define BT_WIRE_LIST_MAX   65536 /* blocks in one pull */

enum bt_wire_type {
    BT_WIRE_HELLO = 1,
    BT_WIRE_WELCOME,
    BT_WIRE_NO,
    BT_WIRE_OPEN,
    BT_WIRE_GRANT,
    BT_WIRE_DONE,
    BT_WIRE_BEAT,
    BT_WIRE_PING,
    BT_WIRE_PONG
};

struct bt_wire_frame {
    enum bt_wire_type type;
    uint64_t pull;                       /* NO OPEN GRANT */
    uint64_t token;                      /* PING PONG */
    char name[BT_KV_NAME_MAX];           /* HELLO WELCOME */
    struct bt_kv_layout layout;          /* HELLO WELCOME */
    uint64_t region;                     /* WELCOME: remote address */
    uint32_t block_count;                /* WELCOME */
    uint16_t key_size;                   /* WELCOME */
    uint8_t key[BT_WIRE_KEY_MAX];        /* WELCOME */
    uint32_t status;                     /* NO: enum bt_status, unchecked */
    char text[BT_WIRE_TEXT_MAX + 1];     /* NO */
    char request[BT_KV_REQUEST_MAX + 1]; /* OPEN DONE BEAT */
    uint32_t total, offset, count;       /* OPEN GRANT: this part of the list */
    const uint32_t *blocks;              /* OPEN, to encode: count of them */
    const uint64_t *hashes;              /* GRANT, to encode: count of them */
    const uint8_t *list; /* OPEN GRANT, decoded: raw elements in the frame's
                            bytes; read by bt_wire_block / bt_wire_hash */
};

/* Write the frame. Only the fields of its type are read. BT_INVALID: a string
 * too long, count over the part limit, part outside total; BT_TOO_LARGE: does
 * not fit in size. */
enum bt_status bt_wire_encode(const struct bt_wire_frame *frame, void *out,
                              size_t size, size_t *used_out);
/* Read a frame of exactly `size` bytes; fields of other types are zero.
 * BT_INCOMPATIBLE: another protocol version; BT_INVALID: anything malformed,
 * too short or too long. frame_out->list points into `bytes`. */
enum bt_status bt_wire_decode(const void *bytes, size_t size,
                              struct bt_wire_frame *frame_out);
/* Element i < count of a decoded OPEN / GRANT. */
uint32_t bt_wire_block(const struct bt_wire_frame *frame, uint32_t i);
uint64_t bt_wire_hash(const struct bt_wire_frame *frame, uint32_t i);
/* "HELLO"...; "?" for a foreign value. Static storage. */
const char *bt_wire_type_name(enum bt_wire_type type);

/* Do both layouts agree? BT_INCOMPATIBLE: text_out says which field differs
 * and both values; untouched when they agree. */
enum bt_status bt_wire_layout_match(const struct bt_kv_layout *mine,
                                    const struct bt_kv_layout *theirs,
                                    char *text_out, size_t text_size);

#endif
