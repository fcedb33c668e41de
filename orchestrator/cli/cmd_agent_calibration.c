/* Reads what `baton probe --output json` printed. Decides which of its paths
 * are ours, and refuses a file of another kind; what is missing in a path
 * leaves that path out only when the probe says that it was not measured.
 */
#include "cmd_agent_calibration.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool number(const json_t *path, const char *name, double least,
                   double *out)
{
    const json_t *value = json_object_get(path, name);

    if (!json_is_number(value))
        return false;
    *out = json_number_value(value);
    return isfinite(*out) && *out >= least && *out < 1e15;
}

static bool read_path(const json_t *path, struct bt_agent_start *out)
{
    const char *host = json_string_value(json_object_get(path, "host"));
    double port = 0, setup = 0, descriptor = 0, rate = 0;

    if (host == NULL || host[0] == '\0' || strlen(host) >= sizeof(out->host) ||
        !number(path, "port", 1, &port) || port > 65535 ||
        !number(path, "setup_ns", 0, &setup) ||
        !number(path, "descriptor_ns", 0, &descriptor) ||
        !number(path, "rate_bytes_per_s", 1, &rate))
        return false;
    memset(out, 0, sizeof(*out));
    memcpy(out->host, host, strlen(host));
    out->port = (uint16_t)port;
    out->setup_ns = (int64_t)setup;
    out->per_descriptor_ns = (int64_t)descriptor;
    out->rate_bytes_per_s = (uint64_t)rate;
    return true;
}

/* NULL, or what is wrong. */
static const char *read_paths(const json_t *root, const char *name,
                              struct bt_agent_start *out, uint32_t *count)
{
    const json_t *paths = json_object_get(root, "paths");
    const json_t *schema = json_object_get(root, "probe_schema");

    if (!json_is_array(paths) || json_integer_value(schema) != 1)
        return "not what baton probe --output json prints";
    for (size_t i = 0; i < json_array_size(paths); i++) {
        const json_t *path = json_array_get(paths, i);
        const char *to = json_string_value(json_object_get(path, "to"));

        if (to == NULL)
            return "a path without \"to\"";
        if (strcmp(to, name) != 0 ||
            !json_is_true(json_object_get(path, "measured")))
            continue;
        if (*count == AGENT_STARTS_MAX)
            return "more than 256 paths";
        if (!read_path(path, &out[*count]))
            return "a path with a value that is missing or out of range";
        (*count)++;
    }
    return NULL;
}

bool agent_calibration_read(const char *path, const char *name,
                            struct bt_agent_start *out, uint32_t *count_out)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    uint32_t count = 0;

    if (root == NULL) {
        fprintf(stderr, "baton agent: --calibration %s:%d: %s\n", path,
                error.line, error.text);
        return false;
    }
    const char *fault = read_paths(root, name, out, &count);
    json_decref(root);
    if (fault != NULL) {
        fprintf(stderr, "baton agent: --calibration %s: %s\n", path, fault);
        return false;
    }
    *count_out = count;
    return true;
}
