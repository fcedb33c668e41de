/* One coder for both directions: a field is named once and the same walk
 * writes or reads it, so the two cannot drift apart. Little-endian, packed.
 * After a failure (buffer full, input short, value out of range) `bad` is set
 * and nothing more is coded; values read are then zero. */
#ifndef BT_JOURNAL_CODER_H
#define BT_JOURNAL_CODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct coder {
    unsigned char *data;
    size_t size; /* reading: bytes there; writing: bytes allocated */
    size_t at;
    bool writing;
    bool bad;
};

void coder_u8(struct coder *c, uint8_t *v);
void coder_u32(struct coder *c, uint32_t *v);
void coder_u64(struct coder *c, uint64_t *v);
void coder_i32(struct coder *c, int32_t *v);
void coder_i64(struct coder *c, int64_t *v);
void coder_f64(struct coder *c, double *v);
void coder_bool(struct coder *c, bool *v);
/* Many at once, without a count; what was read is not all set when bad. */
void coder_u64_write(struct coder *c, const uint64_t *v, size_t count);
void coder_u64_read(struct coder *c, uint64_t *v, size_t count);
/* An enum as u32; values >= limit are bad. */
uint32_t coder_enum(struct coder *c, uint32_t v, uint32_t limit);
/* A string of at most size - 1 bytes into a buffer of `size`. */
void coder_text(struct coder *c, char *text, size_t size);
/* Room for `bytes` more when writing, grown by malloc. */
bool coder_reserve(struct coder *c, size_t bytes);

#endif
