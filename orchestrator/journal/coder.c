/* The primitive fields of a journal, in both directions; which fields a record
 * has is config_code.c's and event_code.c's. Bytes are moved one by one, so
 * byte order and alignment of the host do not matter. */
#include "coder.h"

#include <stdlib.h>
#include <string.h>

#define BUFFER_MAX ((size_t)256 << 20)

bool coder_reserve(struct coder *c, size_t bytes)
{
    size_t need = c->at + bytes, size = c->size == 0 ? 4096 : c->size;
    unsigned char *data;

    if (c->bad || bytes > BUFFER_MAX || need > BUFFER_MAX) {
        c->bad = true;
        return false;
    }
    if (need <= c->size)
        return true;
    while (size < need)
        size *= 2;
    data = realloc(c->data, size);
    if (data == NULL) {
        c->bad = true;
        return false;
    }
    c->data = data;
    c->size = size;
    return true;
}

static uint64_t number(struct coder *c, uint64_t v, size_t bytes)
{
    uint64_t got = 0;

    if (c->writing && !coder_reserve(c, bytes))
        return 0;
    if (c->bad || (!c->writing && c->size - c->at < bytes)) {
        c->bad = true;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (c->writing)
            c->data[c->at + i] = (unsigned char)(v >> (8 * i));
        else
            got |= (uint64_t)c->data[c->at + i] << (8 * i);
    }
    c->at += bytes;
    return c->writing ? v : got;
}

void coder_u8(struct coder *c, uint8_t *v)
{
    *v = (uint8_t)number(c, *v, 1);
}

void coder_u32(struct coder *c, uint32_t *v)
{
    *v = (uint32_t)number(c, *v, 4);
}

void coder_u64(struct coder *c, uint64_t *v)
{
    *v = number(c, *v, 8);
}

static void put_u64(unsigned char *to, uint64_t v)
{
    for (size_t i = 0; i < 8; i++)
        to[i] = (unsigned char)(v >> (8 * i));
}

static uint64_t get_u64(const unsigned char *from)
{
    uint64_t v = 0;

    for (size_t i = 0; i < 8; i++)
        v |= (uint64_t)from[i] << (8 * i);
    return v;
}

void coder_u64_write(struct coder *c, const uint64_t *v, size_t count)
{
    if (count > BUFFER_MAX / 8 || !coder_reserve(c, 8 * count)) {
        c->bad = true;
        return;
    }
    for (size_t i = 0; i < count; i++)
        put_u64(c->data + c->at + 8 * i, v[i]);
    c->at += 8 * count;
}

void coder_u64_read(struct coder *c, uint64_t *v, size_t count)
{
    if (c->bad || count > (c->size - c->at) / 8) {
        c->bad = true;
        return;
    }
    for (size_t i = 0; i < count; i++)
        v[i] = get_u64(c->data + c->at + 8 * i);
    c->at += 8 * count;
}

void coder_i32(struct coder *c, int32_t *v)
{
    *v = (int32_t)(uint32_t)number(c, (uint32_t)*v, 4);
}

void coder_i64(struct coder *c, int64_t *v)
{
    *v = (int64_t)number(c, (uint64_t)*v, 8);
}

void coder_f64(struct coder *c, double *v)
{
    uint64_t bits = 0;

    memcpy(&bits, v, sizeof(bits));
    bits = number(c, bits, 8);
    memcpy(v, &bits, sizeof(bits));
}

void coder_bool(struct coder *c, bool *v)
{
    uint64_t value = number(c, *v ? 1 : 0, 1);

    if (value > 1)
        c->bad = true;
    *v = value == 1;
}

uint32_t coder_enum(struct coder *c, uint32_t v, uint32_t limit)
{
    coder_u32(c, &v);
    if (v >= limit) {
        c->bad = true;
        return 0;
    }
    return v;
}

void coder_text(struct coder *c, char *text, size_t size)
{
    uint32_t length = c->writing ? (uint32_t)strlen(text) : 0;

    coder_u32(c, &length);
    if (c->bad || length >= size) {
        c->bad = true;
        return;
    }
    for (uint32_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)text[i];

        coder_u8(c, &byte);
        text[i] = (char)byte;
    }
    text[length] = '\0';
}
