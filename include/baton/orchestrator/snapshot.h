/* File of what an index knew and where its streams stood, for a warm restart.
 *
 *   "BTPFXSN1" u32 version u32 0
 *   'S' u32 block_tokens u32 ranks u16 n name[n] u16 m note[m]      per source
 *     'R' u32 rank, mark                                          of a source
 *       entry ... 0x00                                              of a rank
 *   'E' u32 sources u64 entries u64 XXH3-64 of all bytes before, seed 0
 *
 *   mark:  u64 incarnation u64 next u8 flags (started, from zero, hole, set
 *          counting) u32 block_tokens u64 groups untold, full, other, bent
 *          u8 count, count times u64 seq u64 hash
 *   entry: u8 form u64 hash [u64 key] [u64 ns] [u32 copies ...]
 *          form: bit 0 keyed, bit 1 ns is not the plain one, bits 2..5 the
 *          tiers it is in, bit 6 copies follow (one per tier), else 1 each
 *
 * Little-endian. A file is written beside its name, synced and renamed: there
 * is the old one or the new one. A file that is damaged, cut, of another
 * version or larger than the limit is refused as a whole.
 */
#ifndef BATON_ORCHESTRATOR_SNAPSHOT_H
#define BATON_ORCHESTRATOR_SNAPSHOT_H

#include "baton/base/status.h"
#include "baton/orchestrator/event_plane.h"
#include "baton/planner/prefix_index.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_SNAPSHOT_VERSION     1u
#define BT_SNAPSHOT_BYTES_MAX   (8ull << 30)
#define BT_SNAPSHOT_SOURCES_MAX 65535u
#define BT_SNAPSHOT_RANKS_MAX   64u
#define BT_SNAPSHOT_NAME_MAX    2048u /* bytes */
#define BT_SNAPSHOT_NOTE_MAX    8192u /* bytes */

struct ev_loop;

/* One engine. name tells it again after a restart; note is its owner's, any
 * bytes. In a writer's call the strings are the caller's; in a visitor's they
 * live as long as the snapshot. */
struct bt_snapshot_source {
    const char *name, *note;
    size_t name_bytes, note_bytes;
    uint32_t block_tokens, ranks;
};

/* ---- writing ---- */

struct bt_snapshot_writer;

/* Opens PATH.tmp, mode 0600. BT_IO (error_out, >= 160 bytes, says why),
 * BT_NO_MEMORY. */
enum bt_status bt_snapshot_open(const char *path,
                                struct bt_snapshot_writer **out,
                                char *error_out, size_t error_size);
/* In the order of the file. The first failure sticks, commit tells. */
void bt_snapshot_source(struct bt_snapshot_writer *writer,
                        const struct bt_snapshot_source *source);
void bt_snapshot_rank(struct bt_snapshot_writer *writer, uint32_t rank,
                      const struct bt_stream_mark *mark);
/* The entry's own rank is not looked at. One that is in no tier is left out. */
void bt_snapshot_entry(struct bt_snapshot_writer *writer,
                       const struct bt_prefix_entry *entry);

struct bt_snapshot_size {
    uint64_t bytes, entries;
    uint32_t sources;
    int error; /* errno of a failure, 0: another reason */
};
/* Ends the file, syncs, renames it to PATH; frees the writer in any case. When
 * it fails only size_out->error is written.
 * BT_IO: PATH is as it was, PATH.tmp is gone. BT_INVALID: a limit was passed,
 * as BT_IO. Blocks until the disk has it. */
enum bt_status bt_snapshot_commit(struct bt_snapshot_writer *writer,
                                  struct bt_snapshot_size *size_out);

/* What a failed commit or save failed of, for a log. */
const char *bt_snapshot_why(enum bt_status status,
                            const struct bt_snapshot_size *size);
/* Can PATH be written? Makes PATH.tmp and takes it away again. BT_IO
 * (error_out, >= 160 bytes, says why), BT_NO_MEMORY. */
enum bt_status bt_snapshot_probe(const char *path, char *error_out,
                                 size_t error_size);

/* Failures are said when they begin and when their reason changes; all 0 at
 * first. */
struct bt_snapshot_trouble {
    char why[192]; /* "": none */
};
/* True: say it. */
bool bt_snapshot_fails(struct bt_snapshot_trouble *trouble, const char *why);
/* A save went well. True: after failures, say that too. */
bool bt_snapshot_recovers(struct bt_snapshot_trouble *trouble);

/* Writes one into the writer, with the calls above; in a child process that
 * has this process' memory as it is now, so: no locks, no allocation, no log.
 */
typedef void (*bt_snapshot_fill_fn)(void *arg,
                                    struct bt_snapshot_writer *writer);
/* pause_ns: how long the start held the loop up (the fork). */
typedef void (*bt_snapshot_done_fn)(void *arg, enum bt_status status,
                                    const struct bt_snapshot_size *size,
                                    int64_t pause_ns);
struct bt_snapshot_saver;
struct bt_snapshot_job {
    const char *path;
    bt_snapshot_fill_fn fill;
    bt_snapshot_done_fn done; /* on the loop, later; not after a stop */
    void *arg;
};
/* Save in the background: a forked child writes while the loop goes on; pages
 * that change meanwhile are copied by the kernel (up to the index' size more
 * memory). One saver at a time per path. BT_IO (error_out), BT_NO_MEMORY. */
enum bt_status bt_snapshot_save(struct ev_loop *loop,
                                const struct bt_snapshot_job *job,
                                struct bt_snapshot_saver **out, char *error_out,
                                size_t error_size);
/* Ends the child if it is at work, waits for it and frees. Needed after done,
 * too (and allowed within it). */
void bt_snapshot_saver_stop(struct bt_snapshot_saver *saver);

/* ---- reading ---- */

struct bt_snapshot;

/* Reads and checks the whole file. BT_NOT_FOUND: there is none. BT_TOO_LARGE:
 * beyond bytes_max. BT_CHECKSUM: damaged or cut. BT_UNSUPPORTED: another
 * version. BT_INVALID: not such a file, or its parts contradict each other.
 * BT_IO, BT_NO_MEMORY. error_out (>= 160 bytes) says which. */
enum bt_status bt_snapshot_load(const char *path, uint64_t bytes_max,
                                struct bt_snapshot **out, char *error_out,
                                size_t error_size);
void bt_snapshot_free(struct bt_snapshot *snapshot);
/* Move a refused file to PATH.bad (an older one is replaced). False: it could
 * not be; then it will be overwritten by the next save. */
bool bt_snapshot_set_aside(const char *path);

uint32_t bt_snapshot_count(const struct bt_snapshot *snapshot);
uint64_t bt_snapshot_entries(const struct bt_snapshot *snapshot);
void bt_snapshot_at(const struct bt_snapshot *snapshot, uint32_t i,
                    struct bt_snapshot_source *out);
/* BT_NOT_FOUND. */
enum bt_status bt_snapshot_find(const struct bt_snapshot *snapshot,
                                const char *name, uint32_t *i_out);

struct bt_snapshot_visitor {
    /* Up to BT_SNAPSHOT_STORE_BLOCKS entries at a time, as one store with own
     * keys (or counted only) for one tier. What has n copies comes n times. */
    void (*store)(void *arg, uint32_t rank, const struct bt_kv_store *store);
    /* After all stores of the rank. */
    void (*rank)(void *arg, uint32_t rank, const struct bt_stream_mark *mark);
    void *arg;
};
#define BT_SNAPSHOT_STORE_BLOCKS 256u
/* More copies of a hash count as so many. */
#define BT_SNAPSHOT_COPIES_MAX 64u
void bt_snapshot_visit(const struct bt_snapshot *snapshot, uint32_t i,
                       const struct bt_snapshot_visitor *visitor);

#endif
