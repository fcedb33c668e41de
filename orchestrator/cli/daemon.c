/* Start and end of the subcommands that serve until they are told to stop.
 * Decides how an address is written, how levels become log lines and what a
 * signal does; what is served and what its last act is are the command's.
 */
#include "daemon.h"

#include "command.h"

#include "baton/orchestrator/log.h"

#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

bool daemon_address(const char *text, char *buf, size_t size,
                    uint16_t *port_out)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;

    if (colon == NULL || colon == text || colon[1] < '0' || colon[1] > '9')
        return false;
    unsigned long port = strtoul(colon + 1, &end, 10);
    size_t n = (size_t)(colon - text);
    if (text[0] == '[' && n > 2 && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    if (*end != '\0' || port > 65535 || n >= size)
        return false;
    memcpy(buf, text, n);
    buf[n] = '\0';
    *port_out = (uint16_t)port;
    return true;
}

void daemon_say(void *arg, int level, const char *word, const char *text)
{
    static const enum bt_log_level levels[] = {BT_LOG_ERROR, BT_LOG_WARN,
                                               BT_LOG_INFO};

    (void)arg;
    bt_log(levels[level < 0 || level > 2 ? 2 : level], word, "%s", text);
}

void daemon_limit_raise(int kind)
{
    struct rlimit limit;

    if (getrlimit((__rlimit_resource_t)kind, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit((__rlimit_resource_t)kind, &limit);
    }
}

static void on_signal(struct ev_loop *loop, ev_signal *signal, int events)
{
    (void)signal;
    (void)events;
    ev_break(loop, EVBREAK_ALL);
}

int daemon_run(const char *command, daemon_serve_fn serve, void *arg)
{
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    ev_signal term, interrupt;

    if (loop == NULL) {
        fprintf(stderr, "baton %s: no event loop\n", command);
        return BT_EXIT_FAILED;
    }
    ev_signal_init(&term, on_signal, SIGTERM);
    ev_signal_init(&interrupt, on_signal, SIGINT);
    ev_signal_start(loop, &term);
    ev_signal_start(loop, &interrupt);
    int code = serve(loop, arg);
    ev_signal_stop(loop, &term);
    ev_signal_stop(loop, &interrupt);
    ev_loop_destroy(loop);
    return code;
}
