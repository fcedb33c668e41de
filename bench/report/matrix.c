/* The matrix: every scenario, load, arm and seed as one cell, in an order that
 * keeps the seeds of a group beside each other. Leaves processes to pool.c. */
#include "report_priv.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t place_of(const struct bt_report_matrix *m, uint32_t scenario,
                       uint32_t load, uint32_t arm)
{
    const struct bt_report_setup *s = m->setup;

    return ((((size_t)scenario * m->load_count) + load) * s->arm_count + arm) *
           s->seed_count;
}

const struct bt_report_result *
bt_report_group(const struct bt_report_matrix *matrix, uint32_t scenario,
                uint32_t load, uint32_t arm)
{
    return &matrix->results[place_of(matrix, scenario, load, arm)];
}

static void lay_out(const struct bt_report_matrix *m, struct report_cell *cells)
{
    const struct bt_report_setup *s = m->setup;
    size_t at = 0;

    for (uint32_t i = 0; i < s->scenario_count; i++) {
        for (uint32_t l = 0; l < m->load_count; l++) {
            for (size_t k = 0; k < (size_t)s->arm_count * s->seed_count; k++) {
                uint32_t arm = (uint32_t)(k / s->seed_count),
                         seed = (uint32_t)(k % s->seed_count);

                cells[at].keep_samples = s->keep_samples;
                bt_report_config(s, i, arm, m->speeds[i][l], seed,
                                 &cells[at++].config);
            }
        }
    }
}

enum bt_status bt_report_matrix_run(struct bt_report_matrix *matrix)
{
    const struct bt_report_setup *s = matrix->setup;
    size_t count = (size_t)s->scenario_count * matrix->load_count *
                   s->arm_count * s->seed_count;
    double since = now_s();
    struct report_cell *cells;
    enum bt_status status;

    if (count > BT_REPORT_CELLS_MAX)
        return BT_LIMIT;
    matrix->count = count;
    cells = calloc(count + 1, sizeof(*cells));
    matrix->results = calloc(count + 1, sizeof(*matrix->results));
    if (!cells || !matrix->results) {
        free(cells);
        return BT_NO_MEMORY;
    }
    lay_out(matrix, cells);
    status = report_pool_run(cells, count, &s->jobs, matrix->results);
    matrix->wall_s = now_s() - since;
    free(cells);
    return status;
}

void bt_report_matrix_fini(struct bt_report_matrix *matrix)
{
    for (size_t i = 0; matrix->results && i < matrix->count; i++)
        bt_report_result_fini(&matrix->results[i]);
    free(matrix->results);
    matrix->results = NULL;
    matrix->count = 0;
}

void bt_report_row_get(const struct bt_report_matrix *matrix, uint32_t scenario,
                       uint32_t load, uint32_t arm, struct bt_report_row *out)
{
    report_row_make(bt_report_group(matrix, scenario, load, arm),
                    matrix->setup->seed_count, out);
}
