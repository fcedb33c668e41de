/* Hash map of the prefix index: from a hash to items of an array beside it.
 * Private to this folder.
 *
 *   bucket   one cache line of 16 words: 15 slots, then how many items of this
 *            bucket or an earlier one had to go past it
 *   slot     tag of the hash | number of the item; 0: free
 *
 * A look-up reads one line and, by the tags, only items that are very likely
 * right; it goes on to the next line only when some item went past. Taking out
 * leaves nothing behind: the slot is free and the lines it had gone past say
 * one less. Several items may have the same hash.
 * Bounds: at most 15 items per bucket on the whole; a walk ends after all.
 */
#ifndef BATON_PLANNER_PREFIX_MAP_H
#define BATON_PLANNER_PREFIX_MAP_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define PI_LINE  16u
#define PI_SLOTS 15u
#define PI_FILL  12u /* items per bucket, when the map is full */

struct pi_map {
    uint32_t *lines;
    uint32_t buckets;
    uint32_t item_mask; /* bits of a slot that number the item */
};

/* Where an item of that hash belongs. */
struct pi_home {
    uint32_t bucket, tag;
};

static inline struct pi_home pi_home_of(const struct pi_map *m, uint64_t hash)
{
    struct pi_home home;

    hash ^= hash >> 32;
    hash *= 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
    home.bucket = (uint32_t)((hash >> 32) * m->buckets >> 32);
    home.tag = (uint32_t)hash & ~m->item_mask;
    if (home.tag == 0)
        home.tag = m->item_mask + 1;
    return home;
}

static inline uint32_t *pi_line(const struct pi_map *m, uint32_t bucket)
{
    return m->lines + (size_t)bucket * PI_LINE;
}

static inline uint32_t pi_bucket_after(const struct pi_map *m, uint32_t bucket)
{
    return bucket + 1 < m->buckets ? bucket + 1 : 0;
}

typedef uint32_t pi_lanes __attribute__((vector_size(16)));

/* Bit per lane that is all ones, of lanes that are that or 0. */
static inline uint32_t pi_lane_bits(pi_lanes a, pi_lanes b, pi_lanes c,
                                    pi_lanes d)
{
#ifdef __SSE2__
    typedef int words __attribute__((vector_size(16)));
    typedef char bytes __attribute__((vector_size(16)));

    return (uint32_t)__builtin_ia32_pmovmskb128(
        (bytes)__builtin_ia32_packsswb128(
            __builtin_ia32_packssdw128((words)a, (words)b),
            __builtin_ia32_packssdw128((words)c, (words)d)));
#else
    const pi_lanes one = {1, 2, 4, 8};
    pi_lanes hits = a & one;

    hits |= b & one << 4;
    hits |= c & one << 8;
    hits |= d & one << 12;
    return hits[0] | hits[1] | hits[2] | hits[3];
#endif
}

/* Bit per slot of the line whose bits in `keep` are `want`. */
static inline uint32_t pi_line_match(const uint32_t *line, uint32_t keep,
                                     uint32_t want)
{
    const pi_lanes *v = __builtin_assume_aligned(line, 64);
    const pi_lanes k = {keep, keep, keep, keep};
    const pi_lanes w = {want, want, want, want};

    return pi_lane_bits(
               (pi_lanes)((v[0] & k) == w), (pi_lanes)((v[1] & k) == w),
               (pi_lanes)((v[2] & k) == w), (pi_lanes)((v[3] & k) == w)) &
           ((1u << PI_SLOTS) - 1);
}

/* Items whose tag fits, one after the other. */
struct pi_seek {
    struct pi_home home;
    uint32_t bucket;
    uint32_t hits; /* of the bucket, still to be looked at */
    uint32_t left; /* buckets not looked at yet */
};

static inline struct pi_seek pi_seek_from(const struct pi_map *m,
                                          struct pi_home home)
{
    return (struct pi_seek){
        .home = home,
        .bucket = home.bucket,
        .hits = pi_line_match(pi_line(m, home.bucket), ~m->item_mask, home.tag),
        .left = m->buckets - 1};
}

/* The item that is very likely right, to fetch it ahead; 0: none in the first
 * bucket. */
static inline uint32_t pi_map_guess(const struct pi_map *m, struct pi_home home)
{
    const uint32_t *line = pi_line(m, home.bucket);
    uint32_t hits = pi_line_match(line, ~m->item_mask, home.tag);

    return hits == 0 ? 0 : line[__builtin_ctz(hits)] & m->item_mask;
}

/* 0: there are no more. The item may be taken out before the next call. */
static inline uint32_t pi_seek_next(const struct pi_map *m, struct pi_seek *s)
{
    const uint32_t *line = pi_line(m, s->bucket);
    uint32_t slot;

    while (s->hits == 0) {
        if (line[PI_SLOTS] == 0 || s->left == 0)
            return 0;
        s->left--;
        s->bucket = pi_bucket_after(m, s->bucket);
        line = pi_line(m, s->bucket);
        s->hits = pi_line_match(line, ~m->item_mask, s->home.tag);
    }
    slot = (uint32_t)__builtin_ctz(s->hits);
    s->hits &= s->hits - 1;
    return line[slot] & m->item_mask;
}

/* The map has room: its items are fewer than its slots. */
static inline void pi_map_put(struct pi_map *m, struct pi_home home,
                              uint32_t item)
{
    uint32_t *line = pi_line(m, home.bucket);
    uint32_t free = pi_line_match(line, UINT32_MAX, 0);

    while (free == 0) {
        line[PI_SLOTS]++;
        home.bucket = pi_bucket_after(m, home.bucket);
        line = pi_line(m, home.bucket);
        free = pi_line_match(line, UINT32_MAX, 0);
    }
    line[__builtin_ctz(free)] = home.tag | item;
}

/* Put `to` in the place of `item`, which the map has; 0: take it out. */
static inline void pi_map_replace(struct pi_map *m, struct pi_home home,
                                  uint32_t item, uint32_t to)
{
    uint32_t *line = pi_line(m, home.bucket);
    uint32_t at = pi_line_match(line, UINT32_MAX, home.tag | item);

    while (at == 0) {
        assert(line[PI_SLOTS] > 0);
        line[PI_SLOTS] -= to == 0;
        home.bucket = pi_bucket_after(m, home.bucket);
        line = pi_line(m, home.bucket);
        at = pi_line_match(line, UINT32_MAX, home.tag | item);
    }
    line[__builtin_ctz(at)] = to == 0 ? 0 : home.tag | to;
}

#endif
