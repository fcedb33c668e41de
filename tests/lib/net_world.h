/* One process, one loop: real sockets on 127.0.0.1, raw clients and raw
 * servers that are driven by running the loop. Every wait has a deadline and
 * watches a state; nothing sleeps.
 */
#ifndef BATON_TESTS_NET_WORLD_H
#define BATON_TESTS_NET_WORLD_H

#include <ev.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NET_DEADLINE_MS 10000

/* Run the loop for one turn, at most some milliseconds. */
void net_turn(struct ev_loop *loop);
/* Run until cond(arg); false after the deadline. */
bool net_until(struct ev_loop *loop, bool (*cond)(void *arg), void *arg);
int64_t net_now_ms(void);

/* Blocking connect to 127.0.0.1 (the backlog answers), then non-blocking. */
int net_connect(uint16_t port);
/* Same with a receive buffer of so many bytes (0: default). */
int net_connect_narrow(uint16_t port, int receive_bytes);
/* Raw listening socket on a free port. */
int net_listen(uint16_t *port_out);
int net_accept(struct ev_loop *loop, int listener);

struct net_text {
    char *bytes; /* NUL-terminated */
    size_t count, capacity;
    bool eof, reset;
};
void net_text_free(struct net_text *text);
/* Send everything, running the loop while the socket is full; false if the
 * peer closed. */
bool net_send(struct ev_loop *loop, int fd, const void *bytes, size_t count);
bool net_say(struct ev_loop *loop, int fd, const char *text);
/* Read what is there, without waiting. */
void net_poll(int fd, struct net_text *text);
/* Read until `wanted` has been seen `times` times, or EOF, or deadline. */
bool net_read_until(struct ev_loop *loop, int fd, struct net_text *text,
                    const char *wanted, unsigned times);
/* Read until EOF or reset. */
bool net_read_end(struct ev_loop *loop, int fd, struct net_text *text);
unsigned net_occurrences(const struct net_text *text, const char *wanted);

#endif
