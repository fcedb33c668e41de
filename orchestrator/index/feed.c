/* From the event plane into the indexes: each call of the sink is applied to
 * the row of its (source, rank). What the index answers is the plane's to act
 * on. Says what changed, once.
 */
#include "service_impl.h"

#include <string.h>

static const struct rank *rank_of(const struct bt_index_service *s,
                                  uint32_t source, uint32_t rank)
{
    return &s->instances[source].ranks[rank];
}

static struct bt_prefix_index *index_of(const struct bt_index_service *s,
                                        uint32_t source)
{
    return s->instances[source].scope->index;
}

/* How its blocks are hashed shows in the shape of the tokens. Each shape stays
 * known: queries are answered for all that a scope has. */
static void learn_shape(struct bt_index_service *s, struct instance *in,
                        const struct bt_kv_store *store)
{
    if (store->own_keys != NULL || store->token_count == 0)
        return;
    if (store->eagle != 0 ? in->is.eagle : in->plain)
        return;
    if (store->eagle != 0 || in->is.eagle)
        index_say(
            s, 2, "kv_eagle",
            "worker=%s events=%s why=\"queries are hashed like that too\"",
            in->is.instance, store->eagle != 0 ? "pairs" : "tokens");
    in->is.eagle = in->is.eagle || store->eagle != 0;
    in->plain = in->plain || store->eagle == 0;
}

static enum bt_status on_store(void *arg, uint32_t source, uint32_t rank,
                               const struct bt_kv_store *store)
{
    struct bt_index_service *s = arg;
    const struct bt_index_instance *is = &s->instances[source].is;
    struct bt_kv_store named;

    learn_shape(s, &s->instances[source], store);
    /* The registration's adapter is that of events which name none. */
    if (is->lora[0] != '\0' && store->lora == NULL && store->own_keys == NULL) {
        named = *store;
        named.lora = is->lora;
        named.lora_bytes = strlen(is->lora);
        store = &named;
    }
    return bt_prefix_index_store(index_of(s, source),
                                 rank_of(s, source, rank)->row, 0, store);
}

static void on_remove(void *arg, uint32_t source, uint32_t rank,
                      const struct bt_ev_kv_remove *remove)
{
    struct bt_index_service *s = arg;
    uint32_t row = rank_of(s, source, rank)->row;

    if (remove->remaining != NULL)
        bt_prefix_index_remaining(index_of(s, source), row, 0, remove->hashes,
                                  remove->remaining, remove->count,
                                  remove->tier);
    else
        bt_prefix_index_remove(index_of(s, source), row, 0, remove->hashes,
                               remove->count, remove->tier);
}

static void on_clear(void *arg, uint32_t source, uint32_t rank,
                     const struct bt_ev_kv_clear *clear)
{
    struct bt_index_service *s = arg;
    const struct instance *in = &s->instances[source];

    for (uint32_t r = clear->all_ranks ? 0 : rank;
         r < (clear->all_ranks ? in->is.ranks : rank + 1); r++) {
        if (clear->has_tier)
            bt_prefix_index_clear_tier(index_of(s, source), in->ranks[r].row, 0,
                                       clear->tier);
        else
            bt_prefix_index_clear(index_of(s, source), in->ranks[r].row, 0);
    }
}

static void on_counting(void *arg, uint32_t source, uint32_t rank,
                        enum bt_kv_counting counting)
{
    struct bt_index_service *s = arg;

    bt_prefix_index_counting(index_of(s, source), rank_of(s, source, rank)->row,
                             0, counting);
}

/* While a quiet stream is asked for its last batch, what was known of it goes
 * on to be known; only another outcome is told. */
static bool is_check(const struct instance *in, const struct rank *r,
                     enum bt_stream_state state, enum bt_stream_cause cause)
{
    return in->checking && !r->cut && r->state != BT_STREAM_SYNCING &&
           (r->state == state ||
            (state == BT_STREAM_SYNCING &&
             (cause == BT_CAUSE_RECONNECT || cause == BT_CAUSE_FIRST_CONTACT)));
}

/* As bt_ev_kv_stream: a hole makes what was there doubtful, its end drops what
 * nothing has confirmed. */
static void on_state(void *arg, uint32_t source, uint32_t rank,
                     enum bt_stream_state state, enum bt_stream_cause cause)
{
    struct bt_index_service *s = arg;
    struct instance *in = &s->instances[source];
    struct rank *r = &in->ranks[rank];
    struct bt_stream_info info = {0};

    (void)bt_event_plane_stream(s->plane, source, rank, &info);
    r->cut = info.cut;
    if (in->checking && !r->cut && state == BT_STREAM_ABSENT &&
        cause == BT_CAUSE_SILENT) {
        /* It had said nothing and still has not: exact, once asked again. */
        bt_event_plane_alive(s->plane, source, 0, 0);
        return;
    }
    if (is_check(in, r, state, cause)) {
        r->cause = r->state == state ? cause : r->cause;
        return;
    }
    in->checking = false;
    r->state = state;
    r->cause = cause;
    /* As the core does; late alone puts nothing in doubt. */
    if (state == BT_STREAM_DEGRADED && cause != BT_CAUSE_LATE)
        bt_prefix_index_age(index_of(s, source), r->row, 0);
    else if (cause == BT_CAUSE_AGED_OUT)
        (void)bt_prefix_index_drop_aged(index_of(s, source), r->row, 0);
    /* Nobody tells how many blocks the engine has, so the hole would never age
     * out: what the buffer has is read anew, and the rest given up. */
    if (info.again)
        return;
    if (state == BT_STREAM_DEGRADED && cause == BT_CAUSE_REPLAY_SHORT)
        (void)bt_event_plane_resync(s->plane, source, rank);
    index_say(s, bt_stream_is_bad(state, cause) ? 1 : 2, "kv_stream",
              "worker=%s rank=%u state=%s cause=%s", in->is.instance,
              in->is.first_rank + rank, bt_stream_state_name(state),
              bt_stream_cause_name(cause));
}

static void on_block_size(void *arg, uint32_t source, uint32_t rank,
                          uint32_t block_tokens)
{
    struct bt_index_service *s = arg;
    const struct instance *in = &s->instances[source];

    in->ranks[rank].wrong_size = block_tokens;
    index_say(s, 0, "kv_block_size",
              "worker=%s rank=%u announced=%u configured=%u", in->is.instance,
              in->is.first_rank + rank, block_tokens, in->is.block_tokens);
}

static uint64_t on_copies(void *arg, uint32_t source, uint32_t rank)
{
    struct bt_index_service *s = arg;

    return bt_prefix_index_copies(
        index_of(s, source), rank_of(s, source, rank)->row, 0, BT_TIER_DEVICE);
}

static void on_say(void *arg, int level, const char *word, const char *text)
{
    const struct bt_index_service *s = arg;

    if (s->config.say != NULL)
        s->config.say(s->config.say_arg, level, word, text);
}

struct bt_event_sink feed_sink(struct bt_index_service *s)
{
    return (struct bt_event_sink){
        .store = on_store,
        .remove = on_remove,
        .clear = on_clear,
        .counting = on_counting,
        .state = on_state,
        .block_size = on_block_size,
        .copies = on_copies,
        .say = on_say,
        .arg = s,
    };
}
