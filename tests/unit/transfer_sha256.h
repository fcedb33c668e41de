/* SHA-256 from FIPS 180-4 for tests: slow, whole messages, independent of the
 * library that the product uses. */
#ifndef BATON_TESTS_TRANSFER_SHA256_H
#define BATON_TESTS_TRANSFER_SHA256_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t sha256_turn(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* First 32 bits of the fraction. */
static inline uint32_t sha256_fraction(double root)
{
    return (uint32_t)((root - floor(root)) * 4294967296.0);
}

static inline void sha256_block(uint32_t h[8], const uint32_t k[64],
                                const uint8_t *in)
{
    uint32_t w[64], v[8];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)in[4 * i] << 24 | (uint32_t)in[4 * i + 1] << 16 |
               (uint32_t)in[4 * i + 2] << 8 | in[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];

        w[i] = w[i - 16] + w[i - 7] +
               (sha256_turn(x, 7) ^ sha256_turn(x, 18) ^ x >> 3) +
               (sha256_turn(y, 17) ^ sha256_turn(y, 19) ^ y >> 10);
    }
    memcpy(v, h, sizeof(v));
    for (int i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t t =
            v[7] +
            (sha256_turn(e, 6) ^ sha256_turn(e, 11) ^ sha256_turn(e, 25)) +
            ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        uint32_t u =
            (sha256_turn(a, 2) ^ sha256_turn(a, 13) ^ sha256_turn(a, 22)) +
            ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));

        memmove(v + 1, v, 7 * sizeof(v[0]));
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

/* The constants are roots of the first 64 primes (sections 4.2.2, 5.3.3). */
static inline void sha256_constants(uint32_t h[8], uint32_t k[64])
{
    uint32_t found = 0;

    for (uint32_t p = 2; found < 64; p++) {
        uint32_t d = 2;

        while (d < p && p % d != 0)
            d++;
        if (d < p)
            continue;
        if (found < 8)
            h[found] = sha256_fraction(sqrt(p));
        k[found++] = sha256_fraction(cbrt(p));
    }
}

static inline void sha256(const void *data, size_t size, uint8_t out[32])
{
    const uint8_t *in = data;
    uint32_t h[8], k[64];
    uint8_t tail[128] = {0};
    size_t rest = size % 64, blocks = rest < 56 ? 64 : 128;
    uint64_t bits = (uint64_t)size * 8;

    sha256_constants(h, k);
    for (size_t i = 0; i + 64 <= size; i += 64)
        sha256_block(h, k, in + i);
    memcpy(tail, in + size - rest, rest);
    tail[rest] = 0x80;
    for (size_t i = 0; i < 8; i++)
        tail[blocks - 1 - i] = (uint8_t)(bits >> 8 * i);
    for (size_t i = 0; i < blocks; i += 64)
        sha256_block(h, k, tail + i);
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}

#endif
