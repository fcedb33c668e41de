/* Writes a snapshot: bytes, checksum, the rename. Decides nothing about when
 * or what; reading is snapshot_read.c, the child process saver.c.
 *
 * Runs in a forked child too: after bt_snapshot_open nothing is allocated.
 */
#include "snapshot_form.h"

#include "baton/planner/block_hash.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define BUFFER_BYTES (256u << 10)
/* Longest single piece: a source with name and note. */
#define PIECE_MAX  (BT_SNAPSHOT_NAME_MAX + BT_SNAPSHOT_NOTE_MAX + 64u)
#define PATH_BYTES 4096

struct bt_snapshot_writer {
    char path[PATH_BYTES], temporary[PATH_BYTES];
    int fd;
    enum bt_status status; /* first failure */
    int error;             /* its errno, 0: none */
    bool in_rank;
    struct bt_snapshot_size size;
    XXH3_state_t *sum;
    size_t used;
    unsigned char buffer[BUFFER_BYTES];
};

enum bt_status bt_snapshot_open(const char *path,
                                struct bt_snapshot_writer **out,
                                char *error_out, size_t error_size)
{
    struct bt_snapshot_writer *w = malloc(sizeof(*w));

    snprintf(error_out, error_size, "out of memory");
    if (w == NULL)
        return BT_NO_MEMORY;
    w->sum = XXH3_createState();
    if (w->sum == NULL)
        goto undo_writer;
    w->status = BT_OK;
    w->error = 0;
    w->in_rank = false;
    w->size = (struct bt_snapshot_size){0};
    w->used = 0;
    XXH3_64bits_reset(w->sum);
    if (snprintf(w->path, sizeof(w->path), "%s", path) >= PATH_BYTES - 8)
        errno = ENAMETOOLONG;
    else if (snprintf(w->temporary, sizeof(w->temporary), "%s.tmp", path) > 0 &&
             (w->fd =
                  open(w->temporary,
                       O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                       0600)) >= 0) {
        snapshot_begin(w);
        *out = w;
        return BT_OK;
    }
    snprintf(error_out, error_size, "%.80s.tmp: %s", path, strerror(errno));
    XXH3_freeState(w->sum);
    free(w);
    return BT_IO;
undo_writer:
    free(w);
    return BT_NO_MEMORY;
}

/* ---- bytes ---- */

/* A call of the system failed; the first counts. */
static void fail(struct bt_snapshot_writer *w)
{
    if (w->status != BT_OK)
        return;
    w->status = BT_IO;
    w->error = errno;
}

static void flush(struct bt_snapshot_writer *w)
{
    size_t done = 0;

    XXH3_64bits_update(w->sum, w->buffer, w->used);
    while (w->status == BT_OK && done < w->used) {
        ssize_t n = write(w->fd, w->buffer + done, w->used - done);

        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            fail(w);
    }
    w->size.bytes += w->used;
    w->used = 0;
}

/* Room for one piece in the buffer. */
static void room(struct bt_snapshot_writer *w)
{
    if (w->used + PIECE_MAX > BUFFER_BYTES)
        flush(w);
}

static void put(struct bt_snapshot_writer *w, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        w->buffer[w->used++] = (unsigned char)(value >> (8 * i));
}

static void put_bytes(struct bt_snapshot_writer *w, const char *at, size_t n)
{
    put(w, n, 2);
    if (n > 0)
        memcpy(w->buffer + w->used, at, n);
    w->used += n;
}

/* ---- pieces ---- */

void snapshot_begin(struct bt_snapshot_writer *w)
{
    memcpy(w->buffer, SNAPSHOT_MAGIC, SNAPSHOT_MAGIC_BYTES);
    w->used = SNAPSHOT_MAGIC_BYTES;
    put(w, BT_SNAPSHOT_VERSION, 4);
    put(w, 0, 4);
}

static void end_rank(struct bt_snapshot_writer *w)
{
    if (w->in_rank)
        put(w, 0, 1);
    w->in_rank = false;
}

void bt_snapshot_source(struct bt_snapshot_writer *w,
                        const struct bt_snapshot_source *source)
{
    room(w);
    end_rank(w);
    if (source->name_bytes == 0 || source->name_bytes > BT_SNAPSHOT_NAME_MAX ||
        source->note_bytes > BT_SNAPSHOT_NOTE_MAX || source->ranks == 0 ||
        source->ranks > BT_SNAPSHOT_RANKS_MAX ||
        w->size.sources == BT_SNAPSHOT_SOURCES_MAX) {
        w->status = w->status == BT_OK ? BT_INVALID : w->status;
        return;
    }
    put(w, SNAPSHOT_SOURCE, 1);
    put(w, source->block_tokens, 4);
    put(w, source->ranks, 4);
    put_bytes(w, source->name, source->name_bytes);
    put_bytes(w, source->note, source->note_bytes);
    w->size.sources++;
}

void bt_snapshot_rank(struct bt_snapshot_writer *w, uint32_t rank,
                      const struct bt_stream_mark *mark)
{
    uint32_t count = mark->recent_count;

    room(w);
    end_rank(w);
    if (count > BT_STREAM_RECENT || w->size.sources == 0) {
        w->status = w->status == BT_OK ? BT_INVALID : w->status;
        return;
    }
    put(w, SNAPSHOT_RANK, 1);
    put(w, rank, 4);
    put(w, mark->incarnation, 8);
    put(w, mark->next, 8);
    put(w,
        (mark->started ? MARK_STARTED : 0u) |
            (mark->from_zero ? MARK_FROM_ZERO : 0u) |
            (mark->hole ? MARK_HOLE : 0u) |
            (mark->counting == BT_KV_COUNT_SET ? MARK_SET : 0u),
        1);
    put(w, mark->block_tokens, 4);
    put(w, mark->groups.untold, 8);
    put(w, mark->groups.full, 8);
    put(w, mark->groups.other, 8);
    put(w, mark->groups.bent, 8);
    put(w, count, 1);
    for (uint32_t i = 0; i < count; i++) {
        put(w, mark->recent[i].seq, 8);
        put(w, mark->recent[i].hash, 8);
    }
    w->in_rank = true;
}

void bt_snapshot_entry(struct bt_snapshot_writer *w,
                       const struct bt_prefix_entry *entry)
{
    bool plain = entry->ns == BT_NS_PLAIN;
    unsigned int form = 0;
    bool counts = false;

    for (int t = 0; t < BT_TIERS; t++) {
        form |= entry->copies[t] > 0 ? ENTRY_TIER << t : 0u;
        counts = counts || entry->copies[t] > 1;
    }
    if (form == 0 || !w->in_rank)
        return;
    form |= (entry->keyed ? ENTRY_KEYED : 0u) |
            (entry->keyed && !plain ? ENTRY_NS : 0u) |
            (counts ? ENTRY_COUNTS : 0u);
    room(w);
    put(w, form, 1);
    put(w, entry->hash, 8);
    if (entry->keyed)
        put(w, entry->key, 8);
    if (entry->keyed && !plain)
        put(w, entry->ns, 8);
    for (int t = 0; t < BT_TIERS && counts; t++)
        if (entry->copies[t] > 0)
            put(w, entry->copies[t], 4);
    w->size.entries++;
}

/* ---- the end ---- */

/* The new name must survive a power cut, too. */
static void sync_folder(const char *path)
{
    char folder[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    size_t n = slash == NULL ? 0 : (size_t)(slash - path);
    int fd;

    memcpy(folder, path, n);
    folder[n] = '\0';
    fd = open(n > 0 ? folder : (slash != NULL ? "/" : "."),
              O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

enum bt_status bt_snapshot_commit(struct bt_snapshot_writer *w,
                                  struct bt_snapshot_size *size_out)
{
    enum bt_status status;

    room(w);
    end_rank(w);
    put(w, SNAPSHOT_END, 1);
    put(w, w->size.sources, 4);
    put(w, w->size.entries, 8);
    flush(w);
    put(w, XXH3_64bits_digest(w->sum), 8);
    flush(w);
    if (w->status == BT_OK && fsync(w->fd) != 0)
        fail(w);
    if (close(w->fd) != 0)
        fail(w);
    if (w->status == BT_OK && rename(w->temporary, w->path) != 0)
        fail(w);
    if (w->status == BT_OK) {
        sync_folder(w->path);
        *size_out = w->size;
    } else {
        (void)unlink(w->temporary);
        size_out->error = w->error;
    }
    status = w->status;
    XXH3_freeState(w->sum);
    free(w);
    return status;
}

void snapshot_forget(struct bt_snapshot_writer *w)
{
    close(w->fd);
    XXH3_freeState(w->sum);
    free(w);
}

const char *bt_snapshot_why(enum bt_status status,
                            const struct bt_snapshot_size *size)
{
    return size->error != 0 ? strerror(size->error) : bt_status_text(status);
}

enum bt_status bt_snapshot_probe(const char *path, char *error_out,
                                 size_t error_size)
{
    struct bt_snapshot_writer *w = NULL;
    struct stat st;
    enum bt_status status;

    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        snprintf(error_out, error_size, "%.80s: not a regular file", path);
        return BT_IO;
    }
    status = bt_snapshot_open(path, &w, error_out, error_size);
    if (status != BT_OK)
        return status;
    snapshot_unlink(w);
    snapshot_forget(w);
    return BT_OK;
}

bool bt_snapshot_fails(struct bt_snapshot_trouble *trouble, const char *why)
{
    if (strncmp(trouble->why, why, sizeof(trouble->why) - 1) == 0)
        return false;
    snprintf(trouble->why, sizeof(trouble->why), "%s", why);
    return true;
}

bool bt_snapshot_recovers(struct bt_snapshot_trouble *trouble)
{
    bool had = trouble->why[0] != '\0';

    trouble->why[0] = '\0';
    return had;
}

int snapshot_fd(const struct bt_snapshot_writer *w)
{
    return w->fd;
}

void snapshot_temporary(const char *path)
{
    char name[PATH_BYTES];

    if (snprintf(name, sizeof(name), "%s.tmp", path) < PATH_BYTES)
        (void)unlink(name);
}

void snapshot_unlink(const struct bt_snapshot_writer *w)
{
    (void)unlink(w->temporary);
}
