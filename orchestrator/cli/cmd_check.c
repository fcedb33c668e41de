/* `baton check FILE`: is the configuration one that `baton serve` takes?
 * --defaults lists every key instead, --policies every policy with its knobs.
 * Decides only how the answer reads; the rules are bt_config_load's, the lists
 * bt_config_key_at's and bt_policy_at's. */
#include "baton/orchestrator/config.h"
#include "command.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct check_options {
    const char *output;
    bool defaults, policies;
};

static const struct bt_option OPTIONS[] = {
    {"output", 'o', BT_OPTION_STRING, "FORMAT", "table or json (default table)",
     offsetof(struct check_options, output)},
    {"defaults", 0, BT_OPTION_FLAG, NULL,
     "print every key with its default instead of checking a file",
     offsetof(struct check_options, defaults)},
    {"policies", 0, BT_OPTION_FLAG, NULL,
     "print every policy with its knobs instead of checking a file",
     offsetof(struct check_options, policies)},
    {0},
};

static int print_json(json_t *root)
{
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text) {
        fprintf(stderr, "baton check: out of memory\n");
        return BT_EXIT_FAILED;
    }
    puts(text);
    free(text);
    return BT_EXIT_OK;
}

static int defaults_json(void)
{
    json_t *keys = json_array();
    for (size_t i = 0; bt_config_key_at(i); i++) {
        const struct bt_config_key *key = bt_config_key_at(i);
        json_array_append_new(keys, json_pack("{s:s, s:s?, s:s, s:s}", "key",
                                              key->path, "default",
                                              key->fallback, "values",
                                              key->values, "text", key->text));
    }
    return print_json(json_pack("{s:o}", "keys", keys));
}

static int defaults_table(void)
{
    printf("%-32s %-24s %s\n", "KEY", "DEFAULT", "MEANING");
    for (size_t i = 0; bt_config_key_at(i); i++) {
        const struct bt_config_key *key = bt_config_key_at(i);
        const char *fallback = key->fallback ? key->fallback : "(required)";
        printf("%-32s %-24s %s (%s)\n", key->path,
               fallback[0] ? fallback : "\"\"", key->text, key->values);
    }
    return BT_EXIT_OK;
}

/* Knobs may be missing altogether. */
static const struct bt_policy_knob *knob_at(const struct bt_policy *policy,
                                            size_t i)
{
    if (!policy->knobs || i >= BT_POLICY_KNOBS_MAX || !policy->knobs[i].name)
        return NULL;
    return &policy->knobs[i];
}

static int policies_json(void)
{
    json_t *policies = json_array();
    for (size_t i = 0; bt_policy_at(i); i++) {
        const struct bt_policy *policy = bt_policy_at(i);
        json_t *knobs = json_array();
        for (size_t k = 0; knob_at(policy, k); k++) {
            const struct bt_policy_knob *knob = knob_at(policy, k);
            json_array_append_new(knobs,
                                  json_pack("{s:s, s:f, s:f, s:f, s:s}", "knob",
                                            knob->name, "default", knob->value,
                                            "min", knob->min, "max", knob->max,
                                            "text", knob->text));
        }
        json_array_append_new(
            policies, json_pack("{s:s, s:s, s:o}", "policy", policy->name,
                                "text", policy->summary, "knobs", knobs));
    }
    return print_json(json_pack("{s:o}", "policies", policies));
}

static int policies_table(void)
{
    for (size_t i = 0; bt_policy_at(i); i++) {
        const struct bt_policy *policy = bt_policy_at(i);
        printf("%-16s %s\n", policy->name, policy->summary);
        for (size_t k = 0; knob_at(policy, k); k++) {
            const struct bt_policy_knob *knob = knob_at(policy, k);
            char value[64];
            snprintf(value, sizeof(value), "%s=%g", knob->name, knob->value);
            printf("    %-24s %s (%g..%g)\n", value, knob->text, knob->min,
                   knob->max);
        }
    }
    return BT_EXIT_OK;
}

static void count_roles(const struct bt_config *config, uint32_t *prefill,
                        uint32_t *decode)
{
    *prefill = *decode = 0;
    for (uint32_t i = 0; i < config->worker_count; i++) {
        *prefill += (config->workers[i].roles & BT_ROLE_PREFILL) != 0;
        *decode += (config->workers[i].roles & BT_ROLE_DECODE) != 0;
    }
}

static bool has_slo(const struct bt_config *config)
{
    return config->slo.ttft_ns > 0 || config->slo.ttft_factor > 0 ||
           config->slo.tpot_ns > 0;
}

static json_t *summary_json(const char *path, const struct bt_config *config)
{
    uint32_t prefill, decode;
    count_roles(config, &prefill, &decode);
    return json_pack(
        "{s:s, s:b, s:I, s:I, s:I, s:I, s:s, s:s?, s:b, s:b, s:s?}", "file",
        path, "ok", 1, "workers", (json_int_t)config->worker_count, "prefill",
        (json_int_t)prefill, "decode", (json_int_t)decode, "models",
        (json_int_t)config->model_count, "policy", config->policy, "topology",
        config->topology_path, "hold", config->planner.hold, "slo",
        has_slo(config), "journal", config->journal.file);
}

/* Only what was asked for is said: the usual file stays one short line. */
static int report_ok(const char *path, const struct bt_config *config,
                     bool json)
{
    uint32_t prefill, decode;
    if (json)
        return print_json(summary_json(path, config));
    count_roles(config, &prefill, &decode);
    printf("%s: ok: %u workers (%u prefill, %u decode), %u model%s, policy "
           "%s%s%s%s%s%s%s\n",
           path, config->worker_count, prefill, decode, config->model_count,
           config->model_count == 1 ? "" : "s", config->policy,
           config->topology_path ? ", topology " : "",
           config->topology_path ? config->topology_path : "",
           config->planner.hold ? ", requests held back" : "",
           has_slo(config) ? ", SLO" : "",
           config->journal.file ? ", journal " : "",
           config->journal.file ? config->journal.file : "");
    return BT_EXIT_OK;
}

static int check_file(const char *path, bool json)
{
    struct bt_config *config = NULL;
    char error[512];
    enum bt_status status = bt_config_load(path, &config, error, sizeof(error));
    if (status != BT_OK) {
        fprintf(stderr, "%s\n", error);
        if (json)
            print_json(json_pack("{s:s, s:b, s:s, s:s}", "file", path, "ok", 0,
                                 "status", bt_status_name(status), "error",
                                 error));
        return BT_EXIT_CONFIG;
    }
    int code = report_ok(path, config, json);
    bt_config_destroy(config);
    return code;
}

static int run(int argc, char **argv)
{
    struct check_options options = {.output = "table"};
    int first = 0;
    int code =
        bt_options_parse(&bt_command_check, argc, argv, &options, &first);
    if (code >= 0)
        return code;
    bool json = strcmp(options.output, "json") == 0;
    if (!json && strcmp(options.output, "table") != 0) {
        fprintf(stderr, "baton check: --output is table or json, not '%s'\n",
                options.output);
        return BT_EXIT_USAGE;
    }
    bool list = options.defaults || options.policies;
    if (first + (list ? 0 : 1) != argc ||
        (options.defaults && options.policies)) {
        fprintf(stderr, "usage: baton check [OPTION...] FILE\n");
        return BT_EXIT_USAGE;
    }
    if (options.defaults)
        return json ? defaults_json() : defaults_table();
    if (options.policies)
        return json ? policies_json() : policies_table();
    return check_file(argv[first], json);
}

const struct bt_command bt_command_check = {
    .name = "check",
    .summary = "validate a configuration file",
    .arguments = "FILE",
    .options = OPTIONS,
    .run = run,
};
