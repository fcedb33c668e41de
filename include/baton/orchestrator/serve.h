/* `baton serve`: the orchestrator's shell. One libev loop owns the core, the
 * front, the workers' connections, the event plane, metrics and admin. */
#ifndef BATON_ORCHESTRATOR_SERVE_H
#define BATON_ORCHESTRATOR_SERVE_H

#include "baton/base/status.h"
#include "baton/orchestrator/config.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;
struct bt_serve;

struct bt_serve_ports {
    uint16_t listen, metrics, admin;
};

/* Build everything on the loop and start listening. config stays the
 * caller's and must outlive the server. On failure error_out (>= 256 bytes)
 * says what ("listen 127.0.0.1:8000: address already in use"). */
enum bt_status bt_serve_create(struct ev_loop *loop,
                               const struct bt_config *config,
                               struct bt_serve **out, char *error_out,
                               size_t error_size);
void bt_serve_ports_get(const struct bt_serve *serve,
                        struct bt_serve_ports *out);
/* Stop taking requests; streams run on until done or timeouts.drain, then the
 * loop is broken (ev_break). Calling it again cuts what is left. */
void bt_serve_drain(struct bt_serve *serve);
/* True when the drain ended without cutting a stream. */
bool bt_serve_drained_clean(const struct bt_serve *serve);
void bt_serve_destroy(struct bt_serve *serve);

#endif
