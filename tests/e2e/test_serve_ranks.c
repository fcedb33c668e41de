/* A worker with two data-parallel ranks, each with a publisher of its own on
 * consecutive ports (engine-wire.md 1.2): what rank 1 announces sends the leg
 * there by header (3.13), and only where it is known to help. */
#include "serve_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <zmq.h>

/* Vector V1 of engine-wire.md 1.14: hash 1001, tokens 1..4, rank 0 in its
 * batch; the socket decides. */
static const unsigned char V1[] = {
    0x93, 0xcb, 0x3f, 0xf0, 0,    0,    0,    0,    0,   0,   0x91,
    0x98, 0xab, 'B',  'l',  'o',  'c',  'k',  'S',  't', 'o', 'r',
    'e',  'd',  0x91, 0xcd, 0x03, 0xe9, 0xc0, 0x94, 1,   2,   3,
    4,    4,    0xc0, 0xa3, 'G',  'P',  'U',  0xc0, 1};
#define ASK(first)                                                             \
    "{\"model\":\"m\",\"stream\":true,\"prompt\":[" first                      \
    ",2,3,4,5,6,7,8,9,10,11,12,13,14]}"

static struct bed bed;
static char out[262144];
static char header[2][32]; /* of the last completion, by worker */

struct ranks {
    void *context, *pubs[2];
    char events[64];
    bool subscribed[2];
    ev_timer timer;
};
static struct ranks ranks;

static void on_ranks(struct ev_loop *loop, ev_timer *timer, int events)
{
    unsigned char subscription[64];

    (void)loop;
    (void)timer;
    (void)events;
    for (int r = 0; r < 2; r++)
        if (zmq_recv(ranks.pubs[r], subscription, sizeof(subscription),
                     ZMQ_DONTWAIT) > 0)
            ranks.subscribed[r] = true;
}

static void *new_pub(void)
{
    void *pub = zmq_socket(ranks.context, ZMQ_XPUB);
    int linger = 0;

    assert_non_null(pub);
    zmq_setsockopt(pub, ZMQ_LINGER, &linger, sizeof(linger));
    return pub;
}

/* Two free ports that follow each other, below those that the system gives out:
 * there are too many connections in TIME_WAIT among these after other tests. */
static void bind_pair(void)
{
    unsigned int port = 20000 + (unsigned int)getpid() % 6000 * 2;

    for (int tries = 0; tries < 500; tries++, port += 2) {
        char next[64];

        if (port > 32000)
            port = 20000;
        ranks.pubs[0] = new_pub();
        ranks.pubs[1] = new_pub();
        snprintf(ranks.events, sizeof(ranks.events), "tcp://127.0.0.1:%u",
                 port);
        snprintf(next, sizeof(next), "tcp://127.0.0.1:%u", port + 1);
        if (zmq_bind(ranks.pubs[0], ranks.events) == 0 &&
            zmq_bind(ranks.pubs[1], next) == 0)
            return;
        zmq_close(ranks.pubs[0]);
        zmq_close(ranks.pubs[1]);
    }
    fail_msg("no two neighbouring ports are free");
}

static void noting(struct bed_worker *w, struct bt_httpd_request *req)
{
    const char *rank = bt_httpd_header(req, "X-data-parallel-rank");

    snprintf(header[w - bed.workers], sizeof(header[0]), "%s",
             rank == NULL ? "none" : rank);
    bed_well_behaved(w, req);
}

static bool both_subscribed(void *arg)
{
    (void)arg;
    return ranks.subscribed[0] && ranks.subscribed[1];
}

static bool one_block(void *arg)
{
    double n = bed_metric(
        &bed, "baton_worker_index_blocks{worker=\"w0\",role=\"prefill\"}");

    (void)arg;
    return n > 0.5;
}

static void publish(int rank)
{
    zmq_send(ranks.pubs[rank], "kv", 2, ZMQ_SNDMORE);
    zmq_send(ranks.pubs[rank], "\0\0\0\0\0\0\0\0", 8, ZMQ_SNDMORE);
    zmq_send(ranks.pubs[rank], V1, sizeof(V1), 0);
}

/* One request; what its decision says and which rank each leg named. */
static void check(const char *body, const char *want, const char *p_header)
{
    assert_int_equal(
        bed_request(&bed, "/v1/completions", body, out, sizeof(out)), 200);
    bed_idle(&bed);
    bed_get(&bed, bed.ports.admin, "/admin/v1/decisions?limit=1", out,
            sizeof(out));
    if (strstr(out, want) == NULL)
        fail_msg("no %s in %s", want, out);
    assert_string_equal(header[0], p_header);
    assert_string_equal(header[1], "none");
}

static void admin_says(const char *want)
{
    if (strstr(out, want) == NULL)
        fail_msg("no %s in %s", want, out);
}

/* The rank that has said nothing is the worse of the two. bed_well_behaved
 * reports 16 cached tokens of 14, so 14 count each time: 3 checks, 4 tokens
 * predicted once. */
static void check_admin(void)
{
    bed_get(&bed, bed.ports.admin, "/admin/v1/workers", out, sizeof(out));
    admin_says("\"stream\":\"absent\",\"stream_cause\":");
    admin_says("\"ranks\":2,");
    admin_says("\"approximate_blocks\":0,\"credit\":1.0000,\"hit_checks\":3,"
               "\"hit_predicted_tokens\":4,\"hit_found_tokens\":42,"
               "\"hit_unforeseen_tokens\":38,");
    assert_true(bed_metric(&bed, "baton_kv_index_credit{worker=\"w0\",role="
                                 "\"prefill\"}") > 0.999);
    assert_int_equal(bed_metric(&bed, "baton_worker_hit_found_tokens_total{"
                                      "worker=\"w0\",role=\"prefill\"}"),
                     42);
}

static void legs_go_to_the_rank_that_has_it(void **state)
{
    (void)state;
    bed_workers(&bed, "pd");
    ranks.context = zmq_ctx_new();
    bind_pair();
    ev_timer_init(&ranks.timer, on_ranks, 0., 0.001);
    ev_timer_start(bed.loop, &ranks.timer);
    bed.block_size = bed.workers[0].block_size = bed.workers[1].block_size = 4;
    bed.workers[0].events = ranks.events;
    bed.workers[0].keys = "ranks: 2";
    bed.workers[0].script = bed.workers[1].script = noting;
    bed_serve(&bed, "index: {approximate: off}\n");
    bed_ready(&bed);
    bed_until(&bed, both_subscribed, NULL, "both subscriptions");
    check(ASK("1"), "\"overlap_raw_tokens\":0,", "none");
    publish(1);
    bed_until(&bed, one_block, NULL, "a block in the index");
    check(ASK("1"),
          "\"overlap_source\":\"events\",\"overlap_raw_tokens\":4,"
          "\"overlap_rank\":1,",
          "1");
    check(ASK("9"), "\"overlap_raw_tokens\":0,", "none");
    check_admin();
    ev_timer_stop(bed.loop, &ranks.timer);
    bed_stop(&bed);
    zmq_close(ranks.pubs[0]);
    zmq_close(ranks.pubs[1]);
    zmq_ctx_term(ranks.context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legs_go_to_the_rank_that_has_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
