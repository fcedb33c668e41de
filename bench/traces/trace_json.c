/* JSON lines: Mooncake (timestamp or delay in ms, ids of 512 tokens) and
 * Bailian (chats, seconds, ids of 16 tokens). Decides what a line must hold
 * and what its fields mean; leaves lines and files to trace_load.c.
 *
 * Beyond the published fields a Mooncake line may carry what `baton trace`
 * writes: block_size, session_id, turn, tenant, priority, synthetic. An empty
 * hash_ids says that nothing is known about prefixes; a missing one is a
 * fault.
 */
#include "baton/base/units.h"
#include "trace_priv.h"
#include <limits.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#define BAILIAN_BLOCK 16u

/* Members that mean something, found in one pass over the line. */
enum member {
    TIMESTAMP,
    DELAY,
    INPUT,
    OUTPUT,
    IDS,
    BLOCK_SIZE,
    SESSION,
    TURN,
    TENANT,
    PRIORITY,
    SYNTHETIC,
    CHAT,
    PARENT,
    MEMBERS
};
static const char *const names[MEMBERS] = {
    "timestamp",  "delay",      "input_length",  "output_length", "hash_ids",
    "block_size", "session_id", "turn",          "tenant",        "priority",
    "synthetic",  "chat_id",    "parent_chat_id"};

struct fields {
    struct bt_json line;
    struct bt_json values[MEMBERS];
    bool has[MEMBERS];
    size_t id_count;
    struct bt_trace_request request;
    uint32_t block_tokens;
    int64_t delay_ns;
    bool has_stamp, synthetic;
};

static enum bt_status whole(struct trace_reader *r, const struct fields *f,
                            enum member m, uint64_t max, uint64_t *out)
{
    const struct bt_json *value = &f->values[m];

    if (!f->has[m])
        return trace_fault(r, f->line.at, BT_INVALID, "'%s' is missing",
                           names[m]);
    if (bt_json_u64(value, out) != BT_OK)
        return trace_fault(r, value->at, BT_TYPE,
                           "'%s' is not a whole number >= 0", names[m]);
    if (*out > max)
        return trace_fault(r, value->at, BT_TOO_LARGE,
                           "'%s' is larger than %llu", names[m],
                           (unsigned long long)max);
    return BT_OK;
}

static enum bt_status optional(struct trace_reader *r, const struct fields *f,
                               enum member m, uint64_t max, uint64_t *out)
{
    if (!f->has[m] || f->values[m].type == BT_JSON_NULL)
        return BT_OK;
    return whole(r, f, m, max, out);
}

/* A time in units of unit_ns, whole or not. */
static enum bt_status time_of(struct trace_reader *r, const struct fields *f,
                              enum member m, int64_t unit_ns, int64_t *out)
{
    const struct bt_json *value = &f->values[m];
    uint64_t count = 0;
    double number = 0;

    if (!f->has[m])
        return trace_fault(r, f->line.at, BT_INVALID, "'%s' is missing",
                           names[m]);
    if (bt_json_u64(value, &count) == BT_OK &&
        count <= (uint64_t)(TRACE_STAMP_MAX_NS / unit_ns)) {
        *out = (int64_t)count * unit_ns;
        return BT_OK;
    }
    if (bt_json_double(value, &number) != BT_OK || !(number >= 0))
        return trace_fault(r, value->at, BT_TYPE, "'%s' is not a number >= 0",
                           names[m]);
    if (!(number * (double)unit_ns <= (double)TRACE_STAMP_MAX_NS))
        return trace_fault(r, value->at, BT_TOO_LARGE,
                           "'%s' is beyond every clock", names[m]);
    *out = llround(number * (double)unit_ns);
    return BT_OK;
}

/* Of a repeated member the last counts. */
static void find_members(struct fields *f)
{
    struct bt_json key, value;
    size_t cursor = 0;

    while (bt_json_next(&f->line, &cursor, &key, &value)) {
        for (size_t m = 0; m < MEMBERS; m++) {
            if (strlen(names[m]) != key.bytes ||
                memcmp(names[m], key.at, key.bytes) != 0)
                continue;
            f->values[m] = value;
            f->has[m] = true;
        }
    }
}

static enum bt_status open_line(struct trace_reader *r, struct fields *f)
{
    enum bt_status status;
    size_t at = 0;

    memset(f, 0, sizeof(*f));
    status = bt_json_parse(r->line, r->bytes, &f->line, &at);
    if (status != BT_OK)
        return trace_fault(r, r->line + at, BT_INVALID, "malformed JSON");
    if (f->line.type != BT_JSON_OBJECT)
        return trace_fault(r, f->line.at, BT_TYPE, "not a JSON object");
    find_members(f);
    return BT_OK;
}

static enum bt_status lengths(struct trace_reader *r, struct fields *f)
{
    uint64_t input = 0, output = 0;
    enum bt_status status = whole(r, f, INPUT, TRACE_INPUT_MAX, &input);

    if (status == BT_OK)
        status = whole(r, f, OUTPUT, TRACE_OUTPUT_MAX, &output);
    if (status != BT_OK)
        return status;
    if (input == 0)
        return trace_fault(r, f->line.at, BT_INVALID, "'input_length' is 0");
    f->request.input_tokens = (uint32_t)input;
    f->request.output_tokens = output ? (uint32_t)output : 1;
    return BT_OK;
}

static enum bt_status ids(struct trace_reader *r, struct fields *f)
{
    uint32_t due =
        (f->request.input_tokens + f->block_tokens - 1) / f->block_tokens;
    struct bt_json value;
    uint64_t id = 0;
    size_t cursor = 0;

    if (!f->has[IDS])
        return trace_fault(r, f->line.at, BT_INVALID, "'hash_ids' is missing");
    if (f->values[IDS].type != BT_JSON_ARRAY)
        return trace_fault(r, f->values[IDS].at, BT_TYPE,
                           "'hash_ids' is not an array");
    while (bt_json_next(&f->values[IDS], &cursor, NULL, &value)) {
        if (bt_json_u64(&value, &id) != BT_OK)
            return trace_fault(r, value.at, BT_TYPE,
                               "hash id %zu is not a whole number >= 0",
                               f->id_count);
        f->id_count++;
    }
    if (f->id_count != 0 && f->id_count != due)
        return trace_fault(r, f->values[IDS].at, BT_INVALID,
                           "%zu hash ids do not fit input_length %u (%u tokens "
                           "each)",
                           f->id_count, f->request.input_tokens,
                           f->block_tokens);
    f->request.block_count = (uint32_t)f->id_count;
    return BT_OK;
}

static enum bt_status add(struct trace_reader *r, const struct fields *f)
{
    uint64_t parent = UINT64_MAX, id = 0, *blocks = NULL;
    struct bt_json value;
    size_t cursor = 0;
    enum bt_status status;

    if (r->trace->count && f->block_tokens != r->trace->block_tokens)
        return trace_fault(r, f->line.at, BT_INVALID,
                           "block size %u, the lines before have %u",
                           f->block_tokens, r->trace->block_tokens);
    r->trace->block_tokens = f->block_tokens;
    r->trace->synthetic = r->trace->synthetic || f->synthetic;
    status = trace_add(r, &f->request, &blocks);
    for (size_t i = 0; i < f->id_count && status == BT_OK; i++) {
        /* ids() looked at each: both calls succeed */
        if (!bt_json_next(&f->values[IDS], &cursor, NULL, &value) ||
            bt_json_u64(&value, &id) != BT_OK)
            return trace_fault(r, f->values[IDS].at, BT_BUG,
                               "hash ids changed");
        status = trace_block(&r->build, parent, id, &parent);
        blocks[i] = parent;
    }
    if (status == BT_NO_MEMORY)
        return trace_fault(r, NULL, status, "out of memory");
    return status;
}

/* ---- Mooncake ---- */

static enum bt_status session(struct trace_reader *r, struct fields *f)
{
    const struct bt_json *value = &f->values[SESSION];
    XXH128_hash_t key;

    if (!f->has[SESSION] || value->type == BT_JSON_NULL)
        return BT_OK;
    if (value->type != BT_JSON_STRING && value->type != BT_JSON_NUMBER)
        return trace_fault(r, value->at, BT_TYPE,
                           "'session_id' is neither text nor a number");
    key = XXH3_128bits(value->at, value->bytes);
    if (trace_session(&r->build, key.high64, key.low64, &f->request.session) !=
        BT_OK)
        return trace_fault(r, NULL, BT_NO_MEMORY, "out of memory");
    return BT_OK;
}

/* A delay counts from the request before it: of its session, or, without one,
 * of the file. */
static enum bt_status stamp(struct trace_reader *r, struct fields *f)
{
    int64_t *last_ns = f->request.session
                           ? &r->build.session_last_ns[f->request.session]
                           : &r->last_ns;
    enum bt_status status;

    if (f->has[TIMESTAMP]) {
        status = time_of(r, f, TIMESTAMP, BT_NS_PER_MS, &f->request.arrival_ns);
    } else if (f->has[DELAY]) {
        status = time_of(r, f, DELAY, BT_NS_PER_MS, &f->delay_ns);
        if (status == BT_OK && f->delay_ns > TRACE_STAMP_MAX_NS - *last_ns)
            return trace_fault(r, f->values[DELAY].at, BT_TOO_LARGE,
                               "the delays add up beyond every clock");
        f->request.arrival_ns = *last_ns + f->delay_ns;
    } else {
        return trace_fault(r, f->line.at, BT_INVALID,
                           "neither 'timestamp' nor 'delay'");
    }
    if (status == BT_OK)
        *last_ns = f->request.arrival_ns;
    return status;
}

static enum bt_status extras(struct trace_reader *r, struct fields *f)
{
    uint64_t block = MOONCAKE_BLOCK, turn = 0, tenant = 0;
    const struct bt_json *p = &f->values[PRIORITY];
    double priority = 0;
    enum bt_status status = optional(r, f, BLOCK_SIZE, TRACE_BLOCK_MAX, &block);

    if (status == BT_OK)
        status = optional(r, f, TURN, UINT32_MAX, &turn);
    if (status == BT_OK)
        status = optional(r, f, TENANT, UINT32_MAX, &tenant);
    if (status != BT_OK)
        return status;
    if (block == 0)
        return trace_fault(r, f->values[BLOCK_SIZE].at, BT_INVALID,
                           "'block_size' is 0");
    if (f->has[PRIORITY] &&
        (bt_json_double(p, &priority) != BT_OK || priority != floor(priority) ||
         fabs(priority) > INT_MAX))
        return trace_fault(r, p->at, BT_TYPE,
                           "'priority' is not a whole number");
    f->block_tokens = (uint32_t)block;
    f->request.turn = (uint32_t)turn;
    f->request.tenant = (uint32_t)tenant;
    f->request.priority = (int32_t)priority;
    f->synthetic =
        f->has[SYNTHETIC] && f->values[SYNTHETIC].type == BT_JSON_TRUE;
    return BT_OK;
}

enum bt_status mooncake_line(struct trace_reader *r)
{
    struct fields f;
    enum bt_status status = open_line(r, &f);

    if (status == BT_OK)
        status = lengths(r, &f);
    if (status == BT_OK)
        status = extras(r, &f);
    if (status == BT_OK)
        status = session(r, &f);
    if (status == BT_OK)
        status = stamp(r, &f);
    if (status == BT_OK)
        status = ids(r, &f);
    return status == BT_OK ? add(r, &f) : status;
}

/* ---- Bailian ---- */

/* The session is that of the parent when the parent was seen, else a new one
 * under the chat's own id. Parents come before their children in these files;
 * a child whose parent was cut off starts a session. */
static enum bt_status chat(struct trace_reader *r, struct fields *f)
{
    const struct bt_json *p = &f->values[PARENT];
    uint64_t id = 0, parent = 0, turn = 1;
    bool root =
        !f->has[PARENT] || (p->bytes == 2 && memcmp(p->at, "-1", 2) == 0);
    enum bt_status status = whole(r, f, CHAT, INT64_MAX, &id);

    if (status == BT_OK && !root)
        status = whole(r, f, PARENT, INT64_MAX, &parent);
    if (status == BT_OK)
        status = optional(r, f, TURN, UINT32_MAX, &turn);
    if (status != BT_OK)
        return status;
    f->request.turn = turn ? (uint32_t)turn - 1 : 0;
    if (trace_chat(&r->build, id, root ? UINT64_MAX : parent,
                   &f->request.session) != BT_OK)
        return trace_fault(r, NULL, BT_NO_MEMORY, "out of memory");
    return BT_OK;
}

enum bt_status bailian_line(struct trace_reader *r)
{
    struct fields f;
    enum bt_status status = open_line(r, &f);

    f.block_tokens = BAILIAN_BLOCK;
    if (status == BT_OK)
        status = lengths(r, &f);
    if (status == BT_OK)
        status = chat(r, &f);
    if (status == BT_OK)
        status = time_of(r, &f, TIMESTAMP, BT_NS_PER_S, &f.request.arrival_ns);
    if (status == BT_OK)
        status = ids(r, &f);
    return status == BT_OK ? add(r, &f) : status;
}
