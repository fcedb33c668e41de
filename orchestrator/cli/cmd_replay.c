/* `baton replay JOURNAL`: the recorded decisions again, and what another
 * policy would have chosen at each arrival. Decides how the answer reads; the
 * work is bt_replay_run's. */
#include "baton/base/units.h"
#include "baton/orchestrator/replay.h"
#include "command.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct replay_options {
    const char *policy, *output;
    uint64_t top;
    bool verify;
};

static const struct bt_option OPTIONS[] = {
    {"policy", 'p', BT_OPTION_STRING, "SPEC",
     "ask this policy too, as name:knob=value (default: only verify)",
     offsetof(struct replay_options, policy)},
    {"top", 'n', BT_OPTION_U64, "N",
     "list the N largest differences (default 10, at most 1000)",
     offsetof(struct replay_options, top)},
    {"verify", 0, BT_OPTION_FLAG, NULL,
     "stop at the first event whose effects are not the recorded ones",
     offsetof(struct replay_options, verify)},
    {"output", 'o', BT_OPTION_STRING, "FORMAT", "table or json (default table)",
     offsetof(struct replay_options, output)},
    {0},
};

static void worker_text(uint32_t worker, char *out, size_t size)
{
    if (worker == BT_PLACE_NONE)
        snprintf(out, size, "-");
    else
        snprintf(out, size, "w%u", worker);
}

static void pair_text(const struct bt_place_candidate *c, char *out,
                      size_t size)
{
    char p[16], d[16], s[24] = "";

    worker_text(c->p, p, sizeof(p));
    worker_text(c->d, d, sizeof(d));
    if (c->source.tokens > 0)
        snprintf(s, sizeof(s), " <w%u", c->source.worker);
    snprintf(out, size, "%s>%s%s", p, d, s);
}

static void print_head(const char *path, const struct bt_replay_result *r)
{
    printf("journal    %s: policy %s, %u workers, %llu requests, %llu events, "
           "%.1f s\n",
           path, r->policy, r->worker_count, (unsigned long long)r->requests,
           (unsigned long long)r->events, (double)r->span_ns / 1e9);
    if (!r->whole && r->cut[0] != '\0')
        printf("cut        %s\n", r->cut);
    if (r->verified)
        printf("verified   every effect came out as recorded\n");
    else
        printf("DIFFERS    from event %llu on the effects are not the recorded "
               "ones\n",
               (unsigned long long)r->differs_at);
}

static void print_row(const char *name, uint64_t count, uint64_t all)
{
    printf("  %-26s %10llu  %5.1f %%\n", name, (unsigned long long)count,
           all == 0 ? 0.0 : 100.0 * (double)count / (double)all);
}

static void print_means(const char *name, double recorded, double other,
                        uint64_t count)
{
    if (count == 0)
        return;
    printf("  %-26s %10.1f ms %10.1f ms  %+.1f %%\n", name,
           1e3 * recorded / (double)count, 1e3 * other / (double)count,
           recorded > 0 ? 100.0 * (other - recorded) / recorded : 0.0);
}

static void print_top(const struct bt_replay_result *r)
{
    if (r->top_count == 0)
        return;
    printf("\nlargest differences (predicted in the same state)\n"
           "  %8s %10s %8s  %-16s %10s  %-16s %10s\n",
           "request", "at s", "prompt", "recorded", "total ms", "other",
           "total ms");
    for (size_t i = 0; i < r->top_count; i++) {
        const struct bt_replay_change *c = &r->top[i];
        char a[48], b[48];

        pair_text(&c->recorded, a, sizeof(a));
        pair_text(&c->other, b, sizeof(b));
        printf("  %8llu %10.3f %8u  %-16s %10.1f  %-16s %10.1f\n",
               (unsigned long long)c->number, (double)c->at_ns / 1e9,
               c->prompt_tokens, a, (double)c->recorded.terms.total_ns / 1e6, b,
               (double)c->other.terms.total_ns / 1e6);
    }
}

static void print_other(const struct bt_replay_result *r, const char *spec)
{
    uint64_t all = r->asked + r->held + r->refused + r->no_worker;
    uint64_t changed = r->asked - r->same;

    printf("\n%s asked at each arrival, in the state %s saw\n", spec,
           r->policy);
    print_row("same choice", r->same, all);
    print_row("another prefill worker", r->changed_p, all);
    print_row("another decode worker", r->changed_d, all);
    print_row("both", r->changed_both, all);
    print_row("same pair, other source", r->changed_source, all);
    print_row("would hold it back", r->held, all);
    print_row("would refuse it", r->refused, all);
    print_row("would find nobody", r->no_worker, all);
    printf("  %-26s %13s %13s\n", "", "recorded", "other");
    print_means("first token, all", r->recorded_total_s, r->other_total_s,
                r->asked);
    print_means("first token, changed", r->recorded_changed_s,
                r->other_changed_s, changed);
    printf("  %-26s %10.2f GB %10.2f GB\n", "KV to be moved",
           r->recorded_bytes / 1e9, r->other_bytes / 1e9);
    print_top(r);
}

static json_t *candidate_json(const struct bt_place_candidate *c)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:f, s:I}", "p",
        c->p == BT_PLACE_NONE ? (json_int_t)-1 : (json_int_t)c->p, "d",
        c->d == BT_PLACE_NONE ? (json_int_t)-1 : (json_int_t)c->d, "source",
        c->source.tokens == 0 ? (json_int_t)-1 : (json_int_t)c->source.worker,
        "source_tokens", (json_int_t)c->source.tokens, "total_ms",
        (double)c->terms.total_ns / 1e6, "kv_bytes",
        (json_int_t)c->terms.kv_bytes);
}

static json_t *other_json(const struct bt_replay_result *r, const char *spec)
{
    json_t *top = json_array();

    for (size_t i = 0; i < r->top_count; i++) {
        const struct bt_replay_change *c = &r->top[i];

        json_array_append_new(
            top,
            json_pack("{s:I, s:f, s:I, s:o, s:o}", "request",
                      (json_int_t)c->number, "at_s", (double)c->at_ns / 1e9,
                      "prompt_tokens", (json_int_t)c->prompt_tokens, "recorded",
                      candidate_json(&c->recorded), "other",
                      candidate_json(&c->other)));
    }
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, "
        "s:f, s:f, s:f, s:o}",
        "policy", spec, "asked", (json_int_t)r->asked, "same",
        (json_int_t)r->same, "changed_prefill", (json_int_t)r->changed_p,
        "changed_decode", (json_int_t)r->changed_d, "changed_both",
        (json_int_t)r->changed_both, "changed_source",
        (json_int_t)r->changed_source, "held", (json_int_t)r->held, "refused",
        (json_int_t)r->refused, "no_worker", (json_int_t)r->no_worker,
        "recorded_total_s", r->recorded_total_s, "other_total_s",
        r->other_total_s, "recorded_changed_s", r->recorded_changed_s,
        "other_changed_s", r->other_changed_s, "recorded_bytes",
        r->recorded_bytes, "other_bytes", r->other_bytes, "top", top);
}

static int print_json(const char *path, const struct bt_replay_result *r,
                      const struct replay_options *o)
{
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:f, s:b, s:b, s:I, s:s}", "journal", path,
        "policy", r->policy, "workers", (json_int_t)r->worker_count, "requests",
        (json_int_t)r->requests, "events", (json_int_t)r->events, "span_s",
        (double)r->span_ns / 1e9, "whole", r->whole, "verified", r->verified,
        "differs_at", (json_int_t)r->differs_at, "cut", r->cut);
    char *text;

    if (root != NULL && o->policy != NULL)
        json_object_set_new(root, "other", other_json(r, o->policy));
    text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL) {
        fprintf(stderr, "baton replay: out of memory\n");
        return BT_EXIT_FAILED;
    }
    puts(text);
    free(text);
    return BT_EXIT_OK;
}

static int exit_of(enum bt_status status)
{
    return status == BT_NO_MEMORY ? BT_EXIT_FAILED : BT_EXIT_CONFIG;
}

static int replay(const char *path, const struct replay_options *o,
                  const struct bt_replay_options *how)
{
    struct bt_replay_result *r = calloc(1, sizeof(*r));
    char error[256] = "out of memory";
    enum bt_status status = BT_NO_MEMORY;
    int code;

    if (r != NULL)
        status = bt_replay_run(path, how, r, error, sizeof(error));
    if (status != BT_OK) {
        fprintf(stderr, "baton replay: %s: %s\n", path, error);
        free(r);
        return exit_of(status);
    }
    code = BT_EXIT_OK;
    if (strcmp(o->output, "json") == 0) {
        code = print_json(path, r, o);
    } else {
        print_head(path, r);
        if (o->policy != NULL)
            print_other(r, o->policy);
    }
    if (code == BT_EXIT_OK && !r->verified)
        code = BT_EXIT_DIFFERENT;
    free(r);
    return code;
}

static int run(int argc, char **argv)
{
    struct replay_options options = {.output = "table", .top = 10};
    struct bt_replay_options how = {0};
    struct stat info;
    char error[256];
    int first = 0;
    int code =
        bt_options_parse(&bt_command_replay, argc, argv, &options, &first);

    if (code >= 0)
        return code;
    if (strcmp(options.output, "json") != 0 &&
        strcmp(options.output, "table") != 0) {
        fprintf(stderr, "baton replay: --output is table or json, not '%s'\n",
                options.output);
        return BT_EXIT_USAGE;
    }
    if (first + 1 != argc || options.top > BT_REPLAY_TOP_MAX) {
        fprintf(stderr, "usage: baton replay [OPTION...] JOURNAL\n");
        return BT_EXIT_USAGE;
    }
    if (options.policy != NULL &&
        bt_policy_parse(options.policy, &how.other, how.knobs, error,
                        sizeof(error)) != BT_OK) {
        fprintf(stderr, "baton replay: --policy: %s\n", error);
        return BT_EXIT_USAGE;
    }
    if (stat(argv[first], &info) != 0 || access(argv[first], R_OK) != 0) {
        fprintf(stderr, "baton replay: %s: %s\n", argv[first], strerror(errno));
        return BT_EXIT_CONFIG;
    }
    if (S_ISDIR(info.st_mode)) {
        fprintf(stderr, "baton replay: %s: a directory, not a journal\n",
                argv[first]);
        return BT_EXIT_CONFIG;
    }
    how.top = (size_t)options.top;
    how.stop_at_difference = options.verify;
    return replay(argv[first], &options, &how);
}

const struct bt_command bt_command_replay = {
    .name = "replay",
    .summary = "decide a recorded journal again, or under another policy",
    .arguments = "JOURNAL",
    .options = OPTIONS,
    .run = run,
};
