/* Loading a trace: which format a file has, one line at a time to its reader,
 * then arrivals. Decides detection, the jitter rule and what a whole file must
 * hold; leaves the meaning of a line to trace_json.c and trace_csv.c.
 *
 * Invariant: on failure the trace is empty and error_out says where.
 */
#include "baton/base/units.h"
#include "trace_priv.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define JITTER_MAX_NS (3600 * BT_NS_PER_S)

typedef enum bt_status (*line_fn)(struct trace_reader *r);

void bt_trace_read_options_init(struct bt_trace_read_options *o)
{
    memset(o, 0, sizeof(*o));
    o->format = BT_TRACE_AUTO;
    o->seed = 1;
    o->jitter_ns = -1;
}

enum bt_status trace_fault(struct trace_reader *r, const char *at,
                           enum bt_status status, const char *format, ...)
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
    for (char *c = r->error; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return status;
}

enum bt_status trace_add(struct trace_reader *r,
                         const struct bt_trace_request *request,
                         uint64_t **blocks_out)
{
    enum bt_status status = trace_append(r->trace, request, blocks_out);

    if (status == BT_TOO_LARGE)
        return trace_fault(r, NULL, status,
                           "more than %u requests or %u blocks; take a part "
                           "of the trace",
                           TRACE_REQUESTS_MAX, TRACE_BLOCKS_MAX);
    if (status != BT_OK)
        return trace_fault(r, NULL, status, "out of memory");
    return BT_OK;
}

/* Next line that holds anything, without its end; false at the end. */
static bool next_line(struct trace_reader *r, enum bt_status *status)
{
    do {
        r->number++;
        if (!fgets(r->line, TRACE_LINE_MAX, r->file)) {
            if (ferror(r->file))
                *status = trace_fault(r, NULL, BT_IO, "%s", strerror(errno));
            return false;
        }
        r->bytes = strlen(r->line);
        if (r->bytes == TRACE_LINE_MAX - 1 && r->line[r->bytes - 1] != '\n') {
            *status =
                trace_fault(r, NULL, BT_TOO_LARGE, "line longer than %u bytes",
                            TRACE_LINE_MAX - 2);
            return false;
        }
        while (r->bytes &&
               (r->line[r->bytes - 1] == '\n' || r->line[r->bytes - 1] == '\r'))
            r->line[--r->bytes] = '\0';
    } while (r->bytes == 0);
    return true;
}

/* From the first line; AUTO: none of ours. */
static enum bt_trace_format detect(const char *line)
{
    if (line[strspn(line, " \t")] == '{')
        return strstr(line, "\"chat_id\"") ? BT_TRACE_BAILIAN
                                           : BT_TRACE_MOONCAKE;
    if (strcasestr(line, "ContextTokens"))
        return BT_TRACE_AZURE;
    return strcasestr(line, "Request tokens") ? BT_TRACE_BURSTGPT
                                              : BT_TRACE_AUTO;
}

static line_fn reader_of(enum bt_trace_format format)
{
    switch (format) {
    case BT_TRACE_MOONCAKE:
        return mooncake_line;
    case BT_TRACE_BAILIAN:
        return bailian_line;
    case BT_TRACE_AZURE:
        return azure_line;
    case BT_TRACE_BURSTGPT:
        return burstgpt_line;
    case BT_TRACE_AUTO:
        break;
    }
    return NULL;
}

static enum bt_status read_lines(struct trace_reader *r, size_t max,
                                 enum bt_trace_format *format)
{
    enum bt_status status = BT_OK;
    line_fn read = reader_of(*format);

    while ((!max || r->trace->count < max) && next_line(r, &status)) {
        if (!read) {
            *format = detect(r->line);
            read = reader_of(*format);
            if (!read)
                return trace_fault(r, r->line, BT_INVALID,
                                   "neither JSON lines nor a CSV header of "
                                   "Azure or BurstGPT");
        }
        status = read(r);
        if (status != BT_OK)
            return status;
    }
    if (status == BT_OK && r->trace->count == 0)
        return trace_fault(r, NULL, BT_INVALID, "no requests");
    return status;
}

static int64_t jitter_of(const struct bt_trace_read_options *o,
                         const struct bt_trace *trace,
                         enum bt_trace_format format)
{
    if (o->jitter_ns >= 0)
        return o->jitter_ns;
    if (format == BT_TRACE_MOONCAKE &&
        trace_is_quantised(trace, MOONCAKE_QUANTUM_NS))
        return MOONCAKE_QUANTUM_NS;
    return 0;
}

static void set_name(struct bt_trace *trace, const char *path)
{
    const char *slash = strrchr(path, '/');

    snprintf(trace->name, sizeof(trace->name), "%s", slash ? slash + 1 : path);
}

static enum bt_status load(struct trace_reader *r,
                           const struct bt_trace_read_options *o)
{
    enum bt_trace_format format = o->format;
    enum bt_status status = read_lines(r, o->requests_max, &format);

    if (status != BT_OK)
        return status;
    for (size_t i = 0; i < r->trace->count; i++)
        r->trace->has_prefixes =
            r->trace->has_prefixes || r->trace->requests[i].block_count > 0;
    set_name(r->trace, r->path);
    status = trace_settle(r->trace, jitter_of(o, r->trace, format), o->seed);
    if (status != BT_OK)
        snprintf(r->error, r->error_size, "%s: out of memory", r->path);
    return status;
}

enum bt_status bt_trace_load(const char *path,
                             const struct bt_trace_read_options *options,
                             struct bt_trace *out, char *error_out,
                             size_t error_size)
{
    struct bt_trace trace = {.block_tokens = 0};
    struct trace_reader r = {.path = path,
                             .error = error_out,
                             .error_size = error_size,
                             .trace = &trace};
    enum bt_status status = BT_NO_MEMORY;
    char *line;

    r.build.trace = &trace;
    if (options->jitter_ns > JITTER_MAX_NS) {
        snprintf(error_out, error_size, "jitter over one hour");
        return BT_INVALID;
    }
    r.file = fopen(path, "re");
    if (!r.file) {
        snprintf(error_out, error_size, "%s: %s", path, strerror(errno));
        return BT_NOT_FOUND;
    }
    line = malloc(TRACE_LINE_MAX);
    r.line = line;
    if (line)
        status = load(&r, options);
    else
        snprintf(error_out, error_size, "%s: out of memory", path);
    free(line);
    fclose(r.file);
    trace_build_fini(&r.build);
    if (status == BT_OK)
        *out = trace;
    else
        bt_trace_fini(&trace);
    return status;
}
