/* Agents over HTTP. Decides how an answer is read and what is wrong when there
 * is none; nothing here retries. Calls run together on a loop of our own that
 * turns until the last has ended.
 *
 * Pulls that are to begin together are sent ahead with the moment of their
 * start by each agent's own clock: what lies between that and ours is half a
 * round trip from known, at the shortest of several.
 */
#include "cmd_probe.h"

#include "baton/orchestrator/json.h"
#include "baton/orchestrator/upstream.h"

#include <ev.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ANSWER_MAX  (4u << 20)
#define CLOCK_TRIES 7
#define LEAD_NS     20000000 /* from sending a pull to its start */
#define REST_MIN_NS 4000000  /* token buckets fill, queues drain */
#define DEADLINE_MS 30000u
#define TIMEOUT_MS  45000

struct call {
    struct probe *probe;
    uint32_t *open; /* calls that have not ended */
    char url[320], body[512];
    char *text;
    size_t used, room;
    int http;
    enum bt_status status;
    int64_t sent_ns, ended_ns;
    char reason[PROBE_REASON];
    bool too_large;
};

int64_t probe_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool probe_http_open(struct probe *p)
{
    p->loop = ev_loop_new(EVFLAG_AUTO);
    return p->loop != NULL &&
           bt_upstream_create(p->loop, 4 * PROBE_AGENTS_MAX, 2 * PROBE_TOGETHER,
                              &p->upstream) == BT_OK;
}

void probe_http_close(struct probe *p)
{
    if (p->upstream != NULL)
        bt_upstream_destroy(p->upstream);
    if (p->loop != NULL)
        ev_loop_destroy(p->loop);
}

/* ---- a call ---- */

static void on_head(void *arg, const struct bt_call_head *head)
{
    ((struct call *)arg)->http = head->status;
}

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct call *call = arg;

    if (call->used + count > ANSWER_MAX) {
        call->too_large = true;
        return BT_OK;
    }
    if (call->used + count > call->room) {
        size_t room = 2 * (call->used + count) + 4096;
        char *text = realloc(call->text, room);

        if (text == NULL) {
            call->too_large = true;
            return BT_OK;
        }
        call->text = text;
        call->room = room;
    }
    memcpy(call->text + call->used, bytes, count);
    call->used += count;
    return BT_OK;
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct call *call = arg;

    call->ended_ns = probe_now_ns();
    call->status = call->too_large ? BT_TOO_LARGE : end->status;
    call->http = end->http;
    if (call->status != BT_OK)
        snprintf(call->reason, sizeof(call->reason), "%s",
                 end->detail != NULL && end->detail[0] != '\0'
                     ? end->detail
                     : bt_status_text(call->status));
    if (--*call->open == 0)
        ev_break(call->probe->loop, EVBREAK_ALL);
}

/* False: it has ended already, with a reason. */
static bool call_start(struct call *call)
{
    static const char *const json[] = {"Content-Type: application/json", NULL};
    bool post = call->body[0] != '\0';
    const struct bt_call_spec spec = {
        .method = post ? "POST" : "GET",
        .url = call->url,
        .headers = json,
        .body = post ? call->body : NULL,
        .body_bytes = strlen(call->body),
        .connect_timeout_ms = 3000,
        .total_timeout_ms = TIMEOUT_MS,
        .head = on_head,
        .data = on_data,
        .done = on_done,
        .arg = call,
    };
    struct bt_call *ignored = NULL;

    call->sent_ns = probe_now_ns();
    call->status = bt_call_start(call->probe->upstream, &spec, &ignored);
    if (call->status != BT_OK)
        snprintf(call->reason, sizeof(call->reason), "%s",
                 call->status == BT_INVALID ? "not an http:// address"
                                            : bt_status_text(call->status));
    return call->status == BT_OK;
}

static void calls_run(struct probe *p, struct call *calls, uint32_t count)
{
    uint32_t open = 0;

    for (uint32_t i = 0; i < count; i++) {
        calls[i].probe = p;
        calls[i].open = &open;
        open += call_start(&calls[i]);
    }
    if (open > 0)
        ev_run(p->loop, 0);
}

/* ---- JSON ---- */

static bool text_at(const struct bt_json *root, const char *name, char *out,
                    size_t size)
{
    struct bt_json value;
    size_t used = 0;

    if (!bt_json_member(root, name, &value, NULL) ||
        bt_json_string(&value, out, size - 1, &used) != BT_OK)
        return false;
    out[used] = '\0';
    return true;
}

static bool number_at(const struct bt_json *root, const char *name,
                      uint64_t *out)
{
    struct bt_json value;

    return bt_json_member(root, name, &value, NULL) &&
           bt_json_u64(&value, out) == BT_OK;
}

/* The answer's object, or why there is none. */
static bool answer_of(struct call *call, struct bt_json *root)
{
    struct bt_json error;
    char message[120] = "";

    if (call->status != BT_OK)
        return false;
    bool is_json = bt_json_parse(call->text, call->used, root, NULL) == BT_OK &&
                   root->type == BT_JSON_OBJECT;
    if (is_json && call->http == 200)
        return true;
    if (is_json && bt_json_member(root, "error", &error, NULL))
        (void)text_at(&error, "message", message, sizeof(message));
    snprintf(call->reason, sizeof(call->reason), "HTTP %d: %s", call->http,
             message[0] != '\0' ? message : "not an answer of baton agent");
    return false;
}

/* ---- who they are ---- */

static void read_rails(struct probe_agent *agent, const struct bt_json *root)
{
    struct bt_json list, rail;
    size_t cursor = 0;

    if (!bt_json_member(root, "rails", &list, NULL) ||
        list.type != BT_JSON_ARRAY)
        return;
    while (agent->rail_count < PROBE_RAILS_MAX &&
           bt_json_next(&list, &cursor, NULL, &rail)) {
        char *name = agent->rails[agent->rail_count];

        if (rail.type == BT_JSON_OBJECT &&
            text_at(&rail, "name", name, sizeof(agent->rails[0])))
            agent->rail_count++;
    }
}

static void read_regions(struct probe_agent *agent, const struct bt_json *root)
{
    struct bt_json list, region, name;
    size_t cursor = 0;

    if (!bt_json_member(root, "regions", &list, NULL) ||
        list.type != BT_JSON_ARRAY)
        return;
    while (bt_json_next(&list, &cursor, NULL, &region)) {
        if (region.type == BT_JSON_OBJECT &&
            bt_json_member(&region, "name", &name, NULL) &&
            bt_json_is(&name, BT_PROBE_REGION))
            (void)number_at(&region, "blocks", &agent->blocks);
    }
}

/* "Any address" cannot be pulled from: then the one that HTTP went to. */
static void mend_host(struct probe_agent *agent)
{
    const char *at = strstr(agent->url, "://");
    size_t n;

    if (at == NULL ||
        (strcmp(agent->host, "0.0.0.0") != 0 && strcmp(agent->host, "::") != 0))
        return;
    at += 3;
    n = at[0] == '[' ? strcspn(++at, "]") : strcspn(at, ":/");
    if (n < sizeof(agent->host)) {
        memcpy(agent->host, at, n);
        agent->host[n] = '\0';
    }
}

static void read_agent(struct probe_agent *agent, struct call *call)
{
    struct bt_json root;

    if (answer_of(call, &root)) {
        read_rails(agent, &root);
        read_regions(agent, &root);
        agent->reached =
            text_at(&root, "name", agent->name, sizeof(agent->name)) &&
            text_at(&root, "address", agent->host, sizeof(agent->host)) &&
            number_at(&root, "port", &agent->port) && agent->blocks > 0;
        (void)text_at(&root, "fabric", agent->fabric, sizeof(agent->fabric));
        (void)number_at(&root, "window_bytes", &agent->window_bytes);
        (void)number_at(&root, "window_target_ns", &agent->window_target_ns);
        (void)number_at(&root, "window_share", &agent->window_share);
        mend_host(agent);
        if (!agent->reached)
            snprintf(call->reason, sizeof(call->reason),
                     "not a baton agent with a probe region");
    }
    if (!agent->reached)
        snprintf(agent->reason, sizeof(agent->reason), "%s", call->reason);
}

static void set_clock(struct probe *p, struct probe_agent *agent)
{
    agent->round_ns = INT64_MAX;
    for (int i = 0; i < CLOCK_TRIES; i++) {
        struct call call = {0};
        struct bt_json root;
        uint64_t clock_ns = 0;

        snprintf(call.url, sizeof(call.url), "%s/v1/probe", agent->url);
        calls_run(p, &call, 1);
        int64_t round_ns = call.ended_ns - call.sent_ns;
        if (answer_of(&call, &root) &&
            number_at(&root, "clock_ns", &clock_ns) &&
            round_ns < agent->round_ns) {
            agent->round_ns = round_ns;
            agent->clock_ns = (int64_t)clock_ns - call.sent_ns - round_ns / 2;
        }
        if (i == CLOCK_TRIES - 1 && agent->round_ns == INT64_MAX) {
            agent->reached = false;
            snprintf(agent->reason, sizeof(agent->reason), "%s", call.reason);
        }
        free(call.text);
    }
}

void probe_meet(struct probe *p)
{
    struct call *calls = calloc(p->count, sizeof(*calls));

    for (uint32_t i = 0; i < p->count && calls != NULL; i++)
        snprintf(calls[i].url, sizeof(calls[i].url), "%s/v1/agent",
                 p->agents[i].url);
    if (calls != NULL)
        calls_run(p, calls, p->count);
    for (uint32_t i = 0; i < p->count && calls != NULL; i++) {
        read_agent(&p->agents[i], &calls[i]);
        free(calls[i].text);
    }
    free(calls);
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->agents[i].reached)
            set_clock(p, &p->agents[i]);
    }
}

/* ---- pulls ---- */

static void write_pull(const struct probe *p, const struct probe_pull *pull,
                       int64_t at_ns, struct call *call)
{
    const struct probe_agent *from = &p->agents[pull->from];
    const struct probe_agent *to = &p->agents[pull->to];
    struct bt_text t;

    snprintf(call->url, sizeof(call->url), "%s/v1/probe", to->url);
    bt_text_init(&t, call->body, sizeof(call->body) - 1);
    bt_text_str(&t, "{\"host\":");
    bt_text_quoted(&t, from->host, strlen(from->host));
    bt_text_str(&t, ",\"port\":");
    bt_text_u64(&t, from->port);
    bt_text_str(&t, ",\"bytes\":");
    bt_text_u64(&t, pull->bytes);
    bt_text_str(&t, ",\"descriptors\":");
    bt_text_u64(&t, pull->descriptors);
    bt_text_str(&t, ",\"remote_blocks\":");
    bt_text_u64(&t, from->blocks);
    bt_text_str(&t, ",\"deadline_ms\":");
    bt_text_u64(&t, DEADLINE_MS);
    if (at_ns > 0) {
        bt_text_str(&t, ",\"beside\":true,\"at_ns\":");
        bt_text_i64(&t, at_ns + to->clock_ns);
    }
    bt_text_str(&t, "}");
}

static void read_pull(const struct probe *p, struct probe_pull *pull,
                      struct call *call)
{
    const struct probe_agent *to = &p->agents[pull->to];
    struct bt_json root, list, entry, end, rails;
    uint64_t began = 0, setup = 0, duration = 0, foreseen = 0;
    size_t cursor = 0;
    char status[32] = "", detail[120] = "";

    if (answer_of(call, &root) && bt_json_member(&root, "pulls", &list, NULL) &&
        list.type == BT_JSON_ARRAY &&
        bt_json_next(&list, &cursor, NULL, &entry) &&
        entry.type == BT_JSON_OBJECT && number_at(&entry, "began_ns", &began) &&
        bt_json_member(&entry, "transfer", &end, NULL) &&
        text_at(&end, "status", status, sizeof(status)) &&
        number_at(&end, "setup_ns", &setup) &&
        number_at(&end, "duration_ns", &duration)) {
        (void)number_at(&end, "predicted_ns", &foreseen);
        (void)text_at(&end, "detail", detail, sizeof(detail));
        pull->ok = strcmp(status, "ok") == 0 && duration > 0;
        snprintf(call->reason, sizeof(call->reason), "%s: %s", status, detail);
    }
    pull->began_ns = (int64_t)began - to->clock_ns;
    pull->setup_ns = (int64_t)setup;
    pull->duration_ns = (int64_t)duration;
    pull->foreseen_ns = (int64_t)foreseen;
    if (pull->ok && bt_json_member(&end, "rail_bytes", &rails, NULL)) {
        for (uint32_t r = 0; r < to->rail_count; r++)
            (void)number_at(&rails, to->rails[r], &pull->rail_bytes[r]);
    }
    if (!pull->ok)
        snprintf(pull->reason, sizeof(pull->reason), "%s",
                 call->reason[0] != '\0' ? call->reason : "a strange answer");
}

static int64_t lead_ns(const struct probe *p)
{
    int64_t longest = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        if (p->agents[i].reached && p->agents[i].round_ns > longest)
            longest = p->agents[i].round_ns;
    }
    return LEAD_NS + 4 * longest;
}

uint32_t probe_pulls(struct probe *p, struct probe_pull *pulls, uint32_t count)
{
    struct call *calls = calloc(count, sizeof(*calls));
    int64_t at_ns = count > 1 ? probe_now_ns() + lead_ns(p) : 0;
    int64_t busy_ns = 0;
    uint32_t well = 0;

    if (calls == NULL)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        write_pull(p, &pulls[i], at_ns, &calls[i]);
    calls_run(p, calls, count);
    for (uint32_t i = 0; i < count; i++) {
        read_pull(p, &pulls[i], &calls[i]);
        free(calls[i].text);
        well += pulls[i].ok;
        p->bytes += pulls[i].ok ? pulls[i].bytes : 0;
        if (pulls[i].duration_ns > busy_ns)
            busy_ns = pulls[i].duration_ns;
    }
    free(calls);
    probe_rest(p, busy_ns);
    return well;
}

void probe_rest(struct probe *p, int64_t busy_ns)
{
    int64_t rest_ns =
        (int64_t)((double)busy_ns * (1 - p->o.share) / p->o.share);

    if (rest_ns < REST_MIN_NS)
        rest_ns = REST_MIN_NS;
    const struct timespec t = {.tv_sec = rest_ns / 1000000000,
                               .tv_nsec = rest_ns % 1000000000};
    (void)nanosleep(&t, NULL);
}
