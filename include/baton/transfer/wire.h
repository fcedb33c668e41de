/* Control frames between a KV source and a KV sink (see kv.h for the order in
 * which they travel). Pure: bytes in, struct out, and back.
 *
 * A frame is one transport message. Little endian, packed:
 *
 *   0  u16 magic 0x4B42 ("BK")     2  u8 version     3  u8 type
 *   4  u32 size of the whole frame, these 8 bytes included
 *   8  payload by type:
 *      HELLO     str name, str region, layout, u8 rail, u8 flags, u64 session,
 *                16 nonce        flags: 1 = this end holds a key
 *      CHALLENGE 16 nonce, 32 proof
 *      PROVE     32 proof
 *      WELCOME   str name, layout, u64 region, u32 blocks, u16 n, n key bytes,
 *                u64 session, u8 r, r * (str address, u16 port)
 *      NO        u64 pull (0: the connection), u32 status, str text
 *      OPEN      u64 pull, u8 flags, str request, u32 total, u32 offset, u32 n,
 *                n * u64         flags: 1 = with checksums
 *      GRANT     u64 pull, u32 total, u32 offset, u32 n, n * (u32, u64)
 *      DONE      u64 pull (0: none), u8 flags, str request
 *                                flags: 1 = the request is over
 *      BEAT      str request
 *      PING      u64 token            PONG  u64 token
 *   str is u8 length + printable bytes; layout is u32 version, u32 tokens,
 *   u64 bytes, u64 model.
 *
 * HELLO.session is the sink's number for all its rails to a source,
 * WELCOME.session the source's for this life of it. The rails of WELCOME are
 * those after the first, in order.
 *
 * OPEN and GRANT of long lists are split: offset and n say which part. With a
 * key every frame after PROVE is sealed (seal.h): `size` is without the tail.
 */
#ifndef BATON_TRANSFER_WIRE_H
#define BATON_TRANSFER_WIRE_H

#include "baton/base/status.h"
#include "baton/transfer/kv.h"
#include <stddef.h>
#include <stdint.h>

#define BT_WIRE_VERSION    2
#define BT_WIRE_FRAME_MAX  65536 /* bytes, every type, tail included */
#define BT_WIRE_TAIL       24    /* of a sealed one */
#define BT_WIRE_KEY_MAX    1024  /* packed remote key */
#define BT_WIRE_TEXT_MAX   255   /* reason of a NO */
#define BT_WIRE_OPEN_PART  8000  /* references in one OPEN */
#define BT_WIRE_GRANT_PART 5000  /* blocks in one GRANT */
#define BT_WIRE_LIST_MAX   65536 /* blocks in one pull */
#define BT_WIRE_NONCE      16
#define BT_WIRE_PROOF      32
#define BT_WIRE_ADDRESS    48 /* numeric address, its NUL included */

#define BT_WIRE_KEYED     1u /* HELLO */
#define BT_WIRE_CHECKSUMS 1u /* OPEN */
#define BT_WIRE_RELEASE   1u /* DONE */

enum bt_wire_type {
    BT_WIRE_HELLO = 1,
    BT_WIRE_CHALLENGE,
    BT_WIRE_PROVE,
    BT_WIRE_WELCOME,
    BT_WIRE_NO,
    BT_WIRE_OPEN,
    BT_WIRE_GRANT,
    BT_WIRE_DONE,
    BT_WIRE_BEAT,
    BT_WIRE_PING,
    BT_WIRE_PONG
};

struct bt_wire_rail {
    char address[BT_WIRE_ADDRESS];
    uint16_t port;
};

struct bt_wire_frame {
    enum bt_wire_type type;
    uint64_t pull;                               /* NO OPEN GRANT DONE */
    uint64_t token;                              /* PING PONG */
    uint64_t session;                            /* HELLO WELCOME */
    uint8_t rail;                                /* HELLO: < BT_RAILS_MAX */
    uint8_t flags;                               /* HELLO OPEN DONE */
    uint8_t rail_count;                          /* WELCOME: < BT_RAILS_MAX */
    char name[BT_KV_NAME_MAX];                   /* HELLO WELCOME */
    char region_name[BT_KV_NAME_MAX];            /* HELLO */
    uint8_t nonce[BT_WIRE_NONCE];                /* HELLO CHALLENGE */
    uint8_t proof[BT_WIRE_PROOF];                /* CHALLENGE PROVE */
    struct bt_kv_layout layout;                  /* HELLO WELCOME */
    uint64_t region;                             /* WELCOME: remote address */
    uint32_t block_count;                        /* WELCOME */
    uint16_t key_size;                           /* WELCOME */
    uint8_t key[BT_WIRE_KEY_MAX];                /* WELCOME */
    struct bt_wire_rail rails[BT_RAILS_MAX - 1]; /* WELCOME */
    uint32_t status;                     /* NO: enum bt_status, unchecked */
    char text[BT_WIRE_TEXT_MAX + 1];     /* NO */
    char request[BT_KV_REQUEST_MAX + 1]; /* OPEN DONE BEAT */
    uint32_t total, offset, count;       /* OPEN GRANT: this part of the list */
    const uint64_t *refs;                /* OPEN, to encode: count of them */
    const uint32_t *blocks;              /* GRANT, to encode: count of them */
    const uint64_t *hashes;              /* GRANT, to encode: count of them */
    const uint8_t *list; /* OPEN GRANT, decoded: raw elements in the frame's
                            bytes; read by bt_wire_ref / _block / _hash */
};

/* Write the frame, with room left for a tail. Only the fields of its type are
 * read. BT_INVALID: a string too long, count over the part limit, part outside
 * total; BT_TOO_LARGE: does not fit in size. */
enum bt_status bt_wire_encode(const struct bt_wire_frame *frame, void *out,
                              size_t size, size_t *used_out);
/* Read a frame of exactly `size` bytes; fields of other types are zero.
 * BT_INCOMPATIBLE: another protocol version; BT_INVALID: anything malformed,
 * too short or too long. frame_out->list points into `bytes`. */
enum bt_status bt_wire_decode(const void *bytes, size_t size,
                              struct bt_wire_frame *frame_out);
/* Element i < count of a decoded OPEN (ref) or GRANT (block, hash). */
uint64_t bt_wire_ref(const struct bt_wire_frame *frame, uint32_t i);
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
