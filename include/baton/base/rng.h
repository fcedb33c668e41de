/* Seeded generator (xoshiro256**, seeded by splitmix64): deterministic, not
 * for secrets. State is passed by pointer; same seed, same sequence on every
 * platform. Source: Blackman and Vigna, "Scrambled linear pseudorandom number
 * generators", 2018. */
#ifndef BATON_BASE_RNG_H
#define BATON_BASE_RNG_H

#include <stdint.h>

struct bt_rng {
    uint64_t s[4];
};

void bt_rng_seed(struct bt_rng *rng, uint64_t seed);
uint64_t bt_rng_u64(struct bt_rng *rng);
/* Uniform in [0, bound); bound 0 gives 0. No modulo bias. */
uint64_t bt_rng_below(struct bt_rng *rng, uint64_t bound);
/* Uniform in [0, 1). */
double bt_rng_unit(struct bt_rng *rng);
/* Exponential with the given mean (> 0). */
double bt_rng_exponential(struct bt_rng *rng, double mean);
/* Stateless 64-bit finaliser of splitmix64: a bijection. */
uint64_t bt_mix64(uint64_t x);

#endif
