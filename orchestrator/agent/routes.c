/* Routes of the agent service. Small ones are answered here; the rest is
 * fill.c's and report.c's. */
#include "service.h"

#include <stdlib.h>
#include <string.h>

void service_refuse(struct bt_httpd_request *req, int status,
                    const char *message)
{
    char buf[1024];
    struct bt_text t;

    bt_text_init(&t, buf, sizeof(buf));
    bt_text_str(&t, "{\"error\":{\"message\":");
    bt_text_quoted(&t, message, strnlen(message, 400));
    bt_text_str(&t, ",\"code\":");
    bt_text_u64(&t, (uint64_t)status);
    bt_text_str(&t, "}}");
    bt_httpd_reply(req, status, "application/json", buf, t.used);
}

void service_send(struct bt_httpd_request *req, const char *type, char *buf,
                  const struct bt_text *text)
{
    if (buf == NULL)
        service_refuse(req, 503, "out of memory");
    else if (text->overflow)
        service_refuse(req, 500, "the answer does not fit its buffer");
    else
        bt_httpd_reply(req, 200, type, buf, text->used);
    free(buf);
}

static void do_health(struct bt_agent_service *s, struct bt_httpd_request *req)
{
    (void)s;
    bt_httpd_reply(req, 200, "text/plain", "ok\n", 3);
}

static void do_ready(struct bt_agent_service *s, struct bt_httpd_request *req)
{
    struct bt_agent_stats stats;

    bt_agent_stats(s->agent, &stats);
    if (stats.rails_up == 0)
        service_refuse(req, 503, "no rail is up");
    else if (s->not_rdma[0] != '\0')
        service_refuse(req, 503, s->not_rdma);
    else
        bt_httpd_reply(req, 200, "text/plain", "ready\n", 6);
}

static const struct route {
    const char *method, *path;
    bool needs_pool;
    void (*handle)(struct bt_agent_service *s, struct bt_httpd_request *req);
} routes[] = {
    {"GET", "/healthz", false, do_health},
    {"GET", "/readyz", false, do_ready},
    {"GET", "/metrics", false, service_metrics},
    {"GET", "/v1/agent", false, service_report},
    {"GET", "/v1/pool", true, service_report_pool},
    {"GET", "/v1/probe", false, service_probe_clock},
    {"POST", "/v1/probe", false, service_probe},
    {"POST", "/v1/pool/pull", true, service_fill},
    {"POST", "/v1/pool/drop", true, service_drop},
};

void service_handle(void *arg, struct bt_httpd_request *req)
{
    struct bt_agent_service *s = arg;
    const char *method = bt_httpd_method(req), *path = bt_httpd_path(req);
    bool known = false;

    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        const struct route *r = &routes[i];

        if (strcmp(path, r->path) != 0)
            continue;
        known = true;
        if (strcmp(method, r->method) != 0)
            continue;
        if (r->needs_pool && s->pool == NULL)
            service_refuse(req, 404, "this agent has no pool (--host-pool)");
        else
            r->handle(s, req);
        return;
    }
    service_refuse(req, known ? 405 : 404,
                   known ? "not with this method" : "no such path");
}
