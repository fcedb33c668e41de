/* Writing a trace as Mooncake's JSON lines. Decides which optional fields a
 * line carries: block_size when it is not 512, session_id, turn, tenant and
 * priority when they are not 0, and "synthetic": true in every line of a
 * generated trace, so that no part of one passes for a recording.
 *
 * Invariant: what is written reads back as the same requests, arrivals cut to
 * whole ms.
 */
#include "baton/base/units.h"
#include "trace_priv.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

static void put_extras(FILE *file, const struct bt_trace *trace,
                       const struct bt_trace_request *q)
{
    if (trace->block_tokens && trace->block_tokens != MOONCAKE_BLOCK)
        fprintf(file, ", \"block_size\": %" PRIu32, trace->block_tokens);
    if (q->session)
        fprintf(file, ", \"session_id\": %" PRIu32, q->session);
    if (q->turn)
        fprintf(file, ", \"turn\": %" PRIu32, q->turn);
    if (q->tenant)
        fprintf(file, ", \"tenant\": %" PRIu32, q->tenant);
    if (q->priority)
        fprintf(file, ", \"priority\": %" PRId32, q->priority);
    if (trace->synthetic)
        fprintf(file, ", \"synthetic\": true");
}

static void put(FILE *file, const struct bt_trace *trace,
                const struct bt_trace_request *q)
{
    fprintf(file,
            "{\"timestamp\": %" PRId64 ", \"input_length\": %" PRIu32
            ", \"output_length\": %" PRIu32 ", \"hash_ids\": [",
            (int64_t)(q->arrival_ns / BT_NS_PER_MS), q->input_tokens,
            q->output_tokens);
    for (uint32_t i = 0; i < q->block_count; i++)
        fprintf(file, "%s%" PRIu64, i ? ", " : "",
                trace->blocks[q->block_at + i]);
    fputs("]", file);
    put_extras(file, trace, q);
    fputs("}\n", file);
}

enum bt_status bt_trace_write(const struct bt_trace *trace, const char *path)
{
    FILE *file = fopen(path, "we");
    int failed;

    if (!file)
        return BT_IO;
    for (size_t i = 0; i < trace->count && !ferror(file); i++)
        put(file, trace, &trace->requests[i]);
    failed = ferror(file);
    if (fclose(file) != 0 || failed)
        return BT_IO;
    return BT_OK;
}
