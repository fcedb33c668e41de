/* Random flows on random links: what defines max-min fairness holds (no link
 * over capacity; every flow is at its cap or has a saturated link on which no
 * flow is faster), the order of flows changes no bit, and rates scale with the
 * capacities (cost-models.md section 21, invariant 4). */
#include "baton/base/rng.h"
#include "baton/planner/network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FLOWS 40
#define LINKS 12
#define CASES 20000
#define SLACK 1e-9

static struct bt_maxmin_flow flows[FLOWS], again[FLOWS];
static double capacity[LINKS];
static size_t flow_count, link_count;
static uint64_t case_number;
static void *scratch;

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what))                                                           \
            fail_msg("case %llu: %s", (unsigned long long)case_number, #what); \
    } while (0)

static void draw_flow(struct bt_rng *rng, struct bt_maxmin_flow *f)
{
    uint32_t want = (uint32_t)bt_rng_below(rng, 5);

    memset(f, 0, sizeof(*f));
    for (uint32_t k = 0; k < want; k++) {
        uint32_t link = (uint32_t)bt_rng_below(rng, link_count);
        uint32_t seen = 0;

        while (seen < f->count && f->links[seen] != link)
            seen++;
        if (seen == f->count)
            f->links[f->count++] = link;
    }
    if (f->count == 0 || bt_rng_below(rng, 4) == 0)
        f->cap_bytes_per_s = (double)(1 + bt_rng_below(rng, 60));
}

/* Small whole capacities make many ties; some links are down. */
static void draw_case(struct bt_rng *rng)
{
    link_count = 1 + bt_rng_below(rng, LINKS);
    flow_count = bt_rng_below(rng, FLOWS + 1);
    for (size_t i = 0; i < link_count; i++)
        capacity[i] =
            bt_rng_below(rng, 20) ? 1 + (double)bt_rng_below(rng, 100) : 0;
    for (size_t i = 0; i < flow_count; i++)
        draw_flow(rng, &flows[i]);
}

static void check_links(void)
{
    for (size_t l = 0; l < link_count; l++) {
        double sum = 0;

        for (size_t i = 0; i < flow_count; i++) {
            for (uint32_t k = 0; k < flows[i].count; k++)
                sum += flows[i].links[k] == l ? flows[i].rate : 0;
        }
        CHECK(sum <= capacity[l] * (1 + SLACK));
    }
}

/* Saturated, and nobody on it is faster than flow i. */
static bool holds_back(uint32_t link, size_t i)
{
    double sum = 0, fastest = 0;

    for (size_t j = 0; j < flow_count; j++) {
        for (uint32_t k = 0; k < flows[j].count; k++) {
            if (flows[j].links[k] != link)
                continue;
            sum += flows[j].rate;
            fastest = fmax(fastest, flows[j].rate);
        }
    }
    return sum >= capacity[link] * (1 - SLACK) &&
           fastest <= flows[i].rate * (1 + SLACK);
}

static void check_flows(void)
{
    for (size_t i = 0; i < flow_count; i++) {
        const struct bt_maxmin_flow *f = &flows[i];
        bool held = false;

        if (f->cap_bytes_per_s > 0) {
            CHECK(f->rate <= f->cap_bytes_per_s * (1 + SLACK));
            held = f->rate >= f->cap_bytes_per_s * (1 - SLACK);
        }
        for (uint32_t k = 0; k < f->count; k++)
            held = held || holds_back(f->links[k], i);
        CHECK(held);
    }
}

static void check_order(struct bt_rng *rng)
{
    size_t to[FLOWS] = {0};

    for (size_t i = 0; i < flow_count; i++)
        to[i] = i;
    for (size_t i = flow_count; i > 1; i--) {
        size_t j = bt_rng_below(rng, i), t = to[j];

        to[j] = to[i - 1];
        to[i - 1] = t;
    }
    for (size_t i = 0; i < flow_count; i++)
        again[to[i]] = flows[i];
    bt_maxmin_rates(again, flow_count, capacity, link_count, scratch);
    for (size_t i = 0; i < flow_count; i++)
        CHECK(again[to[i]].rate == flows[i].rate);
}

/* A power of two scales without rounding. */
static void check_scale(void)
{
    double scaled[LINKS];

    for (size_t l = 0; l < link_count; l++)
        scaled[l] = capacity[l] * 8;
    for (size_t i = 0; i < flow_count; i++) {
        again[i] = flows[i];
        again[i].cap_bytes_per_s *= 8;
    }
    bt_maxmin_rates(again, flow_count, scaled, link_count, scratch);
    for (size_t i = 0; i < flow_count; i++)
        CHECK(again[i].rate == flows[i].rate * 8);
}

static void fairness(void **state)
{
    const uint64_t seed = 8001;
    struct bt_rng rng;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    bt_rng_seed(&rng, seed);
    scratch = calloc(1, bt_maxmin_scratch(FLOWS, LINKS));
    assert_non_null(scratch);
    for (case_number = 0; case_number < CASES; case_number++) {
        memset(scratch, 0, bt_maxmin_scratch(FLOWS, LINKS));
        draw_case(&rng);
        bt_maxmin_rates(flows, flow_count, capacity, link_count, scratch);
        check_links();
        check_flows();
        check_order(&rng);
        check_scale();
    }
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fairness),
    };

    return cmocka_run_group_tests_name("maxmin_random", tests, NULL, NULL);
}
