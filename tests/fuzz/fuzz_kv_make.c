/* Makes whole KV event batches for the fuzz driver's long runs: arrays, maps
 * and standard events in all batch forms, members in any order, integers in any
 * width. Half of them are well formed throughout, and then it is known what the
 * decoder must say; in the others some values are of another kind, or the bytes
 * are changed afterwards.
 */
#include "fuzz.h"
#include "fuzz_kv.h"
#include "kv_pack.h"

static unsigned odd_rate; /* of 256 values; 0: all well formed */

static unsigned pick(unsigned bound)
{
    return (unsigned)(fuzz_next() % bound);
}

/* Anything at all; inside, sometimes too deep or longer than the payload. */
static void put_odd(struct pk *p)
{
    static const unsigned char huge[] = {0xdd, 0xdb, 0xc6, 0xdf};
    switch (pick(9)) {
    case 0:
        pk_nil(p);
        break;
    case 1:
        pk_be(p, 0xc2 + pick(2), 0, 0);
        break;
    case 2:
        pk_float(p, (double)fuzz_next());
        break;
    case 3:
        pk_str(p, "odd");
        break;
    case 4:
        pk_bin(p, "0123456789abcdef", pick(17));
        break;
    case 5:
        pk_be(p, 0xd6, fuzz_next(), 5); /* ext of 4 bytes */
        break;
    case 6:
        for (unsigned depth = pick(40); depth > 0; depth--)
            pk_list(p, 1);
        pk_nil(p);
        break;
    case 7:
        pk_be(p, huge[pick(4)], fuzz_next(), 4);
        break;
    default:
        pk_int64(p, (int64_t)fuzz_next());
    }
}

static bool odd(struct pk *p)
{
    if (odd_rate == 0 || pick(256) >= odd_rate)
        return false;
    put_odd(p);
    return true;
}

static void put_uint(struct pk *p, uint64_t v)
{
    if (odd(p))
        return;
    switch (pick(8)) {
    case 0:
        pk_be(p, 0xcf, v, 8);
        break;
    case 1:
        pk_be(p, 0xd3, v & INT64_MAX, 8);
        break;
    default:
        pk_uint(p, v);
    }
}

/* One of few hashes, in each of the forms; `form` is kept within a list so that
 * a given number stays distinct. */
static void put_hash(struct pk *p, uint64_t number, unsigned form)
{
    unsigned char digest[32] = {0};
    uint64_t wide = (number + 1) * 0x9e3779b97f4a7c15u;
    if (odd(p))
        return;
    switch (form) {
    case 0:
        pk_uint(p, number);
        break;
    case 1:
        pk_be(p, 0xcf, wide, 8);
        break;
    case 2:
        pk_be(p, 0xd3, wide, 8);
        break;
    default:
        for (unsigned i = 0; i < 8; i++)
            digest[24 + i] = (unsigned char)(wide >> 8 * (7 - i));
        pk_bin(p, digest + (form == 3 ? 0 : 16), form == 3 ? 32 : 16);
    }
}

/* What one event is made of. */
struct plan {
    unsigned count, form, first; /* hashes: number first, first + 1 ... */
    unsigned block, tokens;
    bool pairs, parent;
};

static struct plan plan_make(void)
{
    static const unsigned sizes[] = {1, 2, 3, 4, 16};
    struct plan x = {.form = pick(5), .first = pick(64), .parent = pick(2)};
    x.count = pick(16) > 0 ? pick(6) : pick(FUZZ_KV_HASHES + 1);
    x.block = sizes[pick(5)];
    x.pairs = pick(12) == 0;
    x.tokens = x.count * x.block;
    if (x.tokens + 1 > FUZZ_KV_TOKENS || pick(10) == 0) {
        x.tokens = pick(3) * pick(20);
        x.block = pick(2) * x.block;
    }
    return x;
}

static void put_hashes(struct pk *p, const struct plan *x)
{
    if (odd(p))
        return;
    pk_list(p, x->count);
    for (unsigned i = 0; i < x->count; i++)
        put_hash(p, x->first + i, x->form);
}

static void put_parent(struct pk *p, const struct plan *x)
{
    if (x->parent)
        put_hash(p, x->first + x->count, x->form);
    else
        pk_nil(p);
}

static void put_tokens(struct pk *p, const struct plan *x)
{
    uint64_t token = fuzz_next() >> pick(32) & UINT32_MAX;
    if (odd(p))
        return;
    pk_list(p, x->tokens);
    for (unsigned i = 0; i < x->tokens; i++) {
        uint64_t after = fuzz_next() >> 32 >> pick(32);
        if (x->pairs) {
            pk_list(p, 2);
            put_uint(p, token);
        }
        put_uint(p, x->pairs ? after : token);
        token = after;
    }
}

static void put_word(struct pk *p, const char *const *words, unsigned count)
{
    unsigned i = pick(count);
    if (odd(p))
        return;
    if (words[i] != NULL)
        pk_str(p, words[i]);
    else
        pk_nil(p);
}

static void put_medium(struct pk *p)
{
    static const char *const words[] = {NULL,   "GPU",  "cpu", "CPU_PINNED",
                                        "DISK", "disk", "OBJ", "moon"};
    put_word(p, words, 8);
}

static void put_name(struct pk *p)
{
    static const char *const words[] = {
        NULL, NULL, "", "lora-a", "tenant", "dynamo-cache-salt:tenant"};
    put_word(p, words, 6);
}

static void put_kind(struct pk *p)
{
    static const char *const words[] = {NULL, "full_attention", "mla_attention",
                                        "sliding_window", "mamba"};
    put_word(p, words, 5);
}

static void put_locality(struct pk *p)
{
    static const char *const words[] = {NULL, "LOCAL", "REMOTE"};
    put_word(p, words, 3);
}

/* Two images at most in the whole list: the scratch holds eight. */
static void put_extra(struct pk *p, const struct plan *x)
{
    unsigned images = 0;
    if (odd(p))
        return;
    pk_list(p, x->count);
    for (unsigned i = 0; i < x->count; i++) {
        if (pick(3) > 0 || images == 2) {
            pk_nil(p);
            continue;
        }
        pk_list(p, 2);
        put_name(p);
        if (pick(4) == 0) {
            pk_bin(p, "0123456789abcdef", 16);
            continue;
        }
        images++;
        pk_list(p, 2);
        pk_str(p, "image");
        pk_int64(p, (int64_t)pick(9) - 4);
    }
}

static void put_counts(struct pk *p, const struct plan *x)
{
    if (odd(p))
        return;
    pk_list(p, x->count);
    for (unsigned i = 0; i < x->count; i++)
        put_uint(p, fuzz_next() >> 1 >> pick(63));
}

enum member {
    TYPE,
    HASHES,
    PARENT,
    TOKENS,
    SIZE,
    MEDIUM,
    LORA,
    EXTRA,
    GROUP,
    KIND,
    LOCALITY,
    SALT,
    COUNTS,
    NEW,
    EVENT_TYPE,
    SEQ_HASHES,
    PARENT_HASH,
    BASE,
    RANK,
    MORE_SALT,
    OBJECT
};

static const char *const names[] = {
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "locality",
    "cache_salt",
    "remaining_copy_counts",
    "new",
    "event_type",
    "seq_hashes",
    "parent_hash",
    "base_block_idx",
    "dp_rank",
    "additional_salt",
    "object_key",
};

static void put_value(struct pk *p, enum member member, const char *tag,
                      const struct plan *x)
{
    switch (member) {
    case TYPE:
    case EVENT_TYPE:
        if (!odd(p))
            pk_str(p, tag);
        break;
    case HASHES:
    case SEQ_HASHES:
        put_hashes(p, x);
        break;
    case PARENT:
    case PARENT_HASH:
        put_parent(p, x);
        break;
    case TOKENS:
        put_tokens(p, x);
        break;
    case SIZE:
        put_uint(p, x->block);
        break;
    case GROUP:
    case BASE:
    case RANK:
        put_uint(p, pick(3));
        break;
    case MEDIUM:
        put_medium(p);
        break;
    case LORA:
    case SALT:
    case MORE_SALT:
    case OBJECT:
        put_name(p);
        break;
    case EXTRA:
        put_extra(p, x);
        break;
    case KIND:
        put_kind(p);
        break;
    case LOCALITY:
        put_locality(p);
        break;
    case COUNTS:
        put_counts(p, x);
        break;
    case NEW:
        pk_list(p, 1);
        pk_uint(p, pick(300));
        break;
    }
}

/* The first `must` members, and each of the others or not, in any order. */
static void put_map(struct pk *p, const char *tag, const enum member *members,
                    unsigned must, unsigned count)
{
    enum member chosen[16];
    unsigned n = 0;
    struct plan x = plan_make();
    for (unsigned i = 0; i < count; i++)
        if (i < must || pick(2) == 0)
            chosen[n++] = members[i];
    pk_map(p, n);
    for (unsigned i = 0; i < n; i++) {
        unsigned j = i + pick(n - i);
        enum member member = chosen[j];
        chosen[j] = chosen[i];
        pk_str(p, names[member]);
        put_value(p, member, tag, &x);
    }
    fuzz_kv_expect.delivered += x.count > 0;
}

static void put_map_event(struct pk *p)
{
    static const enum member stored[] = {TYPE,   HASHES, PARENT,   TOKENS, SIZE,
                                         MEDIUM, LORA,   EXTRA,    GROUP,  KIND,
                                         NEW,    SALT,   LOCALITY, RANK};
    static const enum member removed[] = {TYPE,     HASHES, MEDIUM, GROUP,
                                          LOCALITY, COUNTS, NEW};
    static const enum member std_stored[] = {
        EVENT_TYPE, SEQ_HASHES, PARENT_HASH, BASE, TOKENS, SIZE,
        MEDIUM,     LORA,       RANK,        NEW,  OBJECT, MORE_SALT};
    static const enum member std_removed[] = {EVENT_TYPE, HASHES, OBJECT,
                                              BASE,       MEDIUM, RANK};
    switch (pick(4)) {
    case 0:
        put_map(p, "BlockStored", stored, 5, 14);
        break;
    case 1:
        put_map(p, "BlockRemoved", removed, 2, 7);
        break;
    case 2:
        put_map(p, "stored", std_stored, 2, 12);
        break;
    default:
        put_map(p, "removed", std_removed, 2, 6);
    }
}

static void put_array_event(struct pk *p)
{
    static const enum member stored[] = {TYPE, HASHES, PARENT,  TOKENS, SIZE,
                                         NEW,  MEDIUM, LORA,    EXTRA,  GROUP,
                                         KIND, RANK,   LOCALITY};
    static const enum member removed[] = {TYPE,  HASHES,   MEDIUM,
                                          GROUP, LOCALITY, COUNTS};
    struct plan x = plan_make();
    bool store = pick(2);
    unsigned n = store ? 5 + pick(9) : 2 + pick(5);
    pk_list(p, n);
    for (unsigned i = 0; i < n; i++)
        put_value(p, store ? stored[i] : removed[i],
                  store ? "BlockStored" : "BlockRemoved", &x);
    fuzz_kv_expect.delivered += x.count > 0;
}

static void put_event(struct pk *p)
{
    unsigned kind = pick(20), medium = pick(2);
    fuzz_kv_expect.events += kind != 0;
    fuzz_kv_expect.unknown += kind == 0;
    if (kind == 0) {
        pk_list(p, 2);
        pk_str(p, "FutureEvent");
        pk_nil(p);
    } else if (kind == 1) {
        pk_list(p, 1 + medium);
        pk_str(p, "AllBlocksCleared");
        if (medium)
            put_medium(p);
        fuzz_kv_expect.delivered++;
    } else if (kind == 2) {
        pk_map(p, 2);
        pk_text(p, "event_type", "cleared");
        pk_str(p, "medium");
        put_medium(p);
        fuzz_kv_expect.delivered++;
    } else if (kind < 10) {
        put_array_event(p);
    } else {
        put_map_event(p);
    }
}

static void put_events(struct pk *p)
{
    unsigned count = 1 + pick(5);
    pk_list(p, count);
    for (unsigned i = 0; i < count; i++)
        put_event(p);
}

static void put_batch(struct pk *p)
{
    unsigned ranked = pick(2);
    if (pick(3) > 0) {
        pk_list(p, 2 + ranked);
        pk_float(p, 1789095808.83);
        put_events(p);
        if (ranked)
            put_uint(p, pick(4));
        return;
    }
    pk_map(p, 2 + ranked);
    pk_str(p, "ts");
    pk_uint(p, pick(1000));
    pk_str(p, "events");
    put_events(p);
    if (ranked) {
        pk_str(p, "data_parallel_rank");
        put_uint(p, pick(4));
    }
}

size_t fuzz_make(uint8_t *out, size_t max)
{
    struct pk p = {.at = out, .max = max};
    unsigned damage = pick(4);
    fuzz_kv_expect = (struct fuzz_kv_expect){.armed = damage < 2};
    odd_rate = damage == 2 ? 1 + pick(24) : 0;
    put_batch(&p);
    if (p.full)
        fuzz_kv_expect.armed = false;
    for (unsigned k = damage == 3 ? 1 + pick(4) : 0; k > 0; k--)
        p.used = fuzz_mutate(out, p.used, max);
    return p.used;
}
