/* Control frames of the KV protocol, and both ends that hear them. A frame that
 * decodes is the only way to write what it says. A source with a key asks its
 * owner nothing, whatever a peer without it says; one without a key balances
 * every yes with one `left`. A sink's pull ends once, well only with the right
 * bytes.
 *
 * Input: a byte of mode (bit 0: with a key, bit 1: a sink is talked to), then
 * frames: u16 length, bytes. A WELCOME without a key gets a good one. */
#include "baton/transfer/runs.h"
#include "fabric.h"
#include "fuzz.h"
#include "transport_open.h"

#include <ev.h>
#include <string.h>

#define BLOCKS     8u
#define BYTES      64u
#define FRAMES_MAX 64
#define TURNS      6

static struct {
    struct ev_loop *loop;
    struct bt_fabric *fabric;
    struct bt_transport *liar;
    struct bt_tlisten *listener;
    struct bt_tmem *mem;
    struct bt_tconn *conn;
    uint16_t port;
    unsigned char from[BLOCKS * BYTES], to[BLOCKS * BYTES];
    uint64_t asked, agreed, left, ends, well;
    enum bt_status status;
} bed;

static struct {
    uint64_t inputs, decoded, agreed, ended, well;
} seen;

static const uint8_t key[32] = {7};
static const struct bt_kv_layout layout = {1, 16, BYTES, 0xFEED};

/* ---- one frame ---- */

static void frame_check(const uint8_t *bytes, size_t size)
{
    static uint64_t words[BT_WIRE_OPEN_PART];
    static uint32_t blocks[BT_WIRE_GRANT_PART];
    static uint8_t again[BT_WIRE_FRAME_MAX + BT_WIRE_TAIL];
    struct bt_wire_frame f;
    size_t used = 0;

    if (bt_wire_decode(bytes, size, &f) != BT_OK)
        return;
    FUZZ_CHECK(f.count <= BT_WIRE_OPEN_PART && f.total <= BT_WIRE_LIST_MAX);
    FUZZ_CHECK(f.offset <= f.total && f.count <= f.total - f.offset);
    FUZZ_CHECK(f.rail_count < BT_RAILS_MAX && f.key_size <= BT_WIRE_KEY_MAX);
    for (uint32_t i = 0; i < f.count; i++) {
        if (f.type == BT_WIRE_OPEN) {
            words[i] = bt_wire_ref(&f, i);
            continue;
        }
        FUZZ_CHECK(f.count <= BT_WIRE_GRANT_PART);
        blocks[i] = bt_wire_block(&f, i);
        words[i] = bt_wire_hash(&f, i);
    }
    f.refs = f.hashes = words;
    f.blocks = blocks;
    FUZZ_CHECK(bt_wire_encode(&f, again, sizeof(again), &used) == BT_OK);
    FUZZ_CHECK(used == size && memcmp(again, bytes, size) == 0);
    seen.decoded++;
}

/* ---- the liar's end ---- */

static void on_liar_frame(void *arg, const void *bytes, size_t size)
{
    (void)arg;
    FUZZ_CHECK(bytes != NULL && size <= BT_WIRE_FRAME_MAX);
}

static void on_liar_failed(void *arg, enum bt_status status)
{
    (void)arg;
    (void)status;
    bed.liar->ops->close(bed.conn);
}

static void on_liar_closed(void *arg)
{
    (void)arg;
    bed.conn = NULL;
}

static void on_accept(void *arg, struct bt_tconn *conn)
{
    static const struct bt_tconn_events events = {on_liar_frame, on_liar_failed,
                                                  on_liar_closed};

    (void)arg;
    if (bed.conn != NULL)
        return; /* one at a time */
    bed.conn = conn;
    conn->events = &events;
    bed.liar->ops->allow(conn);
}

static void turn(void)
{
    for (int i = 0; i < TURNS; i++)
        ev_run(bed.loop, EVRUN_NOWAIT);
}

/* WELCOME as it came, or with the key of memory that is there. */
static bool welcome(const uint8_t *bytes, size_t size)
{
    uint8_t out[2048];
    struct bt_wire_frame f;
    size_t used = 0;

    if (bt_wire_decode(bytes, size, &f) != BT_OK || f.type != BT_WIRE_WELCOME ||
        f.key_size > 0 || bed.mem == NULL)
        return false;
    FUZZ_CHECK(bed.liar->ops->key_pack(bed.liar, bed.mem, f.key, sizeof(f.key),
                                       &f.key_size) == BT_OK);
    f.region = (uintptr_t)bed.from;
    FUZZ_CHECK(bt_wire_encode(&f, out, sizeof(out), &used) == BT_OK);
    bed.liar->ops->send(bed.conn, out, used);
    return true;
}

static void talk(const uint8_t *data, size_t size)
{
    for (int i = 0; i < FRAMES_MAX && size > 2; i++) {
        size_t bytes = data[0] | (size_t)data[1] << 8;

        data += 2;
        size -= 2;
        if (bytes > size)
            bytes = size;
        frame_check(data, bytes);
        if (bed.conn != NULL && bytes > 0 && !welcome(data, bytes))
            bed.liar->ops->send(bed.conn, data, bytes);
        turn();
        data += bytes;
        size -= bytes;
    }
}

/* ---- the end under test ---- */

static enum bt_status on_check(void *arg, const struct bt_kv_ask *ask)
{
    (void)arg;
    bed.asked++;
    FUZZ_CHECK(ask->count > 0 && ask->count <= BT_WIRE_LIST_MAX);
    for (size_t i = 0; i < ask->count; i++)
        FUZZ_CHECK(ask->refs[i] < BLOCKS && ask->blocks_out[i] < BLOCKS);
    if (ask->refs[0] == 7)
        return BT_NOT_FOUND;
    bed.agreed++;
    return BT_OK;
}

static void on_left(void *arg, const char *request)
{
    (void)arg;
    FUZZ_CHECK(strlen(request) <= BT_KV_REQUEST_MAX);
    bed.left++;
}

static void on_request(void *arg, const char *request)
{
    (void)arg;
    FUZZ_CHECK(strlen(request) <= BT_KV_REQUEST_MAX);
}

static void on_end(void *arg, const struct bt_kv_pull_end *end)
{
    (void)arg;
    bed.ends++;
    bed.status = end->status;
    FUZZ_CHECK(strlen(end->detail) < 256);
}

static void open_bed(bool keyed)
{
    const struct bt_fabric_config config = {.kind = "sim",
                                            .key = keyed ? key : NULL};
    char error[160];

    memset(&bed, 0, sizeof(bed));
    bed.loop = ev_loop_new(EVFLAG_AUTO);
    FUZZ_CHECK(bed.loop != NULL);
    for (size_t i = 0; i < sizeof(bed.from); i++)
        bed.from[i] = (unsigned char)(i * 31 + 1);
    FUZZ_CHECK(bt_fabric_create(bed.loop, &config, &bed.fabric, error,
                                sizeof(error)) == BT_OK);
    FUZZ_CHECK(bt_transport_sim_open(bed.loop, NULL, &bed.liar, error,
                                     sizeof(error)) == BT_OK);
}

static void close_bed(void)
{
    bt_fabric_destroy(bed.fabric);
    for (int i = 0; i < 100 && bed.conn != NULL; i++) {
        bed.liar->ops->close(bed.conn);
        turn();
    }
    FUZZ_CHECK(bed.conn == NULL);
    if (bed.listener != NULL)
        bed.liar->ops->unlisten(bed.listener);
    if (bed.mem != NULL)
        bed.liar->ops->unmap(bed.liar, bed.mem);
    bed.liar->ops->destroy(bed.liar);
    ev_loop_destroy(bed.loop);
}

static void to_source(const uint8_t *data, size_t size, bool keyed)
{
    struct bt_kv_source_config config = {.name = "p0",
                                         .address = "127.0.0.1",
                                         .layout = layout,
                                         .region = bed.from,
                                         .block_count = BLOCKS,
                                         .check = on_check,
                                         .released = on_request,
                                         .renewed = on_request,
                                         .left = on_left};
    struct bt_kv_source *source = NULL;
    struct sockaddr_storage at;
    struct bt_tconn *conn = NULL;
    socklen_t at_size = 0;
    char error[160];

    FUZZ_CHECK(bt_kv_source_start(bed.fabric, &config, &source, error,
                                  sizeof(error)) == BT_OK);
    FUZZ_CHECK(bt_fabric_address("127.0.0.1", bt_kv_source_port(source), &at,
                                 &at_size) == BT_OK);
    FUZZ_CHECK(bed.liar->ops->connect(bed.liar, (struct sockaddr *)&at, at_size,
                                      &conn) == BT_OK);
    on_accept(NULL, conn);
    talk(data, size);
    bt_kv_source_stop(source);
    FUZZ_CHECK(bed.left == bed.agreed);
    FUZZ_CHECK(!keyed || bed.asked == 0);
    seen.agreed += bed.agreed;
}

static void to_sink(const uint8_t *data, size_t size, bool keyed)
{
    const struct bt_kv_sink_config config = {.name = "d0",
                                             .layout = layout,
                                             .region = bed.to,
                                             .block_count = BLOCKS};
    const uint64_t remote[] = {1, 2, 5};
    const uint32_t local[] = {0, 1, 2};
    struct bt_kv_pull_spec spec = {.host = "127.0.0.1",
                                   .request_id = "r",
                                   .remote = remote,
                                   .local = local,
                                   .count = 3,
                                   .deadline_ns = 60000000000};
    struct bt_kv_sink *sink = NULL;
    struct sockaddr_storage at;
    socklen_t at_size = 0;

    FUZZ_CHECK(bt_fabric_address("127.0.0.1", 0, &at, &at_size) == BT_OK);
    FUZZ_CHECK(bed.liar->ops->listen(bed.liar, (struct sockaddr *)&at, at_size,
                                     on_accept, NULL, &spec.port,
                                     &bed.listener) == BT_OK);
    FUZZ_CHECK(bed.liar->ops->map(bed.liar, bed.from, sizeof(bed.from),
                                  &bed.mem) == BT_OK);
    FUZZ_CHECK(bt_kv_sink_create(bed.fabric, &config, &sink) == BT_OK);
    FUZZ_CHECK(bt_kv_pull_start(sink, &spec, on_end, NULL, NULL) == BT_OK);
    turn();
    talk(data, size);
    turn();
    bt_kv_sink_destroy(sink);
    FUZZ_CHECK(bed.ends == 1);
    if (bed.status == BT_OK) {
        FUZZ_CHECK(!keyed);
        for (size_t i = 0; i < 3; i++)
            FUZZ_CHECK(memcmp(bed.to + local[i] * BYTES,
                              bed.from + remote[i] * BYTES, BYTES) == 0);
        bed.well++;
    }
    seen.ended++;
    seen.well += bed.well;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    seen.inputs++;
    frame_check(data, size);
    open_bed(data[0] & 1);
    if (data[0] & 2)
        to_sink(data + 1, size - 1, data[0] & 1);
    else
        to_source(data + 1, size - 1, data[0] & 1);
    close_bed();
    return 0;
}

/* ---- seeds ---- */

static uint8_t *seed_at;
static size_t seed_left;

static void seed_frame(const struct bt_wire_frame *f)
{
    size_t used = 0;

    FUZZ_CHECK(seed_left > 2);
    FUZZ_CHECK(bt_wire_encode(f, seed_at + 2, seed_left - 2, &used) == BT_OK);
    seed_at[0] = (uint8_t)used;
    seed_at[1] = (uint8_t)(used >> 8);
    seed_at += used + 2;
    seed_left -= used + 2;
}

/* One frame of each type a sink sends, in an order that is served. */
static void seed_sink(bool keyed)
{
    static const uint64_t refs[] = {1, 2, 5, 7};
    struct bt_wire_frame f = {.type = BT_WIRE_HELLO,
                              .name = "d0",
                              .region_name = "kv",
                              .layout = layout,
                              .session = 1,
                              .flags = keyed ? BT_WIRE_KEYED : 0};

    seed_frame(&f);
    if (keyed)
        seed_frame(&(struct bt_wire_frame){.type = BT_WIRE_PROVE});
    f = (struct bt_wire_frame){.type = BT_WIRE_OPEN,
                               .pull = 1,
                               .flags = BT_WIRE_CHECKSUMS,
                               .request = "r",
                               .total = 3,
                               .count = 2,
                               .refs = refs};
    seed_frame(&f);
    f.offset = 2;
    f.count = 1;
    f.refs = refs + 2;
    seed_frame(&f);
    seed_frame(&(struct bt_wire_frame){.type = BT_WIRE_PING, .token = 5});
    seed_frame(&(struct bt_wire_frame){.type = BT_WIRE_BEAT, .request = "r"});
    f = (struct bt_wire_frame){.type = BT_WIRE_DONE,
                               .pull = 1,
                               .flags = BT_WIRE_RELEASE,
                               .request = "r"};
    seed_frame(&f);
    f = (struct bt_wire_frame){.type = BT_WIRE_OPEN,
                               .pull = 2,
                               .request = "no",
                               .total = 1,
                               .count = 1,
                               .refs = refs + 3};
    seed_frame(&f);
}

static void seed_source(bool keyed)
{
    static const uint32_t blocks[] = {1, 2, 5};
    uint64_t hashes[3];
    unsigned char block[BYTES];
    struct bt_wire_frame f = {.type = BT_WIRE_CHALLENGE};

    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < BYTES; k++)
            block[k] = (unsigned char)((blocks[i] * BYTES + k) * 31 + 1);
        hashes[i] = bt_block_checksum(block, BYTES);
    }
    if (keyed)
        seed_frame(&f);
    f = (struct bt_wire_frame){.type = BT_WIRE_WELCOME,
                               .name = "p0",
                               .layout = layout,
                               .session = 9,
                               .block_count = BLOCKS,
                               .rail_count = 1,
                               .rails = {{"127.0.0.2", 9}}};
    seed_frame(&f);
    f = (struct bt_wire_frame){.type = BT_WIRE_GRANT,
                               .pull = 1,
                               .total = 3,
                               .count = 2,
                               .blocks = blocks,
                               .hashes = hashes};
    seed_frame(&f);
    f.offset = 2;
    f.count = 1;
    f.blocks = blocks + 2;
    f.hashes = hashes + 2;
    seed_frame(&f);
    seed_frame(&(struct bt_wire_frame){.type = BT_WIRE_PONG, .token = 1});
    f = (struct bt_wire_frame){
        .type = BT_WIRE_NO, .pull = 1, .status = BT_NOT_FOUND, .text = "gone"};
    seed_frame(&f);
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t max)
{
    if (index >= 4 || max < 2048)
        return 0;
    out[0] = (uint8_t)index;
    seed_at = out + 1;
    seed_left = max - 1;
    if (index & 2)
        seed_source(index & 1);
    else
        seed_sink(index & 1);
    return max - seed_left;
}

void fuzz_report(void)
{
    printf("inputs %llu, frames that decode %llu, asks agreed to %llu, pulls "
           "ended %llu, of them well %llu\n",
           (unsigned long long)seen.inputs, (unsigned long long)seen.decoded,
           (unsigned long long)seen.agreed, (unsigned long long)seen.ended,
           (unsigned long long)seen.well);
}
