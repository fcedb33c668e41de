/* Authenticated control frames: both ends share a key (32 bytes, from a file);
 * who cannot prove it never learns a memory key, and a frame that was changed,
 * replayed or reordered is refused. Pure: nonces come in. Confidentiality is
 * not offered, bytes on the fabric are plain.
 *
 *   sink -> source  HELLO {nonce s}
 *   source -> sink  CHALLENGE {nonce r, proof_source}
 *   sink -> source  PROVE {proof_sink}
 *   session key   K = HMAC-SHA256(key, "baton session" | s | r)
 *   proof_source    = HMAC-SHA256(K, "source"), proof_sink the same with "sink"
 *   afterwards every frame is followed by {u64 sequence, 16 bytes tag},
 *   tag = first 16 bytes of HMAC-SHA256(K, direction | sequence | frame);
 *   the sequence starts at 1 per direction and must grow by one.
 *
 * Without a key both ends skip CHALLENGE and PROVE and send bare frames; one
 * with and one without a key refuse each other with a clear reason. HMAC is RFC
 * 2104 over FIPS 180-4, from nettle.
 */
#ifndef BATON_TRANSFER_SEAL_H
#define BATON_TRANSFER_SEAL_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_SEAL_KEY   32
#define BT_SEAL_NONCE 16
#define BT_SEAL_PROOF 32
#define BT_SEAL_TAIL  24

struct bt_seal {
    uint8_t session[32];
    uint64_t sent, received;
    bool is_sink;
};
void bt_seal_init(struct bt_seal *seal, const uint8_t key[BT_SEAL_KEY],
                  const uint8_t sink_nonce[BT_SEAL_NONCE],
                  const uint8_t source_nonce[BT_SEAL_NONCE], bool is_sink);
/* What this end sends. */
void bt_seal_proof(const struct bt_seal *seal, uint8_t out[BT_SEAL_PROOF]);
/* What the other end sent, in constant time. */
bool bt_seal_proves(const struct bt_seal *seal,
                    const uint8_t proof[BT_SEAL_PROOF]);
/* Append the tail to a frame of `size` bytes in a buffer of `room`. TOO_LARGE.
 */
enum bt_status bt_seal_add(struct bt_seal *seal, uint8_t *frame, size_t size,
                           size_t room, size_t *size_out);
/* Check and strip it. BT_CHECKSUM: changed or another key; BT_STALE: replayed
 * or out of order (sequence); BT_TRUNCATED: too short. A failure means: close
 * the connection. */
enum bt_status bt_seal_open(struct bt_seal *seal, const uint8_t *frame,
                            size_t size, size_t *size_out);

#endif
