/* What the long-running subcommands start and end with. */
#ifndef BATON_CLI_DAEMON_H
#define BATON_CLI_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;

/* "ADDR:PORT", "[ADDR]:PORT" of an option; the address goes to buf. False: it
 * is neither, or does not fit. */
bool daemon_address(const char *text, char *buf, size_t size,
                    uint16_t *port_out);
/* A service's `say`: a line of the log; level 0 error, 1 warn, else info. */
void daemon_say(void *arg, int level, const char *word, const char *text);
/* A soft limit (RLIMIT_...) up to the hard one; as it was if that fails. */
void daemon_limit_raise(int kind);
/* Makes a loop that SIGTERM and SIGINT break, and calls serve with it; returns
 * its exit code, or BT_EXIT_FAILED with a line on stderr. serve runs the loop
 * itself, and ends what it began before it returns. */
typedef int (*daemon_serve_fn)(struct ev_loop *loop, void *arg);
int daemon_run(const char *command, daemon_serve_fn serve, void *arg);

#endif
