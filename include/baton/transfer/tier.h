/* Tiers of KV memory on one node: pools of equal blocks in host memory and on
 * NVMe, device memory through a driver found at run time, and moves between
 * any two of them, pipelined by chunk.
 *
 * One libev loop; nothing blocks but creating a pool. Every move ends with one
 * call-back from the loop.
 */
#ifndef BATON_TRANSFER_TIER_H
#define BATON_TRANSFER_TIER_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;

enum bt_memory_kind { BT_MEMORY_HOST, BT_MEMORY_DEVICE, BT_MEMORY_NVME };

/* ---- host pool ---- */

struct bt_host_pool;
struct bt_host_pool_config {
    uint64_t block_bytes; /* rounded up to 64 */
    uint32_t block_count;
    int numa_node;   /* where; -1: no preference (of the NIC: discover.h) */
    bool huge_pages; /* try 2 MiB pages, then transparent ones */
    bool lock;       /* mlock; failing is BT_LIMIT with the need named */
};
enum bt_status bt_host_pool_create(const struct bt_host_pool_config *config,
                                   struct bt_host_pool **out, char *error_out,
                                   size_t error_size);
void bt_host_pool_destroy(struct bt_host_pool *pool);
void *bt_host_pool_base(const struct bt_host_pool *pool); /* register this */
uint64_t bt_host_pool_bytes(const struct bt_host_pool *pool);
/* What was had: page size in bytes, and the node (-1 unknown). */
uint64_t bt_host_pool_page(const struct bt_host_pool *pool);
int bt_host_pool_node(const struct bt_host_pool *pool);
uint64_t bt_host_pool_block_bytes(const struct bt_host_pool *pool);
/* BT_LIMIT: full. Blocks are counted: get gives 1 reference. */
enum bt_status bt_host_pool_get(struct bt_host_pool *pool, uint32_t *block_out);
void bt_host_pool_hold(struct bt_host_pool *pool, uint32_t block);
void bt_host_pool_put(struct bt_host_pool *pool, uint32_t block);
void *bt_host_pool_at(const struct bt_host_pool *pool, uint32_t block);
uint32_t bt_host_pool_free(const struct bt_host_pool *pool);

/* ---- NVMe pool ----
 *
 * One preallocated file: header, index of records, blocks at multiples of
 * 4 KiB. A block is served only when its record says so; the record is
 * written after the data is on the disk, names the key, the generation, and
 * the XXH3-64 of the bytes, and has a checksum of its own. After a crash
 * nothing half-written is ever served: a torn record is dropped, a torn block
 * fails its checksum at the first read (BT_CHECKSUM, dropped, counted).
 * O_DIRECT, io_uring with registered buffers and a bounded queue; full: least
 * recently used blocks make room. */

struct bt_nvme_pool;
struct bt_nvme_config {
    const char *path;     /* file, made if absent; refused if in use */
    uint64_t block_bytes; /* rounded up to 4,096 */
    uint32_t block_count;
    uint32_t depth;       /* requests at the device; 0: 32 */
    uint32_t waiting_max; /* requests that wait for the device; 0: 4,096 */
    bool verify;          /* checksum every read (always in tests); without
                             it the first read of a block that an earlier
                             process stored is checked all the same */
    uint64_t identity;    /* model and layout; another one's file is emptied
                             (counted), never served */
};
/* Loads the index. BT_IO: with path and errno text; BT_INCOMPATIBLE: not our
 * file, or of another version; BT_LIMIT: the file system is too small (need and
 * free named); BT_EXISTS: in use, in this process or another
 * (waits 0.5 s for one that was killed: its last writes hold the file);
 * BT_UNSUPPORTED: the file system has no O_DIRECT, or the kernel no io_uring;
 * BT_INVALID. Blocks. A file of another identity or geometry, or with a torn
 * header, is emptied and what it held counted in dropped_at_open.
 *
 * What survives. A store is called back after fdatasync of its data and after
 * its record was written; one fdatasync serves all stores that wait for it. The
 * record itself is flushed with the next group, or at once when nothing else is
 * under way. So a killed process loses nothing that was called back; a power
 * cut can lose the last group's records, which then are absent. A dropped block
 * may be back after a crash, with the bytes that were stored. */
enum bt_status bt_nvme_pool_open(struct ev_loop *loop,
                                 const struct bt_nvme_config *config,
                                 struct bt_nvme_pool **out, char *error_out,
                                 size_t error_size);
/* Ends what is out (call-backs BT_CANCELLED, before this returns), writes the
 * index, closes. Blocks for what is at the device. May be called from a
 * call-back of the pool. */
void bt_nvme_pool_close(struct bt_nvme_pool *pool);
/* Buffers that reads and writes use; registering makes them cheaper. They stay
 * mapped until the pool is closed. BT_LIMIT: memlock, or more than 16, or more
 * than 64 GiB; BT_UNSUPPORTED: the kernel cannot. The pool works without. */
enum bt_status bt_nvme_register(struct bt_nvme_pool *pool, void *base,
                                uint64_t bytes);
typedef void (*bt_tier_fn)(void *arg, enum bt_status status);
/* Store a block under a key; `from` is 4 KiB aligned and stays, unchanged,
 * until the call-back; stored means on the disk. At once: BT_LIMIT: too many
 * wait (depth + waiting_max), or every block of the pool is in use;
 * BT_CANCELLED: closing. Call-back: BT_EXISTS: it was there already (the bytes
 * are not compared); BT_LIMIT: the disk is full; BT_IO; BT_CANCELLED: closed,
 * or dropped meanwhile. */
enum bt_status bt_nvme_store(struct bt_nvme_pool *pool, uint64_t key,
                             const void *from, bt_tier_fn fn, void *arg);
/* At once: BT_NOT_FOUND (a block being stored is not there yet), BT_LIMIT,
 * BT_CANCELLED as above. Call-back: BT_CHECKSUM, BT_IO (the block is dropped),
 * BT_CANCELLED; then `to` holds anything. `to` is 4 KiB aligned. */
enum bt_status bt_nvme_load(struct bt_nvme_pool *pool, uint64_t key, void *to,
                            bt_tier_fn fn, void *arg);
bool bt_nvme_has(const struct bt_nvme_pool *pool, uint64_t key);
uint64_t bt_nvme_block_bytes(const struct bt_nvme_pool *pool);
/* Loads under way still end well. No such key: nothing happens. */
void bt_nvme_drop(struct bt_nvme_pool *pool, uint64_t key);
struct bt_nvme_stats {
    uint64_t blocks, capacity, reads, writes, read_bytes, write_bytes;
    uint64_t checksum_failures, io_errors, evicted, dropped_at_open;
    uint32_t out, waiting;
};
void bt_nvme_stats(const struct bt_nvme_pool *pool, struct bt_nvme_stats *out);

/* ---- device memory ----
 *
 * CUDA's driver library by dlopen ("libcuda.so.1", or the path given): no
 * build-time need. Copies run on a stream of their own. One thread per device.
 * At most 256 copies at a time. */
struct bt_device;
/* BT_UNSUPPORTED: no driver or no device, in words. */
enum bt_status bt_device_open(const char *library, int ordinal,
                              struct bt_device **out, char *error_out,
                              size_t error_size);
void bt_device_close(struct bt_device *device);
/* Memory a NIC can reach directly (peer memory or dma-buf)? */
bool bt_device_peer(const struct bt_device *device);
/* "0000:1b:00.0"; static in device. */
const char *bt_device_pci(const struct bt_device *device);
enum bt_status bt_device_alloc(struct bt_device *device, uint64_t bytes,
                               void **out);
void bt_device_free(struct bt_device *device, void *memory);
/* Page-lock host memory for the device: copies from and to memory that is not
 * may block in the driver. Unpin before the memory goes. BT_LIMIT: the driver
 * refused. */
enum bt_status bt_device_pin(struct bt_device *device, void *base,
                             uint64_t bytes);
void bt_device_unpin(struct bt_device *device, void *base);

/* ---- moves ---- */

/* One end of a move: host or device memory, or keys of an NVMe pool. */
struct bt_tier_end {
    enum bt_memory_kind kind;
    void *base;                /* host, device: blocks lie at index * bytes */
    const uint32_t *blocks;    /* host, device: copied */
    struct bt_device *device;  /* device */
    struct bt_nvme_pool *nvme; /* nvme */
    const uint64_t *keys;      /* nvme: copied */
};
struct bt_move_spec {
    struct bt_tier_end from, to;
    uint32_t count, block_bytes;
    /* Staging for moves that need it (nvme <-> device, nvme -> nvme, between
     * devices without peer access): blocks of at least block_bytes, at least 2
     * of them. Shared with others: a move waits when it is full. */
    struct bt_host_pool *staging;
    uint32_t depth; /* blocks under way, 0: 8 */
};
struct bt_move_end {
    enum bt_status status; /* of the first block that failed */
    uint32_t moved;        /* blocks that arrived */
    uint64_t bytes;
    int64_t duration_ns;
};
struct bt_move;
typedef void (*bt_move_fn)(void *arg, const struct bt_move_end *end);
/* Blocks i of both ends, in order, `depth` at a time. After the first failure
 * nothing new starts. The call-back comes from the loop after the last copy has
 * ended, so all memory may be reused at once; the move is gone then. A key that
 * the target pool holds already counts as moved. Pools and devices outlive it.
 * BT_INVALID: counts, alignment (NVMe: 4 KiB, and its block size), missing
 * staging; BT_NO_MEMORY. 1 to 65,536 blocks. */
enum bt_status bt_move_start(struct ev_loop *loop,
                             const struct bt_move_spec *spec, bt_move_fn fn,
                             void *arg, struct bt_move **out);
/* Ends with BT_CANCELLED once what is under way has ended. Not after the
 * call-back. */
void bt_move_cancel(struct bt_move *move);

#endif
