/* `baton index` and Eagle blocks: queries are hashed as the instances' events
 * are, learned from them or told at the registration, and kept in snapshots.
 * Truth: vector G4 of engine-wire.md 1.14 and the windows of 2.4. */
#include "event_bed.h"

#include "baton/orchestrator/index_service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <unistd.h>

/* 124: Eagle, tokens [[1,2],[2,3]], host tier, blocks of 2. PLAIN: 7, tokens
 * 1, 2, device. */
#define G4                                                                     \
    "93cb3ff00000000000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f" \
    "686173686573917cb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964" \
    "7392920102920203aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756d" \
    "aa4350555f50494e4e454400"
#define PLAIN "93cb3ff00000000000009195ab426c6f636b53746f7265649107c09201020200"

#define TOLD ",\"is_eagle\":true"

static struct bt_index_service *service;
static char snapshot[64];
static unsigned int learned;

static void on_say(void *arg, int level, const char *word, const char *text)
{
    (void)arg;
    (void)level;
    (void)text;
    learned += strcmp(word, "kv_eagle") == 0;
}

static void start(const char *file)
{
    struct bt_index_service_config config;
    char error[256] = "";

    bt_index_service_config_init(&config);
    config.port = 0;
    config.blocks_max = 1024;
    config.holdings_max = 2048;
    config.workers_max = 8;
    config.snapshot = file;
    config.snapshot_interval_ns = 0;
    config.say = on_say;
    learned = 0;
    if (bt_index_service_create(bed.loop, &config, &service, error,
                                sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    bt_index_service_begin(service);
}

static void open_all(void)
{
    event_bed_open(true);
    start(NULL);
}

static void close_all(void)
{
    bt_index_service_destroy(service);
    event_bed_finish();
}

static int post(const char *path, const char *body, const char *want)
{
    struct bed_client c;
    int status;

    bed_connect(&bed, &c, bt_index_service_port(service));
    bed_post(&c, path, body);
    status = bed_answer(&c);
    if (want != NULL && strstr(bed_body(&c), want) == NULL)
        fail_msg("no %s in %s", want, bed_body(&c));
    bed_close(&c);
    return status;
}

static int enroll(const char *more)
{
    char body[512];

    snprintf(body, sizeof(body),
             "{\"instance_id\":\"i0\",\"model_name\":\"m\",\"block_size\":2,"
             "\"endpoint\":\"%s\",\"replay_endpoint\":\"%s\"%s}",
             engine.events, engine.replay, more);
    return post("/register", body, NULL);
}

static void ask(const char *tokens, const char *want)
{
    char body[128];

    snprintf(body, sizeof(body), "{\"model_name\":\"m\",\"token_ids\":%s}",
             tokens);
    assert_int_equal(post("/query", body, want), 200);
}

static unsigned int wanted;

static bool has_blocks(void *arg)
{
    static char out[65536];
    char row[64];

    (void)arg;
    snprintf(row, sizeof(row), "\"blocks\":%u,", wanted);
    bed_get(&bed, bt_index_service_port(service), "/workers", out, sizeof(out));
    return strstr(out, row) != NULL;
}

static void until_indexed(unsigned int blocks)
{
    wanted = blocks;
    bed_until(&bed, has_blocks, NULL, "blocks in the index");
}

/* ---- tests ---- */

static void the_shape_is_learned(void **state)
{
    (void)state;
    open_all();
    assert_int_equal(enroll(""), 201);
    until_subscribed();
    ask("[1,2,3]", "\"cpu\":0,");
    publish(G4);
    until_indexed(1);
    ask("[1,2,3]", "\"cpu\":2,");
    ask("[1,2]", "\"cpu\":0,"); /* no window */
    ask("[1,2,4]", "\"cpu\":0,");
    assert_int_equal(learned, 1);
    /* Both shapes in one scope: each is found as what it is. */
    publish(PLAIN);
    until_indexed(2);
    ask("[1,2]", "\"gpu\":2,");
    ask("[1,2,4]", "\"gpu\":2,");
    ask("[1,2,3]", "\"cpu\":2,");
    assert_int_equal(learned, 2);
    publish(G4);
    publish(PLAIN);
    publish(PLAIN);
    ask("[9,9,9]", "\"cpu\":0,");
    assert_int_equal(learned, 2);
    close_all();
}

static void the_shape_is_told(void **state)
{
    (void)state;
    open_all();
    assert_int_equal(enroll(",\"eagle\":\"yes\""), 400);
    assert_int_equal(enroll(TOLD), 201);
    until_subscribed();
    publish(G4);
    until_indexed(1);
    ask("[1,2,3]", "\"cpu\":2,");
    assert_int_equal(learned, 0);
    close_all();
}

/* What was learned outlives a restart: no event has to show it again. */
static void the_shape_is_kept(void **state)
{
    int fd;

    (void)state;
    snprintf(snapshot, sizeof(snapshot), "/tmp/baton-eagle-XXXXXX");
    fd = mkstemp(snapshot);
    assert_true(fd >= 0);
    close(fd);
    unlink(snapshot);
    event_bed_open(true);
    start(snapshot);
    assert_int_equal(enroll(""), 201);
    until_subscribed();
    publish(G4);
    until_indexed(1);
    assert_int_equal(bt_index_service_save(service), BT_OK);
    bt_index_service_destroy(service);
    start(snapshot);
    until_indexed(1);
    ask("[1,2,3]", "\"cpu\":2,");
    assert_int_equal(learned, 0);
    close_all();
    unlink(snapshot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shape_is_learned),
        cmocka_unit_test(the_shape_is_told),
        cmocka_unit_test(the_shape_is_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
