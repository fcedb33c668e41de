/* `baton index` and holes that no replay can fill: a stream does not stay
 * degraded for good, and what may be gone is not believed in. */
#include "event_bed.h"

#include "baton/orchestrator/index_service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* One block of two tokens on the device: 7 of 1, 2; 8 of 3, 4; 9 of 5, 6. */
#define STORE(hash, tokens)                                                    \
    "93cb3ff00000000000009195ab426c6f636b53746f72656491" hash "c092" tokens    \
    "0200"
#define ONE   STORE("07", "0102")
#define TWO   STORE("08", "0304")
#define THREE STORE("09", "0506")

static struct bt_index_service *service;

static void start(void)
{
    struct bt_index_service_config config;
    char error[256] = "";

    bt_index_service_config_init(&config);
    config.port = 0;
    config.blocks_max = 1024;
    config.holdings_max = 2048;
    config.workers_max = 8;
    config.idle_check_ns = 0; /* only the events tell */
    if (bt_index_service_create(bed.loop, &config, &service, error,
                                sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    bt_index_service_begin(service);
}

static void post(const char *path, const char *body, int status,
                 const char *want)
{
    struct bed_client c;

    bed_connect(&bed, &c, bt_index_service_port(service));
    bed_post(&c, path, body);
    assert_int_equal(bed_answer(&c), status);
    if (strstr(bed_body(&c), want) == NULL)
        fail_msg("no %s in %s", want, bed_body(&c));
    bed_close(&c);
}

static void enroll(void)
{
    char body[512];

    snprintf(body, sizeof(body),
             "{\"instance_id\":\"i0\",\"model_name\":\"m\",\"block_size\":2,"
             "\"endpoint\":\"%s\",\"replay_endpoint\":\"%s\"}",
             engine.events, engine.replay);
    post("/register", body, 201, "ok");
}

static void ask(const char *tokens, const char *want)
{
    char body[128];

    snprintf(body, sizeof(body), "{\"model_name\":\"m\",\"token_ids\":%s}",
             tokens);
    post("/query", body, 200, want);
}

static bool is_shown(void *arg)
{
    static char out[65536];

    bed_get(&bed, bt_index_service_port(service), "/workers", out, sizeof(out));
    return strstr(out, arg) != NULL;
}

static void until(const char *shown)
{
    bed_until(&bed, is_shown, (void *)(uintptr_t)shown, shown);
}

/* Field failure C03: the buffer begins behind the hole. */
static void hole_beyond_the_buffer(void **state)
{
    (void)state;
    event_bed_open(true);
    start();
    enroll();
    until_subscribed();
    publish(ONE);
    until("\"state\":\"exact\"");
    until("\"blocks\":1,");
    ask("[1,2]", "\"gpu\":2,");
    remember(TWO); /* lost, and then out of the buffer */
    engine.first = 2;
    publish(THREE);
    until("\"state\":\"partial\",\"cause\":\"joined_late\"");
    ask("[1,2]", "\"gpu\":0,"); /* it may have been removed in the hole */
    ask("[5,6]", "\"gpu\":2,");
    assert_int_equal(engine.asked, 3); /* at first, the hole, anew */
    publish(ONE);
    until("\"blocks\":2,");
    ask("[1,2]", "\"gpu\":2,");
    bt_index_service_destroy(service);
    event_bed_finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hole_beyond_the_buffer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
