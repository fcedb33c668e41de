/* Insides of the NVMe pool, private to transfer/tier and its unit tests.
 *
 *   file  (nvme_file.c)   lock, header, index image: what is on the disk
 *   index (nvme_index.c)  which slot holds which key, what is evicted next
 *   ring  (nvme_ring.c)   io_uring: one operation in, one result out
 *   commit (nvme_commit.c) data -> fdatasync -> record
 *   pool  (nvme_pool.c)   requests, queue, call-backs
 *
 * File: one page of header, pages of 64 records of 64 bytes, blocks. */
#ifndef TIER_NVME_H
#define TIER_NVME_H

#include "baton/transfer/tier.h"
#include <ev.h>
#include <liburing.h>
#include <sys/queue.h>

#define NVME_PAGE        4096u
#define NVME_RECORD      64u
#define NVME_PER_PAGE    (NVME_PAGE / NVME_RECORD)
#define NVME_NONE        UINT32_MAX
#define NVME_REGIONS     16u
#define NVME_PIECES      64u                 /* of registered memory */
#define NVME_PIECE_BYTES (UINT64_C(1) << 30) /* io_uring's largest */
#define NVME_BOUNCES     8u                  /* index pages being written */
#define NVME_TRIES       8u                  /* per operation */

/* ---- file ---- */

struct bt_nvme_record {
    uint64_t key, generation, checksum;
};
struct bt_nvme_file {
    int fd;
    uint64_t block_bytes, data_at, bytes, identity, epoch, dropped;
    uint64_t bytes_at_open; /* blocks beyond it were cut off */
    uint32_t block_count, pages;
    unsigned char *image; /* the index, pages * NVME_PAGE */
};
enum bt_status bt_nvme_file_open(struct bt_nvme_file *file,
                                 const struct bt_nvme_config *config,
                                 char *error_out, size_t error_size);
void bt_nvme_file_close(struct bt_nvme_file *file);
/* BT_NOT_FOUND: empty, or of an earlier life of the file; BT_CHECKSUM: torn. */
enum bt_status bt_nvme_record_get(const struct bt_nvme_file *file,
                                  uint32_t slot,
                                  struct bt_nvme_record *record_out);
void bt_nvme_record_put(struct bt_nvme_file *file, uint32_t slot,
                        const struct bt_nvme_record *record);
void bt_nvme_record_erase(struct bt_nvme_file *file, uint32_t slot);
uint64_t bt_nvme_block_at(const struct bt_nvme_file *file, uint32_t slot);
/* Whole transfers or an errno. Block. */
int bt_nvme_pwrite(int fd, const void *from, uint64_t bytes, uint64_t at);

/* ---- index ---- */

enum bt_slot_state {
    BT_SLOT_FREE,
    BT_SLOT_STORING,
    BT_SLOT_HELD,
    BT_SLOT_GONE
};
struct bt_nvme_request;
struct bt_nvme_slot {
    uint64_t key, generation, checksum;
    uint32_t chain; /* next in its bucket */
    uint32_t older, newer;
    uint32_t users; /* loads accepted and not ended */
    enum bt_slot_state state;
    bool unproven; /* stored by an earlier process, not read yet */
    struct bt_nvme_request *store;
};
struct bt_nvme_index {
    struct bt_nvme_slot *slots;
    uint32_t *buckets, *free;
    uint32_t count, bucket_mask, free_count, held;
    uint32_t oldest, newest; /* held and without users */
    uint64_t generation;     /* the last one given */
};
enum bt_status bt_nvme_index_init(struct bt_nvme_index *index, uint32_t count);
void bt_nvme_index_fini(struct bt_nvme_index *index);
/* Takes over what the file's records say; returns how many were dropped. */
uint64_t bt_nvme_index_load(struct bt_nvme_index *index,
                            struct bt_nvme_file *file);
/* Slot with the key, storing or held; NVME_NONE. */
uint32_t bt_nvme_index_find(const struct bt_nvme_index *index, uint64_t key);
/* A slot to store into; *evicted_out: it held another block. NVME_NONE: all
 * are in use. */
uint32_t bt_nvme_index_take(struct bt_nvme_index *index, uint64_t key,
                            bool *evicted_out);
void bt_nvme_index_stored(struct bt_nvme_index *index, uint32_t slot);
/* Out of sight at once; free now or when its last user has gone. */
void bt_nvme_index_remove(struct bt_nvme_index *index, uint32_t slot);
void bt_nvme_index_pin(struct bt_nvme_index *index, uint32_t slot);
void bt_nvme_index_unpin(struct bt_nvme_index *index, uint32_t slot);

/* ---- ring ---- */

enum bt_nvme_kind {
    BT_NVME_READ,
    BT_NVME_WRITE,
    BT_NVME_FLUSH,
    BT_NVME_RECORDS
};
struct bt_nvme_op {
    enum bt_nvme_kind kind;
    unsigned char *buffer;
    uint64_t at, bytes, done;
    uint32_t tries;
};
/* Tests see each operation going out (submit) and its result, which they may
 * replace. */
struct bt_nvme_event {
    enum bt_nvme_kind kind;
    bool submit;
    uint64_t at, bytes;
    const unsigned char *buffer;
    int result;
};
typedef int (*bt_nvme_hook_fn)(void *arg, const struct bt_nvme_event *event);
typedef void (*bt_nvme_done_fn)(void *arg, struct bt_nvme_op *op, int error);
struct bt_nvme_ring {
    struct io_uring uring;
    int event_fd;
    uint32_t out, pieces, regions;
    bool sparse; /* buffers can be registered */
    struct {
        uintptr_t base;
        uint64_t bytes;
    } piece[NVME_PIECES];
    bt_nvme_hook_fn hook;
    void *hook_arg;
    bt_nvme_done_fn done;
    void *arg;
};
/* An errno. */
int bt_nvme_ring_init(struct bt_nvme_ring *ring, uint32_t entries, int fd);
void bt_nvme_ring_fini(struct bt_nvme_ring *ring);
enum bt_status bt_nvme_ring_register(struct bt_nvme_ring *ring, void *base,
                                     uint64_t bytes);
void bt_nvme_ring_start(struct bt_nvme_ring *ring, struct bt_nvme_op *op);
void bt_nvme_ring_submit(struct bt_nvme_ring *ring);
/* Every result there is to `done`. */
void bt_nvme_ring_reap(struct bt_nvme_ring *ring);
void bt_nvme_ring_wait(struct bt_nvme_ring *ring); /* for at least one */
void bt_nvme_ring_wake(struct bt_nvme_ring *ring); /* the loop, now */

/* ---- pool ---- */

struct bt_nvme_request {
    struct bt_nvme_op op; /* first: an op of READ or WRITE is its request */
    TAILQ_ENTRY(bt_nvme_request) entry;
    TAILQ_HEAD(, bt_nvme_request) followers; /* of the same key */
    uint32_t slot;
    enum bt_status status;
    bt_tier_fn fn;
    void *arg;
};
TAILQ_HEAD(bt_nvme_requests, bt_nvme_request);
struct bt_nvme_page {
    TAILQ_ENTRY(bt_nvme_page) entry;
    struct bt_nvme_requests riders; /* their records are in the image */
    bool dirty, queued, busy;
};
struct bt_nvme_bounce {
    struct bt_nvme_op op; /* first */
    struct bt_nvme_page *page;
    struct bt_nvme_requests riders;
};
struct bt_nvme_commit {
    struct bt_nvme_requests written, flushing;
    struct bt_nvme_op flush;
    bool flush_out, unsynced;
    struct bt_nvme_page *pages;
    TAILQ_HEAD(, bt_nvme_page) queue;
    struct bt_nvme_bounce bounce[NVME_BOUNCES];
    unsigned char *memory; /* of the bounces */
    uint32_t pages_out;
};
struct bt_nvme_pool {
    struct ev_loop *loop;
    struct ev_io watcher;
    struct bt_nvme_file file;
    struct bt_nvme_index index;
    struct bt_nvme_ring ring;
    struct bt_nvme_commit commit;
    struct bt_nvme_request *requests;
    struct bt_nvme_requests free, waiting, ended;
    uint32_t depth, at_device, stores;
    uint32_t busy; /* nested dispatching */
    bool verify, closing, closed;
    struct bt_nvme_stats stats;
};
/* For tests; NULL takes it away. */
void bt_nvme_hook(struct bt_nvme_pool *pool, bt_nvme_hook_fn fn, void *arg);
void bt_nvme_store_end(struct bt_nvme_pool *pool, struct bt_nvme_request *r,
                       enum bt_status status);
void bt_nvme_erase(struct bt_nvme_pool *pool, uint32_t slot, bool soon);

/* ---- commit ---- */

enum bt_status bt_nvme_commit_init(struct bt_nvme_pool *pool);
void bt_nvme_commit_fini(struct bt_nvme_pool *pool);
void bt_nvme_commit_written(struct bt_nvme_pool *pool,
                            struct bt_nvme_request *r);
void bt_nvme_commit_dirty(struct bt_nvme_pool *pool, uint32_t slot, bool soon);
/* Start what can be started. */
void bt_nvme_commit_step(struct bt_nvme_pool *pool);
void bt_nvme_commit_flushed(struct bt_nvme_pool *pool, int error);
void bt_nvme_commit_recorded(struct bt_nvme_pool *pool,
                             struct bt_nvme_bounce *bounce, int error);
/* Write all dirty pages and flush. Blocks. */
void bt_nvme_commit_sync(struct bt_nvme_pool *pool);

#endif
