/* Routes of the service: registration and queries. Reports are report.c's.
 * A request is answered in the call that brings it. Names of instances may be
 * logged, and what else names a registration; tokens, hashes, adapters and
 * salts of queries never are.
 */
#include "service_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers ---- */

void index_reply(struct bt_httpd_request *req, int status, const char *body,
                 size_t bytes)
{
    bt_httpd_reply(req, status, "application/json", body, bytes);
}

void index_refuse(struct bt_httpd_request *req, int status, const char *message)
{
    char buf[1024];
    struct bt_text t;

    bt_text_init(&t, buf, sizeof(buf));
    bt_text_str(&t, "{\"error\":{\"message\":");
    bt_text_quoted(&t, message, strnlen(message, 400));
    bt_text_str(&t, ",\"code\":");
    bt_text_u64(&t, (uint64_t)status);
    bt_text_str(&t, "}}");
    index_reply(req, status, buf, t.used);
}

char *index_text(struct bt_text *text, size_t size)
{
    char *buf = malloc(size);

    bt_text_init(text, buf, buf == NULL ? 0 : size);
    return buf;
}

void index_send(struct bt_httpd_request *req, const char *type, char *buf,
                const struct bt_text *text)
{
    if (buf == NULL)
        index_refuse(req, 503, "out of memory");
    else if (text->overflow)
        index_refuse(req, 500, "the answer does not fit its buffer");
    else
        bt_httpd_reply(req, 200, type, buf, text->used);
    free(buf);
}

/* ---- registration ---- */

static void do_register(struct bt_index_service *s,
                        struct bt_httpd_request *req)
{
    struct bt_index_instance in;
    char error[256] = "";
    size_t bytes = 0;
    const char *body = bt_httpd_body(req, &bytes);
    struct bt_index_fault says;
    const char *fault = read_instance(body, bytes, &in, &says);
    enum bt_status status;

    if (fault != NULL) {
        s->counts.query_faults++;
        index_refuse(req, 400, fault);
        return;
    }
    status = member_add(s, &in, false, error, sizeof(error));
    if (status == BT_OK)
        index_reply(req, 201, "{\"status\":\"ok\"}", 15);
    else
        index_refuse(req, bt_status_http(status), error);
}

/* Same scope; a block size that is not given fits any. */
static bool is_meant(const struct instance *in,
                     const struct bt_index_instance *who, bool has_rank)
{
    return in->scope != NULL && strcmp(in->is.instance, who->instance) == 0 &&
           strcmp(in->is.model, who->model) == 0 &&
           strcmp(in->is.tenant, who->tenant) == 0 &&
           strcmp(in->is.additional_salt, who->additional_salt) == 0 &&
           strcmp(in->is.routing_group, who->routing_group) == 0 &&
           (who->block_tokens == 0 ||
            in->is.block_tokens == who->block_tokens) &&
           (!has_rank || in->is.first_rank == who->first_rank);
}

static void do_unregister(struct bt_index_service *s,
                          struct bt_httpd_request *req)
{
    struct bt_index_instance who;
    bool has_rank = false;
    size_t bytes = 0;
    const char *body = bt_httpd_body(req, &bytes);
    struct bt_index_fault says;
    const char *fault = read_identity(body, bytes, &who, &has_rank, &says);
    char answer[64];
    uint32_t gone = 0;
    int n;

    if (fault != NULL) {
        s->counts.query_faults++;
        index_refuse(req, 400, fault);
        return;
    }
    for (uint32_t i = 0; i < s->config.workers_max; i++)
        if (is_meant(&s->instances[i], &who, has_rank)) {
            member_remove(s, &s->instances[i]);
            gone++;
        }
    if (gone == 0) {
        index_refuse(req, 404, "no such instance is registered");
        return;
    }
    n = snprintf(answer, sizeof(answer), "{\"status\":\"ok\",\"removed\":%u}",
                 gone);
    index_reply(req, 200, answer, (size_t)n);
}

/* ---- queries ---- */

/* The one scope that is meant; else the HTTP status and why. */
static int find_scope(const struct bt_index_service *s,
                      const struct bt_index_query *q, struct scope **out,
                      const char **why)
{
    struct scope *found = NULL;
    bool other_size = false;

    for (uint32_t i = 0; i < s->config.scopes_max; i++) {
        struct scope *scope = &s->scopes[i];

        if (!scope->used || strcmp(scope->like.model, q->model) != 0 ||
            strcmp(scope->like.tenant, q->tenant) != 0 ||
            strcmp(scope->like.additional_salt, q->additional_salt) != 0 ||
            strcmp(scope->like.routing_group, q->routing_group) != 0)
            continue;
        if (q->block_tokens != 0 &&
            q->block_tokens != scope->like.block_tokens) {
            other_size = true;
            continue;
        }
        if (found != NULL) {
            *why = "'block_size' is needed: instances of this model differ";
            return 400;
        }
        found = scope;
    }
    *why = other_size ? "no instance of this model has that 'block_size'"
                      : "no instance of this model is registered (for this "
                        "tenant, salt and group)";
    if (found == NULL)
        return other_size ? 400 : 404;
    *out = found;
    return 200;
}

/* The rows asked for, with their present states. */
static size_t pick_rows(struct bt_index_service *s, const struct scope *scope,
                        const struct bt_index_query *q)
{
    size_t count = 0;

    for (uint32_t i = 0; i < scope->row_count; i++) {
        const struct bt_index_row *from = &scope->rows[i];

        if (q->instance[0] != '\0' && strcmp(q->instance, from->instance) != 0)
            continue;
        s->asked[count] = *from;
        s->asked[count].state = scope->owner[from->row]->state;
        s->asked[count].cause = scope->owner[from->row]->cause;
        count++;
    }
    return count;
}

struct shapes {
    bool plain, eagle;
};

/* What the instances of the scope hash; plain until one has shown. */
static struct shapes shapes_of(const struct bt_index_service *s,
                               const struct scope *scope)
{
    struct shapes shapes = {false, false};

    for (uint32_t i = 0; i < s->config.workers_max; i++) {
        const struct instance *in = &s->instances[i];

        if (in->scope != scope)
            continue;
        shapes.eagle = shapes.eagle || in->is.eagle;
        shapes.plain = shapes.plain || in->plain || !in->is.eagle;
    }
    return shapes;
}

/* Depths of the query's keys, to be added to those of the other shape: keys of
 * one never name a block of the other. */
static void match(struct bt_index_service *s, struct scope *scope,
                  const struct bt_index_query *q, bool first)
{
    size_t count = (size_t)s->config.workers_max * BT_TIERS;
    uint32_t *depths = first ? s->depths : s->depths + count;
    uint32_t deepest = 0;

    bt_prefix_index_match_tiers(scope->index, q->keys, q->key_count, depths);
    for (size_t i = 0; i < count; i++) {
        deepest = depths[i] > deepest ? depths[i] : deepest;
        s->depths[i] = depths[i] > s->depths[i] ? depths[i] : s->depths[i];
    }
    /* Who asks is about to place: what matched is in use. */
    bt_prefix_index_touch(scope->index, q->keys, deepest);
}

static enum bt_status match_all(struct bt_index_service *s, struct scope *scope,
                                struct bt_index_query *q)
{
    struct shapes shapes = shapes_of(s, scope);

    if (q->by_hash || shapes.plain) {
        if (bt_index_query_keys(q, scope->like.block_tokens, false) != BT_OK)
            return BT_NO_MEMORY;
        match(s, scope, q, true);
    }
    if (q->by_hash || !shapes.eagle)
        return BT_OK;
    if (bt_index_query_keys(q, scope->like.block_tokens, true) != BT_OK)
        return BT_NO_MEMORY;
    match(s, scope, q, !shapes.plain);
    return BT_OK;
}

static void answer_query(struct bt_index_service *s,
                         struct bt_httpd_request *req, struct scope *scope,
                         const struct bt_index_query *q)
{
    struct bt_index_view view = {
        .tenant = q->tenant,
        .block_tokens = scope->like.block_tokens,
        .rows = s->asked,
        .row_count = pick_rows(s, scope, q),
        .depths = s->depths,
    };
    uint32_t deepest = 0;
    struct bt_text t;
    char *buf;

    for (size_t i = 0; i < view.row_count; i++) {
        uint32_t depth =
            s->depths[(size_t)view.rows[i].row * BT_TIERS + BT_TIER_EXTERNAL];
        deepest = depth > deepest ? depth : deepest;
    }
    s->counts.query_blocks += q->key_count;
    s->counts.hit_blocks += deepest;
    buf = index_text(&t, bt_index_answer_bytes(&view));
    if (bt_index_answer(&view, q->shape, &t) != BT_OK) {
        free(buf);
        buf = NULL;
    }
    index_send(req, "application/json", buf, &t);
}

static void do_query(struct bt_index_service *s, struct bt_httpd_request *req,
                     bool by_hash)
{
    struct bt_index_body body = {.by_hash = by_hash,
                                 .items_max = s->config.items_max};
    struct bt_index_query q;
    struct bt_index_fault says;
    struct scope *scope = NULL;
    const char *fault;
    int status;

    body.bytes = bt_httpd_body(req, &body.count);
    fault = bt_index_query_read(&body, &q, &says);
    s->counts.queries++;
    if (fault != NULL) {
        s->counts.query_faults++;
        index_refuse(req, strcmp(fault, "out of memory") == 0 ? 503 : 400,
                     fault);
        return;
    }
    status = find_scope(s, &q, &scope, &fault);
    if (status != 200) {
        s->counts.query_faults++;
        index_refuse(req, status, fault);
    } else if (match_all(s, scope, &q) != BT_OK) {
        index_refuse(req, 503, "out of memory");
    } else {
        answer_query(s, req, scope, &q);
    }
    bt_index_query_fini(&q);
}

/* ---- dispatch ---- */

typedef void (*route_fn)(struct bt_index_service *s,
                         struct bt_httpd_request *req);

static void do_query_tokens(struct bt_index_service *s,
                            struct bt_httpd_request *req)
{
    do_query(s, req, false);
}

static void do_query_hashes(struct bt_index_service *s,
                            struct bt_httpd_request *req)
{
    do_query(s, req, true);
}

static const struct {
    const char *method, *path;
    route_fn run;
} routes[] = {
    {"POST", "/query", do_query_tokens},
    {"POST", "/query_by_hash", do_query_hashes},
    {"POST", "/register", do_register},
    {"POST", "/unregister", do_unregister},
    {"GET", "/workers", report_workers},
    {"GET", "/dump", report_dump},
    {"GET", "/health", report_health},
    {"GET", "/stats", report_stats},
    {"GET", "/metrics", report_metrics},
};

void index_handle(void *arg, struct bt_httpd_request *req)
{
    const char *path = bt_httpd_path(req);
    const char *other = NULL;

    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(path, routes[i].path) != 0)
            continue;
        if (strcmp(bt_httpd_method(req), routes[i].method) == 0) {
            routes[i].run(arg, req);
            return;
        }
        other = routes[i].method;
    }
    if (other != NULL)
        index_refuse(req, 405, other[0] == 'G' ? "GET only" : "POST only");
    else
        index_refuse(req, 404, "no such route");
}
