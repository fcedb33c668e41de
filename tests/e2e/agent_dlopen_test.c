/* libbaton_agent.so.1 as a stranger uses it: dlopen, one symbol, the table. The
 * program is not linked with any part of baton. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "baton/transfer/agent.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS  64u
#define BYTES   65536u
#define WAIT_MS 20000

static const char *library;

static const struct bt_agent_table *load(void **handle)
{
    const struct bt_agent_table *(*api)(uint32_t) = NULL;

    *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (*handle == NULL)
        fail_msg("%s", dlerror());
    void *symbol = dlsym(*handle, "bt_agent_api");
    assert_non_null(symbol);
    memcpy(&api, &symbol, sizeof(api));
    assert_null(api(BT_AGENT_API_VERSION + 1));
    const struct bt_agent_table *t = api(BT_AGENT_API_VERSION);
    assert_non_null(t);
    assert_int_equal(t->api_version, BT_AGENT_API_VERSION);
    assert_int_equal(t->size, sizeof(*t));
    return t;
}

static struct bt_agent *open_side(const struct bt_agent_table *t,
                                  const char *name, unsigned char *memory,
                                  uint32_t *region)
{
    const struct bt_agent_config c = {.api_version = BT_AGENT_API_VERSION,
                                      .name = name,
                                      .listen = "127.0.0.1",
                                      .checksums = true};
    const struct bt_agent_region r = {.name = "kv",
                                      .base = memory,
                                      .block_count = BLOCKS,
                                      .layout = {1, 16, BYTES, 9}};
    struct bt_agent *agent = NULL;
    char error[200] = "";

    if (t->open(&c, &agent, error, sizeof(error)) != BT_OK ||
        t->region(agent, &r, region, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    return agent;
}

static struct bt_agent_event next(const struct bt_agent_table *t,
                                  struct bt_agent *agent)
{
    struct pollfd p = {.fd = t->fd(agent), .events = POLLIN};
    struct bt_agent_event event;

    do { /* rails that come up are told, too */
        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
        assert_int_equal(t->progress(agent, &event, 1), 1);
    } while (event.kind == BT_AGENT_RAIL);
    return event;
}

static void registers_publishes_pulls(void **state)
{
    void *handle = NULL;
    const struct bt_agent_table *t = load(&handle);
    unsigned char *from = aligned_alloc(4096, (size_t)BLOCKS * BYTES);
    unsigned char *to = aligned_alloc(4096, (size_t)BLOCKS * BYTES);
    uint32_t region = 0, line[BLOCKS];
    uint64_t refs[BLOCKS], id = 0;

    (void)state;
    assert_non_null(from);
    assert_non_null(to);
    for (size_t i = 0; i < (size_t)BLOCKS * BYTES; i++)
        from[i] = (unsigned char)(i * 31 + i / 251);
    memset(to, 0, (size_t)BLOCKS * BYTES);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        line[i] = i;
        refs[i] = BLOCKS - 1 - i; /* the other way round */
    }
    struct bt_agent *a = open_side(t, "a", from, &region);
    struct bt_agent *b = open_side(t, "b", to, &region);
    const struct bt_agent_publication publication = {.request_id = "r",
                                                     .blocks = line,
                                                     .count = BLOCKS,
                                                     .lease_ns = 30000000000LL};
    assert_int_equal(t->publish(a, &publication), BT_OK);
    const struct bt_agent_pull pull = {.host = "127.0.0.1",
                                       .port = t->port(a),
                                       .request_id = "r",
                                       .remote = refs,
                                       .local = line,
                                       .count = BLOCKS,
                                       .deadline_ns = 20000000000LL};
    assert_int_equal(t->pull(b, &pull, &id), BT_OK);
    struct bt_agent_event event = next(t, b);
    assert_int_equal(event.kind, BT_AGENT_PULLED);
    assert_int_equal(event.id, id);
    if (event.status != BT_OK)
        fail_msg("pull: %s", event.detail);
    for (uint32_t i = 0; i < BLOCKS; i++)
        assert_memory_equal(to + (size_t)i * BYTES,
                            from + (size_t)refs[i] * BYTES, BYTES);
    assert_int_equal(next(t, a).kind, BT_AGENT_RELEASED);
    struct bt_agent_stats stats;
    t->stats(b, &stats);
    assert_int_equal(stats.bytes, (uint64_t)BLOCKS * BYTES);
    t->close(b);
    t->close(a);
    free(from);
    free(to);
    assert_null(dlsym(handle, "bt_agent_main")); /* insides stay inside */
    assert_null(dlsym(handle, "bt_fabric_create"));
    dlclose(handle);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registers_publishes_pulls),
    };

    if (argc < 2)
        return 2;
    library = argv[1];
    setenv("UCX_NET_DEVICES", "lo", 0); /* nothing leaves the machine */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
