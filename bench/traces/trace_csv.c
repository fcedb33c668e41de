/* CSV traces: Azure (date and time of day, context and generated tokens) and
 * BurstGPT (seconds, request and response tokens). Decides columns by the
 * header's names and the form of stamps; leaves lines and files to
 * trace_load.c. Neither format says anything about prefixes. Quotes are a
 * fault: these files have none, and guessing would shift columns.
 */
#include "baton/base/units.h"
#include "trace_priv.h"
#include <string.h>
#include <strings.h>
#include <xxhash.h>

/* One cell, not terminated, without outer blanks. */
struct cell {
    const char *at;
    size_t bytes;
};
struct row {
    struct cell cells[CSV_COLUMNS_MAX];
    int count;
};

static enum bt_status split(struct trace_reader *r, struct row *row)
{
    const char *at = r->line, *end;

    memset(row, 0, sizeof(*row));
    if (strchr(r->line, '"'))
        return trace_fault(r, strchr(r->line, '"'), BT_UNSUPPORTED,
                           "quotes are not understood");
    do {
        struct cell *cell = &row->cells[row->count];

        if (row->count == CSV_COLUMNS_MAX)
            return trace_fault(r, at, BT_TOO_LARGE, "more than %d columns",
                               CSV_COLUMNS_MAX);
        end = at + strcspn(at, ",");
        cell->at = at + strspn(at, " \t");
        if (cell->at > end)
            cell->at = end;
        cell->bytes = (size_t)(end - cell->at);
        while (cell->bytes && strchr(" \t", cell->at[cell->bytes - 1]))
            cell->bytes--;
        row->count++;
        at = end + 1;
    } while (*end);
    return BT_OK;
}

static int column(const struct row *row, const char *name)
{
    for (int i = 0; i < row->count; i++)
        if (row->cells[i].bytes == strlen(name) &&
            strncasecmp(row->cells[i].at, name, row->cells[i].bytes) == 0)
            return i;
    return -1;
}

static enum bt_status header(struct trace_reader *r, const char *stamp,
                             const char *input, const char *output)
{
    const char *names[] = {stamp, input, output};
    int *places[] = {&r->stamp_at, &r->input_at, &r->output_at};
    struct row row;
    enum bt_status status = split(r, &row);

    /* a byte order mark belongs to no name */
    if (status == BT_OK && row.cells[0].bytes > 3 &&
        memcmp(row.cells[0].at, "\xef\xbb\xbf", 3) == 0) {
        row.cells[0].at += 3;
        row.cells[0].bytes -= 3;
    }
    for (size_t i = 0; i < 3 && status == BT_OK; i++) {
        *places[i] = column(&row, names[i]);
        if (*places[i] < 0)
            status = trace_fault(r, NULL, BT_INVALID,
                                 "the header has no column '%s'", names[i]);
    }
    if (status != BT_OK)
        return status;
    r->session_at = column(&row, "Session ID");
    r->columns = row.count;
    return BT_OK;
}

/* ---- cells ---- */

static enum bt_status tokens(struct trace_reader *r, const struct cell *cell,
                             uint32_t max, uint32_t *out)
{
    uint32_t value = 0;

    for (size_t i = 0; i < cell->bytes; i++) {
        unsigned int digit = (unsigned int)(cell->at[i] - '0');

        if (digit > 9)
            break;
        value = value * 10 + digit;
        if (value > max)
            return trace_fault(r, cell->at, BT_TOO_LARGE, "more than %u tokens",
                               max);
        if (i + 1 == cell->bytes) {
            *out = value;
            return BT_OK;
        }
    }
    return trace_fault(r, cell->at, BT_TYPE, "not a whole number of tokens");
}

/* Digits from *at on, at most `most` of them; false when there are fewer than
 * `least`. */
static bool digits(const char **at, const char *end, int least, int most,
                   int64_t *out)
{
    int64_t value = 0;
    int count = 0;

    while (*at < end && count < most && **at >= '0' && **at <= '9') {
        value = value * 10 + (**at - '0');
        (*at)++;
        count++;
    }
    *out = value;
    return count >= least;
}

/* ".123" as ns, cut after nine digits; no point is 0. */
static bool fraction(const char **at, const char *end, int64_t *ns_out)
{
    int64_t unit = BT_NS_PER_S, ns = 0;

    if (*at < end && **at == '.') {
        (*at)++;
        if (*at == end || **at < '0' || **at > '9')
            return false;
        for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
            unit /= 10;
            ns += unit * (**at - '0');
        }
    }
    *ns_out = ns;
    return true;
}

static bool literal(const char **at, const char *end, const char *set)
{
    if (*at == end || !strchr(set, **at))
        return false;
    (*at)++;
    return true;
}

/* Days from 1970-01-01, proleptic Gregorian; year >= 1. */
static int64_t days_of(int64_t year, int64_t month, int64_t day)
{
    int64_t y = month <= 2 ? year - 1 : year;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

    return y * 365 + y / 4 - y / 100 + y / 400 + of_year - 719468;
}

static int64_t month_days(int64_t year, int64_t month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return days[month - 1] + (month == 2 && leap);
}

/* "", "Z", "+02:00". */
static bool offset(const char **at, const char *end, int64_t *seconds_out)
{
    int64_t hours = 0, minutes = 0;
    int sign;

    *seconds_out = 0;
    if (*at == end)
        return true;
    if (literal(at, end, "Z"))
        return *at == end;
    sign = **at == '-' ? -1 : 1;
    if (!literal(at, end, "+-") || !digits(at, end, 2, 2, &hours) ||
        !literal(at, end, ":") || !digits(at, end, 2, 2, &minutes) ||
        hours > 14 || minutes > 59)
        return false;
    *seconds_out = sign * (hours * 3600 + minutes * 60);
    return *at == end;
}

/* "2023-11-16 18:17:03.9799600", with T for the blank and an offset allowed. */
static bool date_time(const struct cell *cell, int64_t *ns_out)
{
    const char *at = cell->at, *end = cell->at + cell->bytes;
    int64_t y, mo, d, h, mi, s, ns, shift;

    if (!digits(&at, end, 4, 4, &y) || !literal(&at, end, "-") ||
        !digits(&at, end, 2, 2, &mo) || !literal(&at, end, "-") ||
        !digits(&at, end, 2, 2, &d) || !literal(&at, end, " T") ||
        !digits(&at, end, 2, 2, &h) || !literal(&at, end, ":") ||
        !digits(&at, end, 2, 2, &mi) || !literal(&at, end, ":") ||
        !digits(&at, end, 2, 2, &s) || !fraction(&at, end, &ns) ||
        !offset(&at, end, &shift))
        return false;
    if (y < 1970 || y > 2090 || mo < 1 || mo > 12 || d < 1 ||
        d > month_days(y, mo) || h > 23 || mi > 59 || s > 60)
        return false;
    s += days_of(y, mo, d) * 86400 + h * 3600 + mi * 60 - shift;
    *ns_out = s * BT_NS_PER_S + ns;
    return true;
}

static bool seconds(const struct cell *cell, int64_t *ns_out)
{
    const char *at = cell->at, *end = cell->at + cell->bytes;
    int64_t s, ns;

    if (!digits(&at, end, 1, 10, &s) || !fraction(&at, end, &ns) || at != end ||
        s > TRACE_STAMP_MAX_NS / BT_NS_PER_S)
        return false;
    *ns_out = s * BT_NS_PER_S + ns;
    return true;
}

/* ---- lines ---- */

static enum bt_status body(struct trace_reader *r, struct row *row,
                           struct bt_trace_request *request)
{
    enum bt_status status = split(r, row);

    memset(request, 0, sizeof(*request));
    if (status == BT_OK && row->count != r->columns)
        status =
            trace_fault(r, NULL, BT_INVALID, "%d columns, the header has %d",
                        row->count, r->columns);
    if (status == BT_OK)
        status = tokens(r, &row->cells[r->input_at], TRACE_INPUT_MAX,
                        &request->input_tokens);
    if (status == BT_OK)
        status = tokens(r, &row->cells[r->output_at], TRACE_OUTPUT_MAX,
                        &request->output_tokens);
    return status;
}

enum bt_status azure_line(struct trace_reader *r)
{
    struct bt_trace_request request;
    uint64_t *blocks;
    struct row row;
    enum bt_status status;

    if (r->columns == 0)
        return header(r, "TIMESTAMP", "ContextTokens", "GeneratedTokens");
    status = body(r, &row, &request);
    if (status != BT_OK)
        return status;
    if (!date_time(&row.cells[r->stamp_at], &request.arrival_ns))
        return trace_fault(r, row.cells[r->stamp_at].at, BT_TYPE,
                           "not a time (2023-11-16 18:17:03.979)");
    if (request.input_tokens == 0)
        return trace_fault(r, row.cells[r->input_at].at, BT_INVALID,
                           "a request without context tokens");
    if (request.output_tokens == 0)
        request.output_tokens = 1;
    return trace_add(r, &request, &blocks);
}

/* Rows without request or response tokens are failed calls: left out. */
enum bt_status burstgpt_line(struct trace_reader *r)
{
    struct bt_trace_request request;
    uint64_t *blocks;
    struct row row;
    enum bt_status status;

    if (r->columns == 0)
        return header(r, "Timestamp", "Request tokens", "Response tokens");
    status = body(r, &row, &request);
    if (status != BT_OK)
        return status;
    if (!seconds(&row.cells[r->stamp_at], &request.arrival_ns))
        return trace_fault(r, row.cells[r->stamp_at].at, BT_TYPE,
                           "not a number of seconds");
    if (request.input_tokens == 0 || request.output_tokens == 0)
        return BT_OK;
    if (r->session_at >= 0 && row.cells[r->session_at].bytes) {
        const struct cell *c = &row.cells[r->session_at];
        XXH128_hash_t key = XXH3_128bits(c->at, c->bytes);

        if (trace_session(&r->build, key.high64, key.low64, &request.session) !=
            BT_OK)
            return trace_fault(r, NULL, BT_NO_MEMORY, "out of memory");
    }
    return trace_add(r, &request, &blocks);
}
