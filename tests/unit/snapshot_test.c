/* Snapshot files (snapshot.h): the bytes against a file composed by hand, the
 * way there and back, every byte changed, every length cut, failing writes, and
 * the child that saves in the background. */
#include "baton/orchestrator/snapshot.h"
#include "baton/planner/prefix_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <ev.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#define FILE_MAX  4096
#define PLAIN     1337u /* the namespace without adapter and salt */
#define SEEN_MAX  64
#define INDEX_MAX 4096

static char folder[64], path[128], temporary[160];
static char error[256];

static int folder_start(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/bt-snapshot-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof(path), "%s/f", folder);
    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    return 0;
}

static int folder_stop(void **state)
{
    char bad[160];

    (void)state;
    snprintf(bad, sizeof(bad), "%s.bad", path);
    unlink(path);
    unlink(temporary);
    unlink(bad);
    return rmdir(folder);
}

static size_t file_read(unsigned char *out)
{
    FILE *f = fopen(path, "rb");
    size_t n;

    assert_non_null(f);
    n = fread(out, 1, FILE_MAX, f);
    fclose(f);
    assert_true(n < FILE_MAX);
    return n;
}

static void file_write(const unsigned char *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

static enum bt_status load_status(void)
{
    struct bt_snapshot *s = NULL;
    enum bt_status status =
        bt_snapshot_load(path, FILE_MAX, &s, error, sizeof(error));

    if (status == BT_OK)
        bt_snapshot_free(s);
    return status;
}

/* ---- a small world, and its file by hand ---- */

static const struct bt_stream_mark marks[] = {
    {.incarnation = 7,
     .next = 9,
     .started = true,
     .from_zero = true,
     .block_tokens = 16,
     .groups = {.untold = 5, .full = 6, .other = 7, .bent = 8},
     .recent_count = 1,
     .recent = {{8, 0xaabb}}},
    {.next = 1, .hole = true, .counting = BT_KV_COUNT_SET},
};

static void fill_small(void *arg, struct bt_snapshot_writer *w)
{
    (void)arg;
    bt_snapshot_source(w, &(struct bt_snapshot_source){.name = "e0",
                                                       .note = "{}",
                                                       .name_bytes = 2,
                                                       .note_bytes = 2,
                                                       .block_tokens = 16,
                                                       .ranks = 2});
    bt_snapshot_rank(w, 0, &marks[0]);
    bt_snapshot_entry(
        w,
        &(struct bt_prefix_entry){
            .hash = 1, .key = 0x1122, .ns = PLAIN, .copies = {1}, .keyed = 1});
    bt_snapshot_entry(w, &(struct bt_prefix_entry){.hash = 2,
                                                   .key = 0x33,
                                                   .ns = 5,
                                                   .copies = {0, 3, 0, 1},
                                                   .keyed = 1});
    bt_snapshot_entry(
        w, &(struct bt_prefix_entry){.hash = 3, .copies = {0, 0, 1}});
    bt_snapshot_entry(w, &(struct bt_prefix_entry){.hash = 4}); /* nowhere */
    bt_snapshot_rank(w, 1, &marks[1]);
    bt_snapshot_source(w, &(struct bt_snapshot_source){
                              .name = "e1", .name_bytes = 2, .ranks = 1});
}

/* What snapshot.h says the file of fill_small is. */
static size_t compose(unsigned char *out)
{
    static const unsigned char body[] = {
        'B', 'T', 'P', 'F', 'X', 'S', 'N', '1', 1, 0, 0, 0, 0, 0, 0, 0,
        /* e0: 16 tokens, 2 ranks */
        'S', 16, 0, 0, 0, 2, 0, 0, 0, 2, 0, 'e', '0', 2, 0, '{', '}',
        /* rank 0, incarnation 7, next 9, started and from zero, 16 tokens */
        'R', 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 16,
        0, 0, 0, /* groups */ 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7,
        0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, /* one batch */ 1, 8, 0, 0,
        0, 0, 0, 0, 0, 0xbb, 0xaa, 0, 0, 0, 0, 0, 0,
        /* keyed, device */
        0x05, 1, 0, 0, 0, 0, 0, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0,
        /* keyed, other ns, host 3, external 1 */
        0x6b, 2, 0, 0, 0, 0, 0, 0, 0, 0x33, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0,
        0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0,
        /* counted, disk; end of rank 0 */
        0x10, 3, 0, 0, 0, 0, 0, 0, 0, 0,
        /* rank 1: next 1, hole and set */
        'R', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 12, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        /* e1 */
        'S', 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 'e', '1', 0, 0,
        /* 2 sources, 3 entries */
        'E', 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
    uint64_t sum = XXH3_64bits(body, sizeof(body));

    memcpy(out, body, sizeof(body));
    for (size_t i = 0; i < 8; i++)
        out[sizeof(body) + i] = (unsigned char)(sum >> (8 * i));
    return sizeof(body) + 8;
}

static void save_small(void)
{
    struct bt_snapshot_writer *w = NULL;
    struct bt_snapshot_size size;

    assert_int_equal(bt_snapshot_open(path, &w, error, sizeof(error)), BT_OK);
    fill_small(NULL, w);
    assert_int_equal(bt_snapshot_commit(w, &size), BT_OK);
    assert_int_equal(size.entries, 3);
    assert_int_equal(size.sources, 2);
}

static void bytes_are_as_documented(void **state)
{
    unsigned char want[FILE_MAX], got[FILE_MAX];
    size_t n = compose(want);

    (void)state;
    save_small();
    assert_int_equal(file_read(got), n);
    assert_memory_equal(got, want, n);
    assert_int_not_equal(access(temporary, F_OK), 0);
}

/* ---- there and back ---- */

struct seen {
    size_t count, ranks;
    struct {
        uint32_t rank;
        enum bt_tier tier;
        uint64_t hash, key, ns;
        int keyed;
    } block[SEEN_MAX];
    struct bt_stream_mark mark[2];
};

static void on_store(void *arg, uint32_t rank, const struct bt_kv_store *store)
{
    struct seen *s = arg;

    assert_int_equal(store->block_tokens, 16);
    assert_int_equal(store->full_attention != 0, store->own_keys != NULL);
    for (size_t i = 0; i < store->hash_count; i++) {
        size_t n = s->count++;

        assert_true(n < SEEN_MAX);
        s->block[n].rank = rank;
        s->block[n].tier = store->tier;
        s->block[n].hash = store->hashes[i];
        s->block[n].keyed = store->own_keys != NULL;
        s->block[n].key = store->own_keys != NULL ? store->own_keys[i] : 0;
        s->block[n].ns = store->own_ns;
    }
}

static void on_rank(void *arg, uint32_t rank, const struct bt_stream_mark *mark)
{
    struct seen *s = arg;

    s->mark[rank] = *mark;
    s->ranks++;
}

static void comes_back(void **state)
{
    static struct seen seen;
    const struct bt_snapshot_visitor visitor = {on_store, on_rank, &seen};
    struct bt_snapshot_source source;
    struct bt_snapshot *s = NULL;
    uint32_t i;

    (void)state;
    memset(&seen, 0, sizeof(seen));
    save_small();
    assert_int_equal(bt_snapshot_load(path, FILE_MAX, &s, error, sizeof(error)),
                     BT_OK);
    assert_int_equal(bt_snapshot_count(s), 2);
    assert_int_equal(bt_snapshot_entries(s), 3);
    assert_int_equal(bt_snapshot_find(s, "e", &i), BT_NOT_FOUND);
    assert_int_equal(bt_snapshot_find(s, "e0", &i), BT_OK);
    bt_snapshot_at(s, i, &source);
    assert_int_equal(source.ranks, 2);
    assert_int_equal(source.note_bytes, 2);
    assert_memory_equal(source.note, "{}", 2);
    bt_snapshot_visit(s, i, &visitor);
    /* 1 device, 2 three times on the host and once outside, 3 on disk. */
    assert_int_equal(seen.count, 6);
    assert_int_equal(seen.block[0].key, 0x1122);
    assert_int_equal(seen.block[0].ns, PLAIN);
    for (size_t n = 1; n < 4; n++) {
        assert_int_equal(seen.block[n].hash, 2);
        assert_int_equal(seen.block[n].ns, 5);
        assert_int_equal(seen.block[n].tier, BT_TIER_HOST);
    }
    assert_int_equal(seen.block[4].tier, BT_TIER_EXTERNAL);
    assert_int_equal(seen.block[5].hash, 3);
    assert_int_equal(seen.block[5].tier, BT_TIER_DISK);
    assert_false(seen.block[5].keyed);
    assert_int_equal(seen.ranks, 2);
    assert_memory_equal(&seen.mark[0], &marks[0], sizeof(marks[0]));
    assert_memory_equal(&seen.mark[1], &marks[1], sizeof(marks[1]));
    assert_int_equal(bt_snapshot_find(s, "e1", &i), BT_OK);
    bt_snapshot_visit(s, i, &visitor);
    assert_int_equal(seen.count, 6);
    bt_snapshot_free(s);
}

/* ---- a real index ---- */

struct held {
    size_t count;
    struct bt_prefix_entry entry[INDEX_MAX];
};

static void on_entry(void *arg, const struct bt_prefix_entry *entry)
{
    struct held *h = arg;

    assert_true(h->count < INDEX_MAX);
    h->entry[h->count++] = *entry;
}

static int entry_order(const void *a, const void *b)
{
    const struct bt_prefix_entry *x = a, *y = b;

    return x->hash < y->hash ? -1 : x->hash > y->hash;
}

static struct bt_prefix_index *index_make(void **memory_out)
{
    const struct bt_prefix_index_limits limits = {
        .workers_max = 2, .blocks_max = INDEX_MAX, .holdings_max = INDEX_MAX};
    size_t bytes = bt_prefix_index_bytes(&limits);
    struct bt_prefix_index *index;
    struct bt_arena arena;

    *memory_out = calloc(1, bytes);
    assert_non_null(*memory_out);
    bt_arena_init(&arena, *memory_out, bytes);
    index = bt_prefix_index_init(&arena, &limits);
    assert_non_null(index);
    return index;
}

static void held_by(const struct bt_prefix_index *index, struct held *out)
{
    out->count = 0;
    bt_prefix_index_each(index, 1, on_entry, out);
    qsort(out->entry, out->count, sizeof(out->entry[0]), entry_order);
}

/* Chains of blocks of 4 tokens in two namespaces, some twice, some lower. */
static void index_fill(struct bt_prefix_index *index)
{
    uint32_t tokens[8 * 4];
    uint64_t hashes[8];

    for (uint32_t c = 0; c < 300; c++) {
        struct bt_kv_store store = {.hashes = hashes,
                                    .hash_count = 8,
                                    .tokens = tokens,
                                    .token_count = 32,
                                    .block_tokens = 4,
                                    .tier = (enum bt_tier)(c % 3),
                                    .salt = c % 2 ? "tenant" : NULL,
                                    .salt_bytes = c % 2 ? 6 : 0,
                                    .full_attention = c % 11 != 10};

        for (uint32_t i = 0; i < 32; i++)
            tokens[i] = c * 100 + i;
        for (uint32_t i = 0; i < 8; i++)
            hashes[i] = 1 + c * 8 + i;
        for (uint32_t n = 0; n < 1 + c % 4; n++)
            assert_int_equal(bt_prefix_index_store(index, 1, 0, &store), BT_OK);
    }
}

static void put_entry(void *arg, const struct bt_prefix_entry *entry)
{
    bt_snapshot_entry(arg, entry);
}

static void load_entry(void *arg, uint32_t rank,
                       const struct bt_kv_store *store)
{
    (void)rank;
    assert_int_equal(bt_prefix_index_store(arg, 1, 0, store), BT_OK);
}

static void load_rank(void *arg, uint32_t rank,
                      const struct bt_stream_mark *mark)
{
    (void)arg;
    (void)rank;
    (void)mark;
}

static void index_comes_back(void **state)
{
    static struct held before, after;
    void *memory, *other_memory;
    struct bt_prefix_index *index = index_make(&memory);
    struct bt_prefix_index *other = index_make(&other_memory);
    const struct bt_snapshot_visitor visitor = {load_entry, load_rank, other};
    struct bt_snapshot_writer *w = NULL;
    struct bt_snapshot_size size;
    struct bt_snapshot *s = NULL;

    (void)state;
    index_fill(index);
    held_by(index, &before);
    assert_int_equal(before.count, 2400);
    assert_int_equal(bt_snapshot_open(path, &w, error, sizeof(error)), BT_OK);
    bt_snapshot_source(
        w, &(struct bt_snapshot_source){
               .name = "x", .name_bytes = 1, .block_tokens = 4, .ranks = 1});
    bt_snapshot_rank(w, 0, &marks[0]);
    bt_prefix_index_each(index, 1, put_entry, w);
    assert_int_equal(bt_snapshot_commit(w, &size), BT_OK);
    assert_int_equal(size.entries, 2400);
    assert_int_equal(bt_snapshot_load(path, 1 << 20, &s, error, sizeof(error)),
                     BT_OK);
    bt_snapshot_visit(s, 0, &visitor);
    held_by(other, &after);
    assert_int_equal(after.count, before.count);
    for (size_t i = 0; i < before.count; i++) {
        assert_int_equal(after.entry[i].hash, before.entry[i].hash);
        assert_int_equal(after.entry[i].keyed, before.entry[i].keyed);
        assert_int_equal(after.entry[i].key, before.entry[i].key);
        assert_int_equal(after.entry[i].ns, before.entry[i].ns);
        assert_memory_equal(after.entry[i].copies, before.entry[i].copies,
                            sizeof(before.entry[i].copies));
    }
    bt_snapshot_free(s);
    free(memory);
    free(other_memory);
}

/* ---- damage ---- */

static void every_change_is_refused(void **state)
{
    unsigned char bytes[FILE_MAX];
    size_t n = compose(bytes);

    (void)state;
    file_write(bytes, n);
    assert_int_equal(load_status(), BT_OK);
    for (size_t i = 0; i < n; i++) {
        static const unsigned char masks[] = {0x01, 0x80, 0xff};

        for (size_t m = 0; m < sizeof(masks); m++) {
            bytes[i] ^= masks[m];
            file_write(bytes, n);
            if (load_status() == BT_OK)
                fail_msg("byte %zu, mask %02x", i, masks[m]);
            bytes[i] ^= masks[m];
        }
    }
}

static void every_cut_is_refused(void **state)
{
    unsigned char bytes[FILE_MAX] = {0};
    size_t n = compose(bytes);

    (void)state;
    for (size_t cut = 0; cut < n; cut++) {
        file_write(bytes, cut);
        if (load_status() == BT_OK)
            fail_msg("cut to %zu", cut);
    }
    file_write(bytes, n + 1);
    assert_int_not_equal(load_status(), BT_OK);
    file_write(bytes, 0);
    assert_int_equal(load_status(), BT_CHECKSUM);
}

/* A good checksum over bytes that make no sense. */
static void contradiction(size_t at, unsigned char value)
{
    unsigned char bytes[FILE_MAX];
    size_t n = compose(bytes);
    uint64_t sum;

    assert_int_not_equal(bytes[at], value);
    bytes[at] = value;
    sum = XXH3_64bits(bytes, n - 8);
    for (size_t i = 0; i < 8; i++)
        bytes[n - 8 + i] = (unsigned char)(sum >> (8 * i));
    file_write(bytes, n);
    if (load_status() != BT_INVALID)
        fail_msg("byte %zu = %u: %s", at, value, error);
}

static void contradictions_are_refused(void **state)
{
    unsigned char bytes[FILE_MAX];
    size_t n = compose(bytes);

    (void)state;
    contradiction(16, 'X');   /* tag */
    contradiction(21, 0);     /* no ranks */
    contradiction(21, 65);    /* too many */
    contradiction(21, 1);     /* rank 1 of 1 */
    contradiction(25, 0);     /* no name */
    contradiction(26, 0xff);  /* a name longer than the file */
    contradiction(34, 1);     /* rank 1 twice */
    contradiction(54, 0x83);  /* unknown flags */
    contradiction(91, 65);    /* more recent batches than there may be */
    contradiction(108, 0x85); /* form of an entry */
    contradiction(108, 0x01); /* in no tier */
    contradiction(158, 0x12); /* namespace without a key */
    contradiction(150, 0);    /* no copies where some are said */
    contradiction(n - 20, 1); /* sources */
    contradiction(n - 16, 2); /* entries */
}

static void refusals_have_names(void **state)
{
    unsigned char bytes[FILE_MAX];
    size_t n = compose(bytes);
    struct bt_snapshot *s = NULL;
    char bad[160];

    (void)state;
    unlink(path);
    assert_int_equal(load_status(), BT_NOT_FOUND);
    bytes[8] = 2;
    file_write(bytes, n);
    assert_int_equal(load_status(), BT_UNSUPPORTED);
    assert_non_null(strstr(error, "version 2"));
    bytes[8] = 1;
    bytes[0] = 'X';
    file_write(bytes, n);
    assert_int_equal(load_status(), BT_INVALID);
    bytes[0] = 'B';
    file_write(bytes, n);
    assert_int_equal(bt_snapshot_load(path, n - 1, &s, error, sizeof(error)),
                     BT_TOO_LARGE);
    assert_int_equal(bt_snapshot_load(path, n, &s, error, sizeof(error)),
                     BT_OK);
    bt_snapshot_free(s);
    assert_int_equal(bt_snapshot_load(folder, n, &s, error, sizeof(error)),
                     BT_IO);
    assert_true(bt_snapshot_set_aside(path));
    assert_int_equal(load_status(), BT_NOT_FOUND);
    snprintf(bad, sizeof(bad), "%s.bad", path);
    assert_int_equal(access(bad, F_OK), 0);
}

/* ---- writing that fails ---- */

static void a_failed_write_leaves_the_old_file(void **state)
{
    unsigned char before[FILE_MAX], after[FILE_MAX];
    struct rlimit was, small;
    struct bt_snapshot_writer *w = NULL;
    struct bt_snapshot_size size;
    size_t n;

    (void)state;
    save_small();
    n = file_read(before);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 64;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(bt_snapshot_open(path, &w, error, sizeof(error)), BT_OK);
    fill_small(NULL, w);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(bt_snapshot_commit(w, &size), BT_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(size.error, EFBIG);
    assert_string_equal(bt_snapshot_why(BT_IO, &size), strerror(EFBIG));
    assert_int_equal(file_read(after), n);
    assert_memory_equal(after, before, n);
    assert_int_not_equal(access(temporary, F_OK), 0);
}

static void bad_calls_are_told(void **state)
{
    struct bt_snapshot_writer *w = NULL;
    struct bt_snapshot_size size;

    (void)state;
    assert_int_equal(
        bt_snapshot_open("/nowhere/at/all", &w, error, sizeof(error)), BT_IO);
    assert_non_null(strstr(error, "/nowhere/at/all.tmp"));
    assert_int_equal(bt_snapshot_open(path, &w, error, sizeof(error)), BT_OK);
    bt_snapshot_source(w, &(struct bt_snapshot_source){
                              .name = "e", .name_bytes = 1, .ranks = 65});
    assert_int_equal(bt_snapshot_commit(w, &size), BT_INVALID);
}

/* ---- the child ---- */

struct background {
    struct ev_loop *loop;
    uint64_t value; /* what fill writes */
    enum bt_status status;
    struct bt_snapshot_size size;
    bool done;
};

static void fill_value(void *arg, struct bt_snapshot_writer *w)
{
    const struct background *b = arg;

    fill_small(NULL, w);
    bt_snapshot_rank(w, 0, &marks[1]);
    bt_snapshot_entry(w, &(struct bt_prefix_entry){.hash = b->value,
                                                   .key = 1,
                                                   .ns = PLAIN,
                                                   .copies = {1},
                                                   .keyed = 1});
}

static void on_done(void *arg, enum bt_status status,
                    const struct bt_snapshot_size *size, int64_t pause_ns)
{
    struct background *b = arg;

    assert_true(pause_ns >= 0);
    b->status = status;
    b->size = *size;
    b->done = true;
    ev_break(b->loop, EVBREAK_ALL);
}

static void keep_hash(void *arg, uint32_t rank, const struct bt_kv_store *store)
{
    (void)rank;
    assert_int_equal(store->hash_count, 1);
    *(uint64_t *)arg = store->hashes[0];
}

/* What changes after the call is not in the file. */
static void saves_the_moment(void **state)
{
    struct background b = {.loop = ev_loop_new(EVFLAG_AUTO), .value = 0x4711};
    const struct bt_snapshot_job job = {path, fill_value, on_done, &b};
    struct bt_snapshot_saver *saver = NULL;
    uint64_t hash = 0;
    const struct bt_snapshot_visitor visitor = {keep_hash, load_rank, &hash};
    struct bt_snapshot *s = NULL;

    (void)state;
    assert_int_equal(
        bt_snapshot_save(b.loop, &job, &saver, error, sizeof(error)), BT_OK);
    b.value = 1;
    ev_run(b.loop, 0);
    bt_snapshot_saver_stop(saver);
    assert_true(b.done);
    assert_int_equal(b.status, BT_OK);
    assert_int_equal(b.size.entries, 4);
    assert_int_equal(bt_snapshot_load(path, FILE_MAX, &s, error, sizeof(error)),
                     BT_OK);
    bt_snapshot_visit(s, 1, &visitor);
    assert_int_equal(hash, 0x4711);
    bt_snapshot_free(s);
    ev_loop_destroy(b.loop);
}

static void fill_for_ever(void *arg, struct bt_snapshot_writer *w)
{
    (void)arg;
    (void)w;
    for (;;)
        pause();
}

static void fill_and_die(void *arg, struct bt_snapshot_writer *w)
{
    (void)arg;
    (void)w;
    raise(SIGKILL);
}

static void a_stopped_child_leaves_the_old_file(void **state)
{
    struct background b = {.loop = ev_loop_new(EVFLAG_AUTO)};
    struct bt_snapshot_job job = {path, fill_for_ever, on_done, &b};
    struct bt_snapshot_saver *saver = NULL;

    (void)state;
    save_small();
    assert_int_equal(
        bt_snapshot_save(b.loop, &job, &saver, error, sizeof(error)), BT_OK);
    bt_snapshot_saver_stop(saver);
    assert_int_not_equal(access(temporary, F_OK), 0);
    assert_false(b.done);
    assert_int_equal(load_status(), BT_OK);
    job.fill = fill_and_die;
    assert_int_equal(
        bt_snapshot_save(b.loop, &job, &saver, error, sizeof(error)), BT_OK);
    ev_run(b.loop, 0);
    bt_snapshot_saver_stop(saver);
    assert_true(b.done);
    assert_int_equal(b.status, BT_IO);
    assert_int_not_equal(access(temporary, F_OK), 0);
    assert_int_equal(load_status(), BT_OK);
    ev_loop_destroy(b.loop);
}

static void a_folder_is_tried_first(void **state)
{
    char there[200];

    (void)state;
    assert_int_equal(bt_snapshot_probe(path, error, sizeof(error)), BT_OK);
    assert_int_not_equal(access(temporary, F_OK), 0);
    snprintf(there, sizeof(there), "%s/nowhere/f", folder);
    assert_int_equal(bt_snapshot_probe(there, error, sizeof(error)), BT_IO);
    assert_non_null(strstr(error, strerror(ENOENT)));
    assert_int_equal(bt_snapshot_probe(folder, error, sizeof(error)), BT_IO);
    assert_non_null(strstr(error, "not a regular file"));
}

/* Said when it begins, when it changes, and when it is over. */
static void trouble_is_folded(void **state)
{
    struct bt_snapshot_trouble t = {""};

    (void)state;
    assert_false(bt_snapshot_recovers(&t));
    assert_true(bt_snapshot_fails(&t, "a"));
    assert_false(bt_snapshot_fails(&t, "a"));
    assert_true(bt_snapshot_fails(&t, "b"));
    assert_true(bt_snapshot_recovers(&t));
    assert_false(bt_snapshot_recovers(&t));
    assert_true(bt_snapshot_fails(&t, "b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_as_documented),
        cmocka_unit_test(comes_back),
        cmocka_unit_test(index_comes_back),
        cmocka_unit_test(every_change_is_refused),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(refusals_have_names),
        cmocka_unit_test(a_failed_write_leaves_the_old_file),
        cmocka_unit_test(bad_calls_are_told),
        cmocka_unit_test(saves_the_moment),
        cmocka_unit_test(a_stopped_child_leaves_the_old_file),
        cmocka_unit_test(a_folder_is_tried_first),
        cmocka_unit_test(trouble_is_folded),
    };

    return cmocka_run_group_tests(tests, folder_start, folder_stop);
}
