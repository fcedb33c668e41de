/* ZeroMQ sockets as the event plane needs them: never blocking, limits set. */
#ifndef BATON_EVENTS_SOCKET_H
#define BATON_EVENTS_SOCKET_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#define FRAMES_MAX 6

struct message {
    zmq_msg_t frames[FRAMES_MAX];
    int count;
    bool overlong; /* more frames than that, dropped */
};

/* False: nothing there. Else message_close. */
bool message_receive(void *socket, struct message *m);
void message_close(struct message *m);
/* An 8-byte big-endian frame. */
bool message_seq(struct message *m, int frame, uint64_t *seq_out);

/* SUB (all topics) or DEALER, connected or bound. NULL: *why_out says so. */
void *socket_open(void *context, int type, bool bind, const char *endpoint,
                  const char **why_out);
/* The same in two steps; endpoint as for connect. False: *why_out. */
void *socket_make(void *context, int type, const char *endpoint,
                  const char **why_out);
bool socket_connect(void *socket, const char *endpoint, const char **why_out);
int socket_fd(void *socket);
/* A socket that tells when another one's connection comes and goes; opened
 * before that connects, or it may miss it. id: never used before in the
 * context, for a name is free again some time after the close only. NULL:
 * *why_out. Closed before the one it watches. */
void *monitor_open(void *context, void *socket, uint64_t id,
                   const char **why_out);
/* False: nothing there. *up_out: there is a connection now. */
bool monitor_receive(void *monitor, bool *up_out);
void monitor_close(void *monitor, void *socket);
/* The request for all batches from seq on. */
void socket_ask(void *socket, uint64_t seq);

#endif
