/* POST /v1/probe: pulls from a peer's probe region into scratch memory of our
 * own, and tells how each went. Decides which blocks are asked for (runs with
 * gaps, so that each is one descriptor), who may run beside whom, and whether
 * the bytes are the right ones. What the times mean is the caller's to find.
 *
 * The scratch is mapped and registered by the first probe. One probe at a time
 * unless all that run say "beside"; "at_ns" is when to begin, by this agent's
 * monotonic clock, which GET /v1/probe tells, so that flows of many agents
 * begin together.
 *
 * Invariant: the scratch blocks of a pull belong to nobody else until it ended.
 */
#include "service.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define RUNS_MAX     16u
#define COUNT_MAX    64u
#define PARALLEL_MAX 16u
#define TOTAL_MAX    (1ull << 30)
#define WAIT_MAX_NS  10000000000ull
#define SPIN_NS      2000000
#define ANSWER_BYTES 3072u /* of one pull */
#define SCRATCH_NAME "probe-scratch"
#define WORDS        (BT_PROBE_BLOCK_BYTES / sizeof(uint64_t))

struct probe_pull {
    struct probe_run *run;
    uint32_t index, first, span; /* scratch blocks first .. first + span - 1 */
    uint64_t *remote;            /* malloc'd, one each per block */
    uint32_t *local;
    int64_t began_ns;
    bool live;
};

struct probe_run {
    TAILQ_ENTRY(probe_run) entry;
    struct bt_agent_service *service;
    struct bt_httpd_request *http; /* NULL: the client has gone */
    char host[64];
    uint64_t port, bytes, descriptors, count, parallel, deadline_ms;
    uint64_t remote_blocks, at_ns;
    bool beside;
    uint32_t started, ended, live;
    enum bt_status stop;  /* not OK: start no more */
    struct last *results; /* as they ended */
    int64_t *began_ns;
    ev_timer timer;
    struct probe_pull pulls[PARALLEL_MAX];
};

struct service_probe {
    TAILQ_HEAD(, probe_run) runs;
    uint32_t run_count;
    unsigned char *scratch; /* NULL until the first probe */
    size_t scratch_bytes;
    uint32_t blocks, region;
    struct bt_rng rng;
    uint64_t done, failed;
};

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- scratch ---- */

static enum bt_status scratch_open(struct bt_agent_service *s, char *error,
                                   size_t size)
{
    struct service_probe *p = s->probing;
    void *base = mmap(NULL, s->probe_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED) {
        snprintf(error, size, "scratch memory: %s", strerror(errno));
        return BT_NO_MEMORY;
    }
    const struct bt_agent_region region = {
        .name = SCRATCH_NAME,
        .base = base,
        .block_count = (uint32_t)(s->probe_bytes / BT_PROBE_BLOCK_BYTES),
        .layout = bt_probe_layout(),
        .serve = BT_AGENT_SERVE_LEASED, /* and nothing is published */
    };
    enum bt_status status =
        bt_agent_region(s->agent, &region, &p->region, error, size);
    if (status != BT_OK) {
        munmap(base, s->probe_bytes);
        return status;
    }
    /* pages that exist: a page fault is not the path's */
    memset(base, 0, s->probe_bytes);
    p->scratch = base;
    p->scratch_bytes = s->probe_bytes;
    p->blocks = region.block_count;
    return BT_OK;
}

static bool overlaps(const struct service_probe *p, uint32_t first,
                     uint32_t span, uint32_t *next_out)
{
    const struct probe_run *run;

    TAILQ_FOREACH(run, &p->runs, entry)
    {
        for (uint32_t i = 0; i < PARALLEL_MAX; i++) {
            const struct probe_pull *pull = &run->pulls[i];

            if (!pull->live || pull->first >= first + span ||
                first >= pull->first + pull->span)
                continue;
            *next_out = pull->first + pull->span;
            return true;
        }
    }
    return false;
}

/* First free span; at most as many steps as pulls can be live. */
static bool scratch_take(const struct service_probe *p, uint32_t span,
                         uint32_t *first_out)
{
    uint32_t first = 0;

    for (uint32_t i = 0; i <= RUNS_MAX * PARALLEL_MAX; i++) {
        if (first + span > p->blocks)
            return false;
        if (!overlaps(p, first, span, &first)) {
            *first_out = first;
            return true;
        }
    }
    return false;
}

/* ---- one pull ---- */

static uint32_t blocks_of(const struct probe_run *run)
{
    return (uint32_t)(run->bytes / BT_PROBE_BLOCK_BYTES);
}

/* Runs of (nearly) equal length, one block between two of them. */
static void lay_out(struct probe_pull *pull, uint64_t from)
{
    const struct probe_run *run = pull->run;
    uint32_t blocks = blocks_of(run), at = 0, n = 0;
    uint32_t runs = (uint32_t)run->descriptors;

    for (uint32_t r = 0; r < runs; r++) {
        uint32_t length = blocks / runs + (r < blocks % runs);

        for (uint32_t i = 0; i < length; i++, n++, at++) {
            pull->remote[n] = from + at;
            pull->local[n] = pull->first + at;
        }
        at++;
    }
}

static uint64_t *word_at(const struct service_probe *p, uint32_t block,
                         size_t word)
{
    void *at = p->scratch + (size_t)block * BT_PROBE_BLOCK_BYTES;

    return (uint64_t *)at + word;
}

/* First and last word of each block: cleared before, compared after. */
static void clear_marks(const struct probe_pull *pull)
{
    const struct service_probe *p = pull->run->service->probing;

    for (uint32_t i = 0; i < blocks_of(pull->run); i++) {
        *word_at(p, pull->local[i], 0) = 0;
        *word_at(p, pull->local[i], WORDS - 1) = 0;
    }
}

static bool marks_right(const struct probe_pull *pull)
{
    const struct service_probe *p = pull->run->service->probing;

    for (uint32_t i = 0; i < blocks_of(pull->run); i++) {
        uint64_t word = pull->remote[i] * WORDS;

        if (*word_at(p, pull->local[i], 0) != bt_probe_word(word) ||
            *word_at(p, pull->local[i], WORDS - 1) !=
                bt_probe_word(word + WORDS - 1))
            return false;
    }
    return true;
}

static struct probe_pull *idle_pull(struct probe_run *run)
{
    for (uint32_t i = 0; i < PARALLEL_MAX; i++) {
        if (!run->pulls[i].live)
            return &run->pulls[i];
    }
    return NULL;
}

static enum bt_status pull_start(struct probe_run *run, struct probe_pull *pull)
{
    struct bt_agent_service *s = run->service;
    struct service_probe *p = s->probing;
    uint32_t blocks = blocks_of(run);
    uint32_t span = blocks + (uint32_t)run->descriptors - 1;
    uint64_t id = 0;

    if (!scratch_take(p, span, &pull->first))
        return BT_LIMIT;
    if (pull->remote == NULL) {
        pull->remote = calloc(blocks, sizeof(*pull->remote));
        pull->local = calloc(blocks, sizeof(*pull->local));
    }
    if (pull->remote == NULL || pull->local == NULL)
        return BT_NO_MEMORY;
    pull->run = run;
    pull->span = span;
    pull->index = run->started;
    lay_out(pull, bt_rng_below(&p->rng, run->remote_blocks - span + 1));
    clear_marks(pull);
    const struct bt_agent_pull spec = {
        .region = p->region,
        .host = run->host,
        .port = (uint16_t)run->port,
        .remote_region = BT_PROBE_REGION,
        .request_id = BT_PROBE_REQUEST,
        .remote = pull->remote,
        .local = pull->local,
        .count = blocks,
        .deadline_ns = (int64_t)run->deadline_ms * 1000000,
        .owner = pull,
    };
    pull->began_ns = now_ns();
    enum bt_status status = bt_agent_pull(s->agent, &spec, &id);
    pull->live = status == BT_OK;
    return status;
}

/* ---- a run of them ---- */

static void run_free(struct probe_run *run)
{
    struct service_probe *p = run->service->probing;

    TAILQ_REMOVE(&p->runs, run, entry);
    p->run_count--;
    for (uint32_t i = 0; i < PARALLEL_MAX; i++) {
        free(run->pulls[i].remote);
        free(run->pulls[i].local);
    }
    ev_timer_stop(run->service->loop, &run->timer);
    free(run->results);
    free(run->began_ns);
    free(run);
}

static void run_go(struct probe_run *run)
{
    while (run->stop == BT_OK && run->started < run->count &&
           run->live < run->parallel) {
        run->stop = pull_start(run, idle_pull(run));
        if (run->stop == BT_OK) {
            run->started++;
            run->live++;
        }
    }
}

static void on_over(void *arg)
{
    (void)arg;
}

static void answer(struct probe_run *run)
{
    size_t size = 256 + (size_t)run->ended * ANSWER_BYTES;
    char *buf = malloc(size);
    struct bt_text t;

    bt_text_init(&t, buf, buf != NULL ? size : 0);
    bt_text_str(&t, "{\"asked\":");
    bt_text_u64(&t, run->count);
    bt_text_str(&t, ",\"pulls\":[");
    for (uint32_t i = 0; i < run->ended && buf != NULL; i++) {
        bt_text_str(&t, i > 0 ? "," : "");
        bt_text_str(&t, "{\"began_ns\":");
        bt_text_i64(&t, run->began_ns[i]);
        bt_text_str(&t, ",\"transfer\":");
        service_last_json(&t, run->service, &run->results[i]);
        bt_text_str(&t, "}");
    }
    bt_text_str(&t, "]}");
    bt_httpd_watch(run->http, on_over, on_over, NULL);
    service_send(run->http, "application/json", buf, &t);
}

static void run_end(struct probe_run *run)
{
    if (run->http != NULL && run->ended == 0) {
        bt_httpd_watch(run->http, on_over, on_over, NULL);
        service_refuse(run->http, bt_status_http(run->stop),
                       bt_status_text(run->stop));
    } else if (run->http != NULL) {
        answer(run);
    }
    run_free(run);
}

/* Begin, or wait for the rest of the time: libev's timers are coarse, so the
 * last stretch is spent here. */
static void on_time(struct ev_loop *loop, ev_timer *timer, int revents)
{
    struct probe_run *run = timer->data;
    int64_t left_ns = (int64_t)run->at_ns - now_ns();

    (void)revents;
    if (left_ns > SPIN_NS) {
        ev_now_update(loop);
        ev_timer_set(timer, (double)(left_ns - SPIN_NS) / 1e9, 0);
        ev_timer_start(loop, timer);
        return;
    }
    while (now_ns() < (int64_t)run->at_ns)
        continue;
    run_go(run);
    if (run->live == 0)
        run_end(run);
}

static void on_gone(void *arg)
{
    struct probe_run *run = arg;

    run->http = NULL;
    run->stop = BT_CANCELLED;
    if (run->live == 0)
        run_free(run); /* it had not begun */
}

bool service_probed(struct bt_agent_service *s,
                    const struct bt_agent_event *event)
{
    struct service_probe *p = s->probing;
    struct bt_agent_event end = *event;

    if (p == NULL || p->scratch == NULL || event->region != p->region)
        return false;
    struct probe_pull *pull = event->owner;
    struct probe_run *run = pull->run;
    pull->live = false;
    if (end.status == BT_OK && !marks_right(pull)) {
        end.status = BT_CHECKSUM;
        snprintf(end.detail, sizeof(end.detail),
                 "the peer's probe region holds other bytes");
    }
    p->done += end.status == BT_OK;
    p->failed += end.status != BT_OK;
    service_note_last(s, &end, BT_PROBE_REGION);
    run->began_ns[run->ended] = pull->began_ns;
    run->results[run->ended++] = s->last[(s->last_count - 1) % SERVICE_LAST];
    run->live--;
    if (end.status != BT_OK && run->stop == BT_OK)
        run->stop = end.status;
    run_go(run);
    if (run->live == 0)
        run_end(run);
    return true;
}

/* ---- the request ---- */

static bool number(const struct bt_json *root, const char *name, uint64_t least,
                   uint64_t most, uint64_t *value)
{
    struct bt_json member;

    if (!bt_json_member(root, name, &member, NULL))
        return *value >= least; /* the default */
    return bt_json_u64(&member, value) == BT_OK && *value >= least &&
           *value <= most;
}

static const char *read_sizes(const struct bt_json *root, struct probe_run *run)
{
    uint64_t blocks = run->service->probe_bytes / BT_PROBE_BLOCK_BYTES;

    run->remote_blocks = blocks;
    if (!number(root, "bytes", 1, blocks * BT_PROBE_BLOCK_BYTES, &run->bytes) ||
        run->bytes % BT_PROBE_BLOCK_BYTES != 0)
        return "bytes: a multiple of 4096, at most the agent's probe region";
    if (!number(root, "descriptors", 1, blocks_of(run), &run->descriptors))
        return "descriptors: 1 to bytes / 4096";
    if (!number(root, "count", 1, COUNT_MAX, &run->count) ||
        run->count * run->bytes > TOTAL_MAX)
        return "count: 1 to 64, and 1 GiB in all";
    if (!number(root, "parallel", 1, PARALLEL_MAX, &run->parallel))
        return "parallel: 1 to 16";
    if (!number(root, "remote_blocks", 1, UINT32_MAX, &run->remote_blocks))
        return "remote_blocks: 1 to 4294967295";
    if (run->bytes / BT_PROBE_BLOCK_BYTES + run->descriptors - 1 >
        (run->remote_blocks < blocks ? run->remote_blocks : blocks))
        return "bytes and the gaps between descriptors exceed a probe region";
    return NULL;
}

static const char *read_run(struct bt_httpd_request *req, struct probe_run *run)
{
    struct bt_json root, member;
    size_t bytes = 0, used = 0;
    const char *body = bt_httpd_body(req, &bytes);

    run->descriptors = run->count = run->parallel = 1;
    run->deadline_ms = 30000;
    if (bt_json_parse(body, bytes, &root, NULL) != BT_OK ||
        root.type != BT_JSON_OBJECT)
        return "the body is not a JSON object";
    if (!bt_json_member(&root, "host", &member, NULL) ||
        bt_json_string(&member, run->host, sizeof(run->host) - 1, &used) !=
            BT_OK ||
        used == 0 || strlen(run->host) != used)
        return "host: a numeric address";
    if (!number(&root, "port", 1, 65535, &run->port))
        return "port: 1 to 65535";
    if (!number(&root, "deadline_ms", 1, 600000, &run->deadline_ms))
        return "deadline_ms: 1 to 600000";
    run->beside = bt_json_member(&root, "beside", &member, NULL) &&
                  member.type == BT_JSON_TRUE;
    run->at_ns = (uint64_t)now_ns();
    if (!number(&root, "at_ns", 0, run->at_ns + WAIT_MAX_NS, &run->at_ns))
        return "at_ns: by this agent's clock, at most 10 s ahead";
    return read_sizes(&root, run);
}

static bool may_run(const struct service_probe *p, const struct probe_run *run)
{
    const struct probe_run *other;

    TAILQ_FOREACH(other, &p->runs, entry)
    {
        if (other != run && !(other->beside && run->beside))
            return false;
    }
    return true;
}

/* HTTP status, 200: it runs. */
static int run_begin(struct probe_run *run, struct bt_httpd_request *req,
                     char *error, size_t size)
{
    struct bt_agent_service *s = run->service;
    const char *fault = read_run(req, run);
    enum bt_status status = BT_OK;

    if (fault != NULL) {
        snprintf(error, size, "%s", fault);
        return 400;
    }
    if (!may_run(s->probing, run)) {
        snprintf(error, size,
                 "another probe runs; \"beside\" in both would "
                 "let them run together");
        return 409;
    }
    if (s->probing->scratch == NULL)
        status = scratch_open(s, error, size);
    if (status != BT_OK)
        return bt_status_http(status);
    run->results = calloc(run->count, sizeof(*run->results));
    snprintf(error, size, "out of memory");
    run->began_ns = calloc(run->count, sizeof(*run->began_ns));
    return run->results != NULL && run->began_ns != NULL ? 200 : 503;
}

void service_probe(struct bt_agent_service *s, struct bt_httpd_request *req)
{
    struct probe_run *run = NULL;
    char error[256] = "out of memory";
    int code = 503;

    if (s->probing == NULL)
        s->probing = calloc(1, sizeof(*s->probing));
    if (s->probing != NULL && s->probing->runs.tqh_last == NULL) {
        TAILQ_INIT(&s->probing->runs);
        bt_rng_seed(&s->probing->rng, 1);
    }
    if (s->probing != NULL && s->probing->run_count == RUNS_MAX) {
        service_refuse(req, 429, "too many probes at once");
        return;
    }
    if (s->probing != NULL)
        run = calloc(1, sizeof(*run));
    if (run != NULL) {
        run->service = s;
        ev_timer_init(&run->timer, on_time, 0, 0);
        run->timer.data = run;
        TAILQ_INSERT_TAIL(&s->probing->runs, run, entry);
        s->probing->run_count++;
        code = run_begin(run, req, error, sizeof(error));
    }
    if (code != 200) {
        if (run != NULL)
            run_free(run);
        service_refuse(req, code, error);
        return;
    }
    run->http = req;
    bt_httpd_watch(req, on_gone, on_over, run);
    on_time(s->loop, &run->timer, 0);
}

/* The clock that at_ns goes by. */
void service_probe_clock(struct bt_agent_service *s,
                         struct bt_httpd_request *req)
{
    char buf[160];
    struct bt_text t;

    bt_text_init(&t, buf, sizeof(buf));
    bt_text_str(&t, "{\"clock_ns\":");
    bt_text_i64(&t, now_ns());
    bt_text_str(&t, ",\"running\":");
    bt_text_u64(&t, s->probing != NULL ? s->probing->run_count : 0);
    bt_text_str(&t, "}");
    bt_httpd_reply(req, 200, "application/json", buf, t.used);
}

void service_probes_end(struct bt_agent_service *s)
{
    struct probe_run *run;

    if (s->probing == NULL)
        return;
    while ((run = TAILQ_FIRST(&s->probing->runs)) != NULL)
        run_free(run);
    if (s->probing->scratch != NULL)
        munmap(s->probing->scratch, s->probing->scratch_bytes);
    free(s->probing);
    s->probing = NULL;
}
