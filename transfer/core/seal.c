/* Session key, proofs and the tail of a sealed frame. Nonces come from the
 * caller; what a failure does to the connection is the caller's too.
 *
 *   frame | u64 sequence (little endian) | 16 bytes tag
 *   tag over: direction (1: from the sink, 2: from the source) | sequence |
 *   frame
 *
 * Invariants: received grows only for a frame whose tag is right and whose
 * sequence is the next; a tag or proof is compared in constant time. */
#include "baton/transfer/seal.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>

#define SEQUENCE    8
#define TAG         16
#define FROM_SINK   1
#define FROM_SOURCE 2

static const char session_label[] = "baton session";
static const char sink_label[] = "sink", source_label[] = "source";

static void update_text(struct hmac_sha256_ctx *mac, const char *text)
{
    hmac_sha256_update(mac, strlen(text), (const uint8_t *)text);
}

void bt_seal_init(struct bt_seal *seal, const uint8_t key[BT_SEAL_KEY],
                  const uint8_t sink_nonce[BT_SEAL_NONCE],
                  const uint8_t source_nonce[BT_SEAL_NONCE], bool is_sink)
{
    struct hmac_sha256_ctx mac;

    *seal = (struct bt_seal){.is_sink = is_sink};
    hmac_sha256_set_key(&mac, BT_SEAL_KEY, key);
    update_text(&mac, session_label);
    hmac_sha256_update(&mac, BT_SEAL_NONCE, sink_nonce);
    hmac_sha256_update(&mac, BT_SEAL_NONCE, source_nonce);
    hmac_sha256_digest(&mac, sizeof(seal->session), seal->session);
}

static void proof(const struct bt_seal *seal, bool of_sink,
                  uint8_t out[BT_SEAL_PROOF])
{
    struct hmac_sha256_ctx mac;

    hmac_sha256_set_key(&mac, sizeof(seal->session), seal->session);
    update_text(&mac, of_sink ? sink_label : source_label);
    hmac_sha256_digest(&mac, BT_SEAL_PROOF, out);
}

void bt_seal_proof(const struct bt_seal *seal, uint8_t out[BT_SEAL_PROOF])
{
    proof(seal, seal->is_sink, out);
}

bool bt_seal_proves(const struct bt_seal *seal,
                    const uint8_t given[BT_SEAL_PROOF])
{
    uint8_t right[BT_SEAL_PROOF];

    proof(seal, !seal->is_sink, right);
    return memeql_sec(right, given, BT_SEAL_PROOF) != 0;
}

static void put64(uint8_t out[SEQUENCE], uint64_t value)
{
    for (int i = 0; i < SEQUENCE; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get64(const uint8_t in[SEQUENCE])
{
    uint64_t value = 0;

    for (int i = 0; i < SEQUENCE; i++)
        value |= (uint64_t)in[i] << 8 * i;
    return value;
}

/* sequence: as it stands in the tail. */
static void tag_of(const struct bt_seal *seal, bool from_sink,
                   const uint8_t sequence[SEQUENCE], const uint8_t *frame,
                   size_t size, uint8_t out[TAG])
{
    const uint8_t direction = from_sink ? FROM_SINK : FROM_SOURCE;
    struct hmac_sha256_ctx mac;

    hmac_sha256_set_key(&mac, sizeof(seal->session), seal->session);
    hmac_sha256_update(&mac, 1, &direction);
    hmac_sha256_update(&mac, SEQUENCE, sequence);
    hmac_sha256_update(&mac, size, frame);
    hmac_sha256_digest(&mac, TAG, out);
}

enum bt_status bt_seal_add(struct bt_seal *seal, uint8_t *frame, size_t size,
                           size_t room, size_t *size_out)
{
    if (room < BT_SEAL_TAIL || size > room - BT_SEAL_TAIL)
        return BT_TOO_LARGE;
    put64(frame + size, ++seal->sent);
    tag_of(seal, seal->is_sink, frame + size, frame, size,
           frame + size + SEQUENCE);
    *size_out = size + BT_SEAL_TAIL;
    return BT_OK;
}

enum bt_status bt_seal_open(struct bt_seal *seal, const uint8_t *frame,
                            size_t size, size_t *size_out)
{
    uint8_t tag[TAG];
    size_t bare;

    if (size < BT_SEAL_TAIL)
        return BT_TRUNCATED;
    bare = size - BT_SEAL_TAIL;
    tag_of(seal, !seal->is_sink, frame + bare, frame, bare, tag);
    if (!memeql_sec(tag, frame + bare + SEQUENCE, TAG))
        return BT_CHECKSUM;
    if (get64(frame + bare) != seal->received + 1)
        return BT_STALE;
    seal->received++;
    *size_out = bare;
    return BT_OK;
}
