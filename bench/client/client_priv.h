/* Private to bench/client: the client and one request in flight. */
#ifndef BENCH_CLIENT_PRIV_H
#define BENCH_CLIENT_PRIV_H

#include "answer.h"
#include "baton/bench/client.h"
#include "baton/orchestrator/upstream.h"
#include <ev.h>

struct flight {
    struct bt_client *client;
    struct flight *prev, *next; /* in client->flights */
    size_t index;
    struct bt_call *call;
    char *body;
    char id[96]; /* header line */
    const char *headers[4];
    int64_t sent_ns, first_ns, last_ns; /* absolute */
    uint32_t tokens, leave_after;
    int http;
    enum bt_status broken; /* answer_feed's first fault */
    struct answer answer;
    struct ev_timer leave;
};

struct bt_client {
    struct ev_loop *loop;
    struct bt_upstream *upstream;
    struct bt_client_spec spec;
    char *url; /* of the completions */
    struct bt_client_record *records;
    struct bt_histogram gaps;
    struct ev_timer timer;
    struct flight *flights;
    int64_t start_ns;
    size_t next, ended, in_flight;
    bool started;
    char first_failure[256];
};

int64_t client_now_ns(void);
/* Send request i; its record ends now or later. */
void flight_start(struct bt_client *client, size_t index);
/* Drop without a record (destroy). */
void flight_free(struct flight *flight);
/* A record is final: count it and tell. */
void client_ended(struct bt_client *client, size_t index);

#endif
