/* /admin/state, /admin/fault and /metrics of an engine. Decides how state is
 * shown and how faults that act at once are carried out (expiring leases,
 * flipping bytes); everything else reads the fault table where it matters.
 */
#include "engine_priv.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- state ---- */

static uint32_t held_blocks(const struct bt_engine *e)
{
    uint64_t used = e->pool.count - e->pool.free_count;
    return (uint32_t)(used > e->leased_blocks ? used - e->leased_blocks : 0);
}

void bt_engine_state_get(const struct bt_engine *e, struct bt_engine_state *out)
{
    struct bt_engine_state s = e->totals;
    s.blocks_total = e->pool.count;
    s.blocks_free = e->pool.free_count;
    s.blocks_cached = e->pool.registered_count;
    s.blocks_held = held_blocks(e);
    s.blocks_leased = (uint32_t)e->leased_blocks;
    s.running = e->decoding.count + (e->prefilling != NULL);
    s.waiting = e->waiting.count + e->waiting_pull.count;
    s.pulling = e->pulling.count;
    s.hung = e->hung.count;
    s.leases = e->lease_count;
    *out = s;
}

static json_t *totals(const struct bt_engine_state *s)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"requests", s->requests},
        {"finished", s->finished},
        {"aborted", s->aborted},
        {"failed", s->failed},
        {"prefill_tokens_computed", s->prefill_tokens_computed},
        {"prefill_tokens_cached", s->prefill_tokens_cached},
        {"prefill_tokens_pulled", s->prefill_tokens_pulled},
        {"generated_tokens", s->generated_tokens},
        {"leases_expired", s->leases_expired},
        {"pulls_failed", s->pulls_failed},
        {"blocks_pulled", s->blocks_pulled},
    };
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_object_set_new(object, rows[i].name,
                            json_integer((json_int_t)rows[i].value));
    }
    return object;
}

static json_t *state_json(struct bt_engine *e)
{
    static const char *const roles[] = {"prefill", "decode", "both"};
    struct bt_engine_state s;
    bt_engine_state_get(e, &s);
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:I}", "name", e->name, "role",
        roles[e->role], "model", e->model, "engine_id", e->id, "block_size",
        (int)e->oracle.block_tokens, "kv_bytes_per_token",
        (int)e->oracle.kv_bytes_per_token, "events_next",
        (json_int_t)(e->events ? bt_events_next_sequence(e->events) : 0));
    if (root == NULL) {
        return NULL;
    }
    json_object_set_new(
        root, "blocks",
        json_pack("{s:i, s:i, s:i, s:i, s:i}", "total", (int)s.blocks_total,
                  "free", (int)s.blocks_free, "cached", (int)s.blocks_cached,
                  "held", (int)s.blocks_held, "leased", (int)s.blocks_leased));
    json_object_set_new(root, "requests",
                        json_pack("{s:i, s:i, s:i, s:i}", "running",
                                  (int)s.running, "waiting", (int)s.waiting,
                                  "pulling", (int)s.pulling, "hung",
                                  (int)s.hung));
    json_object_set_new(root, "leases", json_integer(s.leases));
    json_object_set_new(root, "totals", totals(&s));
    json_object_set_new(root, "faults_fired",
                        json_integer((json_int_t)e->faults.fired));
    json_object_set_new(root, "kv", bt_handoff_meters(e));
    json_object_set_new(root, "transfer", bt_handoff_state(e));
    return root;
}

/* ---- faults ---- */

/* Flip a byte in the first `count` blocks with content (0: in all), those
 * in use before those only cached. */
static void corrupt(struct bt_engine *e, uint32_t count)
{
    uint32_t done = 0;
    for (int cached = 0; cached < 2; cached++) {
        for (uint32_t i = 0; i < e->pool.count; i++) {
            const struct bt_pool_block *b = &e->pool.blocks[i];
            bool chosen = cached ? b->ref == 0 && b->registered : b->ref > 0;
            if (chosen && (count == 0 || done < count)) {
                e->region[i * e->block_bytes] ^= 0x40;
                done++;
            }
        }
    }
}

uint32_t bt_engine_announced_block(const struct bt_engine *e)
{
    double factor = bt_faults_factor(&e->faults, BT_FAULT_WRONG_BLOCK_SIZE, -1);
    uint32_t size = e->oracle.block_tokens;
    if (factor < 0) {
        return size;
    }
    double wrong = size * (factor > 0 ? factor : 2.0);
    return wrong < 1 ? 1 : wrong > 1e6 ? 1000000 : (uint32_t)wrong;
}

void bt_admin_apply_faults(struct bt_engine *e)
{
    const struct bt_faults *f = &e->faults;
    double slow = bt_faults_factor(f, BT_FAULT_SLOW, 1.0);
    e->sched.slow = slow > 0 ? slow : 2.0; /* no factor given: 2 */
    if (e->events != NULL) {
        struct bt_events_faults out = {
            .drop = bt_faults_factor(f, BT_FAULT_EVENTS_DROP, 0),
            .reorder = bt_faults_factor(f, BT_FAULT_EVENTS_REORDER, 0),
            .duplicate = bt_faults_factor(f, BT_FAULT_EVENTS_DUPLICATE, 0),
            .delay_ms = bt_faults_factor(f, BT_FAULT_EVENTS_DELAY, 0),
        };
        bt_events_set_faults(e->events, &out);
    }
}

static enum bt_status set_fault(struct bt_engine *e,
                                const struct bt_fault *fault)
{
    if (fault->kind == BT_FAULT_LEASE_EXPIRE) {
        bt_handoff_expire_all(e);
        return BT_OK;
    }
    if (fault->kind == BT_FAULT_CORRUPT_BLOCK) {
        corrupt(e, fault->count);
        return BT_OK;
    }
    if (fault->phase == BT_PHASE_NOW) {
        _exit(137);
    }
    enum bt_status status = bt_faults_add(&e->faults, fault);
    bt_admin_apply_faults(e);
    return status;
}

enum bt_status bt_engine_fault(struct bt_engine *e, const char *spec)
{
    struct bt_fault fault;
    enum bt_status status = bt_fault_parse(spec, &fault);
    return status == BT_OK ? set_fault(e, &fault) : status;
}

void bt_engine_faults_clear(struct bt_engine *e)
{
    e->faults.count = 0;
    bt_admin_apply_faults(e);
}

static void post_fault(struct bt_engine *e, struct bt_httpd_request *req)
{
    size_t bytes = 0;
    const char *body = bt_httpd_body(req, &bytes);
    json_t *root = json_loadb(body, bytes, 0, NULL);
    const char *kind = json_string_value(json_object_get(root, "fault"));
    const char *phase = json_string_value(json_object_get(root, "phase"));
    json_int_t count = json_integer_value(json_object_get(root, "count"));
    double factor = json_number_value(json_object_get(root, "factor"));
    struct bt_fault fault;
    enum bt_status status = BT_INVALID;
    if (kind != NULL && count >= 0 && count <= UINT32_MAX) {
        status = bt_fault_make(kind, phase, (uint32_t)count, factor, &fault);
    }
    if (status == BT_OK) {
        status = set_fault(e, &fault);
    }
    json_decref(root);
    if (status == BT_OK) {
        bt_reply_json(req, 200, "{}", 2);
    } else {
        bt_reply_error(req, 400, "unknown fault, phase or value", "fault");
    }
}

bool bt_admin_handle(struct bt_engine *e, struct bt_httpd_request *req,
                     const char *method, const char *path)
{
    if (strcmp(path, "/admin/state") == 0 && strcmp(method, "GET") == 0) {
        bt_reply_tree(req, state_json(e));
    } else if (strcmp(path, "/admin/pulls") == 0 &&
               strcmp(method, "GET") == 0) {
        bt_reply_tree(req, bt_handoff_pulls(e));
    } else if (strcmp(path, "/admin/blocks") == 0 &&
               strcmp(method, "GET") == 0) {
        bt_admin_blocks(e, req);
    } else if (strcmp(path, "/admin/fault") == 0 &&
               strcmp(method, "POST") == 0) {
        post_fault(e, req);
    } else if (strcmp(path, "/admin/fault") == 0 &&
               strcmp(method, "DELETE") == 0) {
        bt_engine_faults_clear(e);
        bt_reply_json(req, 200, "{}", 2);
    } else {
        return false;
    }
    return true;
}

/* ---- metrics ---- */

/* Names of the adapters with a sequence in the list, comma separated. */
static void adapters_in(const struct bt_engine *e,
                        const struct bt_seq_list *list, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t a = 0; a < e->adapter_count; a++) {
        const struct bt_seq *seq = list->head;
        while (seq != NULL && seq->adapter != (int)a) {
            seq = seq->next;
        }
        if (seq != NULL && used + strlen(e->adapters[a]) + 2 < size) {
            used += (size_t)snprintf(out + used, size - used, "%s%s",
                                     used > 0 ? "," : "", e->adapters[a]);
        }
    }
}

void bt_admin_metrics(struct bt_engine *e, struct bt_httpd_request *req)
{
    char running[2048], waiting[2048], *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (f == NULL) {
        bt_reply_error(req, 503, "out of memory", NULL);
        return;
    }
    adapters_in(e, &e->decoding, running, sizeof(running));
    adapters_in(e, &e->waiting, waiting, sizeof(waiting));
    uint32_t deferred = e->waiting_pull.count + e->pulling.count;
    struct bt_engine_gauges g = {
        .model = e->model,
        .running = e->decoding.count + (e->prefilling != NULL),
        .waiting = e->waiting.count + deferred,
        .waiting_capacity = e->waiting.count,
        .waiting_deferred = deferred,
        .kv_usage = 1.0 - (double)e->pool.free_count / e->pool.count,
        .block_tokens = bt_engine_announced_block(e),
        .block_count = e->pool.count,
        .start_time_s = e->start_time_s,
        .running_adapters = running,
        .waiting_adapters = waiting,
        .adapters_max = (uint32_t)e->adapter_count,
    };
    bt_metrics_write(&e->metrics, &g, f);
    bt_handoff_metrics(e, f);
    if (fclose(f) != 0) {
        bt_reply_error(req, 503, "out of memory", NULL);
    } else {
        bt_httpd_reply(req, 200, "text/plain; version=0.0.4; charset=utf-8",
                       text, bytes);
    }
    free(text);
}
