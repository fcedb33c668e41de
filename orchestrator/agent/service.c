/* Life of the agent service: checks the configuration, opens in order (memory,
 * agent, regions, HTTP), closes in reverse, and hands the agent's events to
 * who they are for.
 */
#include "service.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EVENTS_AT_ONCE 16
#define PROBE_MAX      (1ull << 36)

void service_say(struct bt_agent_service *s, int level, const char *word,
                 const char *format, ...)
{
    char line[512];
    va_list args;

    if (s->config.say == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    s->config.say(s->config.arg, level, word, line);
}

void bt_agent_service_config_init(struct bt_agent_service_config *c)
{
    *c = (struct bt_agent_service_config){
        .name = "agent",
        .address = "127.0.0.1",
        .http_address = "127.0.0.1",
        .fabric = "ucx",
        .probe_bytes = 64u << 20,
        .block_bytes = 4096,
        .block_tokens = 16,
        .layout_version = 1,
    };
}

/* ---- checks ---- */

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strcmp(address, "localhost") == 0;
}

static bool names(const char *list, const char *word)
{
    return list != NULL && strstr(list, word) != NULL;
}

/* What UCX would take for a rail: its own words, then the agent's, then the
 * environment's. */
static const char *ucx_fault(const char *transports, const char *device)
{
    const char *tls = transports != NULL ? transports : getenv("UCX_TLS");
    const char *nets = device != NULL ? NULL : getenv("UCX_NET_DEVICES");

    if (tls == NULL || names(tls, "tcp"))
        return "require-rdma: UCX would use tcp; give --fabric verbs or "
               "--transports rc_verbs,self";
    if (!names(tls, "rc") && !names(tls, "dc") && !names(tls, "ud") &&
        !names(tls, "ib"))
        return "require-rdma: no RDMA transport in UCX_TLS";
    if (nets != NULL && strcmp(nets, "all") != 0 && strchr(nets, ':') == NULL)
        return "require-rdma: UCX_NET_DEVICES names no RDMA port";
    return NULL;
}

/* Bytes that go by TCP although RDMA was meant are the silent way to be ten
 * times slower (field failure E18). */
static const char *rdma_fault(const struct bt_agent_service_config *c)
{
    const char *fault = NULL;

    if (strcmp(c->fabric, "verbs") == 0)
        return NULL;
    if (strcmp(c->fabric, "sim") == 0)
        return "require-rdma: the sim fabric is none";
    if (c->rail_count == 0)
        return ucx_fault(c->transports, NULL);
    for (uint32_t i = 0; i < c->rail_count && fault == NULL; i++) {
        const struct bt_rail_config *rail = &c->rails[i];

        fault = ucx_fault(rail->transports != NULL ? rail->transports
                                                   : c->transports,
                          rail->device);
    }
    return fault;
}

/* "rc_verbs/mlx5_0:1": each of what carries a rail, and at least one. */
static bool is_rdma(const char *carriers)
{
    bool any = false;

    for (const char *at = carriers; *at != '\0';) {
        if (strncmp(at, "rc_", 3) != 0 && strncmp(at, "dc_", 3) != 0 &&
            strncmp(at, "ud_", 3) != 0)
            return false;
        any = true;
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    return any;
}

static const char *config_fault(const struct bt_agent_service_config *c)
{
    if (strlen(c->address) >= 64 || strlen(c->http_address) >= 64)
        return "listen: not an address";
    if (!c->insecure && !is_loopback(c->http_address))
        return "http: beyond loopback only with --insecure: anyone there "
               "could make this agent pull from anywhere";
    if (!c->insecure && c->key == NULL && !is_loopback(c->address))
        return "listen: beyond loopback only with --key-file, or --insecure";
    if (c->block_tokens == 0)
        return "block-tokens: at least 1";
    if (c->probe_bytes < BT_PROBE_BLOCK_BYTES || c->probe_bytes > PROBE_MAX)
        return "probe-size: 4KiB to 64GiB";
    if (c->nvme_path != NULL && c->host_pool_bytes == 0)
        return "nvme: needs a host pool above it (--host-pool)";
    if (c->rail_count > BT_RAILS_MAX)
        return "rail: at most 8";
    return c->require_rdma ? rdma_fault(c) : NULL;
}

/* ---- opening ---- */

static enum bt_status open_probe(struct bt_agent_service *s, char *error_out,
                                 size_t error_size)
{
    s->probe_bytes =
        s->config.probe_bytes / BT_PROBE_BLOCK_BYTES * BT_PROBE_BLOCK_BYTES;
    void *base = mmap(NULL, s->probe_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        snprintf(error_out, error_size, "probe region: %s", strerror(errno));
        return BT_NO_MEMORY;
    }
    s->probe = base;
    bt_probe_fill(base, s->probe_bytes);
    return BT_OK;
}

static struct bt_kv_layout pool_layout(const struct bt_agent_service *s)
{
    return (struct bt_kv_layout){
        .version = s->config.layout_version,
        .block_tokens = s->config.block_tokens,
        .block_bytes = s->config.block_bytes,
        .model_hash = s->config.model_hash,
    };
}

/* What an operator may not expect: small pages, a file that was emptied. */
static void say_pool(struct bt_agent_service *s)
{
    struct pool_state_counts c;

    pool_report(s->pool, &c);
    service_say(s, 2, "pool",
                "slots=%u page_bytes=%" PRIu64 " nvme=%s stored=%" PRIu64,
                c.slots, c.page_bytes,
                c.has_nvme ? s->config.nvme_path : "none", c.nvme.blocks);
    if (c.has_nvme && c.nvme.dropped_at_open > 0)
        service_say(s, 1, "pool_dropped",
                    "path=%s blocks=%" PRIu64
                    " reason=\"damaged, or of another size or layout\"",
                    s->config.nvme_path, c.nvme.dropped_at_open);
}

static enum bt_status open_pool(struct bt_agent_service *s, char *error_out,
                                size_t error_size)
{
    const struct bt_agent_service_config *c = &s->config;
    uint64_t words[4] = {c->layout_version, c->block_tokens, c->block_bytes,
                         c->model_hash};
    struct pool_config pool = {
        .loop = s->loop,
        .block_bytes = c->block_bytes,
        .host_bytes = c->host_pool_bytes,
        .nvme_bytes = c->nvme_bytes,
        .nvme_path = c->nvme_path,
    };

    if (c->host_pool_bytes == 0)
        return BT_OK;
    for (int i = 0; i < 4; i++)
        pool.identity = bt_mix64(pool.identity ^ words[i]);
    enum bt_status status = pool_create(&pool, &s->pool, error_out, error_size);
    if (status == BT_OK)
        say_pool(s);
    return status;
}

static enum bt_status open_agent(struct bt_agent_service *s, char *error_out,
                                 size_t error_size)
{
    const struct bt_agent_service_config *c = &s->config;

    for (uint32_t i = 0; i < c->rail_count; i++) {
        snprintf(s->rail_names[i], sizeof(s->rail_names[i]), "%s",
                 c->rails[i].name);
        s->rails[i] = c->rails[i];
        s->rails[i].name = s->rail_names[i];
    }
    const struct bt_agent_config agent = {
        .api_version = BT_AGENT_API_VERSION,
        .name = s->name,
        .fabric = c->fabric,
        .rails = s->rails,
        .rail_count = c->rail_count,
        .transports = c->transports,
        .listen = s->address,
        .port = c->port,
        .key = c->key,
        .insecure = c->insecure,
        .checksums = true,
        .chunk_bytes = c->chunk_bytes,
        .inflight_max = c->inflight_max,
        .window_target_ns = c->window_target_ns,
    };
    enum bt_status status =
        bt_agent_open(&agent, &s->agent, error_out, error_size);
    if (status != BT_OK || c->start_count == 0)
        return status;
    status = bt_agent_calibrate(s->agent, c->starts, c->start_count);
    if (status != BT_OK)
        snprintf(error_out, error_size, "calibration: %s",
                 bt_status_text(status));
    return status;
}

static enum bt_status open_regions(struct bt_agent_service *s, char *error_out,
                                   size_t error_size)
{
    const struct bt_agent_region probe = {
        .name = BT_PROBE_REGION,
        .base = s->probe,
        .block_count = (uint32_t)(s->probe_bytes / BT_PROBE_BLOCK_BYTES),
        .layout = bt_probe_layout(),
        .serve = BT_AGENT_SERVE_OPEN,
    };
    uint32_t ignored = 0;
    enum bt_status status =
        bt_agent_region(s->agent, &probe, &ignored, error_out, error_size);

    if (status != BT_OK || s->pool == NULL)
        return status;
    const struct bt_agent_region pool = {
        .name = SERVICE_REGION,
        .base = pool_base(s->pool),
        .block_count = pool_slots(s->pool),
        .layout = pool_layout(s),
        .serve = BT_AGENT_SERVE_KEYED,
    };
    return bt_agent_region(s->agent, &pool, &s->pool_region, error_out,
                           error_size);
}

/* ---- events ---- */

/* The check at the start is of names; this is what UCX came to (E18). */
static void on_rail(struct bt_agent_service *s,
                    const struct bt_agent_event *event)
{
    const char *by = event->transport;
    bool lacks = s->config.require_rdma && by[0] != '\0' && !is_rdma(by);

    service_say(s,
                lacks           ? 0
                : by[0] != '\0' ? 2
                                : 1,
                "rail", "peer=%s detail=\"%s\"%s", event->peer, event->detail,
                lacks ? " require_rdma=broken" : "");
    if (lacks)
        snprintf(s->not_rdma, sizeof(s->not_rdma),
                 "require-rdma: bytes go by %s", by);
}

static void on_event(struct bt_agent_service *s,
                     const struct bt_agent_event *event)
{
    switch (event->kind) {
    case BT_AGENT_PULLED:
        if (!service_probed(s, event))
            service_filled(s, event);
        break;
    case BT_AGENT_ASKED:
        service_asked(s, event);
        break;
    case BT_AGENT_LEFT:
        service_left(s, event);
        break;
    case BT_AGENT_REFUSED:
        service_say(s, 1, "refused", "peer=%s reason=\"%s\"", event->peer,
                    event->detail);
        break;
    case BT_AGENT_RAIL:
        on_rail(s, event);
        break;
    case BT_AGENT_RELEASED: /* nothing is published here */
    case BT_AGENT_EXPIRED:
    case BT_AGENT_WITHDRAWN:
        break;
    }
}

static void on_agent(struct ev_loop *loop, ev_io *w, int revents)
{
    struct bt_agent_service *s = w->data;
    struct bt_agent_event events[EVENTS_AT_ONCE];

    (void)loop;
    (void)revents;
    size_t count = bt_agent_progress(s->agent, events, EVENTS_AT_ONCE);
    for (size_t i = 0; i < count; i++)
        on_event(s, &events[i]);
}

/* ---- life ---- */

static enum bt_status open_all(struct bt_agent_service *s, char *error_out,
                               size_t error_size)
{
    const struct bt_httpd_limits limits = {.connections_max = 256,
                                           .body_bytes_max = 8u << 20};
    enum bt_status status = open_probe(s, error_out, error_size);

    if (status == BT_OK)
        status = open_pool(s, error_out, error_size);
    if (status == BT_OK)
        status = open_agent(s, error_out, error_size);
    if (status == BT_OK)
        status = open_regions(s, error_out, error_size);
    if (status != BT_OK)
        return status;
    ev_io_init(&s->agent_io, on_agent, bt_agent_fd(s->agent), EV_READ);
    s->agent_io.data = s;
    ev_io_start(s->loop, &s->agent_io);
    return bt_httpd_start(s->loop, s->config.http_address, s->config.http_port,
                          &limits, service_handle, s, &s->httpd, error_out,
                          error_size);
}

enum bt_status bt_agent_service_create(
    struct ev_loop *loop, const struct bt_agent_service_config *config,
    struct bt_agent_service **out, char *error_out, size_t error_size)
{
    const char *fault = config_fault(config);
    struct bt_agent_service *s = NULL;

    if (fault != NULL) {
        snprintf(error_out, error_size, "%s", fault);
        return config->require_rdma && strncmp(fault, "require", 7) == 0
                   ? BT_UNSUPPORTED
                   : BT_INVALID;
    }
    s = calloc(1, sizeof(*s));
    if (s == NULL) {
        snprintf(error_out, error_size, "no memory");
        return BT_NO_MEMORY;
    }
    s->loop = loop;
    s->config = *config;
    snprintf(s->name, sizeof(s->name), "%s", config->name);
    snprintf(s->address, sizeof(s->address), "%s", config->address);
    TAILQ_INIT(&s->asks);
    TAILQ_INIT(&s->fills);
    enum bt_status status = open_all(s, error_out, error_size);
    if (status != BT_OK) {
        bt_agent_service_destroy(s);
        return status;
    }
    *out = s;
    return BT_OK;
}

void bt_agent_service_destroy(struct bt_agent_service *s)
{
    if (s == NULL)
        return;
    s->stopping = true;
    if (s->httpd != NULL)
        bt_httpd_stop(s->httpd);
    if (s->agent != NULL) {
        ev_io_stop(s->loop, &s->agent_io);
        bt_agent_close(s->agent); /* nobody reads or writes after this */
    }
    service_probes_end(s);
    if (s->pool != NULL) {
        service_fills_end(s);
        service_asks_end(s);
        pool_destroy(s->pool);
    }
    if (s->probe != NULL)
        munmap(s->probe, s->probe_bytes);
    free(s);
}

uint16_t bt_agent_service_port(const struct bt_agent_service *s)
{
    return bt_agent_port(s->agent);
}

uint16_t bt_agent_service_http_port(const struct bt_agent_service *s)
{
    return bt_httpd_port(s->httpd);
}
