/* Between the KV event target and its maker of inputs. */
#ifndef BATON_FUZZ_KV_H
#define BATON_FUZZ_KV_H

#include <stdbool.h>
#include <stdint.h>

#define FUZZ_KV_HASHES 160
#define FUZZ_KV_TOKENS 256

/* What the next input must give: set by the maker when it has written nothing
 * but well-formed events, taken back by the target. */
struct fuzz_kv_expect {
    bool armed;
    uint64_t events, unknown, delivered;
};
extern struct fuzz_kv_expect fuzz_kv_expect;

#endif
