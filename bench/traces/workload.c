/* Workload: the container that generator and trace reader fill. Decides growth
 * and limits; knows nothing of where requests come from.
 * Invariant: requests[i] owns tokens[token_at .. token_at + token_count). */
#include "baton/bench/workload.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS_MAX 1000000u
#define TOKENS_MAX   ((size_t)256 << 20)

static enum bt_status grow(void **array, size_t *capacity, size_t need,
                           size_t bytes)
{
    size_t wanted = *capacity ? *capacity : 1024;
    void *moved;

    if (need <= *capacity)
        return BT_OK;
    while (wanted < need)
        wanted *= 2;
    moved = realloc(*array, wanted * bytes);
    if (!moved)
        return BT_NO_MEMORY;
    *array = moved;
    *capacity = wanted;
    return BT_OK;
}

enum bt_status bt_workload_append(struct bt_workload *workload,
                                  const struct bt_workload_request *request,
                                  uint32_t **tokens_out)
{
    size_t requests_max =
        workload->requests_max ? workload->requests_max : REQUESTS_MAX;
    size_t tokens_max =
        workload->tokens_max ? workload->tokens_max : TOKENS_MAX;
    size_t need = workload->token_count + request->token_count;
    void *requests = workload->requests, *tokens = workload->tokens;
    enum bt_status status;

    if (workload->count >= requests_max || need > tokens_max)
        return BT_TOO_LARGE;
    status = grow(&requests, &workload->capacity, workload->count + 1,
                  sizeof(*workload->requests));
    workload->requests = requests;
    if (status != BT_OK)
        return status;
    status = grow(&tokens, &workload->token_capacity, need,
                  sizeof(*workload->tokens));
    workload->tokens = tokens;
    if (status != BT_OK)
        return status;
    workload->requests[workload->count] = *request;
    workload->requests[workload->count].token_at = workload->token_count;
    *tokens_out = workload->tokens + workload->token_count;
    workload->count++;
    workload->token_count = need;
    return BT_OK;
}

const uint32_t *bt_workload_prompt(const struct bt_workload *workload,
                                   size_t request)
{
    assert(request < workload->count);
    return workload->tokens + workload->requests[request].token_at;
}

/* token_at grows with the order of appending: it settles equal arrivals. */
static int compare_arrival(const void *a, const void *b)
{
    const struct bt_workload_request *x = a, *y = b;

    if (x->arrival_ns != y->arrival_ns)
        return x->arrival_ns < y->arrival_ns ? -1 : 1;
    if (x->token_at != y->token_at)
        return x->token_at < y->token_at ? -1 : 1;
    return 0;
}

enum bt_status bt_workload_sort(struct bt_workload *workload)
{
    if (workload->count > 1)
        qsort(workload->requests, workload->count, sizeof(*workload->requests),
              compare_arrival);
    return BT_OK;
}

void bt_workload_fini(struct bt_workload *workload)
{
    free(workload->requests);
    free(workload->tokens);
    workload->requests = NULL;
    workload->tokens = NULL;
    workload->count = workload->capacity = 0;
    workload->token_count = workload->token_capacity = 0;
}
