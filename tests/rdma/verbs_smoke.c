/* The verbs transport over real verbs (soft-RoCE in the guest): what a suite
 * that knows only transport.h cannot see: rails chosen and refused, credits,
 * gather lists and doorbells, rights before allow(), abrupt ends, locked
 * memory, port and device going away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "verbs_bed.h"

#include <cmocka.h>
#include <dirent.h>
#include <linux/capability.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1u << 20)

/* ---- rails ---- */

static enum bt_status try_rail(const struct bt_rail_config *rail, char *error)
{
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    struct bt_transport *transport = NULL;
    enum bt_status status =
        bt_transport_verbs_open(loop, rail, &transport, error, 160);

    if (status == BT_OK) {
        bt_verbs_describe(transport, error, 160);
        transport->ops->destroy(transport);
    }
    ev_loop_destroy(loop);
    return status;
}

static void assert_text(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", text, part);
}

/* Found by address, by device and by neither; soft-RoCE has GID 0 link-local
 * and GID 1 from the IPv4 address, only version 2 and one partition. */
static void test_rail_chosen(void **state)
{
    char text[160], device[64];
    struct bt_rail_config rail = {.address = bed_server_address()};

    (void)state;
    assert_int_equal(try_rail(&rail, text), BT_OK);
    print_message("%s\n", text);
    assert_text(text, "gid=1 roce_v2_ipv4");
    assert_text(text, bed_server_address());
    assert_text(text, "pkey=0xffff");
    snprintf(device, sizeof(device), "%.*s", (int)strcspn(text, ":"), text);
    rail = (struct bt_rail_config){.device = device};
    assert_int_equal(try_rail(&rail, text), BT_OK);
    assert_text(text, bed_server_address());
    snprintf(device + strlen(device), 8, ":1");
    rail.gid = "0";
    rail.mtu = 1024;
    rail.partition = 0xFFFF;
    rail.traffic_class = 0x68;
    assert_int_equal(try_rail(&rail, text), BT_OK);
    assert_text(text, "gid=0 link_local fe80:");
    assert_text(text, "mtu=1024 pkey=0xffff tc=104");
    rail = (struct bt_rail_config){.partition = 0x7FFF};
    assert_int_equal(try_rail(&rail, text), BT_OK);
}

static void test_rail_refused(void **state)
{
    const char *ours = bed_server_address();
    const struct {
        struct bt_rail_config rail;
        enum bt_status status;
        const char *text;
    } cases[] = {
        {{.device = "mlx5_77"}, BT_UNSUPPORTED, "mlx5_77"},
        {{.device = ":1"}, BT_INVALID, "DEVICE:PORT"},
        {{.device = "a:b"}, BT_INVALID, "DEVICE:PORT"},
        {{.address = "10.99.0.1"}, BT_UNSUPPORTED, "10.99.0.1"},
        {{.address = "host.example"}, BT_INVALID, "not an address"},
        {{.address = ours, .gid = "77"}, BT_INVALID, "has no GID 77"},
        {{.address = ours, .gid = "0"}, BT_INVALID, "GID 0"},
        {{.address = ours, .gid = ""}, BT_INVALID, "GID \"\""},
        {{.address = ours, .gid = "-1"}, BT_INVALID, "GID \"-1\""},
        {{.address = ours, .gid = "1 "}, BT_INVALID, "GID \"1 \""},
        {{.address = ours, .gid = "256"}, BT_INVALID, "GID \"256\""},
        {{.address = ours, .partition = 0x8123},
         BT_INVALID,
         "partition 0x8123"},
        {{.address = ours, .mtu = 1000}, BT_INVALID, "MTU 1000"},
        {{.address = ours, .mtu = 8192}, BT_INVALID, "MTU 8192"},
    };
    char text[160];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        text[0] = '\0';
        assert_int_equal(try_rail(&cases[i].rail, text), cases[i].status);
        assert_text(text, cases[i].text);
    }
}

/* ---- messages ---- */

/* A counter of the port, summed over all devices. */
static uint64_t port_counter(const char *name)
{
    DIR *dir = opendir("/sys/class/infiniband");
    struct dirent *d;
    uint64_t sum = 0;

    while (dir != NULL && (d = readdir(dir)) != NULL) {
        char path[400], line[32] = "";
        FILE *f;

        snprintf(path, sizeof(path),
                 "/sys/class/infiniband/%s/ports/1/hw_counters/%s", d->d_name,
                 name);
        f = fopen(path, "r");
        if (f == NULL)
            continue;
        if (fgets(line, sizeof(line), f) != NULL)
            sum += strtoull(line, NULL, 10);
        fclose(f);
    }
    if (dir != NULL)
        closedir(dir);
    return sum;
}

/* Frames of every size class both ways at once, ten times what the credits
 * cover: in order, whole, and the receiver was always ready. */
static void test_frames(void **state)
{
    static const size_t sizes[] = {1,    120,   121,   2000,  8184,
                                   8185, 16368, 30000, 65535, 65536};
    static unsigned char bytes[65536];
    uint64_t rnr = port_counter("send_rnr_err") + port_counter("rcvd_rnr_err");
    struct bed bed;
    uint64_t sum;

    (void)state;
    bed_join(&bed);
    bed.at_server.echo = true;
    sum = bed.at_client.sum;
    assert_int_equal(bed.at_server.sum, bed_mix(0, (const uint8_t *)"hi", 2));
    for (uint64_t i = 0; i < 320; i++) {
        size_t size = sizes[i % 10];

        bed_fill(bytes, size, i);
        sum = bed_mix(sum, bytes, size);
        bed.client->ops->send(bed.at_client.conn, bytes, size);
    }
    assert_false(bed.client->ops->sent(bed.at_client.conn));
    bed_until(&bed, &bed.at_client.frames, 321);
    assert_true(bed.at_client.sum == sum);
    while (!bed.client->ops->sent(bed.at_client.conn))
        ev_run(bed.loop, EVRUN_ONCE); /* the last acknowledgement */
    assert_int_equal(
        port_counter("send_rnr_err") + port_counter("rcvd_rnr_err"), rnr);
    assert_int_equal(bed.at_client.failed + bed.at_server.failed, 0);
    bed_close(&bed);
}

/* One way only: credits come back in messages of their own. */
static void test_frames_one_way(void **state)
{
    struct bed bed;

    (void)state;
    bed_join(&bed);
    for (int i = 0; i < 5000; i++)
        bed.client->ops->send(bed.at_client.conn, &i, sizeof(i));
    bed_until(&bed, &bed.at_server.frames, 5001);
    bed_close(&bed);
}

/* ---- gets and puts ---- */

struct region {
    unsigned char *from, *to;
    struct bt_tmem *from_mem, *to_mem;
    struct bt_tkey *key;
    size_t bytes;
};

static void region_make(struct bed *bed, struct region *r, size_t bytes)
{
    r->bytes = bytes;
    r->from = malloc(bytes);
    r->to = calloc(1, bytes);
    bed_fill(r->from, bytes, 5);
    assert_int_equal(
        bed->server->ops->map(bed->server, r->from, bytes, &r->from_mem),
        BT_OK);
    assert_int_equal(
        bed->client->ops->map(bed->client, r->to, bytes, &r->to_mem), BT_OK);
    r->key = bed_key(bed, r->from_mem);
}

static void region_free(struct bed *bed, struct region *r)
{
    bed->client->ops->key_close(r->key);
    bed->client->ops->unmap(bed->client, r->to_mem);
    bed->server->ops->unmap(bed->server, r->from_mem);
    free(r->from);
    free(r->to);
}

static struct bt_tpiece piece_of(const struct region *r, size_t to, size_t from,
                                 size_t bytes)
{
    return (struct bt_tpiece){.local = r->to + to,
                              .remote = (uintptr_t)r->from + from,
                              .bytes = (uint32_t)bytes};
}

static void move_set(struct move *move, const struct region *r,
                     const struct bt_tpiece *pieces, uint32_t count)
{
    move->span = (struct bt_tspan){.pieces = pieces,
                                   .count = count,
                                   .local_mem = r->to_mem,
                                   .remote_key = r->key};
}

/* 256 remote neighbours of 4 KiB scattered here: as many requests as gather
 * lists of the device's length need, in one doorbell; then the way back. */
static void test_gather(void **state)
{
    struct bt_tpiece pieces[256];
    struct bt_verbs_counts before, after;
    struct region r;
    struct move move;
    struct bed bed;
    uint32_t sge;

    (void)state;
    bed_join(&bed);
    region_make(&bed, &r, MIB);
    sge = ((struct bt_verbs *)bed.client)->port.sge_max;
    assert_true(sge > 1);
    for (size_t i = 0; i < 256; i++)
        pieces[i] = piece_of(&r, (i * 37 % 256) * 4096, i * 4096, 4096);
    move_set(&move, &r, pieces, 256);
    bt_verbs_counts(bed.client, &before);
    bed_move(&bed, &move, false);
    bed_until(&bed, &move.done, 1);
    bt_verbs_counts(bed.client, &after);
    assert_int_equal(move.status, BT_OK);
    assert_int_equal(after.requests - before.requests, (256 + sge - 1) / sge);
    assert_int_equal(after.pieces - before.pieces, 256);
    assert_int_equal(after.doorbells - before.doorbells, 1);
    for (size_t i = 0; i < 256; i++)
        assert_memory_equal(pieces[i].local, r.from + i * 4096, 4096);
    bed_fill(r.to, MIB, 99);
    bed_move(&bed, &move, true);
    bed_until(&bed, &move.done, 1);
    assert_int_equal(move.status, BT_OK);
    for (size_t i = 0; i < 256; i++)
        assert_memory_equal(pieces[i].local, r.from + i * 4096, 4096);
    region_free(&bed, &r);
    bed_close(&bed);
}

/* More requests than the send queue holds, odd sizes, frames in between; and
 * 12 MiB in one piece, cut into requests of 1 MiB. */
static void test_many_pieces(void **state)
{
    enum { N = 1500 };
    static struct bt_tpiece pieces[N];
    struct region r;
    struct move move, whole;
    struct bed bed;

    (void)state;
    bed_join(&bed);
    region_make(&bed, &r, 12 * MIB);
    for (size_t i = 0; i < N; i++)
        pieces[i] = piece_of(&r, i * 8000 + i % 13, (i * 7 % N) * 8000,
                             1 + i * 11 % 7000);
    move_set(&move, &r, pieces, N);
    bed_move(&bed, &move, false);
    for (int i = 0; i < 100; i++)
        bed.client->ops->send(bed.at_client.conn, &i, sizeof(i));
    bed_until(&bed, &move.done, 1);
    assert_int_equal(move.status, BT_OK);
    for (size_t i = 0; i < N; i++)
        assert_memory_equal(pieces[i].local,
                            r.from + (pieces[i].remote - (uintptr_t)r.from),
                            pieces[i].bytes);
    pieces[0] = piece_of(&r, 0, 0, 12 * MIB);
    move_set(&whole, &r, pieces, 1);
    bed_move(&bed, &whole, false);
    bed_until(&bed, &whole.done, 1);
    assert_int_equal(whole.status, BT_OK);
    assert_memory_equal(r.from, r.to, 12 * MIB);
    bed_until(&bed, &bed.at_server.frames, 101);
    region_free(&bed, &r);
    bed_close(&bed);
}

/* Ranges outside of the key or of local memory never reach the wire: the
 * connection fails, as if the peer had refused it. */
static void test_bounds(void **state)
{
    for (int i = 0; i < 4; i++) {
        struct bt_tpiece piece;
        struct region r;
        struct move move;
        struct bed bed;

        (void)state;
        bed_join(&bed);
        region_make(&bed, &r, 65536);
        piece = piece_of(&r, 0, 0, 4096);
        if (i == 0)
            piece.remote += 65536 - 4095;
        if (i == 1)
            piece.remote -= 1;
        if (i == 2)
            piece.local = r.to + 65536 - 4095;
        if (i == 3)
            piece.remote = UINT64_MAX - 100;
        move_set(&move, &r, &piece, 1);
        bed_move(&bed, &move, false);
        bed_until(&bed, &bed.at_client.failed, 1);
        assert_int_equal(move.done, 1);
        assert_int_equal(move.status, BT_INVALID);
        assert_int_equal(((struct bt_verbs *)bed.client)->requests, 0);
        region_free(&bed, &r);
        bed_close(&bed);
    }
}

/* ---- rights ---- */

/* Key in hand, but not allowed yet: refused, both ends fail, nothing lands;
 * the next connection, allowed, works. */
static void test_not_allowed(void **state)
{
    for (int is_put = 0; is_put < 2; is_put++) {
        struct bt_tpiece piece;
        struct region r;
        struct move move;
        struct bed bed;

        (void)state;
        bed_open(&bed, false);
        bed_connect(&bed);
        region_make(&bed, &r, 65536);
        if (is_put)
            bed_fill(r.to, 65536, 3);
        piece = piece_of(&r, 0, 0, 65536);
        move_set(&move, &r, &piece, 1);
        bed_move(&bed, &move, is_put != 0);
        bed_until(&bed, &move.done, 1);
        assert_int_equal(move.status, BT_PEER_ERROR);
        bed_until(&bed, &bed.at_client.failed, 1);
        bed.client->ops->close(bed.at_client.conn);
        bed_until(&bed, &bed.at_client.closed, 1);
        bed_until(&bed, &bed.at_server.failed, 1);
        bed.server->ops->close(bed.at_server.conn);
        bed_until(&bed, &bed.at_server.closed, 1);
        for (size_t i = 0; !is_put && i < 65536; i++)
            assert_int_equal(r.to[i], 0);
        if (is_put)
            assert_memory_not_equal(r.from, r.to, 65536);
        bed_connect(&bed);
        bed.server->ops->allow(bed.at_server.conn);
        bed_move(&bed, &move, is_put != 0);
        bed_until(&bed, &move.done, 1);
        assert_int_equal(move.status, BT_OK);
        assert_memory_equal(r.from, r.to, 65536);
        region_free(&bed, &r);
        bed_close(&bed);
    }
}

/* Memory whose key was not packed has no remote rights, even for a peer that is
 * allowed and knows its number; once packed it has, and gets of its owner that
 * were under way meanwhile end well. */
static void test_only_exported(void **state)
{
    for (int is_put = 0; is_put < 2; is_put++) {
        struct bt_tkey made_up, *key;
        struct bt_tpiece piece;
        struct bt_tmem *mem;
        struct region r;
        struct move move;
        struct bed bed;

        (void)state;
        bed_join(&bed);
        region_make(&bed, &r, 65536);
        assert_int_equal(bed.server->ops->map(bed.server, r.from, 65536, &mem),
                         BT_OK);
        made_up = (struct bt_tkey){.rkey = mem->local->lkey,
                                   .address = (uintptr_t)r.from,
                                   .bytes = 65536};
        piece = piece_of(&r, 0, 0, 65536);
        move_set(&move, &r, &piece, 1);
        move.span.remote_key = &made_up;
        bed_move(&bed, &move, is_put != 0);
        bed_until(&bed, &move.done, 1);
        assert_int_equal(move.status, BT_PEER_ERROR);
        bed_until(&bed, &bed.at_client.failed, 1);
        bed.client->ops->close(bed.at_client.conn);
        bed_until(&bed, &bed.at_client.closed, 1);
        bed_until(&bed, &bed.at_server.failed, 1);
        bed.server->ops->close(bed.at_server.conn);
        bed_until(&bed, &bed.at_server.closed, 1);
        bed_connect(&bed);
        key = bed_key(&bed, mem);
        move.span.remote_key = key;
        bed_move(&bed, &move, is_put != 0);
        bed_until(&bed, &move.done, 1);
        assert_int_equal(move.status, BT_OK);
        assert_memory_equal(r.from, r.to, 65536);
        bed.client->ops->key_close(key);
        bed.server->ops->unmap(bed.server, mem);
        region_free(&bed, &r);
        bed_close(&bed);
    }
}

static void test_packed_under_way(void **state)
{
    uint8_t first[64], second[64];
    uint16_t used = 0, again = 0;
    struct bt_tpiece piece;
    struct region r;
    struct move move;
    struct bed bed;

    (void)state;
    bed_join(&bed);
    region_make(&bed, &r, 4 * MIB);
    piece = piece_of(&r, 0, 0, 4 * MIB);
    move_set(&move, &r, &piece, 1);
    bed_move(&bed, &move, false);
    while (((struct bt_verbs *)bed.client)->requests == 0)
        ev_run(bed.loop, EVRUN_ONCE);
    assert_int_equal(bed.client->ops->key_pack(bed.client, r.to_mem, first,
                                               sizeof(first), &used),
                     BT_OK);
    bed_until(&bed, &move.done, 1);
    assert_int_equal(move.status, BT_OK);
    assert_memory_equal(r.from, r.to, 4 * MIB);
    assert_int_equal(bed.client->ops->key_pack(bed.client, r.to_mem, second,
                                               sizeof(second), &again),
                     BT_OK);
    assert_int_equal(used, again);
    assert_memory_equal(first, second, used);
    bed_move(&bed, &move, false);
    bed_until(&bed, &move.done, 1);
    assert_int_equal(move.status, BT_OK);
    region_free(&bed, &r);
    bed_close(&bed);
}

/* ---- ends ---- */

enum { ENDS = 24 };
struct ends {
    struct bt_tpiece pieces[ENDS];
    struct move moves[ENDS];
};

static void ends_start(struct bed *bed, struct region *r, struct ends *e)
{
    for (size_t i = 0; i < ENDS; i++) {
        e->pieces[i] = piece_of(r, i * MIB / 2, i * MIB / 2, MIB / 2);
        move_set(&e->moves[i], r, &e->pieces[i], 1);
        bed_move(bed, &e->moves[i], false);
    }
}

/* Closed with gets posted and gets waiting: each ends once, and what the
 * memory holds when the last one has ended stays. */
static void test_close_mid_gets(void **state)
{
    static unsigned char kept[12 * MIB];
    struct region r;
    struct ends e;
    struct bed bed;
    int first, cancelled = 0;

    (void)state;
    bed_join(&bed);
    region_make(&bed, &r, 12 * MIB);
    ends_start(&bed, &r, &e);
    bed_until(&bed, &e.moves[1].done, 1);
    bed.client->ops->close(bed.at_client.conn);
    for (int i = 0; i < ENDS; i++)
        bed_until(&bed, &e.moves[i].done, 1);
    memset(r.to, 0xA5, r.bytes);
    memset(kept, 0xA5, r.bytes);
    bed_until(&bed, &bed.at_client.closed, 1);
    first = bed.at_server.frames + 1;
    bed_until(&bed, &bed.at_server.failed, 1);
    bed.server->ops->close(bed.at_server.conn);
    bed_until(&bed, &bed.at_server.closed, 1);
    bed_connect(&bed); /* time for a late write */
    assert_int_equal(bed.at_server.frames, first);
    assert_memory_equal(r.to, kept, r.bytes);
    for (int i = 0; i < ENDS; i++) {
        assert_int_equal(e.moves[i].done, 1);
        cancelled += e.moves[i].status == BT_CANCELLED;
        assert_true(e.moves[i].status == BT_CANCELLED ||
                    e.moves[i].status == BT_OK);
    }
    assert_true(cancelled > 0);
    region_free(&bed, &r);
    bed_close(&bed);
}

/* The source goes away with gets out: each ends once, soon, with an error of
 * the peer. */
static void test_peer_closes_mid_gets(void **state)
{
    int64_t begin;
    struct region r;
    struct ends e;
    struct bed bed;
    int bad = 0;

    (void)state;
    bed_join(&bed);
    region_make(&bed, &r, 12 * MIB);
    bed.at_client.close_on_fail = true;
    ends_start(&bed, &r, &e);
    bed_until(&bed, &e.moves[1].done, 1);
    bed.server->ops->close(bed.at_server.conn);
    begin = bt_fabric_now();
    bed_until(&bed, &bed.at_client.closed, 1);
    print_message("peer closed: known and drained in %lld ms\n",
                  (long long)(bt_fabric_now() - begin) / 1000000);
    assert_int_equal(bed.at_client.failed, 1);
    for (int i = 0; i < ENDS; i++) {
        assert_int_equal(e.moves[i].done, 1);
        bad += e.moves[i].status != BT_OK;
    }
    assert_true(bad > 0);
    bed_until(&bed, &bed.at_server.closed, 1);
    region_free(&bed, &r);
    bed_close(&bed);
}

/* Nobody listens; nobody is there. */
static void test_no_peer(void **state)
{
    struct sockaddr_storage at;
    struct bed bed;
    socklen_t size;

    (void)state;
    bed_open(&bed, true);
    bed.server->ops->unlisten(bed.listener);
    bed.listener = NULL;
    for (int i = 0; i < 2; i++) {
        int64_t begin = bt_fabric_now();

        size = bed_where(&bed, &at);
        if (i == 1)
            ((struct sockaddr_in *)&at)->sin_addr.s_addr |= htonl(0x63);
        assert_int_equal(bed.client->ops->connect(bed.client,
                                                  (struct sockaddr *)&at, size,
                                                  &bed.at_client.conn),
                         BT_OK);
        bed.at_client.conn->events = &bed_events;
        bed.at_client.conn->arg = &bed.at_client;
        bed.at_client.close_on_fail = true;
        bed_until(&bed, &bed.at_client.closed, i + 1);
        print_message("%s: %s in %lld ms\n", i ? "no host" : "no listener",
                      bt_status_name(bed.at_client.why),
                      (long long)(bt_fabric_now() - begin) / 1000000);
        assert_int_equal(bed.at_client.why, i ? BT_PEER_DEAD : BT_REFUSED);
    }
    bed_close(&bed);
}

static int fds_open(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* Nothing is left of connections that came and went. */
static void test_cycles(void **state)
{
    struct bt_verbs *client;
    struct bed bed;
    int fds;

    (void)state;
    bed_join(&bed);
    client = (struct bt_verbs *)bed.client;
    fds = fds_open();
    bed.at_server.close_on_fail = true;
    for (int i = 1; i <= 100; i++) {
        bed.client->ops->close(bed.at_client.conn);
        bed_until(&bed, &bed.at_client.closed, i);
        bed_until(&bed, &bed.at_server.closed, i);
        bed_connect(&bed);
    }
    assert_int_equal(client->conn_count, 1);
    assert_true(LIST_NEXT(LIST_FIRST(&client->slabs), entry) == NULL);
    assert_int_equal(fds_open(), fds);
    bed.at_server.close_on_fail = false;
    bed_close(&bed);
}

/* ---- limits and the loss of things below ---- */

/* Without the right to lock any amount, the soft limit counts: it goes up to
 * the hard one first, then the error names both figures. */
static void test_memlock(void **state)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct saved[2], data[2];
    struct rlimit limit = {1 << 20, 64 << 20};
    unsigned char *bytes = malloc(80 * MIB);
    struct bt_tmem *mem = NULL;
    struct bed bed;
    enum bt_status small, large;

    (void)state;
    bed_open(&bed, true);
    memset(bytes, 1, 80 * MIB);
    assert_int_equal(syscall(SYS_capget, &head, saved), 0);
    memcpy(data, saved, sizeof(data));
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    assert_int_equal(syscall(SYS_capset, &head, data), 0);
    small = bed.client->ops->map(bed.client, bytes, 16 * MIB, &mem);
    if (small == BT_OK)
        bed.client->ops->unmap(bed.client, mem);
    large = bed.client->ops->map(bed.client, bytes, 80 * MIB, &mem);
    assert_int_equal(syscall(SYS_capset, &head, saved), 0);
    limit.rlim_cur = limit.rlim_max = RLIM_INFINITY;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    assert_int_equal(small, BT_OK);
    assert_int_equal(large, BT_LIMIT);
    print_message("%s\n", bt_verbs_text(bed.client));
    assert_text(bt_verbs_text(bed.client),
                "83886080 bytes cannot be registered");
    assert_text(bt_verbs_text(bed.client), "67108864 bytes");
    free(bytes);
    bed_close(&bed);
}

/* Name of the network device under a transport's port. */
static void netdev_of(const struct bt_transport *transport, char *out,
                      size_t size)
{
    char path[200];
    FILE *f;

    snprintf(path, sizeof(path),
             "/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/1",
             ((const struct bt_verbs *)transport)->port.device);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(out, (int)size, f));
    fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

/* Words: the program's name first, NULL last. */
static pid_t run(const char *const words[])
{
    char *argv[8] = {NULL};
    pid_t pid = 0;

    for (size_t i = 0; words[i] != NULL; i++) {
        assert_true(i + 1 < sizeof(argv) / sizeof(argv[0]));
        argv[i] = strdup(words[i]);
        assert_non_null(argv[i]);
    }
    assert_int_equal(posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ), 0);
    for (size_t i = 0; argv[i] != NULL; i++)
        free(argv[i]);
    return pid;
}

static void ended_well(pid_t pid)
{
    int status = 0;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void link_set(const char *netdev, const char *state)
{
    const char *const argv[] = {"ip", "link", "set", netdev, state, NULL};

    ended_well(run(argv));
}

/* The port goes down under load and comes back; a rail of another port, if the
 * guest has one, does not notice. */
static void test_port_down(void **state)
{
    const char *other = getenv("BATON_FABRIC_OTHER");
    struct bt_transport *bystander;
    struct region r;
    struct ends e;
    struct bed bed;
    char netdev[64];

    (void)state;
    bed_join(&bed);
    bystander = bed_transport(bed.loop, other != NULL ? other : "10.77.1.1");
    region_make(&bed, &r, 12 * MIB);
    bed.at_client.close_on_fail = bed.at_server.close_on_fail = true;
    netdev_of(bed.client, netdev, sizeof(netdev));
    ends_start(&bed, &r, &e);
    bed_until(&bed, &e.moves[0].done, 1);
    link_set(netdev, "down");
    bed_until(&bed, &bed.at_client.closed, 1);
    bed_until(&bed, &bed.at_server.closed, 1);
    assert_int_equal(bed.at_client.why, BT_RESET);
    for (int i = 0; i < ENDS; i++)
        assert_int_equal(e.moves[i].done, 1);
    assert_true(((struct bt_verbs *)bed.client)->is_down);
    assert_false(((struct bt_verbs *)bystander)->is_down);
    assert_string_equal(bt_verbs_text(bystander), "");
    link_set(netdev, "up");
    while (((struct bt_verbs *)bed.client)->is_down ||
           ((struct bt_verbs *)bed.server)->is_down)
        ev_run(bed.loop, EVRUN_ONCE);
    bed_connect(&bed);
    region_free(&bed, &r);
    bystander->ops->destroy(bystander);
    bed_close(&bed);
}

/* Last: the devices are gone after it. */
static void test_device_removed(void **state)
{
    const char *argv[] = {"rdma", "link", "delete", NULL, NULL};
    struct region r;
    struct ends e;
    struct bed bed;

    (void)state;
    bed_join(&bed);
    region_make(&bed, &r, 12 * MIB);
    bed.at_client.close_on_fail = bed.at_server.close_on_fail = true;
    ends_start(&bed, &r, &e);
    bed_until(&bed, &e.moves[0].done, 1);
    /* It ends with this process: librdmacm keeps a device open until then. */
    argv[3] = ((struct bt_verbs *)bed.client)->port.device;
    (void)run(argv);
    bed_until(&bed, &bed.at_client.closed, 1);
    bed_until(&bed, &bed.at_server.closed, 1);
    for (int i = 0; i < ENDS; i++)
        assert_int_equal(e.moves[i].done, 1);
    region_free(&bed, &r);
    bed_close(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rail_chosen),
        cmocka_unit_test(test_rail_refused),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_frames_one_way),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_many_pieces),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_not_allowed),
        cmocka_unit_test(test_only_exported),
        cmocka_unit_test(test_packed_under_way),
        cmocka_unit_test(test_close_mid_gets),
        cmocka_unit_test(test_peer_closes_mid_gets),
        cmocka_unit_test(test_no_peer),
        cmocka_unit_test(test_cycles),
        cmocka_unit_test(test_memlock),
        cmocka_unit_test(test_port_down),
        cmocka_unit_test(test_device_removed),
    };

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (bed_absent())
        return 77;
    if (getenv("BATON_TEST_ONLY") != NULL)
        cmocka_set_test_filter(getenv("BATON_TEST_ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
