/* Who is registered: scopes with an index each, instances with their rows.
 * A scope comes with its first instance and goes, memory and all, with its
 * last, so that nothing grows from churn. Leaves their events to feed.c.
 *
 * Invariant: a row is taken by exactly one (instance, rank) of its scope, and
 * scope->rows lists them, those of an instance name adjacent, ranks ascending.
 */
#include "service_impl.h"

#include "baton/orchestrator/big_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bt_index_instance_init(struct bt_index_instance *instance)
{
    memset(instance, 0, sizeof(*instance));
    memcpy(instance->tenant, BT_INDEX_TENANT, sizeof(BT_INDEX_TENANT));
    instance->ranks = 1;
}

/* ---- scopes ---- */

static bool same_scope(const struct bt_index_instance *a,
                       const struct bt_index_instance *b)
{
    return a->block_tokens == b->block_tokens &&
           strcmp(a->model, b->model) == 0 &&
           strcmp(a->tenant, b->tenant) == 0 &&
           strcmp(a->additional_salt, b->additional_salt) == 0 &&
           strcmp(a->routing_group, b->routing_group) == 0;
}

struct scope *scope_find(struct bt_index_service *s,
                         const struct bt_index_instance *like)
{
    for (uint32_t i = 0; i < s->config.scopes_max; i++)
        if (s->scopes[i].used && same_scope(&s->scopes[i].like, like))
            return &s->scopes[i];
    return NULL;
}

static void scope_close(struct scope *scope)
{
    bt_big_memory_give(scope->memory, scope->bytes);
    free(scope->owner);
    free(scope->rows);
    memset(scope, 0, sizeof(*scope));
}

/* Its counters must not fall back with it. */
static void scope_end(struct bt_index_service *s, struct scope *scope)
{
    struct bt_prefix_index_stats stats;

    bt_prefix_index_stats_get(scope->index, &stats);
    stats_add(&s->counts.gone, &stats, false);
    scope_close(scope);
}

static enum bt_status scope_open(struct bt_index_service *s,
                                 const struct bt_index_instance *like,
                                 struct scope **out)
{
    const struct bt_prefix_index_limits limits = {
        .workers_max = s->config.workers_max,
        .blocks_max = s->config.blocks_max,
        .holdings_max = s->config.holdings_max,
    };
    size_t bytes = bt_prefix_index_bytes(&limits);
    struct scope *scope = NULL;
    struct bt_arena arena;

    for (uint32_t i = 0; i < s->config.scopes_max && scope == NULL; i++)
        if (!s->scopes[i].used)
            scope = &s->scopes[i];
    if (scope == NULL)
        return BT_LIMIT;
    scope->memory = bt_big_memory_take(bytes);
    scope->bytes = bytes;
    scope->owner = calloc(s->config.workers_max, sizeof(struct rank *));
    scope->rows = calloc(s->config.workers_max, sizeof(*scope->rows));
    if (scope->memory == NULL || scope->owner == NULL || scope->rows == NULL) {
        scope_close(scope);
        return BT_NO_MEMORY;
    }
    bt_arena_init(&arena, scope->memory, bytes);
    scope->index = bt_prefix_index_init(&arena, &limits);
    if (scope->index == NULL) {
        scope_close(scope);
        return BT_INVALID;
    }
    scope->like = *like;
    scope->used = true;
    *out = scope;
    return BT_OK;
}

/* ---- rows ---- */

static int row_order(const void *a, const void *b)
{
    const struct bt_index_row *x = a, *y = b;
    int order = strcmp(x->instance, y->instance);

    if (order != 0)
        return order;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static void list_rows(struct bt_index_service *s, struct scope *scope)
{
    scope->row_count = 0;
    for (uint32_t i = 0; i < s->config.workers_max; i++) {
        const struct instance *in = &s->instances[i];

        for (uint32_t r = 0; in->scope == scope && r < in->is.ranks; r++)
            scope->rows[scope->row_count++] = (struct bt_index_row){
                .instance = in->is.instance,
                .rank = in->is.first_rank + r,
                .row = in->ranks[r].row,
            };
    }
    qsort(scope->rows, scope->row_count, sizeof(*scope->rows), row_order);
}

/* False: the scope has no room for so many. */
static bool take_rows(const struct bt_index_service *s, struct scope *scope,
                      struct instance *in)
{
    uint32_t row = 0;

    if (scope->row_count + in->is.ranks > s->config.workers_max)
        return false;
    for (uint32_t r = 0; r < in->is.ranks; r++) {
        while (scope->owner[row] != NULL)
            row++;
        scope->owner[row] = &in->ranks[r];
        in->ranks[r] = (struct rank){
            .row = row, .state = BT_STREAM_ABSENT, .cause = BT_CAUSE_SILENT};
    }
    return true;
}

/* ---- instances ---- */

static bool overlaps(const struct bt_index_instance *a,
                     const struct bt_index_instance *b)
{
    return same_scope(a, b) && strcmp(a->instance, b->instance) == 0 &&
           a->first_rank < b->first_rank + b->ranks &&
           b->first_rank < a->first_rank + a->ranks;
}

static enum bt_status check(const struct bt_index_service *s,
                            const struct bt_index_instance *in,
                            struct instance **free_out, char *error,
                            size_t error_size)
{
    struct instance *slot = NULL;

    if (in->instance[0] == '\0' || in->model[0] == '\0' ||
        in->block_tokens == 0 || in->ranks == 0 ||
        in->ranks > BT_SNAPSHOT_RANKS_MAX) {
        snprintf(error, error_size,
                 "an instance needs instance_id, model and block_size");
        return BT_INVALID;
    }
    for (uint32_t i = 0; i < s->config.workers_max; i++) {
        if (s->instances[i].scope == NULL) {
            slot = slot == NULL ? &s->instances[i] : slot;
        } else if (overlaps(&s->instances[i].is, in)) {
            snprintf(error, error_size,
                     "this instance and rank is registered already");
            return BT_EXISTS;
        }
    }
    if (slot == NULL) {
        snprintf(error, error_size, "the limit of %u workers is reached",
                 s->config.workers_max);
        return BT_LIMIT;
    }
    *free_out = slot;
    return BT_OK;
}

static enum bt_status connect_source(struct bt_index_service *s,
                                     const struct instance *in, char *error,
                                     size_t error_size)
{
    char name[BT_INDEX_TEXT_MAX + 16];
    const struct bt_event_source_config source = {
        .name = name,
        .events = in->is.endpoint[0] != '\0' ? in->is.endpoint : NULL,
        .replay = in->is.replay[0] != '\0' ? in->is.replay : NULL,
        .topic = in->is.topic[0] != '\0' ? in->is.topic : NULL,
        .ranks = in->is.ranks,
        .block_tokens = in->is.block_tokens,
        .removals = in->is.removals,
        .hash = in->is.hash,
        .hash_seed = in->is.hash_seed,
    };

    /* In the plane's log lines; ranks are counted from the first. */
    if (in->is.first_rank == 0)
        snprintf(name, sizeof(name), "%s", in->is.instance);
    else
        snprintf(name, sizeof(name), "%s/%u", in->is.instance,
                 in->is.first_rank);
    return bt_event_plane_add(s->plane, (uint32_t)(in - s->instances), &source,
                              error, error_size);
}

static void leave_scope(struct bt_index_service *s, struct instance *in)
{
    struct scope *scope = in->scope;

    for (uint32_t r = 0; r < in->is.ranks; r++) {
        bt_prefix_index_drop_worker(scope->index, in->ranks[r].row);
        scope->owner[in->ranks[r].row] = NULL;
    }
    free(in->ranks);
    memset(in, 0, sizeof(*in));
    list_rows(s, scope);
    if (scope->row_count == 0)
        scope_end(s, scope);
}

/* Its scope, made when it is the first. */
static enum bt_status join_scope(struct bt_index_service *s,
                                 struct instance *in, char *error,
                                 size_t error_size)
{
    struct scope *scope = scope_find(s, &in->is);
    enum bt_status status = BT_OK;

    if (scope == NULL)
        status = scope_open(s, &in->is, &scope);
    if (status != BT_OK) {
        snprintf(error, error_size,
                 status == BT_LIMIT ? "the limit of %u scopes (model, block "
                                      "size, tenant, ...) is reached"
                                    : "no memory for an index (%u scopes)",
                 s->config.scopes_max);
        return status;
    }
    in->ranks = calloc(in->is.ranks, sizeof(*in->ranks));
    if (in->ranks != NULL && take_rows(s, scope, in)) {
        in->scope = scope;
        list_rows(s, scope);
        return BT_OK;
    }
    snprintf(error, error_size, "the limit of %u workers is reached",
             s->config.workers_max);
    status = in->ranks == NULL ? BT_NO_MEMORY : BT_LIMIT;
    free(in->ranks);
    in->ranks = NULL;
    if (scope->row_count == 0)
        scope_close(scope);
    return status;
}

/* All that tells one registration from another. */
static void say_member(const struct bt_index_service *s, const char *word,
                       const struct bt_index_instance *in)
{
    index_say(s, 2, word,
              "worker=%s rank=%u ranks=%u model=%s block_size=%u tenant=%s "
              "additional_salt=\"%s\" routing_group=\"%s\"",
              in->instance, in->first_rank, in->ranks, in->model,
              in->block_tokens, in->tenant, in->additional_salt,
              in->routing_group);
}

enum bt_status member_add(struct bt_index_service *s,
                          const struct bt_index_instance *in, bool from_file,
                          char *error, size_t error_size)
{
    struct instance *slot = NULL;
    enum bt_status status = check(s, in, &slot, error, error_size);

    if (status != BT_OK)
        return status;
    slot->is = *in;
    slot->from_file = from_file;
    status = join_scope(s, slot, error, error_size);
    if (status != BT_OK)
        return status;
    status = connect_source(s, slot, error, error_size);
    if (status != BT_OK) {
        leave_scope(s, slot);
        return status;
    }
    s->instance_count++;
    s->counts.registered++;
    say_member(s, "index_registered", in);
    /* Nobody vouches for its process: a stream that goes on from a snapshot
     * must prove that by itself. Others are read from their start now. */
    if (!keep_resume(s, slot) || in->replay[0] != '\0')
        bt_event_plane_alive(s->plane, (uint32_t)(slot - s->instances), 0, 0);
    watch_begin(s, slot);
    return BT_OK;
}

void member_remove(struct bt_index_service *s, struct instance *in)
{
    say_member(s, "index_unregistered", &in->is);
    bt_event_plane_remove(s->plane, (uint32_t)(in - s->instances));
    leave_scope(s, in);
    s->instance_count--;
    s->counts.unregistered++;
}

void members_free(struct bt_index_service *s)
{
    for (uint32_t i = 0; s->instances != NULL && i < s->config.workers_max; i++)
        free(s->instances[i].ranks);
    for (uint32_t i = 0; s->scopes != NULL && i < s->config.scopes_max; i++)
        scope_close(&s->scopes[i]);
    free(s->instances);
    free(s->scopes);
}
