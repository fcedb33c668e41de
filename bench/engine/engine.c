/* Life of an engine: checks the configuration, opens everything in order,
 * closes it in reverse, and turns wake-ups into work.
 *
 * All work that is due is done in one place, on_kick: reap what is over,
 * advance the device, publish events. Whoever creates such work feeds the kick
 * watcher; libev runs it in the same turn.
 */
#include "engine_priv.h"

#include "baton/planner/block_hash.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

int64_t bt_engine_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void bt_engine_kick(struct bt_engine *e)
{
    ev_feed_event(e->loop, &e->kick, EV_CUSTOM);
}

static void on_kick(struct ev_loop *loop, ev_idle *w, int revents)
{
    struct bt_engine *e = w->data;
    (void)loop;
    (void)revents;
    bt_call_reap(e);
    bt_engine_advance(e);
    if (e->events != NULL) {
        bt_events_flush(e->events);
    }
}

static void on_timer(struct ev_loop *loop, ev_io *w, int revents)
{
    struct bt_engine *e = w->data;
    uint64_t expirations;
    (void)loop;
    (void)revents;
    if (read(e->timer_fd, &expirations, sizeof(expirations)) > 0) {
        bt_engine_kick(e);
    }
}

static void on_evict(void *arg, uint32_t block, uint64_t key)
{
    struct bt_engine *e = arg;
    (void)key;
    if (e->events != NULL) {
        bt_events_removed(e->events, e->names.handles[block]);
    }
}

/* ---- configuration ---- */

void bt_engine_config_init(struct bt_engine_config *config)
{
    memset(config, 0, sizeof(*config));
    config->name = "engine";
    config->role = BT_ENGINE_BOTH;
    config->address = "127.0.0.1";
    config->model = "demo";
    config->compute.prefill_b_ms = 0.02;
    config->compute.decode_a_ms = 6.0;
    config->compute.speedup = 1.0;
    (void)bt_compute_preset("h100-8b-tp1", &config->compute);
    config->block_tokens = BT_ORACLE_BLOCK;
    config->block_count = 4096;
    config->seqs_max = 256;
    config->kv_bytes_per_token = BT_ORACLE_KV_BYTES;
    config->layers = BT_ORACLE_LAYERS;
    config->kv_layout_version = 1;
    config->lease_ns = 30000000000LL;
    config->pull_timeout_ns = 30000000000LL;
    config->events = true;
    config->event_form = BT_ENGINE_EVENTS_MAP;
    config->events_endpoint = "tcp://127.0.0.1:*";
    config->replay_endpoint = "tcp://127.0.0.1:*";
    config->event_buffer = 10000;
}

static bool good_name(const char *name, size_t size)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i];
        if (!isalnum(c) && strchr("._-", c) == NULL) {
            return false;
        }
    }
    return n > 0 && n < size;
}

/* Models are paths at times; what needs escaping in JSON or a label is out. */
static bool good_model(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c < 0x20 || c == '"' || c == '\\' || c >= 0x7f) {
            return false;
        }
    }
    return n > 0 && n < BT_ENGINE_NAME_MAX;
}

static const char *check_hash(const struct bt_engine_config *c)
{
    if (c->event_hash == BT_ENGINE_HASH_NONE) {
        return NULL;
    }
    if (c->event_hash_bytes) {
        return "event-hash: real hashes are announced as integers";
    }
    if (c->event_hash_seed == NULL || c->event_hash_seed[0] == '\0') {
        return "event-hash: a real hash needs a seed, such as sha256_cbor:0";
    }
    return NULL;
}

static const char *check(const struct bt_engine_config *c)
{
    if (!good_name(c->name, BT_KV_NAME_MAX)) {
        return "name: 1 to 63 of [A-Za-z0-9._-]";
    }
    for (size_t i = 0; i < c->adapter_count; i++) {
        if (i >= BT_ENGINE_ADAPTERS_MAX || !good_model(c->adapters[i])) {
            return "adapter: at most 64 plain names of at most 127 bytes";
        }
    }
    if (!good_model(c->model)) {
        return "model: a plain name of at most 127 bytes";
    }
    if (c->block_count == 0 || c->block_count > 1u << 24) {
        return "num-gpu-blocks: 1 to 16777216";
    }
    if (c->seqs_max == 0) {
        return "max-num-seqs: at least 1";
    }
    if (!(c->compute.speedup > 0)) {
        return "speedup: more than 0";
    }
    if (c->lease_ns < 1000000 || c->pull_timeout_ns < 1000000) {
        return "lease and pull timeout: at least 1 ms";
    }
    if (c->event_buffer > 1000000) {
        return "event-buffer: at most 1000000";
    }
    return check_hash(c);
}

static void random_id(char *out, size_t size, uint64_t *entropy)
{
    uint64_t r[3] = {0};
    if (getrandom(r, sizeof(r), GRND_NONBLOCK) != (ssize_t)sizeof(r)) {
        r[0] = bt_mix64((uint64_t)bt_engine_now());
        r[1] = bt_mix64(r[0] ^ (uint64_t)getpid());
        r[2] = bt_mix64(r[1]);
    }
    *entropy = r[2];
    snprintf(out, size, "%08x-%04x-4%03x-%04x-%012llx", (unsigned)(r[0] >> 32),
             (unsigned)(r[0] >> 16 & 0xffff), (unsigned)(r[0] & 0xfff),
             (unsigned)(0x8000 | (r[1] >> 48 & 0x3fff)),
             (unsigned long long)(r[1] & 0xffffffffffffULL));
}

static void copy_config(struct bt_engine *e, const struct bt_engine_config *c)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    e->start_time_s = (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
    snprintf(e->name, sizeof(e->name), "%s", c->name);
    snprintf(e->address, sizeof(e->address), "%s", c->address);
    snprintf(e->model, sizeof(e->model), "%s", c->model);
    for (size_t i = 0; i < c->adapter_count; i++) {
        snprintf(e->adapters[i], sizeof(e->adapters[i]), "%s", c->adapters[i]);
    }
    e->adapter_count = c->adapter_count;
    e->role = c->role;
    e->seqs_max = c->seqs_max;
    e->lease_ns = c->lease_ns;
    e->pull_timeout_ns = c->pull_timeout_ns;
    e->recompute = c->recompute;
    e->stream_eager = c->stream_eager;
    bt_oracle_init(&e->oracle, c->model, c->seed, BT_NS_PLAIN);
    e->oracle.block_tokens = c->block_tokens;
    e->oracle.kv_bytes_per_token = c->kv_bytes_per_token;
    e->oracle.layers = c->layers;
    e->block_bytes = bt_oracle_block_bytes(&e->oracle);
    uint64_t pool = (uint64_t)c->block_count * c->block_tokens;
    e->model_len_max = c->model_len_max > 0 ? c->model_len_max : 131072;
    if (e->model_len_max > pool) {
        e->model_len_max = (uint32_t)pool;
    }
}

/* ---- start ---- */

static enum bt_status start_pool(struct bt_engine *e,
                                 const struct bt_engine_config *c,
                                 uint64_t entropy)
{
    enum bt_status status = bt_pool_init(&e->pool, c->block_count, on_evict, e);
    if (status == BT_OK) {
        status = bt_block_names_init(&e->names, c->block_count, c->event_hash,
                                     c->event_hash_seed, entropy);
    }
    if (status != BT_OK) {
        return status;
    }
    e->region_bytes = e->block_bytes * c->block_count;
    void *region = mmap(NULL, e->region_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) {
        return BT_NO_MEMORY;
    }
    e->region = region;
    return BT_OK;
}

static enum bt_status start_timer(struct bt_engine *e)
{
    e->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (e->timer_fd < 0) {
        snprintf(e->error, sizeof(e->error), "timerfd: %s", strerror(errno));
        return BT_IO;
    }
    ev_io_init(&e->timer_io, on_timer, e->timer_fd, EV_READ);
    e->timer_io.data = e;
    ev_io_start(e->loop, &e->timer_io);
    return BT_OK;
}

static enum bt_status start_events(struct bt_engine *e,
                                   const struct bt_engine_config *c,
                                   uint64_t entropy)
{
    bool connect = c->events_connect != NULL;
    struct bt_events_config events = {
        .form = c->event_form,
        .hash_bytes = c->event_hash_bytes,
        .connect = connect,
        .endpoint = connect ? c->events_connect : c->events_endpoint,
        .replay_endpoint = c->replay_endpoint,
        .replay_bare = c->replay_bare,
        .topic = c->events_topic != NULL ? c->events_topic : "kv-events",
        .buffer = c->event_buffer,
        .seed = entropy,
    };
    if (!c->events) {
        return BT_OK;
    }
    return bt_events_create(e->loop, &events, &e->events, e->error,
                            sizeof(e->error));
}

/* Many engines share the socket that they connect to: the topic says whose a
 * batch is. The port is known only now. */
static enum bt_status name_stream(struct bt_engine *e,
                                  const struct bt_engine_config *c)
{
    char topic[384];
    bool v6 = strchr(e->address, ':') != NULL;
    if (e->events == NULL || c->events_connect == NULL ||
        c->events_topic != NULL) {
        return BT_OK;
    }
    snprintf(topic, sizeof(topic), "kv@%s%s%s:%u@%s", v6 ? "[" : "", e->address,
             v6 ? "]" : "", bt_httpd_port(e->httpd), e->model);
    enum bt_status status = bt_events_topic(e->events, topic);
    if (status != BT_OK) {
        snprintf(e->error, sizeof(e->error),
                 "the topic is too long, give one with --events-topic");
    }
    return status;
}

static enum bt_status start_faults(struct bt_engine *e,
                                   const struct bt_engine_config *c)
{
    for (size_t i = 0; i < c->fault_count; i++) {
        enum bt_status status = bt_engine_fault(e, c->faults[i]);
        if (status != BT_OK) {
            snprintf(e->error, sizeof(e->error), "fault '%.80s': %s",
                     c->faults[i], bt_status_text(status));
            return status;
        }
    }
    return BT_OK;
}

static enum bt_status start_all(struct bt_engine *e,
                                const struct bt_engine_config *c)
{
    uint64_t entropy = 0;
    random_id(e->id, sizeof(e->id), &entropy);
    enum bt_status status = start_pool(e, c, entropy);
    if (status == BT_OK) {
        status = start_timer(e);
    }
    if (status == BT_OK) {
        status = start_events(e, c, entropy);
    }
    if (status == BT_OK) {
        status = bt_handoff_start(e, c, e->error, sizeof(e->error));
    }
    if (status == BT_OK) {
        status = start_faults(e, c);
    }
    if (status == BT_OK) {
        struct bt_httpd_limits limits = {.connections_max = 8192};
        status =
            bt_httpd_start(e->loop, e->address, c->port, &limits, bt_api_handle,
                           e, &e->httpd, e->error, sizeof(e->error));
    }
    if (status == BT_OK) {
        status = name_stream(e, c);
    }
    return status;
}

enum bt_status bt_engine_create(struct ev_loop *loop,
                                const struct bt_engine_config *config,
                                struct bt_engine **out, char *error_out,
                                size_t error_size)
{
    const char *fault = check(config);
    if (fault != NULL) {
        snprintf(error_out, error_size, "%s", fault);
        return BT_INVALID;
    }
    struct bt_engine *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        snprintf(error_out, error_size, "no memory");
        return BT_NO_MEMORY;
    }
    e->loop = loop;
    e->timer_fd = -1;
    ev_idle_init(&e->kick, on_kick);
    e->kick.data = e;
    copy_config(e, config);
    bt_sched_init(&e->sched, &config->compute);
    enum bt_status status = BT_INVALID;
    if (!bt_oracle_valid(&e->oracle)) {
        snprintf(e->error, sizeof(e->error),
                 "block-size 1 to 4096; kv-bytes-per-token / layers: a "
                 "multiple of 8");
    } else {
        status = start_all(e, config);
    }
    if (status != BT_OK) {
        snprintf(error_out, error_size, "%s",
                 e->error[0] != '\0' ? e->error : bt_status_text(status));
        bt_engine_destroy(e);
        return status;
    }
    *out = e;
    return BT_OK;
}

/* ---- end ---- */

void bt_engine_destroy(struct bt_engine *e)
{
    if (e == NULL) {
        return;
    }
    e->stopping = true;
    if (e->httpd != NULL) {
        bt_httpd_stop(e->httpd); /* every call goes on the reap list */
    }
    bt_call_reap(e);
    bt_handoff_stop(e); /* ends the pulls of orphans */
    bt_events_destroy(e->events);
    if (e->timer_fd >= 0) {
        ev_io_stop(e->loop, &e->timer_io);
        close(e->timer_fd);
    }
    ev_clear_pending(e->loop, &e->kick);
    if (e->region != NULL) {
        munmap(e->region, e->region_bytes);
    }
    bt_block_names_fini(&e->names);
    bt_pool_fini(&e->pool);
    free(e);
}

/* ---- what others may know ---- */

uint16_t bt_engine_http_port(const struct bt_engine *e)
{
    return bt_httpd_port(e->httpd);
}

uint16_t bt_engine_kv_port(const struct bt_engine *e)
{
    return bt_agent_port(e->agent);
}

const char *bt_engine_events_endpoint(const struct bt_engine *e)
{
    return e->events == NULL ? "" : bt_events_endpoint(e->events);
}

const char *bt_engine_replay_endpoint(const struct bt_engine *e)
{
    return e->events == NULL ? "" : bt_events_replay_endpoint(e->events);
}

const char *bt_engine_id(const struct bt_engine *e)
{
    return e->id;
}
