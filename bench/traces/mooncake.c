/* Reader of Mooncake's JSONL traces. A hash id names 512 tokens together with
 * everything before them; here it becomes 512 / divisor token ids that depend
 * on the id only, so equal prefixes of ids are equal prefixes of tokens.
 * Outside data: each line, field and sum has a limit, and the first fault ends
 * the reading with its place. */
#include "baton/base/rng.h"
#include "baton/base/units.h"
#include "baton/bench/workload.h"
#include "baton/orchestrator/json.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES (1u << 20)
#define BLOCK_TOKENS   512u
#define INPUT_MAX      (1u << 24)
#define OUTPUT_MAX     (1u << 20)
#define STAMP_MAX_MS   (1000LL * 86400 * 365)

struct reader {
    const char *path;
    const struct bt_trace_options *options;
    struct bt_workload *workload;
    struct bt_rng rng;
    char *line;
    size_t bytes;
    size_t number; /* 1-based */
    char *error;
    size_t error_size;
};

struct fields {
    uint64_t stamp_ms, input, output;
    struct bt_json ids;
    size_t id_count;
};

void bt_trace_options_init(struct bt_trace_options *options)
{
    memset(options, 0, sizeof(*options));
    options->seed = 1;
    options->vocabulary = 256;
    options->speed = 1;
    options->tokens_divisor = 1;
    options->jitter_ns = 3 * BT_NS_PER_S;
}

__attribute__((format(printf, 4, 5))) static enum bt_status
fault(struct reader *r, const char *at, enum bt_status status,
      const char *format, ...)
{
    size_t column = at && at >= r->line ? (size_t)(at - r->line) + 1 : 1;
    va_list args;
    int used = snprintf(r->error, r->error_size, "%s:%zu:%zu: ", r->path,
                        r->number, column);

    if (used < 0 || (size_t)used >= r->error_size)
        return status;
    va_start(args, format);
    vsnprintf(r->error + used, r->error_size - (size_t)used, format, args);
    va_end(args);
    return status;
}

static enum bt_status get_number(struct reader *r, const struct bt_json *line,
                                 const char *name, uint64_t max, uint64_t *out)
{
    struct bt_json value;

    if (!bt_json_member(line, name, &value, NULL))
        return fault(r, line->at, BT_INVALID, "'%s' is missing", name);
    if (bt_json_u64(&value, out) != BT_OK)
        return fault(r, value.at, BT_TYPE, "'%s' is not a whole number >= 0",
                     name);
    if (*out > max)
        return fault(r, value.at, BT_TOO_LARGE, "'%s' is larger than %llu",
                     name, (unsigned long long)max);
    return BT_OK;
}

static enum bt_status get_ids(struct reader *r, const struct bt_json *line,
                              struct fields *f)
{
    struct bt_json value;
    uint64_t id;
    size_t cursor = 0;

    if (!bt_json_member(line, "hash_ids", &f->ids, NULL))
        return fault(r, line->at, BT_INVALID, "'hash_ids' is missing");
    if (f->ids.type != BT_JSON_ARRAY)
        return fault(r, f->ids.at, BT_TYPE, "'hash_ids' is not an array");
    f->id_count = 0;
    while (bt_json_next(&f->ids, &cursor, NULL, &value)) {
        if (bt_json_u64(&value, &id) != BT_OK)
            return fault(r, value.at, BT_TYPE,
                         "hash id %zu is not a whole number >= 0", f->id_count);
        f->id_count++;
    }
    if (f->id_count != (f->input + BLOCK_TOKENS - 1) / BLOCK_TOKENS)
        return fault(r, f->ids.at, BT_INVALID,
                     "%zu hash ids do not fit input_length %llu (512 tokens "
                     "each)",
                     f->id_count, (unsigned long long)f->input);
    return BT_OK;
}

static enum bt_status parse(struct reader *r, struct fields *f)
{
    struct bt_json line;
    enum bt_status status;
    size_t at = 0;

    memset(f, 0, sizeof(*f));
    status = bt_json_parse(r->line, r->bytes, &line, &at);
    if (status != BT_OK)
        return fault(r, r->line + at, BT_INVALID, "malformed JSON");
    if (line.type != BT_JSON_OBJECT)
        return fault(r, line.at, BT_TYPE, "not a JSON object");
    status = get_number(r, &line, "timestamp", STAMP_MAX_MS, &f->stamp_ms);
    if (status == BT_OK)
        status = get_number(r, &line, "input_length", INPUT_MAX, &f->input);
    if (status == BT_OK)
        status = get_number(r, &line, "output_length", OUTPUT_MAX, &f->output);
    if (status != BT_OK)
        return status;
    if (f->input == 0)
        return fault(r, line.at, BT_INVALID, "'input_length' is 0");
    return get_ids(r, &line, f);
}

static void expand(uint32_t *out, uint32_t count, uint64_t id,
                   uint32_t vocabulary)
{
    uint64_t key = bt_mix64(id ^ 0x62617461746f6e00u);

    for (uint32_t i = 0; i < count; i++)
        out[i] = (uint32_t)(bt_mix64(key + i) % vocabulary);
}

static uint32_t scaled(uint64_t value, uint32_t divisor)
{
    uint64_t result = value / divisor;

    return result ? (uint32_t)result : 1;
}

static enum bt_status add(struct reader *r, const struct fields *f)
{
    const struct bt_trace_options *o = r->options;
    uint32_t block = BLOCK_TOKENS / o->tokens_divisor;
    uint64_t rest = f->input - (uint64_t)(f->id_count - 1) * BLOCK_TOKENS;
    uint32_t tail = scaled(rest, o->tokens_divisor);
    struct bt_workload_request request;
    struct bt_json value;
    uint32_t *tokens;
    uint64_t id = 0;
    size_t cursor = 0, done = 0;
    int64_t jitter =
        o->jitter_ns ? (int64_t)bt_rng_below(&r->rng, (uint64_t)o->jitter_ns)
                     : 0;
    enum bt_status status;

    memset(&request, 0, sizeof(request));
    request.kind = BT_WORKLOAD_TRACE;
    request.conversation = (uint32_t)r->number - 1;
    request.arrival_ns =
        (int64_t)((double)((int64_t)f->stamp_ms * BT_NS_PER_MS + jitter) /
                  o->speed);
    if (o->duration_ns && request.arrival_ns >= o->duration_ns)
        return BT_OK;
    request.token_count = (uint32_t)(f->id_count - 1) * block + tail;
    request.max_tokens = scaled(f->output, o->tokens_divisor);
    status = bt_workload_append(r->workload, &request, &tokens);
    if (status != BT_OK)
        return fault(r, r->line, status, "%s",
                     status == BT_TOO_LARGE
                         ? "the trace is larger than the limit of requests or "
                           "tokens; use a divisor or fewer requests"
                         : "out of memory");
    while (bt_json_next(&f->ids, &cursor, NULL, &value)) {
        if (bt_json_u64(&value, &id) != BT_OK)
            break; /* cannot be: get_ids looked at it */
        done++;
        expand(tokens, done == f->id_count ? tail : block, id, o->vocabulary);
        tokens += block;
    }
    return BT_OK;
}

/* One line without its end; false at the end of the file. */
static bool next_line(struct reader *r, FILE *file, enum bt_status *status)
{
    r->number++;
    if (!fgets(r->line, LINE_MAX_BYTES, file)) {
        if (ferror(file))
            *status = fault(r, NULL, BT_IO, "%s", strerror(errno));
        return false;
    }
    r->bytes = strlen(r->line);
    if (r->bytes == LINE_MAX_BYTES - 1 && r->line[r->bytes - 1] != '\n') {
        *status = fault(r, NULL, BT_TOO_LARGE, "line longer than %u bytes",
                        LINE_MAX_BYTES - 2);
        return false;
    }
    while (r->bytes &&
           (r->line[r->bytes - 1] == '\n' || r->line[r->bytes - 1] == '\r'))
        r->bytes--;
    return true;
}

static enum bt_status read_lines(struct reader *r, FILE *file)
{
    size_t max = r->options->requests_max;
    enum bt_status status = BT_OK;
    struct fields f;

    while ((!max || r->workload->count < max) && next_line(r, file, &status)) {
        if (r->bytes == 0)
            continue;
        status = parse(r, &f);
        if (status == BT_OK)
            status = add(r, &f);
        if (status != BT_OK)
            return status;
        /* stamps never go back by more than the jitter: stop early */
        if (r->options->duration_ns &&
            (double)f.stamp_ms * 1e6 / r->options->speed >
                (double)r->options->duration_ns + 3e9)
            break;
    }
    return status;
}

enum bt_status bt_trace_read(const char *path,
                             const struct bt_trace_options *options,
                             struct bt_workload *workload, char *error_out,
                             size_t error_size)
{
    struct reader r = {.path = path,
                       .options = options,
                       .workload = workload,
                       .error = error_out,
                       .error_size = error_size};
    enum bt_status status;
    FILE *file;

    if (!(options->speed > 0) || options->vocabulary < 2 ||
        options->tokens_divisor < 1 || options->tokens_divisor > BLOCK_TOKENS ||
        options->jitter_ns < 0) {
        snprintf(error_out, error_size, "trace options out of range");
        return BT_INVALID;
    }
    file = fopen(path, "re");
    if (!file) {
        snprintf(error_out, error_size, "%s: %s", path, strerror(errno));
        return BT_NOT_FOUND;
    }
    r.line = malloc(LINE_MAX_BYTES);
    bt_rng_seed(&r.rng, options->seed);
    status = r.line ? read_lines(&r, file) : BT_NO_MEMORY;
    if (status == BT_OK && workload->count == 0)
        status = fault(&r, NULL, BT_INVALID, "no requests");
    if (status == BT_OK)
        status = bt_workload_sort(workload);
    if (status != BT_OK)
        bt_workload_fini(workload);
    free(r.line);
    fclose(file);
    return status;
}
