/* `baton serve`: load the configuration, make the server, run its loop, drain
 * on SIGTERM or SIGINT. Prints one JSON line on stdout once it listens, so that
 * a parent that asked for port 0 learns the ports.
 */
#include "command.h"
#include "daemon.h"
#include "parent.h"

#include "baton/orchestrator/config.h"
#include "baton/orchestrator/serve.h"
#include "baton/orchestrator/snapshot.h"
#include "baton/planner/place.h"
#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct serve_options {
    const char *config;
    const char *policy;
    bool die_with_parent;
};

static const struct bt_option options[] = {
    {"config", 'c', BT_OPTION_STRING, "FILE", "configuration (YAML); required",
     offsetof(struct serve_options, config)},
    {"policy", 'p', BT_OPTION_STRING, "SPEC",
     "use this placement policy, as name:knob=value, instead of the "
     "configured one",
     offsetof(struct serve_options, policy)},
    {"die-with-parent", 0, BT_OPTION_FLAG, NULL,
     "end when the parent process ends",
     offsetof(struct serve_options, die_with_parent)},
    {0},
};

static int run(int argc, char **argv);

const struct bt_command bt_command_serve = {
    .name = "serve",
    .summary = "run the orchestrator in front of a prefill and a decode pool",
    .arguments = "",
    .options = options,
    .run = run,
};

static void on_signal(struct ev_loop *loop, ev_signal *signal, int events)
{
    (void)loop;
    (void)events;
    bt_serve_drain(signal->data);
}

static int run_loop(const struct bt_config *config)
{
    struct ev_loop *loop = ev_default_loop(EVFLAG_AUTO);
    struct bt_serve *serve = NULL;
    struct bt_serve_ports ports;
    ev_signal term, interrupt;
    char error[256];
    enum bt_status status;
    bool clean;

    status = bt_serve_create(loop, config, &serve, error, sizeof(error));
    if (status != BT_OK) {
        fprintf(stderr, "baton serve: %s\n", error);
        return BT_EXIT_FAILED;
    }
    ev_signal_init(&term, on_signal, SIGTERM);
    ev_signal_init(&interrupt, on_signal, SIGINT);
    term.data = interrupt.data = serve;
    ev_signal_start(loop, &term);
    ev_signal_start(loop, &interrupt);
    bt_serve_ports_get(serve, &ports);
    printf("{\"ready\":true,\"listen\":%u,\"metrics\":%u,\"admin\":%u}\n",
           ports.listen, ports.metrics, ports.admin);
    fflush(stdout);
    ev_run(loop, 0);
    clean = bt_serve_drained_clean(serve);
    ev_signal_stop(loop, &term);
    ev_signal_stop(loop, &interrupt);
    bt_serve_destroy(serve);
    ev_loop_destroy(loop);
    return clean ? BT_EXIT_OK : BT_EXIT_FAILED;
}

static bool can_save(const struct bt_config *config)
{
    char error[256] = "";

    if (config->index.snapshot == NULL ||
        bt_snapshot_probe(config->index.snapshot, error, sizeof(error)) ==
            BT_OK)
        return true;
    fprintf(stderr, "baton serve: index.snapshot cannot be written: %s\n",
            error);
    return false;
}

static int run(int argc, char **argv)
{
    struct serve_options opts = {0};
    struct bt_config *config = NULL;
    char error[512];
    int first = 0, code;

    code = bt_options_parse(&bt_command_serve, argc, argv, &opts, &first);
    if (code >= 0)
        return code;
    if (opts.config == NULL || first < argc) {
        fprintf(stderr, "baton serve: --config FILE is needed (and nothing "
                        "else); see baton serve --help\n");
        return BT_EXIT_USAGE;
    }
    if (opts.die_with_parent && !parent_follow("serve"))
        return BT_EXIT_FAILED;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a snapshot beyond the limit fails, not we */
    daemon_limit_raise(RLIMIT_NOFILE); /* two per request, and some */
    if (bt_config_load(opts.config, &config, error, sizeof(error)) != BT_OK) {
        fprintf(stderr, "%s\n", error);
        return BT_EXIT_CONFIG;
    }
    if (opts.policy != NULL && bt_config_policy_set(config, opts.policy, error,
                                                    sizeof(error)) != BT_OK) {
        fprintf(stderr, "baton serve: --policy: %s\n", error);
        bt_config_destroy(config);
        return BT_EXIT_USAGE;
    }
    code = can_save(config) ? run_loop(config) : BT_EXIT_CONFIG;
    bt_config_destroy(config);
    return code;
}
