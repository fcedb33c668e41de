/* UTF-8 by the byte, shared by the validator and the writer. */
#ifndef BATON_PROTO_UTF8_H
#define BATON_PROTO_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the well-formed sequence at p (p < end), 0 when it is malformed,
 * overlong, a surrogate, above U+10FFFF or cut off by end. */
static inline size_t utf8_size(const unsigned char *p, const unsigned char *end)
{
    unsigned c = p[0];
    if (c < 0x80)
        return 1;
    size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || (size_t)(end - p) < n)
        return 0;
    if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) ||
        (c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] > 0x8f))
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0u) != 0x80)
            return 0;
    return n;
}

/* Write the code point (a scalar value) to out, return its bytes (1..4). */
static inline size_t utf8_put(uint32_t point, char out[4])
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xc0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3f));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xe0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3f));
    out[2] = (char)(0x80 | (point >> 6 & 0x3f));
    out[3] = (char)(0x80 | (point & 0x3f));
    return 4;
}

#endif
