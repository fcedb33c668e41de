/* Open-loop HTTP client of the benchmarks: sends each request of a workload at
 * its arrival time whatever has been answered, reads the streamed answers,
 * checks every text against the expected one and keeps one record a request.
 * One libev loop, one thread, nothing blocks.
 */
#ifndef BATON_BENCH_CLIENT_H
#define BATON_BENCH_CLIENT_H

#include "baton/base/histogram.h"
#include "baton/base/status.h"
#include "baton/bench/workload.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct ev_loop;
struct bt_client;
struct bt_oracle;
struct bt_expected;

#define BT_CLIENT_RESULT_LIST(X)                                               \
    X(BT_CLIENT_PENDING, "pending") /* not sent, or still running */           \
    X(BT_CLIENT_OK, "ok")           /* whole answer, text as expected */       \
    X(BT_CLIENT_WRONG, "wrong")     /* whole answer, other text or count */    \
    X(BT_CLIENT_HTTP, "http")       /* HTTP status >= 400 */                   \
    X(BT_CLIENT_STREAM, "stream")   /* error event or a cut stream */          \
    X(BT_CLIENT_TRANSPORT, "transport") /* refused, reset before an answer */  \
    X(BT_CLIENT_TIMEOUT, "timeout")     /* no end within request_timeout */    \
    X(BT_CLIENT_LEFT, "left")           /* this client left on purpose */      \
    X(BT_CLIENT_DROPPED, "dropped")     /* not sent: in_flight_max reached */
enum bt_client_result {
#define X(code, name) code,
    BT_CLIENT_RESULT_LIST(X)
#undef X
        BT_CLIENT_RESULT_COUNT
};
const char *bt_client_result_name(enum bt_client_result result);

struct bt_client_record {
    enum bt_client_result result;
    int http;           /* status, 0 = none came */
    int64_t send_ns;    /* since the start of the run */
    int64_t late_ns;    /* send - arrival: the client's own delay */
    int64_t ttft_ns;    /* send to first token, -1 = none */
    int64_t ttst_ns;    /* send to second token, -1 = none */
    int64_t tpot_ns;    /* mean gap after the first token, -1 = none */
    int64_t gap_max_ns; /* largest gap, 0 = none */
    int64_t e2e_ns;     /* send to end */
    uint32_t prompt_tokens, answer_tokens; /* answer: counted by events */
    uint32_t cached_tokens;                /* as the usage reported */
};

/* The text that the answer to request i must have, valid until the next call;
 * its length through bytes_out. */
typedef const char *(*bt_client_expect_fn)(void *arg, size_t request,
                                           size_t *bytes_out);

struct bt_client_spec {
    const char *url;       /* "http://127.0.0.1:8000" */
    const char *model;     /* name put into the body; no quotes needed in it */
    const char *id_prefix; /* X-Request-Id: PREFIX-N; NULL = none */
    const struct bt_workload *workload;
    uint32_t in_flight_max;     /* more are DROPPED; 0: 4096 */
    int64_t request_timeout_ns; /* 0: 60 s */
    bt_client_expect_fn expect; /* NULL: texts are not checked */
    void *expect_arg;
    /* Leave request i after that many tokens (0: before the first, at once
     * after sending); UINT32_MAX: stay. NULL: always stay. */
    uint32_t (*leave_after)(void *arg, size_t request);
    /* Called after each end; ended == workload->count: all is over. */
    void (*progress)(void *arg, size_t ended, size_t total);
    void *arg;
};

/* The spec's strings and workload must outlive the client. BT_NO_MEMORY,
 * BT_INVALID. */
enum bt_status bt_client_create(struct ev_loop *loop,
                                const struct bt_client_spec *spec,
                                struct bt_client **out);
/* Time 0 is now; requests with arrival 0 are sent in the next loop turn. */
void bt_client_start(struct bt_client *client);
bool bt_client_is_done(const struct bt_client *client);
size_t bt_client_in_flight(const struct bt_client *client);
/* Record i, in the order of the workload. */
const struct bt_client_record *bt_client_record_at(const struct bt_client *c,
                                                   size_t i);
/* All gaps between tokens, ns. */
const struct bt_histogram *bt_client_gaps(const struct bt_client *client);
/* Words of the first failure ("request 12: http 503 ..."), "" if none. */
const char *bt_client_first_failure(const struct bt_client *client);
/* Ends what still runs (no record, no call-back) and frees. */
void bt_client_destroy(struct bt_client *client);

/* One JSON object a line and request: result, times in ms, counts; no text and
 * no token ids. BT_IO. */
enum bt_status bt_client_dump(const struct bt_client *client, FILE *to);

/* ---- expected texts of a whole workload, computed once ---- */

/* The emulated engine's answers by the oracle. BT_INVALID, BT_NO_MEMORY. */
enum bt_status bt_expected_create(const struct bt_workload *workload,
                                  const struct bt_oracle *oracle,
                                  struct bt_expected **out);
/* A bt_client_expect_fn; arg is the bt_expected. */
const char *bt_expected_text(void *arg, size_t request, size_t *bytes_out);
void bt_expected_destroy(struct bt_expected *expected);

/* ---- summary of a run ---- */

struct bt_client_slo {
    int64_t ttft_ns, tpot_ns;
};
struct bt_client_quantiles {
    double mean, p50, p95, p99; /* ms */
};
struct bt_client_summary {
    size_t requests, ok, wrong, errors; /* errors: neither OK nor WRONG/LEFT */
    struct bt_client_quantiles ttft_ms, ttst_ms, tpot_ms, itl_ms;
    double goodput_rps; /* OK and both SLOs met, per second of the run */
    double slo_share;   /* of all requests */
    double late_ms_p99; /* the client's own delay */
    double span_s;      /* first send to last end */
    uint64_t prompt_tokens, answer_tokens, cached_tokens; /* of OK ones */
};
/* BT_NO_MEMORY. */
enum bt_status bt_client_summarise(const struct bt_client *client,
                                   const struct bt_client_slo *slo,
                                   struct bt_client_summary *out);

#endif
