/* One end of a connection as the protocol sees it: frames are encoded, sealed
 * when a key is configured, counted when they are not what they should be.
 * Decides nothing about what a frame means. Invariant: once `sealed` is set no
 * bare frame goes out or comes in. */
#include "fabric.h"

#include <assert.h>
#include <string.h>

_Static_assert(BT_WIRE_TAIL == BT_SEAL_TAIL, "room for the tail");
_Static_assert(BT_WIRE_NONCE == BT_SEAL_NONCE, "nonce");
_Static_assert(BT_WIRE_PROOF == BT_SEAL_PROOF, "proof");

void bt_link_send(struct bt_link *link, const struct bt_wire_frame *frame)
{
    uint8_t *bytes = link->fabric->scratch;
    size_t room = sizeof(link->fabric->scratch), used = 0;
    enum bt_status status = bt_wire_encode(frame, bytes, room, &used);

    assert(status == BT_OK);
    if (link->sealed) {
        status = bt_seal_add(&link->seal, bytes, used, room, &used);
        assert(status == BT_OK);
    }
    link->transport->ops->send(link->conn, bytes, used);
}

/* A tag over the HELLO, by a key that only the two nonces and the shared key
 * give, takes the place of the sink's nonce. Both ends encode what they sent or
 * understood: a difference is a wrong key. */
void bt_link_keyed(struct bt_link *link, const struct bt_wire_frame *hello,
                   const uint8_t *source_nonce, bool is_sink)
{
    const uint8_t *key = link->fabric->key;
    uint8_t *bytes = link->fabric->scratch;
    size_t room = sizeof(link->fabric->scratch), used = 0;
    struct bt_seal over;
    enum bt_status status = bt_wire_encode(hello, bytes, room, &used);

    assert(status == BT_OK);
    bt_seal_init(&over, key, hello->nonce, source_nonce, true);
    status = bt_seal_add(&over, bytes, used, room, &used);
    assert(status == BT_OK);
    (void)status;
    bt_seal_init(&link->seal, key, bytes + used - BT_SEAL_NONCE, source_nonce,
                 is_sink);
}

static enum bt_status unseal(struct bt_link *link, const void *bytes,
                             size_t *size, const char **text_out)
{
    enum bt_status status = bt_seal_open(&link->seal, bytes, *size, size);

    if (status == BT_OK)
        return BT_OK;
    if (status == BT_STALE) {
        link->fabric->stats.frames_replayed++;
        *text_out = "replayed frame";
    } else {
        link->fabric->stats.frames_corrupt++;
        *text_out = "corrupt frame";
    }
    return status;
}

enum bt_status bt_link_open(struct bt_link *link, const void *bytes,
                            size_t size, struct bt_wire_frame *frame_out,
                            const char **text_out)
{
    enum bt_status status = BT_OK;

    if (link->sealed)
        status = unseal(link, bytes, &size, text_out);
    if (status != BT_OK)
        return status;
    status = bt_wire_decode(bytes, size, frame_out);
    if (status == BT_INCOMPATIBLE) {
        *text_out = "protocol version differs";
    } else if (status != BT_OK) {
        link->fabric->stats.frames_malformed++;
        *text_out = "malformed frame";
    }
    return status;
}
