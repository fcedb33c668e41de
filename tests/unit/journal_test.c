/* The journal and its replay: a scripted fleet is run through a core and
 * recorded; what comes back must be the same configuration, the same events
 * and, replayed, the same effects. Faults: cut, flipped bits, other files. No
 * token of a prompt may be in the file. */
#include "journal_fleet.h"

#include "baton/base/rng.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static void record(struct fleet *f, bool topology)
{
    memset(f, 0, sizeof(*f));
    fleet_start(f, topology);
    for (uint32_t i = 0; i < REQUESTS; i++)
        fleet_serve(f, i);
}

static void test_configuration_comes_back(void **state)
{
    struct fleet f;
    struct bt_journal_reader *reader;
    const struct bt_core_config *got;
    char error[256];

    (void)state;
    record(&f, true);
    fleet_stop(&f);
    assert_int_equal(bt_journal_open(fleet_path, &reader, error, sizeof(error)),
                     BT_OK);
    got = bt_journal_config(reader);
    assert_string_equal(bt_journal_policy(reader), "joint");
    assert_ptr_equal(got->policy, f.config.policy);
    assert_int_equal(got->worker_count, WORKERS);
    assert_int_equal(got->seed, 7);
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(got->workers[i].roles, f.workers[i].roles);
        assert_int_equal(got->workers[i].decode_slots, 64);
        assert_memory_equal(&got->workers[i].compute, &f.workers[i].compute,
                            sizeof(f.workers[i].compute));
    }
    for (uint32_t i = 0; i < WORKERS * WORKERS; i++)
        assert_int_equal(got->links[i].model.rate_bytes_per_s,
                         f.links[i].model.rate_bytes_per_s);
    assert_int_equal(got->models[0].kv_bytes_per_token, 131072);
    assert_non_null(got->topology);
    assert_int_equal(bt_topology_link_count(got->topology), 2 * WORKERS);
    bt_journal_reader_close(reader);
}

/* Every setting another value, so that two that change places show. */
static void settings_fill(struct fleet *f)
{
    struct bt_core_config *c = &f->config;

    c->knobs_set = true;
    for (uint32_t i = 0; i < BT_POLICY_KNOBS_MAX; i++)
        c->knobs[i] = i + 0.5;
    c->prices = (struct bt_place_prices){-1, 0.3, 0.9, 1.1, 0.1};
    c->hold = (struct bt_core_hold_config){.enabled = true,
                                           .lead_ns = 101,
                                           .patience_ns = 102,
                                           .ask_max = 103,
                                           .ageing = 0.15,
                                           .fairness = 0.45,
                                           .oldest_share = 0.03,
                                           .prefetch = true};
    c->slo = (struct bt_core_slo_config){104, 5.5, 105};
    c->calibrate = true;
    f->model.mode = (struct bt_engine_mode){.overlap = BT_OVERLAP_LAYER,
                                            .pieces = 80,
                                            .allocate_first = true,
                                            .whole_prompt = true,
                                            .descriptors_per_block = 2,
                                            .replication = 3};
    f->workers[1].host = (struct bt_tier_model){106, 107};
    f->workers[1].disk = (struct bt_tier_model){108, 109};
    f->workers[1].local_ok = true;
    f->workers[2].fetch_ok = true;
    f->workers[1].chunk_tokens = 110;
    f->workers[1].batch_tokens = 111;
    f->workers[1].ranks = 12;
    c->approx_blocks_max = 113;
    c->approx_ttl_ns = 114;
    c->self_check = true;
}

static void check_settings(const struct fleet *f,
                           const struct bt_core_config *got)
{
    const struct bt_core_worker_config *w = &got->workers[1];
    const struct bt_engine_mode *mode = &got->models[0].mode;

    assert_true(got->knobs_set);
    assert_memory_equal(got->knobs, f->config.knobs, sizeof(got->knobs));
    assert_memory_equal(&got->prices, &f->config.prices, sizeof(got->prices));
    assert_true(got->hold.enabled);
    assert_true(got->hold.prefetch);
    assert_int_equal(got->hold.lead_ns, 101);
    assert_int_equal(got->hold.patience_ns, 102);
    assert_int_equal(got->hold.ask_max, 103);
    assert_true(got->hold.ageing == 0.15);
    assert_true(got->hold.fairness == 0.45);
    assert_true(got->hold.oldest_share == 0.03);
    assert_int_equal(got->slo.ttft_base_ns, 104);
    assert_true(got->slo.ttft_factor == 5.5);
    assert_int_equal(got->slo.tpot_ns, 105);
    assert_true(got->calibrate);
    assert_int_equal(mode->overlap, BT_OVERLAP_LAYER);
    assert_int_equal(mode->pieces, 80);
    assert_true(mode->allocate_first && mode->whole_prompt);
    assert_false(mode->late_decode);
    assert_int_equal(mode->descriptors_per_block, 2);
    assert_int_equal(mode->replication, 3);
    assert_int_equal(w->host.rate_bytes_per_s, 106);
    assert_int_equal(w->host.setup_ns, 107);
    assert_int_equal(w->disk.rate_bytes_per_s, 108);
    assert_int_equal(w->disk.setup_ns, 109);
    assert_true(w->local_ok && !w->fetch_ok);
    assert_true(!got->workers[2].local_ok && got->workers[2].fetch_ok);
    assert_int_equal(w->chunk_tokens, 110);
    assert_int_equal(w->batch_tokens, 111);
    assert_int_equal(w->ranks, 12);
    assert_int_equal(got->workers[2].ranks, 0);
    assert_int_equal(got->approx_blocks_max, 113);
    assert_int_equal(got->approx_ttl_ns, 114);
    assert_true(got->self_check);
}

static void test_every_setting_comes_back(void **state)
{
    struct fleet f = {0};
    struct bt_journal_reader *reader;
    char error[256];

    (void)state;
    fleet_config(&f);
    settings_fill(&f);
    assert_int_equal(
        bt_journal_create(fleet_path, &f.config, NULL, 0, &f.writer), BT_OK);
    assert_int_equal(bt_journal_close(f.writer), BT_OK);
    assert_int_equal(bt_journal_open(fleet_path, &reader, error, sizeof(error)),
                     BT_OK);
    check_settings(&f, bt_journal_config(reader));
    bt_journal_reader_close(reader);
    /* no room for the configuration: nothing is made */
    assert_int_equal(
        bt_journal_create(fleet_path, &f.config, NULL, 200, &f.writer),
        BT_LIMIT);
}

static void check_replay(bool topology)
{
    static struct bt_replay_result result;
    struct fleet f;

    record(&f, topology);
    fleet_stop(&f);
    fleet_replay(NULL, &result);
    assert_true(result.verified);
    assert_true(result.whole);
    assert_int_equal(result.requests, REQUESTS);
    assert_int_equal(result.events, 2 * WORKERS + 5 * REQUESTS);
    assert_int_equal(result.asked, 0);

    fleet_replay("joint", &result);
    assert_int_equal(result.asked, REQUESTS);
    assert_int_equal(result.same, REQUESTS);

    fleet_replay("round_robin", &result);
    assert_int_equal(result.asked, REQUESTS);
    assert_int_equal(result.same + result.changed_p + result.changed_d +
                         result.changed_both + result.changed_source,
                     REQUESTS);
    assert_true(result.same < REQUESTS);
    assert_true(result.top_count > 0 && result.top_count <= 5);
    assert_true(result.other_total_s >= result.recorded_total_s);
}

static void test_replay_repeats_the_effects(void **state)
{
    (void)state;
    check_replay(false);
    check_replay(true);
}

/* ---- stores of every kind ---- */

static void change_something(struct fleet *f, struct bt_rng *rng)
{
    uint32_t worker = (uint32_t)bt_rng_below(rng, WORKERS);
    uint32_t i = (uint32_t)bt_rng_below(rng, 6);
    uint32_t first = (uint32_t)bt_rng_below(rng, TOKENS / BLOCK);
    uint32_t last =
        first + 1 + (uint32_t)bt_rng_below(rng, TOKENS / BLOCK - first);
    uint32_t action = (uint32_t)bt_rng_below(rng, STORE_KINDS + 3);

    if (action < STORE_KINDS)
        fleet_store_as(f, (enum store_kind)action, worker, i,
                       action == STORE_CHAIN ? 0 : first, last);
    else
        fleet_remove(f, worker, i, first, last,
                     action == STORE_KINDS ? BT_TIER_HOST : BT_TIER_DEVICE);
}

/* The same hash in several groups and tiers, with removals between: what the
 * index then counts decides how long a block is believed in. */
static void test_every_kind_of_store_is_repeated(void **state)
{
    static struct bt_replay_result result;

    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct bt_rng rng;
        struct fleet f = {.tiers = true};

        bt_rng_seed(&rng, seed);
        fleet_start(&f, false);
        for (uint32_t round = 0; round < 200; round++) {
            for (int k = 0; k < 4; k++)
                change_something(&f, &rng);
            fleet_serve(&f, (uint32_t)bt_rng_below(&rng, 6));
        }
        fleet_stop(&f);
        fleet_replay(NULL, &result);
        assert_true(result.whole);
        if (!result.verified)
            fail_msg("seed %llu: event %llu has other effects",
                     (unsigned long long)seed,
                     (unsigned long long)result.differs_at);
    }
}

/* A group without full attention tells of the same hashes and drops them
 * first: by the index's rule the hit is gone with the first removal. */
static void test_groups_of_one_hash(void **state)
{
    static struct bt_replay_result result;
    struct fleet f = {0};

    (void)state;
    fleet_start(&f, false);
    fleet_store_as(&f, STORE_CHAIN, 0, 0, 0, TOKENS / BLOCK);
    fleet_store_as(&f, STORE_WINDOW, 0, 0, 0, TOKENS / BLOCK);
    fleet_serve(&f, 0);
    assert_int_equal(f.last_overlap, TOKENS - 1);
    fleet_remove(&f, 0, 0, 0, TOKENS / BLOCK, BT_TIER_DEVICE);
    fleet_serve(&f, 0);
    assert_int_equal(f.last_overlap, 0);
    fleet_stop(&f);
    fleet_replay(NULL, &result);
    assert_true(result.whole);
    assert_true(result.verified);
}

static unsigned char *slurp(size_t *size_out)
{
    FILE *file = fopen(fleet_path, "rb");
    unsigned char *data;
    long size;

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size = ftell(file);
    rewind(file);
    data = malloc((size_t)size);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)size, file), size);
    fclose(file);
    *size_out = (size_t)size;
    return data;
}

static void spill(const unsigned char *data, size_t size)
{
    FILE *file = fopen(fleet_path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void test_no_token_is_written(void **state)
{
    struct fleet f;
    unsigned char *data;
    size_t size;

    (void)state;
    record(&f, false);
    fleet_stop(&f);
    data = slurp(&size);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint32_t tokens[TOKENS];

        fleet_tokens(i, tokens);
        for (uint32_t t = 0; t < TOKENS; t += 7)
            assert_null(memmem(data, size, &tokens[t], sizeof(tokens[t])));
    }
    free(data);
}

static void test_every_cut_is_said(void **state)
{
    static struct bt_replay_result result;
    struct bt_replay_options options = {0};
    struct fleet f;
    unsigned char *data;
    size_t size;

    (void)state;
    record(&f, true);
    fleet_stop(&f);
    data = slurp(&size);
    for (size_t cut = 0; cut < size; cut += 97) {
        char error[256] = "";
        enum bt_status status;

        spill(data, cut);
        status =
            bt_replay_run(fleet_path, &options, &result, error, sizeof(error));
        if (status == BT_OK) {
            assert_false(result.whole);
            assert_true(result.verified);
            assert_true(strstr(result.cut, "byte ") == result.cut);
        } else {
            assert_true(status == BT_INVALID || status == BT_TRUNCATED ||
                        status == BT_INCOMPATIBLE);
            assert_true(error[0] != '\0');
        }
    }
    free(data);
}

static void test_flipped_bits_are_found(void **state)
{
    static struct bt_replay_result result;
    struct bt_replay_options options = {0};
    struct fleet f;
    unsigned char *data;
    size_t size;

    (void)state;
    record(&f, true);
    fleet_stop(&f);
    data = slurp(&size);
    for (size_t at = 0; at < size; at += 61) {
        char error[256] = "";
        enum bt_status status;

        data[at] ^= 0x10;
        spill(data, size);
        data[at] ^= 0x10;
        status =
            bt_replay_run(fleet_path, &options, &result, error, sizeof(error));
        assert_true(status != BT_OK || !result.whole);
    }
    free(data);
}

static void test_full_file_ends_in_order(void **state)
{
    static struct bt_replay_result result;
    struct fleet f = {0};
    struct bt_event tick = {.type = BT_EV_TICK};
    enum bt_status status = BT_OK;

    (void)state;
    fleet_start(&f, false);
    assert_int_equal(bt_journal_close(f.writer), BT_OK);
    assert_int_equal(
        bt_journal_create(fleet_path, &f.config, NULL, 4096, &f.writer), BT_OK);
    for (int i = 0; i < 1000 && status == BT_OK; i++) {
        f.effects.count = 0;
        status = bt_journal_event(f.writer, f.core, &tick, &f.effects);
    }
    assert_int_equal(status, BT_LIMIT);
    status = bt_journal_event(f.writer, f.core, &tick, &f.effects);
    assert_int_equal(status, BT_OK);
    assert_int_equal(bt_journal_left_out(f.writer), 2);
    fleet_stop(&f);
    fleet_replay(NULL, &result);
    assert_true(result.whole);
    assert_true(result.events > 10);
}

/* A disk that takes no more: said once, the rest is counted, and what is on it
 * reads up to its last whole record. */
static void test_failed_write_ends_it(void **state)
{
    static struct bt_replay_result result;
    struct fleet f = {0};
    struct bt_event tick = {.type = BT_EV_TICK};
    struct rlimit before, small;
    int failures = 0;

    (void)state;
    fleet_start(&f, false);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 20000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 2000; i++) {
        enum bt_status status;

        f.now += BT_NS_PER_MS;
        tick.now_ns = f.now;
        f.effects.count = 0;
        (void)bt_core_step(f.core, &tick, &f.effects);
        status = bt_journal_event(f.writer, f.core, &tick, &f.effects);
        failures += status != BT_OK;
        assert_true(status == BT_OK || status == BT_IO);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(failures, 1);
    assert_true(bt_journal_left_out(f.writer) > 1000);
    assert_int_equal(bt_journal_close(f.writer), BT_IO);
    f.writer = NULL;
    fleet_stop(&f);
    fleet_replay(NULL, &result);
    assert_false(result.whole);
    assert_true(result.verified);
    assert_true(result.events > 300);
}

static void test_other_files_are_refused(void **state)
{
    static struct bt_replay_result result;
    struct bt_replay_options options = {0};
    char error[256];

    (void)state;
    spill((const unsigned char *)"{\"not\": \"a journal\"}\n", 21);
    assert_int_equal(
        bt_replay_run(fleet_path, &options, &result, error, sizeof(error)),
        BT_INVALID);
    assert_non_null(strstr(error, "not a baton journal"));
    assert_int_equal(bt_replay_run("/nonexistent/x", &options, &result, error,
                                   sizeof(error)),
                     BT_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configuration_comes_back),
        cmocka_unit_test(test_every_setting_comes_back),
        cmocka_unit_test(test_replay_repeats_the_effects),
        cmocka_unit_test(test_every_kind_of_store_is_repeated),
        cmocka_unit_test(test_groups_of_one_hash),
        cmocka_unit_test(test_no_token_is_written),
        cmocka_unit_test(test_every_cut_is_said),
        cmocka_unit_test(test_flipped_bits_are_found),
        cmocka_unit_test(test_full_file_ends_in_order),
        cmocka_unit_test(test_failed_write_ends_it),
        cmocka_unit_test(test_other_files_are_refused),
    };

    return cmocka_run_group_tests(tests, fleet_file_make, fleet_file_drop);
}
