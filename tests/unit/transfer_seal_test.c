/* Sealed frames. HMAC-SHA256 is written once more here from RFC 2104 over
 * nettle's plain SHA-256 and held against the vectors of RFC 4231; the session
 * key, proofs and tags of seal.h are then computed with it by the formulas of
 * the header, and one of them was computed beforehand with Python's hmac. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "baton/transfer/seal.h"
#include "transfer_sha256.h"

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define ROOM 256

static const uint8_t key[BT_SEAL_KEY] = "thirty-two bytes of shared key!!";
static const uint8_t sink_nonce[BT_SEAL_NONCE] = "nonce of a sink.";
static const uint8_t source_nonce[BT_SEAL_NONCE] = "nonce of source.";

/* RFC 2104: H((K ^ opad) | H((K ^ ipad) | text)), keys over 64 bytes hashed. */
static void hmac(const void *k, size_t k_size, const void *text, size_t size,
                 uint8_t out[32])
{
    uint8_t pad[64] = {0}, inner[64 + 512], outer[64 + 32];

    assert_true(size <= 512);
    if (k_size > 64)
        sha256(k, k_size, pad);
    else
        memcpy(pad, k, k_size);
    for (int i = 0; i < 64; i++) {
        inner[i] = pad[i] ^ 0x36;
        outer[i] = pad[i] ^ 0x5c;
    }
    memcpy(inner + 64, text, size);
    sha256(inner, 64 + size, outer + 64);
    sha256(outer, sizeof(outer), out);
}

static void assert_hex(const uint8_t *bytes, const char *hex)
{
    char text[65];

    for (int i = 0; i < 32; i++)
        snprintf(text + (size_t)i * 2, 3, "%02x", (unsigned int)bytes[i]);
    assert_string_equal(text, hex);
}

/* RFC 4231, test cases 1, 2, 4 and 6. */
static void test_reference_hmac(void **state)
{
    uint8_t k[131], out[32], data[50];

    (void)state;
    memset(k, 0x0b, 20);
    hmac(k, 20, "Hi There", 8, out);
    assert_hex(out, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e"
                    "32cff7");
    hmac("Jefe", 4, "what do ya want for nothing?", 28, out);
    assert_hex(out, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964"
                    "ec3843");
    for (uint8_t i = 0; i < 25; i++)
        k[i] = (uint8_t)(i + 1);
    memset(data, 0xcd, sizeof(data));
    hmac(k, 25, data, 50, out);
    assert_hex(out, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff467"
                    "29665b");
    memset(k, 0xaa, sizeof(k));
    hmac(k, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
         out);
    assert_hex(out, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0e"
                    "e37f54");
}

static void pair(struct bt_seal *sink, struct bt_seal *source)
{
    bt_seal_init(sink, key, sink_nonce, source_nonce, true);
    bt_seal_init(source, key, sink_nonce, source_nonce, false);
}

/* Bytes, not a string. */
static void put(uint8_t *to, const void *from, size_t size)
{
    memcpy(to, from, size);
}

static void session_of(uint8_t out[32])
{
    uint8_t text[13 + 32];

    put(text, "baton session", 13);
    put(text + 13, sink_nonce, 16);
    put(text + 29, source_nonce, 16);
    hmac(key, sizeof(key), text, sizeof(text), out);
}

static void test_proofs(void **state)
{
    struct bt_seal sink, source, other;
    uint8_t session[32], right[32], proof[BT_SEAL_PROOF];
    uint8_t wrong_key[BT_SEAL_KEY];

    (void)state;
    pair(&sink, &source);
    session_of(session);
    assert_hex(session,
               "2bec77aa00129fd5d5258a6ea820f88525d39eef3eea32c199df0dca8c89"
               "35e6");
    assert_memory_equal(sink.session, session, 32);
    assert_memory_equal(source.session, session, 32);
    hmac(session, 32, "sink", 4, right);
    bt_seal_proof(&sink, proof);
    assert_memory_equal(proof, right, 32);
    assert_true(bt_seal_proves(&source, proof));
    assert_false(bt_seal_proves(&sink, proof)); /* reflected */
    hmac(session, 32, "source", 6, right);
    bt_seal_proof(&source, proof);
    assert_memory_equal(proof, right, 32);
    assert_true(bt_seal_proves(&sink, proof));
    for (int i = 0; i < BT_SEAL_PROOF * 8; i++) {
        proof[i / 8] ^= (uint8_t)(1u << i % 8);
        assert_false(bt_seal_proves(&sink, proof));
        proof[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    memcpy(wrong_key, key, sizeof(key));
    wrong_key[31] ^= 1;
    bt_seal_init(&other, wrong_key, sink_nonce, source_nonce, false);
    bt_seal_proof(&other, proof);
    assert_false(bt_seal_proves(&sink, proof));
}

/* Another nonce gives another session: an old conversation proves nothing. */
static void test_nonces(void **state)
{
    struct bt_seal sink, source;
    uint8_t nonce[BT_SEAL_NONCE], proof[BT_SEAL_PROOF], frame[ROOM] = "frame";
    size_t size;

    (void)state;
    pair(&sink, &source);
    bt_seal_proof(&sink, proof);
    assert_int_equal(bt_seal_add(&sink, frame, 5, ROOM, &size), BT_OK);
    memcpy(nonce, source_nonce, sizeof(nonce));
    nonce[0] ^= 0x80;
    bt_seal_init(&source, key, sink_nonce, nonce, false);
    assert_false(bt_seal_proves(&source, proof));
    assert_int_equal(bt_seal_open(&source, frame, size, &size), BT_CHECKSUM);
}

/* The tail, byte for byte. */
static void test_tail(void **state)
{
    struct bt_seal sink, source;
    uint8_t session[32], tag[32], text[1 + 8 + 5];
    uint8_t frame[ROOM] = "hello";
    size_t size = 0;

    (void)state;
    pair(&sink, &source);
    session_of(session);
    for (uint8_t n = 1; n <= 3; n++) {
        assert_int_equal(bt_seal_add(&source, frame, 5, ROOM, &size), BT_OK);
        assert_int_equal(size, 5 + BT_SEAL_TAIL);
        memset(text, 0, sizeof(text));
        text[0] = 2; /* from the source */
        text[1] = n; /* little endian */
        put(text + 9, "hello", 5);
        hmac(session, 32, text, sizeof(text), tag);
        assert_memory_equal(frame, "hello", 5);
        assert_memory_equal(frame + 5, text + 1, 8);
        assert_memory_equal(frame + 13, tag, 16);
        assert_int_equal(bt_seal_open(&sink, frame, size, &size), BT_OK);
        assert_int_equal(size, 5);
    }
}

static void test_room(void **state)
{
    struct bt_seal sink, source;
    uint8_t frame[ROOM] = {0};
    size_t size = 77;

    (void)state;
    pair(&sink, &source);
    assert_int_equal(bt_seal_add(&sink, frame, 10, 33, &size), BT_TOO_LARGE);
    assert_int_equal(bt_seal_add(&sink, frame, 0, 23, &size), BT_TOO_LARGE);
    assert_int_equal(bt_seal_add(&sink, frame, SIZE_MAX, 34, &size),
                     BT_TOO_LARGE);
    assert_int_equal(size, 77);
    assert_int_equal(sink.sent, 0);
    assert_int_equal(bt_seal_add(&sink, frame, 0, 24, &size), BT_OK);
    assert_int_equal(size, 24);
    assert_int_equal(bt_seal_open(&source, frame, 24, &size), BT_OK);
    assert_int_equal(size, 0);
}

/* Every bit of a sealed frame matters, and so does every byte of its length. */
static void test_tamper(void **state)
{
    struct bt_seal sink, source;
    uint8_t frame[ROOM] = "DONE request 42";
    size_t size, bare = 77;

    (void)state;
    pair(&sink, &source);
    assert_int_equal(bt_seal_add(&sink, frame, 15, ROOM, &size), BT_OK);
    for (size_t i = 0; i < size * 8; i++) {
        frame[i / 8] ^= (uint8_t)(1u << i % 8);
        assert_int_equal(bt_seal_open(&source, frame, size, &bare),
                         BT_CHECKSUM);
        frame[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(bt_seal_open(&source, frame, cut, &bare),
                         cut < BT_SEAL_TAIL ? BT_TRUNCATED : BT_CHECKSUM);
    assert_int_equal(bt_seal_open(&source, frame, size + 1, &bare),
                     BT_CHECKSUM);
    assert_int_equal(bare, 77);
    assert_int_equal(source.received, 0);
    assert_int_equal(bt_seal_open(&source, frame, size, &bare), BT_OK);
    assert_int_equal(bare, 15);
}

static void test_replay_and_order(void **state)
{
    struct bt_seal sink, source;
    uint8_t frames[3][ROOM] = {"a", "b", "c"};
    size_t size, bare;

    (void)state;
    pair(&sink, &source);
    for (int i = 0; i < 3; i++)
        assert_int_equal(bt_seal_add(&sink, frames[i], 1, ROOM, &size), BT_OK);
    assert_int_equal(bt_seal_open(&source, frames[1], size, &bare), BT_STALE);
    assert_int_equal(bt_seal_open(&source, frames[0], size, &bare), BT_OK);
    assert_int_equal(bt_seal_open(&source, frames[0], size, &bare), BT_STALE);
    assert_int_equal(bt_seal_open(&source, frames[2], size, &bare), BT_STALE);
    assert_int_equal(bt_seal_open(&source, frames[1], size, &bare), BT_OK);
    assert_int_equal(bt_seal_open(&source, frames[2], size, &bare), BT_OK);
    /* Back to its own sender: the direction is part of the tag. */
    assert_int_equal(bt_seal_open(&sink, frames[0], size, &bare), BT_CHECKSUM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_hmac),
        cmocka_unit_test(test_proofs),
        cmocka_unit_test(test_nonces),
        cmocka_unit_test(test_tail),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_tamper),
        cmocka_unit_test(test_replay_and_order),
    };

    return cmocka_run_group_tests_name("seal", tests, NULL, NULL);
}
