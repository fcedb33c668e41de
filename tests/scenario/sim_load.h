/* A stream of requests for scenario tests: sessions that come back with a
 * longer prompt, at random times. */
#ifndef BT_TEST_SIM_LOAD_H
#define BT_TEST_SIM_LOAD_H

#include "sim_bed.h"

#include "baton/base/rng.h"

/* n requests at rate_per_s; four in five continue an earlier one. */
static inline void load_add(struct bed *b, uint32_t n, double rate_per_s,
                            uint64_t seed)
{
    struct bt_rng rng;
    double t = 0;
    uint64_t id = 0;

    bt_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < n; i++) {
        size_t of = (size_t)bt_rng_below(&rng, i + 1u);
        uint32_t more = 200 + (uint32_t)bt_rng_below(&rng, 3000);
        uint32_t output = 1 + (uint32_t)bt_rng_below(&rng, 200);
        uint32_t old = 0, input = more;

        t += bt_rng_exponential(&rng, 1 / rate_per_s);
        if (of < i && bt_rng_below(&rng, 5) > 0 &&
            b->requests[of].input_tokens < 12000) {
            old = b->requests[of].input_tokens / 512;
            input = b->requests[of].input_tokens + more;
        }
        bed_add(b, (int64_t)(t * 1e9), input, output, id);
        bed_share(b, of, old);
        id += input / 512 + 1;
    }
}

#endif
