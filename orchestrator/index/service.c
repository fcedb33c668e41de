/* Puts the service together: limits, tables, event plane, listener, snapshots;
 * and takes it apart. Decides nothing else.
 */
#include "service_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB     (1024u * 1024u)
#define GONE_NS INT64_C(30000000000) /* without an idle check */

void bt_index_service_config_init(struct bt_index_service_config *config)
{
    *config = (struct bt_index_service_config){
        .address = "127.0.0.1",
        .scopes_max = 16,
        .blocks_max = 1u << 20,
        .holdings_max = 1u << 21,
        .workers_max = 1024,
        .items_max = 1u << 20,
        .snapshot_interval_ns = 30000000000,
        .idle_check_ns = 10000000000,
    };
    bt_event_plane_config_init(&config->plane);
}

void index_say(const struct bt_index_service *s, int level, const char *word,
               const char *format, ...)
{
    char text[1024];
    va_list args;

    if (s->config.say == NULL)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    s->config.say(s->config.say_arg, level, word, text);
}

static bool has_bad_limit(const struct bt_index_service_config *c)
{
    return c->scopes_max == 0 || c->scopes_max > 4096 || c->blocks_max == 0 ||
           c->holdings_max == 0 || c->workers_max == 0 ||
           c->workers_max > 65535 || c->items_max == 0 ||
           c->snapshot_interval_ns < 0 || c->idle_check_ns < 0;
}

static enum bt_status start_tables(struct bt_index_service *s)
{
    const struct bt_index_service_config *c = &s->config;

    s->scopes = calloc(c->scopes_max, sizeof(*s->scopes));
    s->instances = calloc(c->workers_max, sizeof(*s->instances));
    s->depths =
        calloc((size_t)c->workers_max * BT_TIERS * 2, sizeof(*s->depths));
    s->asked = calloc(c->workers_max, sizeof(*s->asked));
    return s->scopes == NULL || s->instances == NULL || s->depths == NULL ||
                   s->asked == NULL
               ? BT_NO_MEMORY
               : BT_OK;
}

static enum bt_status start_parts(struct bt_index_service *s, char *error,
                                  size_t error_size)
{
    const struct bt_httpd_limits limits = {
        .connections_max = 1024,
        .body_bytes_max = BT_INDEX_BODY_MAX,
        .body_total_bytes_max = (uint64_t)256 * MIB,
    };
    const struct bt_event_sink sink = feed_sink(s);
    enum bt_status status;

    snprintf(error, error_size, "a limit is 0 or too large");
    if (has_bad_limit(&s->config))
        return BT_INVALID;
    snprintf(error, error_size, "out of memory");
    status = start_tables(s);
    s->config.plane.sources_max = s->config.workers_max;
    s->config.plane.gone_ns =
        s->config.idle_check_ns > 0 ? 3 * s->config.idle_check_ns : GONE_NS;
    if (status == BT_OK)
        status = bt_event_plane_create(s->loop, &s->config.plane, &sink,
                                       &s->plane, error, error_size);
    if (status != BT_OK)
        return status;
    keep_load(s);
    keep_start(s);
    watch_start(s);
    return bt_httpd_start(s->loop, s->config.address, s->config.port, &limits,
                          index_handle, s, &s->httpd, error, error_size);
}

enum bt_status bt_index_service_create(
    struct ev_loop *loop, const struct bt_index_service_config *config,
    struct bt_index_service **out, char *error_out, size_t error_size)
{
    struct bt_index_service *s = calloc(1, sizeof(*s));
    enum bt_status status;

    if (s == NULL) {
        snprintf(error_out, error_size, "out of memory");
        return BT_NO_MEMORY;
    }
    s->loop = loop;
    s->config = *config;
    status = start_parts(s, error_out, error_size);
    if (status != BT_OK) {
        bt_index_service_destroy(s);
        return status;
    }
    *out = s;
    return BT_OK;
}

enum bt_status bt_index_service_register(struct bt_index_service *s,
                                         const struct bt_index_instance *in,
                                         char *error_out, size_t error_size)
{
    return member_add(s, in, true, error_out, error_size);
}

void bt_index_service_begin(struct bt_index_service *s)
{
    keep_register_again(s);
}

uint16_t bt_index_service_port(const struct bt_index_service *s)
{
    return bt_httpd_port(s->httpd);
}

void bt_index_service_destroy(struct bt_index_service *s)
{
    keep_stop(s);
    watch_stop(s);
    if (s->httpd != NULL)
        bt_httpd_stop(s->httpd);
    if (s->plane != NULL)
        bt_event_plane_destroy(s->plane);
    members_free(s);
    free(s->depths);
    free(s->asked);
    free(s);
}
