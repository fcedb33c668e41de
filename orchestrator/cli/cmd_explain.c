/* `baton explain REQUEST-ID`: why a request went where it went, from the admin
 * API of a running orchestrator: the candidate table with every term, the
 * runner-up, the baseline's choice, and what came true. `--tokens N` asks for a
 * placement that is not dispatched.
 */
#include "command.h"

#include "baton/orchestrator/upstream.h"
#include <ev.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MAX (4u << 20)

struct explain_options {
    const char *admin;
    const char *output;
    const char *model;
    uint64_t tokens;
    uint64_t max_tokens;
};

static const struct bt_option options[] = {
    {"admin", 'a', BT_OPTION_STRING, "URL",
     "admin listener (default http://127.0.0.1:9465)",
     offsetof(struct explain_options, admin)},
    {"tokens", 't', BT_OPTION_U64, "N",
     "what if: a prompt of N unseen tokens, nothing is dispatched",
     offsetof(struct explain_options, tokens)},
    {"max-tokens", 0, BT_OPTION_U64, "N",
     "with --tokens: output tokens asked for",
     offsetof(struct explain_options, max_tokens)},
    {"model", 'm', BT_OPTION_STRING, "NAME",
     "with --tokens: model (default: the first)",
     offsetof(struct explain_options, model)},
    {"output", 'o', BT_OPTION_STRING, "FORM", "table (default) or json",
     offsetof(struct explain_options, output)},
    {0},
};

static int run(int argc, char **argv);

const struct bt_command bt_command_explain = {
    .name = "explain",
    .summary = "say why a request was placed so: pairs, terms, what came true",
    .arguments = "[REQUEST-ID]",
    .options = options,
    .run = run,
};

/* ---- one HTTP call ---- */

struct answer {
    struct ev_loop *loop;
    char *text;
    size_t used;
    int http;
    enum bt_status status;
};

static enum bt_status on_data(void *arg, const char *bytes, size_t count)
{
    struct answer *a = arg;

    if (count <= ANSWER_MAX - a->used) {
        memcpy(a->text + a->used, bytes, count);
        a->used += count;
    }
    return BT_OK;
}

static void on_done(void *arg, const struct bt_call_end *end)
{
    struct answer *a = arg;

    a->http = end->http;
    a->status = end->status;
    ev_break(a->loop, EVBREAK_ALL);
}

static enum bt_status ask(struct answer *a, const char *url, const char *body)
{
    static const char *const headers[] = {"Content-Type: application/json",
                                          NULL};
    struct bt_call_spec spec = {
        .method = body == NULL ? "GET" : "POST",
        .url = url,
        .headers = headers,
        .body = body,
        .body_bytes = body == NULL ? 0 : strlen(body),
        .total_timeout_ms = 10000,
        .data = on_data,
        .done = on_done,
        .arg = a,
    };
    struct bt_upstream *upstream = NULL;
    struct bt_call *call = NULL;
    enum bt_status status;

    a->text = malloc(ANSWER_MAX + 1);
    if (a->text == NULL)
        return BT_NO_MEMORY;
    status = bt_upstream_create(a->loop, 2, 2, &upstream);
    if (status != BT_OK)
        return status;
    status = bt_call_start(upstream, &spec, &call);
    if (status == BT_OK) {
        ev_run(a->loop, 0);
        status = a->status;
    }
    bt_upstream_destroy(upstream);
    a->text[a->used] = '\0';
    return status;
}

/* ---- table ---- */

static const char *text_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));

    return s == NULL ? "-" : s;
}

static const char *ms_of(const json_t *o, const char *name, char *buf,
                         size_t size)
{
    const json_t *v = json_object_get(o, name);

    if (json_is_number(v))
        snprintf(buf, size, "%.3f", json_number_value(v));
    else
        snprintf(buf, size, "-");
    return buf;
}

static long long int_of(const json_t *o, const char *name)
{
    return (long long)json_integer_value(json_object_get(o, name));
}

static bool same_pair(const json_t *candidate, const json_t *decision,
                      const char *p, const char *d)
{
    return strcmp(text_of(candidate, "prefill"), text_of(decision, p)) == 0 &&
           strcmp(text_of(candidate, "decode"), text_of(decision, d)) == 0;
}

static void print_candidate(const json_t *c, const json_t *decision)
{
    static const char *const terms[] = {"queue_ms", "prefill_ms", "transfer_ms",
                                        "slot_ms",  "step_ms",    "total_ms"};
    char buf[32];
    const char *mark = "";

    if (same_pair(c, decision, "prefill", "decode"))
        mark = "chosen";
    else if (same_pair(c, decision, "baseline_prefill", "baseline_decode"))
        mark = "choice of prefix_load";
    printf("%-10s %-10s %-8s %7lld %7lld %9.1f", text_of(c, "prefill"),
           text_of(c, "decode"), text_of(c, "path_class"), int_of(c, "hit_p"),
           int_of(c, "hit_d"), (double)int_of(c, "kv_bytes") / 1024);
    for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++)
        printf(" %10s", ms_of(c, terms[i], buf, sizeof(buf)));
    printf("%s%s\n", mark[0] ? "  " : "", mark);
}

static void print_candidates(const json_t *decision)
{
    const json_t *list = json_object_get(decision, "candidates");

    printf("%-10s %-10s %-8s %7s %7s %9s %10s %10s %10s %10s %10s %10s\n",
           "prefill", "decode", "path", "hit_p", "hit_d", "KiB moved",
           "queue_ms", "prefill_ms", "xfer_ms", "slot_ms", "step_ms",
           "total_ms");
    for (size_t i = 0; i < json_array_size(list); i++)
        print_candidate(json_array_get(list, i), decision);
    printf("total = max(queue + prefill + xfer, slot) + step; times in ms from "
           "the decision\n");
}

static void print_realised(const json_t *d)
{
    static const char *const pairs[][2] = {
        {"pred_prefill_ms", "act_prefill_ms"},
        {"pred_transfer_ms", "act_transfer_ms"},
        {"pred_total_ms", "ttft_ms"},
    };
    static const char *const names[] = {"queue + prefill", "transfer",
                                        "first token"};
    char a[32], b[32];
    bool unseen = false;
    double queue = json_number_value(json_object_get(d, "pred_queue_ms"));
    const json_t *prefill = json_object_get(d, "pred_prefill_ms");

    printf("\n%-16s %12s %12s\n", "", "predicted ms", "realised ms");
    for (size_t i = 0; i < 3; i++) {
        ms_of(d, pairs[i][0], a, sizeof(a));
        if (i == 0 && json_is_number(prefill))
            snprintf(a, sizeof(a), "%.3f", queue + json_number_value(prefill));
        printf("%-16s %12s %12s\n", names[i], a,
               ms_of(d, pairs[i][1], b, sizeof(b)));
        unseen = unseen || !json_is_number(json_object_get(d, pairs[i][1]));
    }
    if (unseen)
        printf("-: not seen from outside%s\n",
               json_is_false(json_object_get(d, "stream"))
                   ? "; an answer that streams shows its first token"
                   : "");
}

static void print_overlap(const json_t *d)
{
    const json_t *credit = json_object_get(d, "credit");

    if (json_is_number(credit))
        printf("overlap %lld tokens from %s, credit %.2f, rank %lld; %lld held "
               "by all, the deepest block %lld times\n",
               int_of(d, "overlap_raw_tokens"), text_of(d, "overlap_source"),
               json_number_value(credit), int_of(d, "overlap_rank"),
               int_of(d, "common_tokens"), int_of(d, "copies"));
    printf("\n");
}

static void print_decision(const json_t *d)
{
    printf("request %s  policy %s  reason %s  fallback %s  outcome %s (%lld)\n",
           text_of(d, "request_id"), text_of(d, "policy"), text_of(d, "reason"),
           text_of(d, "fallback"), text_of(d, "outcome"), int_of(d, "status"));
    printf("prompt %lld tokens, %lld answered; %lld pairs considered; worst "
           "event stream %s (%s)\n",
           int_of(d, "input_tokens"), int_of(d, "output_tokens"),
           int_of(d, "candidates_considered"), text_of(d, "index_state"),
           text_of(d, "index_cause"));
    print_overlap(d);
    if (json_array_size(json_object_get(d, "candidates")) == 0) {
        printf("no placement was made\n");
        return;
    }
    print_candidates(d);
    print_realised(d);
}

static void print_what_if(json_t *d)
{
    json_t *chosen = json_object_get(d, "chosen");

    printf("what if: policy %s  reason %s  prompt %lld tokens; %lld pairs "
           "considered\n\n",
           text_of(d, "policy"), text_of(d, "reason"),
           int_of(d, "input_tokens"), int_of(d, "candidates_considered"));
    json_object_set(d, "prefill", json_object_get(chosen, "prefill"));
    json_object_set(d, "decode", json_object_get(chosen, "decode"));
    print_candidates(d);
}

static int show(const struct answer *a, const struct explain_options *opts)
{
    json_error_t fault;
    json_t *root = json_loadb(a->text, a->used, 0, &fault);

    if (root == NULL) {
        fprintf(stderr, "baton explain: the answer is not JSON: %s\n",
                fault.text);
        return BT_EXIT_FAILED;
    }
    if (a->http != 200) {
        fprintf(stderr, "baton explain: %s\n",
                text_of(json_object_get(root, "error"), "message"));
        json_decref(root);
        return BT_EXIT_FAILED;
    }
    if (opts->output != NULL && strcmp(opts->output, "json") == 0)
        printf("%s\n", a->text);
    else if (opts->tokens > 0)
        print_what_if(root);
    else
        print_decision(root);
    json_decref(root);
    return BT_EXIT_OK;
}

static char *what_if_body(const struct explain_options *opts)
{
    json_t *body = json_object();
    char *text;

    json_object_set_new(body, "tokens", json_integer((json_int_t)opts->tokens));
    if (opts->max_tokens > 0)
        json_object_set_new(body, "max_tokens",
                            json_integer((json_int_t)opts->max_tokens));
    if (opts->model != NULL)
        json_object_set_new(body, "model", json_string(opts->model));
    text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text;
}

static int usage(const char *what)
{
    fprintf(stderr, "baton explain: %s\n", what);
    return BT_EXIT_USAGE;
}

/* The characters that serve lets a request id have. */
static bool is_id(const char *text)
{
    size_t n = strlen(text);

    return n > 0 && n < 200 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                        "0123456789-_.:") == n;
}

static int check(const struct explain_options *opts, int count, char **ids)
{
    if ((opts->tokens > 0) != (count == 0) || count > 1)
        return usage("give one REQUEST-ID, or --tokens N");
    if (count == 1 && !is_id(ids[0]))
        return usage("a REQUEST-ID is the x-request-id header of an answer: "
                     "letters, digits and -_.:");
    if (strncmp(opts->admin, "http://", 7) != 0 || strlen(opts->admin) > 250)
        return usage("--admin is http://HOST:PORT");
    if (opts->output != NULL && strcmp(opts->output, "json") != 0 &&
        strcmp(opts->output, "table") != 0)
        return usage("--output is table or json");
    return 0;
}

/* HOST:PORT with or without a slash at the end. */
static void make_url(const struct explain_options *opts, const char *id,
                     char *url, size_t size)
{
    size_t n = strlen(opts->admin);

    while (n > 0 && opts->admin[n - 1] == '/')
        n--;
    snprintf(url, size, "%.*s/admin/v1/%s%s", (int)n, opts->admin,
             id == NULL ? "explain" : "decisions/", id == NULL ? "" : id);
}

static int run(int argc, char **argv)
{
    struct explain_options opts = {.admin = "http://127.0.0.1:9465"};
    struct answer a = {0};
    char url[512], *body = NULL;
    int first = 0, code;
    enum bt_status status;

    code = bt_options_parse(&bt_command_explain, argc, argv, &opts, &first);
    if (code >= 0)
        return code;
    code = check(&opts, argc - first, argv + first);
    if (code != 0)
        return code;
    make_url(&opts, opts.tokens > 0 ? NULL : argv[first], url, sizeof(url));
    if (opts.tokens > 0)
        body = what_if_body(&opts);
    a.loop = ev_default_loop(EVFLAG_AUTO);
    status = ask(&a, url, body);
    if (status != BT_OK) {
        fprintf(stderr,
                "baton explain: %s does not answer (%s); is --admin "
                "right?\n",
                opts.admin, bt_status_text(status));
        code = BT_EXIT_PEER;
    } else {
        code = show(&a, &opts);
    }
    free(body);
    free(a.text);
    ev_loop_destroy(a.loop);
    return code;
}
