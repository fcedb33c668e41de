/* xoshiro256** seeded by splitmix64 (Blackman and Vigna 2018). Decides only
 * the sequence; callers own the state. */
#include "baton/base/rng.h"

#include <math.h>

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t bt_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

void bt_rng_seed(struct bt_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15ULL;
        rng->s[i] = bt_mix64(seed);
    }
}

uint64_t bt_rng_u64(struct bt_rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t bt_rng_below(struct bt_rng *rng, uint64_t bound)
{
    uint64_t limit, x;

    if (bound == 0)
        return 0;
    limit = UINT64_MAX - UINT64_MAX % bound;
    do
        x = bt_rng_u64(rng);
    while (x >= limit);
    return x % bound;
}

double bt_rng_unit(struct bt_rng *rng)
{
    return (double)(bt_rng_u64(rng) >> 11) * 0x1.0p-53;
}

double bt_rng_exponential(struct bt_rng *rng, double mean)
{
    return -mean * log1p(-bt_rng_unit(rng));
}
