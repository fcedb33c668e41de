/* Blocks, KV rows and output of one sequence. Decides what is reused from the
 * prefix cache and what the next token is; when it runs is compute.c's.
 *
 * Invariants: blocks[0..hit_blocks) are shared and never written; `chain` names
 * the last token that has a row; reserved blocks of the pool are counted in
 * pool.reserved until they are taken.
 */
#include "engine_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void list_remove(struct bt_seq *seq)
{
    struct bt_seq_list *list = seq->list;
    if (list == NULL) {
        return;
    }
    if (seq->prev == NULL) {
        list->head = seq->next;
    } else {
        seq->prev->next = seq->next;
    }
    if (seq->next == NULL) {
        list->tail = seq->prev;
    } else {
        seq->next->prev = seq->prev;
    }
    list->count--;
    seq->list = NULL;
}

void bt_seq_move(struct bt_seq *seq, struct bt_seq_list *to,
                 enum bt_seq_state state)
{
    list_remove(seq);
    seq->state = state;
    seq->prev = NULL;
    seq->next = NULL;
    if (to == NULL) {
        return;
    }
    seq->prev = to->tail;
    if (to->tail == NULL) {
        to->head = seq;
    } else {
        to->tail->next = seq;
    }
    to->tail = seq;
    to->count++;
    seq->list = to;
}

/* Chain values at the ends of full prompt blocks. */
static void compute_keys(struct bt_seq *seq)
{
    uint64_t chain = bt_oracle_root(&seq->oracle);
    uint32_t size = seq->oracle.block_tokens, in_block = 0, block = 0;
    for (uint32_t t = 0; t < seq->prompt_count; t++) {
        chain = bt_oracle_next(chain, seq->tokens[t]);
        if (++in_block == size) {
            seq->keys[block++] = chain;
            in_block = 0;
        }
    }
    seq->chain = chain;
}

struct bt_seq *bt_seq_create(struct bt_call *call, const uint32_t *tokens,
                             uint32_t count, uint32_t max_tokens, uint64_t ns)
{
    struct bt_engine *e = call->engine;
    struct bt_seq *seq = calloc(1, sizeof(*seq));
    if (seq == NULL) {
        return NULL;
    }
    seq->engine = e;
    seq->call = call;
    seq->prompt_count = count;
    seq->max_tokens = max_tokens;
    seq->oracle = e->oracle;
    seq->oracle.ns = ns;
    seq->adapter = -1;
    size_t total = (size_t)count + max_tokens;
    size_t blocks = total / seq->oracle.block_tokens + 1;
    seq->tokens = malloc(total * sizeof(*seq->tokens));
    seq->keys = malloc(blocks * sizeof(*seq->keys));
    seq->blocks = malloc(blocks * sizeof(*seq->blocks));
    if (seq->tokens == NULL || seq->keys == NULL || seq->blocks == NULL) {
        free(seq->tokens);
        free(seq->keys);
        free(seq->blocks);
        free(seq);
        return NULL;
    }
    memcpy(seq->tokens, tokens, count * sizeof(*tokens));
    compute_keys(seq);
    seq->serial = e->serial++;
    seq->arrived_ns = bt_engine_now();
    seq->state = BT_SEQ_DONE;
    e->seq_count++;
    return seq;
}

void bt_seq_free(struct bt_seq *seq)
{
    assert(seq->block_count == 0 && !seq->pulling && seq->list == NULL);
    seq->engine->seq_count--;
    free(seq->remote.blocks);
    free(seq->blocks);
    free(seq->keys);
    free(seq->tokens);
    free(seq);
}

uint32_t bt_seq_prompt_blocks(const struct bt_seq *seq)
{
    uint32_t size = seq->oracle.block_tokens;
    return (seq->prompt_count + size - 1) / size;
}

uint32_t bt_seq_blocks_max(const struct bt_seq *seq)
{
    /* The last output token gets no row. */
    uint64_t rows = (uint64_t)seq->prompt_count + seq->max_tokens - 1;
    uint32_t size = seq->oracle.block_tokens;
    return (uint32_t)((rows + size - 1) / size);
}

/* Leading full blocks in the cache. At least one token must be computed here,
 * except that a peer's hand-off leaves only the last token to do. */
static uint32_t find_hits(struct bt_seq *seq, uint32_t *idle_out)
{
    struct bt_pool *pool = &seq->engine->pool;
    uint32_t rows = seq->has_remote ? seq->prompt_count : seq->prompt_count - 1;
    uint32_t limit = rows / seq->oracle.block_tokens, hits = 0;
    *idle_out = 0;
    while (hits < limit) {
        uint32_t block = bt_pool_find(pool, seq->keys[hits]);
        if (block == BT_POOL_NONE) {
            break;
        }
        *idle_out += pool->blocks[block].ref == 0;
        seq->blocks[hits++] = block;
    }
    return hits;
}

bool bt_seq_allocate(struct bt_seq *seq)
{
    struct bt_pool *pool = &seq->engine->pool;
    uint32_t idle, hits = find_hits(seq, &idle);
    uint32_t prompt = bt_seq_prompt_blocks(seq);
    uint32_t total = bt_seq_blocks_max(seq);
    assert(seq->block_count == 0);
    if (bt_pool_room(pool) < total - hits + idle) {
        return false;
    }
    for (uint32_t i = 0; i < hits; i++) {
        bt_pool_ref(pool, seq->blocks[i]);
    }
    for (uint32_t i = hits; i < prompt; i++) {
        seq->blocks[i] = bt_pool_take(pool);
    }
    seq->block_count = prompt;
    seq->hit_blocks = hits;
    seq->reserved = total - prompt;
    pool->reserved += seq->reserved;
    return true;
}

void bt_seq_release_blocks(struct bt_seq *seq)
{
    struct bt_pool *pool = &seq->engine->pool;
    pool->reserved -= seq->reserved;
    seq->reserved = 0;
    /* Last first: the end of a prefix is evicted before its beginning. */
    while (seq->block_count > 0) {
        bt_pool_put(pool, seq->blocks[--seq->block_count]);
    }
}

static unsigned char *block_at(const struct bt_seq *seq, uint32_t i)
{
    return seq->engine->region + seq->blocks[i] * seq->engine->block_bytes;
}

void bt_seq_fill(struct bt_seq *seq, uint32_t from)
{
    uint32_t size = seq->oracle.block_tokens, first = from / size;
    uint64_t chain =
        first == 0 ? bt_oracle_root(&seq->oracle) : seq->keys[first - 1];
    for (uint32_t t = first * size; t < seq->prompt_count; t++) {
        chain = bt_oracle_next(chain, seq->tokens[t]);
        if (t >= from && t / size >= seq->hit_blocks) {
            bt_oracle_row_write(&seq->oracle, chain, block_at(seq, t / size),
                                t % size);
        }
    }
}

static void name_block(struct bt_seq *seq, uint32_t i)
{
    struct bt_engine *e = seq->engine;
    uint32_t size = seq->oracle.block_tokens;
    const struct bt_block_content content = {
        .block = seq->blocks[i],
        .parent = i > 0 ? seq->blocks[i - 1] : BT_POOL_NONE,
        .key = seq->keys[i],
        .tokens = seq->tokens + (size_t)i * size,
        .token_count = size,
        .ns = seq->oracle.ns,
        .lora = seq->adapter < 0 ? NULL : e->adapters[seq->adapter],
        .salt = seq->salt_bytes > 0 ? seq->salt : NULL,
        .salt_bytes = (uint32_t)seq->salt_bytes,
    };
    bt_block_names_set(&e->names, &content);
}

static void announce(struct bt_seq *seq, uint32_t from, uint32_t to)
{
    struct bt_engine *e = seq->engine;
    uint32_t size = seq->oracle.block_tokens;
    for (uint32_t i = from; i < to; i++) {
        bt_pool_register(&e->pool, seq->blocks[i], seq->keys[i]);
        name_block(seq, i);
        e->names.scratch[i - from] = e->names.handles[seq->blocks[i]];
    }
    if (e->events == NULL || from >= to) {
        return;
    }
    struct bt_event_store store = {
        .hashes = e->names.scratch,
        .hash_count = to - from,
        .has_parent = from > 0,
        .parent = from > 0 ? e->names.handles[seq->blocks[from - 1]] : 0,
        .tokens = seq->tokens + (size_t)from * size,
        .token_count = (to - from) * size,
        .block_tokens = bt_engine_announced_block(e),
        .lora = seq->adapter < 0 ? NULL : e->adapters[seq->adapter],
        .lora_id = (uint32_t)(seq->adapter + 1),
        .salt = seq->salt_bytes > 0 ? seq->salt : NULL,
        .salt_bytes = seq->salt_bytes,
    };
    bt_events_stored(e->events, &store);
}

void bt_seq_announce(struct bt_seq *seq, uint32_t from)
{
    announce(seq, from, seq->prompt_count / seq->oracle.block_tokens);
}

static uint64_t digest(const struct bt_seq *seq, uint32_t i, uint64_t rows)
{
    uint32_t size = seq->oracle.block_tokens;
    uint64_t filled = rows - (uint64_t)i * size;
    return bt_oracle_digest(&seq->oracle, block_at(seq, i),
                            filled < size ? (uint32_t)filled : size);
}

void bt_seq_start_output(struct bt_seq *seq)
{
    uint64_t state = bt_oracle_root(&seq->oracle);
    for (uint32_t i = 0; i < seq->block_count; i++) {
        state = bt_oracle_absorb(state, digest(seq, i, seq->prompt_count));
    }
    seq->output_state = state;
}

/* Append the row of the newest output token. */
static void append_row(struct bt_seq *seq)
{
    struct bt_pool *pool = &seq->engine->pool;
    uint32_t size = seq->oracle.block_tokens;
    uint32_t at = seq->prompt_count + seq->out_count - 1, block = at / size;
    if (block == seq->block_count) {
        assert(seq->reserved > 0);
        seq->reserved--;
        pool->reserved--;
        seq->blocks[seq->block_count++] = bt_pool_take(pool);
    }
    seq->chain = bt_oracle_next(seq->chain, seq->tokens[at]);
    bt_oracle_row_write(&seq->oracle, seq->chain, block_at(seq, block),
                        at % size);
    if (at % size == size - 1) {
        seq->keys[block] = seq->chain;
        announce(seq, block, block + 1);
    }
}

void bt_seq_next_token(struct bt_seq *seq)
{
    assert(seq->out_count < seq->max_tokens);
    if (seq->out_count > 0) {
        append_row(seq);
        uint32_t i = (seq->out_count - 1) % seq->block_count;
        uint64_t rows = (uint64_t)seq->prompt_count + seq->out_count;
        seq->output_state =
            bt_oracle_absorb(seq->output_state, digest(seq, i, rows));
    }
    seq->tokens[seq->prompt_count + seq->out_count] =
        bt_oracle_token(seq->output_state);
    seq->out_count++;
}

uint64_t bt_seq_context(const struct bt_seq *seq)
{
    return (uint64_t)seq->prompt_count + seq->out_count;
}
