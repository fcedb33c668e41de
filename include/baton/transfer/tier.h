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
    uint32_t waiting_max; /* requests that wait for the device; 0: 4,096;
                             over it BT_LIMIT */
    bool verify;          /* checksum every read (always in tests) */
    uint64_t identity;    /* model and layout; another one's file is emptied
                             (counted), never served */
};
/* Loads the index. BT_IO: with path and errno text; BT_INCOMPATIBLE: not our
 * file; BT_LIMIT: the file system is too small (need and free named);
 * BT_EXISTS: locked by another process. */
enum bt_status bt_nvme_pool_open(struct ev_loop *loop,
                                 const struct bt_nvme_config *config,
                                 struct bt_nvme_pool **out, char *error_out,
                                 size_t error_size);
/* Ends what is out (call-backs BT_CANCELLED), writes the index, closes. */
void bt_nvme_pool_close(struct bt_nvme_pool *pool);
/* Buffers that reads and writes use; registering makes them cheaper.
 * BT_LIMIT: memlock. At most 16. */
enum bt_status bt_nvme_register(struct bt_nvme_pool *pool, void *base,
                                uint64_t bytes);
typedef void (*bt_tier_fn)(void *arg, enum bt_status status);
/* Store a block under a key; `from` is 4 KiB aligned and stays until the
 * call-back; stored means on the disk. BT_EXISTS (call-back): it was there
 * already. BT_LIMIT at once: too many wait. */
enum bt_status bt_nvme_store(struct bt_nvme_pool *pool, uint64_t key,
                             const void *from, bt_tier_fn fn, void *arg);
/* NOT_FOUND at once; call-back CHECKSUM, IO. */
enum bt_status bt_nvme_load(struct bt_nvme_pool *pool, uint64_t key, void *to,
                            bt_tier_fn fn, void *arg);
bool bt_nvme_has(const struct bt_nvme_pool *pool, uint64_t key);
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
 * build-time need. Copies run on a stream of their own. */
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
    /* Staging for moves that need it (nvme <-> device, device without peer
     * access); at least 2 blocks of it. */
    struct bt_host_pool *staging;
    uint32_t depth; /* blocks under way, 0: 8 */
};
struct bt_move_end {
    enum bt_status status; /* of the first block that failed */
    uint32_t moved;
    uint64_t bytes;
    int64_t duration_ns;
};
struct bt_move;
typedef void (*bt_move_fn)(void *arg, const struct bt_move_end *end);
enum bt_status bt_move_start(struct ev_loop *loop,
                             const struct bt_move_spec *spec, bt_move_fn fn,
                             void *arg, struct bt_move **out);
void bt_move_cancel(struct bt_move *move);

#endif
