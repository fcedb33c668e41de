/* Runs a recorded core again. Decides how two choices of one instant compare;
 * leaves the choices to the core (bt_core_ask) and reading to reader.c.
 *
 * The keys of a request must live until it ends: they are copied, one block
 * per request, found again by the cookie in FINISHED. */
#include "baton/orchestrator/replay.h"

#include "baton/base/units.h"
#include "baton/orchestrator/journal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EFFECTS_MAX 4096u

struct kept_keys {
    uint64_t *keys;
};

struct replay {
    const struct bt_replay_options *options;
    struct bt_replay_result *result;
    struct bt_journal_reader *reader;
    struct bt_core *core;
    void *memory;
    struct kept_keys *kept; /* by request slot */
    uint32_t kept_count;
    struct bt_effects effects;
    uint64_t hash;
    int64_t first_ns;
};

static bool same_place(const struct bt_place_candidate *a,
                       const struct bt_place_candidate *b)
{
    return a->p == b->p && a->d == b->d;
}

static bool same_source(const struct bt_place_candidate *a,
                        const struct bt_place_candidate *b)
{
    return a->source.tokens == b->source.tokens &&
           (a->source.tokens == 0 || a->source.worker == b->source.worker);
}

static int64_t gap_of(const struct bt_replay_change *c)
{
    int64_t gap = c->other.terms.total_ns - c->recorded.terms.total_ns;

    return gap < 0 ? -gap : gap;
}

static void keep_change(struct replay *r, const struct bt_replay_change *c)
{
    struct bt_replay_result *out = r->result;
    size_t at;

    if (r->options->top == 0)
        return;
    if (out->top_count < r->options->top)
        at = out->top_count++;
    else if (gap_of(c) > gap_of(&out->top[out->top_count - 1]))
        at = out->top_count - 1;
    else
        return;
    while (at > 0 && gap_of(c) > gap_of(&out->top[at - 1])) {
        out->top[at] = out->top[at - 1];
        at--;
    }
    out->top[at] = *c;
}

static void compare(struct replay *r, const struct bt_event *event,
                    const struct bt_place_candidate *recorded,
                    const struct bt_place_candidate *other)
{
    struct bt_replay_result *out = r->result;
    double a = (double)recorded->terms.total_ns / 1e9;
    double b = (double)other->terms.total_ns / 1e9;
    struct bt_replay_change change = {
        .number = out->requests + 1,
        .at_ns = event->now_ns - r->first_ns,
        .prompt_tokens = event->u.request.prompt_tokens,
        .recorded = *recorded,
        .other = *other,
    };

    out->asked++;
    out->recorded_total_s += a;
    out->other_total_s += b;
    out->recorded_bytes +=
        (double)recorded->terms.kv_bytes + (double)recorded->terms.fetch_bytes;
    out->other_bytes +=
        (double)other->terms.kv_bytes + (double)other->terms.fetch_bytes;
    if (same_place(recorded, other) && same_source(recorded, other)) {
        out->same++;
        return;
    }
    out->recorded_changed_s += a;
    out->other_changed_s += b;
    if (same_place(recorded, other))
        out->changed_source++;
    else if (recorded->d == other->d)
        out->changed_p++;
    else if (recorded->p == other->p)
        out->changed_d++;
    else
        out->changed_both++;
    keep_change(r, &change);
}

/* Both policies, in the state before the request is taken. */
static void ask_both(struct replay *r, const struct bt_event *event)
{
    const struct bt_core_config *config = bt_journal_config(r->reader);
    const struct bt_ev_request *request = &event->u.request;
    struct bt_placement recorded, other;
    enum bt_status status;

    if (bt_core_ask(r->core, config->policy,
                    config->knobs_set ? config->knobs : NULL, request,
                    &recorded) != BT_OK)
        return;
    status = bt_core_ask(r->core, r->options->other, r->options->knobs, request,
                         &other);
    if (status == BT_OK)
        compare(r, event, &recorded.chosen, &other.chosen);
    else if (status == BT_AGAIN)
        r->result->held++;
    else if (status == BT_OVERLOADED)
        r->result->refused++;
    else
        r->result->no_worker++;
}

static enum bt_status keep_keys(struct bt_event *event, uint64_t **copy_out)
{
    struct bt_ev_request *request = &event->u.request;
    uint64_t *copy = NULL;

    if (request->key_count > 0) {
        copy = malloc(request->key_count * sizeof(*copy));
        if (copy == NULL)
            return BT_NO_MEMORY;
        memcpy(copy, request->keys, request->key_count * sizeof(*copy));
        request->keys = copy;
    }
    *copy_out = copy;
    return BT_OK;
}

/* A request accepted in this step owns the copy from now on; one that ended
 * gives its own back. */
static void settle_keys(struct replay *r, uint64_t *copy)
{
    for (size_t i = 0; i < r->effects.count; i++) {
        const struct bt_effect *e = &r->effects.items[i];
        struct kept_keys *kept = &r->kept[bt_request_slot(e->request)];

        if (e->type == BT_FX_ACCEPTED) {
            kept->keys = copy;
            copy = NULL;
        } else if (e->type == BT_FX_FINISHED) {
            free(kept->keys);
            kept->keys = NULL;
        }
    }
    free(copy);
}

static enum bt_status take_event(struct replay *r,
                                 struct bt_journal_entry *entry)
{
    struct bt_replay_result *out = r->result;
    bool is_request = entry->event.type == BT_EV_REQUEST;
    uint64_t *copy = NULL;
    enum bt_status status;

    if (out->events == 0)
        r->first_ns = entry->event.now_ns;
    out->span_ns = entry->event.now_ns - r->first_ns;
    if (is_request) {
        if (r->options->other != NULL)
            ask_both(r, &entry->event);
        out->requests++;
        status = keep_keys(&entry->event, &copy);
        if (status != BT_OK)
            return status;
    }
    r->effects.count = 0;
    (void)bt_core_step(r->core, &entry->event, &r->effects);
    r->hash = bt_effects_hash(r->hash, &r->effects);
    settle_keys(r, copy);
    out->events++;
    if (r->hash != entry->effects_hash && out->differs_at == 0) {
        out->differs_at = out->events;
        out->verified = false;
    }
    return BT_OK;
}

static enum bt_status start(struct replay *r, char *error_out,
                            size_t error_size)
{
    const struct bt_core_config *config = bt_journal_config(r->reader);
    struct bt_arena arena;
    size_t bytes;

    snprintf(r->result->policy, sizeof(r->result->policy), "%s",
             bt_journal_policy(r->reader));
    if (config->policy == NULL) {
        snprintf(error_out, error_size, "policy '%s' is not in this build",
                 bt_journal_policy(r->reader));
        return BT_INCOMPATIBLE;
    }
    bytes = bt_core_bytes(config);
    r->memory = bytes == SIZE_MAX ? NULL : calloc(1, bytes);
    r->kept = calloc(config->requests_max, sizeof(*r->kept));
    r->effects.items = calloc(EFFECTS_MAX, sizeof(*r->effects.items));
    r->effects.capacity = EFFECTS_MAX;
    r->kept_count = config->requests_max;
    if (r->memory == NULL || r->kept == NULL || r->effects.items == NULL) {
        snprintf(error_out, error_size, "no memory for a core of its size");
        return BT_NO_MEMORY;
    }
    bt_arena_init(&arena, r->memory, bytes);
    r->core = bt_core_init(&arena, config);
    if (r->core == NULL) {
        snprintf(error_out, error_size,
                 "no core can be made from its "
                 "configuration");
        return BT_INVALID;
    }
    r->result->worker_count = config->worker_count;
    r->result->verified = true;
    return BT_OK;
}

static enum bt_status run_events(struct replay *r, char *error_out,
                                 size_t error_size)
{
    struct bt_journal_entry entry;
    enum bt_status status;
    char cut[128];

    for (;;) {
        status = bt_journal_next(r->reader, &entry, cut, sizeof(cut));
        if (status == BT_NOT_FOUND) {
            r->result->whole = true;
            return BT_OK;
        }
        if (status != BT_OK) {
            memcpy(r->result->cut, cut, sizeof(cut));
            return BT_OK;
        }
        status = take_event(r, &entry);
        if (status != BT_OK) {
            snprintf(error_out, error_size, "no memory for a request's keys");
            return status;
        }
        if (r->options->stop_at_difference && !r->result->verified)
            return BT_OK;
    }
}

static void stop(struct replay *r)
{
    for (uint32_t i = 0; r->kept != NULL && i < r->kept_count; i++)
        free(r->kept[i].keys);
    free(r->kept);
    free(r->effects.items);
    free(r->memory);
    bt_journal_reader_close(r->reader);
}

enum bt_status bt_replay_run(const char *path,
                             const struct bt_replay_options *options,
                             struct bt_replay_result *out, char *error_out,
                             size_t error_size)
{
    struct replay r = {.options = options, .result = out};
    enum bt_status status;

    memset(out, 0, sizeof(*out));
    status = bt_journal_open(path, &r.reader, error_out, error_size);
    if (status != BT_OK)
        return status;
    status = start(&r, error_out, error_size);
    if (status == BT_OK)
        status = run_events(&r, error_out, error_size);
    stop(&r);
    return status;
}
