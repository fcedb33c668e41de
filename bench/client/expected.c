/* Expected answers of a workload: one text per request, computed by the oracle
 * before a run so that checking costs a comparison while it lasts. The tokens
 * of the emulated engine are bytes, so a text is its tokens. */
#include "baton/bench/client.h"
#include "baton/bench/oracle.h"
#include <assert.h>
#include <stdlib.h>

struct bt_expected {
    char *text;
    size_t *at; /* count + 1 offsets */
    size_t count;
};

static enum bt_status fill(struct bt_expected *e,
                           const struct bt_workload *workload,
                           const struct bt_oracle *oracle, uint32_t *tokens)
{
    for (size_t i = 0; i < e->count; i++) {
        const struct bt_workload_request *r = &workload->requests[i];
        enum bt_status status =
            bt_oracle_output(oracle, bt_workload_prompt(workload, i),
                             r->token_count, r->max_tokens, tokens);

        if (status != BT_OK)
            return status;
        for (uint32_t j = 0; j < r->max_tokens; j++)
            e->text[e->at[i] + j] = (char)tokens[j];
    }
    return BT_OK;
}

enum bt_status bt_expected_create(const struct bt_workload *workload,
                                  const struct bt_oracle *oracle,
                                  struct bt_expected **out)
{
    struct bt_expected *e = calloc(1, sizeof(*e));
    enum bt_status status = BT_NO_MEMORY;
    uint32_t *tokens = NULL;
    uint32_t longest = 1;

    if (!e)
        return BT_NO_MEMORY;
    e->count = workload->count;
    e->at = calloc(e->count + 1, sizeof(*e->at));
    if (!e->at)
        goto undo_expected;
    for (size_t i = 0; i < e->count; i++) {
        uint32_t answer = workload->requests[i].max_tokens;

        e->at[i + 1] = e->at[i] + answer;
        longest = answer > longest ? answer : longest;
    }
    e->text = malloc(e->at[e->count] + 1);
    tokens = malloc((size_t)longest * sizeof(*tokens));
    if (!e->text || !tokens)
        goto undo_expected;
    status = fill(e, workload, oracle, tokens);
    if (status != BT_OK)
        goto undo_expected;
    free(tokens);
    *out = e;
    return BT_OK;

undo_expected:
    free(tokens);
    bt_expected_destroy(e);
    return status;
}

const char *bt_expected_text(void *arg, size_t request, size_t *bytes_out)
{
    const struct bt_expected *e = arg;

    assert(request < e->count);
    *bytes_out = e->at[request + 1] - e->at[request];
    return e->text + e->at[request];
}

void bt_expected_destroy(struct bt_expected *expected)
{
    if (!expected)
        return;
    free(expected->text);
    free(expected->at);
    free(expected);
}
