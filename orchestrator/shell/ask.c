/* The index of this server, asked over the admin listener as `baton index` is
 * (index_query.h): /query and /query_by_hash. Decides which workers an answer
 * is about: all of the model, in rank order, whatever their state. The server
 * has one tenant, and no additional salts or routing groups.
 */
#include "serve_priv.h"

#include "baton/orchestrator/index_query.h"
#include <stdlib.h>
#include <string.h>

/* Index of the model, or the HTTP status and why not. */
static int find_model(const struct bt_serve *serve,
                      const struct bt_index_query *q, uint32_t *model_out,
                      const char **why)
{
    const struct bt_config *c = serve->config;
    uint32_t m = 0;

    while (m < c->model_count && strcmp(c->models[m].name, q->model) != 0)
        m++;
    *why = "no such model, or tenant, salt or routing group";
    if (m == c->model_count || strcmp(q->tenant, BT_INDEX_TENANT) != 0 ||
        q->additional_salt[0] != '\0' || q->routing_group[0] != '\0')
        return 404;
    *why = "the model has another 'block_size'";
    if (q->block_tokens != 0 && q->block_tokens != c->models[m].block_size)
        return 400;
    *model_out = m;
    return 200;
}

static size_t list_rows(const struct bt_serve *serve,
                        const struct bt_index_query *q, uint32_t model,
                        struct bt_index_row *out)
{
    const struct bt_config *c = serve->config;
    struct bt_core_worker_info info;
    size_t count = 0;

    for (uint32_t w = 0; w < c->worker_count; w++) {
        if (bt_core_worker_get(serve->core, w, &info) != BT_OK ||
            info.model != model ||
            (q->instance[0] != '\0' &&
             strcmp(q->instance, c->workers[w].name) != 0))
            continue;
        for (uint32_t r = 0; r < info.ranks; r++)
            out[count++] = (struct bt_index_row){
                .instance = c->workers[w].name,
                .rank = r,
                .row = bt_core_row_of(serve->core, w, r),
                .state = info.stream,
                .cause = info.cause,
            };
    }
    return count;
}

/* rows and depths have room for every row of the core. */
static void answer(struct bt_serve *serve, struct bt_httpd_request *req,
                   const struct bt_index_query *q, uint32_t model,
                   struct bt_index_row *rows, uint32_t *depths)
{
    struct bt_index_view view = {
        .tenant = q->tenant,
        .block_tokens = serve->config->models[model].block_size,
        .rows = rows,
        .row_count = list_rows(serve, q, model, rows),
        .depths = depths,
    };
    struct bt_text t;
    char *buf;

    bt_core_match(serve->core, model, q->keys, q->key_count, depths);
    buf = text_alloc(&t, bt_index_answer_bytes(&view));
    if (buf == NULL || bt_index_answer(&view, q->shape, &t) != BT_OK)
        reply_error(req, 503, "out of memory");
    else
        reply_json(req, 200, buf, t.used);
    free(buf);
}

static void ask(struct bt_serve *serve, struct bt_httpd_request *req,
                struct bt_index_query *q)
{
    size_t count = bt_core_row_count(serve->core);
    struct bt_index_row *rows = calloc(count + 1, sizeof(*rows));
    uint32_t *depths = calloc((count + 1) * BT_TIERS, sizeof(*depths));
    const struct bt_model_config *m;
    const char *why;
    uint32_t model = 0;
    int status = find_model(serve, q, &model, &why);

    m = &serve->config->models[model];
    if (status != 200)
        reply_error(req, status, why);
    else if (rows == NULL || depths == NULL ||
             bt_index_query_keys(q, m->block_size, m->engine.eagle) != BT_OK)
        reply_error(req, 503, "out of memory");
    else
        answer(serve, req, q, model, rows, depths);
    free(rows);
    free(depths);
}

void ask_handle(struct bt_serve *serve, struct bt_httpd_request *req,
                bool by_hash)
{
    struct bt_index_body body = {
        .by_hash = by_hash, .items_max = serve->config->limits.prompt_tokens};
    struct bt_index_query q;
    struct bt_index_fault says;
    const char *fault;

    body.bytes = bt_httpd_body(req, &body.count);
    fault = bt_index_query_read(&body, &q, &says);
    if (fault != NULL) {
        reply_error(req, 400, fault);
        return;
    }
    ask(serve, req, &q);
    bt_index_query_fini(&q);
}
