/* The file of an NVMe pool: decides whether it is ours, locks it, makes room,
 * and what its header and records mean. Leaves which block is where to
 * nvme_index.c, and all traffic after opening to nvme_ring.c.
 *
 *   page 0     magic version record block_bytes blocks identity epoch ... XXH3
 *   page 1..   records: magic slot epoch key generation XXH3(block) - - XXH3
 *   then       blocks
 *
 * Invariants: the header is written and flushed before the file grows, so a
 * file of ours always starts with the magic. A record counts only with the
 * epoch of the header: emptying a file is one write, of a new epoch. A file
 * without our magic is never written to. */
#include "nvme.h"

#include "baton/transfer/runs.h"
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define VERSION      1u
#define RECORD_MAGIC 0x31525442u /* "BTR1" */
#define BLOCKS_MAX   (1u << 24)
#define BLOCK_MAX    (UINT64_C(1) << 30)

#define LOCK_TRIES    50u
#define LOCK_PAUSE_NS 10000000L
static const char MAGIC[8] = {'B', 'A', 'T', 'O', 'N', 'N', 'V', 'M'};

struct opening {
    struct bt_nvme_file *file;
    const char *path;
    bool created;
    char *error;
    size_t error_size;
};

/* ---- bytes ---- */

static uint64_t get64(const unsigned char *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

static uint32_t get32(const unsigned char *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

static void put64(unsigned char *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof(value));
}

static void put32(unsigned char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}

int bt_nvme_pwrite(int fd, const void *from, uint64_t bytes, uint64_t at)
{
    const char *next = from;

    while (bytes > 0) {
        ssize_t n = pwrite(fd, next, bytes, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        next += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* Up to the end of the file; the rest is zeros. */
static int pread_all(int fd, unsigned char *to, uint64_t bytes, uint64_t at)
{
    uint64_t done = 0;

    memset(to, 0, bytes);
    while (done < bytes) {
        ssize_t n = pread(fd, to + done, bytes - done, (off_t)(at + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        done += (uint64_t)n;
        if (n == 0 || (uint64_t)n % NVME_PAGE != 0)
            break;
    }
    return 0;
}

static enum bt_status failed(const struct opening *o, const char *what,
                             int error)
{
    snprintf(o->error, o->error_size, "%s: %s: %s", o->path, what,
             strerror(error));
    return error == ENOMEM ? BT_NO_MEMORY : BT_IO;
}

/* ---- records ---- */

enum bt_status bt_nvme_record_get(const struct bt_nvme_file *file,
                                  uint32_t slot,
                                  struct bt_nvme_record *record_out)
{
    static const unsigned char nothing[NVME_RECORD];
    const unsigned char *at = file->image + (size_t)slot * NVME_RECORD;

    if (memcmp(at, nothing, NVME_RECORD) == 0)
        return BT_NOT_FOUND;
    if (get64(at + 56) != bt_block_checksum(at, 56) ||
        get32(at) != RECORD_MAGIC || get32(at + 4) != slot)
        return BT_CHECKSUM;
    if (get64(at + 8) != file->epoch)
        return BT_NOT_FOUND;
    record_out->key = get64(at + 16);
    record_out->generation = get64(at + 24);
    record_out->checksum = get64(at + 32);
    return BT_OK;
}

void bt_nvme_record_put(struct bt_nvme_file *file, uint32_t slot,
                        const struct bt_nvme_record *record)
{
    unsigned char *at = file->image + (size_t)slot * NVME_RECORD;

    memset(at, 0, NVME_RECORD);
    put32(at, RECORD_MAGIC);
    put32(at + 4, slot);
    put64(at + 8, file->epoch);
    put64(at + 16, record->key);
    put64(at + 24, record->generation);
    put64(at + 32, record->checksum);
    put64(at + 56, bt_block_checksum(at, 56));
}

void bt_nvme_record_erase(struct bt_nvme_file *file, uint32_t slot)
{
    memset(file->image + (size_t)slot * NVME_RECORD, 0, NVME_RECORD);
}

uint64_t bt_nvme_block_at(const struct bt_nvme_file *file, uint32_t slot)
{
    return file->data_at + file->block_bytes * slot;
}

/* ---- header ---- */

static void shape(struct bt_nvme_file *f, uint64_t block_bytes, uint32_t blocks)
{
    f->block_bytes = (block_bytes + NVME_PAGE - 1) / NVME_PAGE * NVME_PAGE;
    f->block_count = blocks;
    f->pages = (blocks + NVME_PER_PAGE - 1) / NVME_PER_PAGE;
    f->data_at = (uint64_t)NVME_PAGE * (1 + f->pages);
    f->bytes = f->data_at + f->block_bytes * blocks;
}

static enum bt_status write_header(struct opening *o)
{
    struct bt_nvme_file *f = o->file;
    unsigned char *page = aligned_alloc(NVME_PAGE, NVME_PAGE);
    int error;

    if (!page || getrandom(&f->epoch, sizeof(f->epoch), 0) !=
                     (ssize_t)sizeof(f->epoch)) {
        free(page);
        return failed(o, "header", ENOMEM);
    }
    memset(page, 0, NVME_PAGE);
    memcpy(page, MAGIC, sizeof(MAGIC));
    put32(page + 8, VERSION);
    put32(page + 12, NVME_RECORD);
    put64(page + 16, f->block_bytes);
    put64(page + 24, f->block_count);
    put64(page + 32, f->identity);
    put64(page + 40, f->epoch);
    put64(page + NVME_PAGE - 8, bt_block_checksum(page, NVME_PAGE - 8));
    error = bt_nvme_pwrite(f->fd, page, NVME_PAGE, 0);
    if (error == 0 && fdatasync(f->fd) != 0)
        error = errno;
    free(page);
    return error ? failed(o, "writing the header", error) : BT_OK;
}

/* ---- room ---- */

static enum bt_status too_small(const struct opening *o, uint64_t have,
                                int error)
{
    struct statvfs vfs = {0};
    uint64_t room = 0;

    if (fstatvfs(o->file->fd, &vfs) == 0)
        room = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    snprintf(o->error, o->error_size,
             "%s: the pool needs %" PRIu64
             " bytes more, the file system has %" PRIu64 " free: %s",
             o->path, o->file->bytes > have ? o->file->bytes - have : 0, room,
             strerror(error));
    return BT_LIMIT;
}

static bool is_full(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

/* Blocks of the disk are had now, so that no store meets a full disk later;
 * where the file system cannot, free space is at least compared. */
static enum bt_status make_room(struct opening *o, uint64_t have)
{
    struct bt_nvme_file *f = o->file;
    struct statvfs vfs;
    int error;

    if (fallocate(f->fd, 0, 0, (off_t)f->bytes) == 0)
        return BT_OK;
    error = errno;
    if (is_full(error))
        return too_small(o, have, error);
    if (error != EOPNOTSUPP && error != ENOSYS)
        return failed(o, "allocating", error);
    if (fstatvfs(f->fd, &vfs) == 0 && f->bytes > have &&
        (uint64_t)vfs.f_bavail * vfs.f_frsize < f->bytes - have)
        return too_small(o, have, ENOSPC);
    if (f->bytes > have && ftruncate(f->fd, (off_t)f->bytes) != 0)
        return is_full(errno) ? too_small(o, have, errno)
                              : failed(o, "growing", errno);
    return BT_OK;
}

/* ---- opening ---- */

/* The ring of a process that was killed keeps the file, and so the lock, until
 * its last write has ended: worth waiting for, as that write may hit a block.
 */
static int lock(int fd)
{
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};

    for (uint32_t i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK || i == LOCK_TRIES)
            return errno;
        nanosleep(&pause, NULL);
    }
    return 0;
}

static enum bt_status open_and_lock(struct opening *o)
{
    struct bt_nvme_file *f = o->file;
    struct stat by_fd, by_path;
    int flags, error;

    f->fd = open(o->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0 && errno == ENOENT) {
        f->fd = open(o->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        o->created = f->fd >= 0;
    }
    if (f->fd < 0)
        return failed(o, "open", errno);
    if (fstat(f->fd, &by_fd) != 0)
        return failed(o, "fstat", errno);
    if (!S_ISREG(by_fd.st_mode)) {
        snprintf(o->error, o->error_size, "%s: not a regular file", o->path);
        return BT_INCOMPATIBLE;
    }
    error = lock(f->fd);
    if (error) {
        o->created = false; /* another one's now */
        if (error != EWOULDBLOCK)
            return failed(o, "flock", error);
        snprintf(o->error, o->error_size, "%s: in use by another pool",
                 o->path);
        return BT_EXISTS;
    }
    if (stat(o->path, &by_path) != 0 || by_path.st_ino != by_fd.st_ino ||
        by_path.st_dev != by_fd.st_dev) {
        o->created = false;
        return failed(o, "replaced while it was opened", ESTALE);
    }
    flags = fcntl(f->fd, F_GETFL);
    if (fcntl(f->fd, F_SETFL, (flags & ~O_NONBLOCK) | O_DIRECT) != 0) {
        snprintf(o->error, o->error_size,
                 "%s: its file system has no O_DIRECT (%s); put the pool on "
                 "one that has: ext4, xfs",
                 o->path, strerror(errno));
        return BT_UNSUPPORTED;
    }
    return BT_OK;
}

static int read_image(struct bt_nvme_file *f)
{
    uint64_t bytes = (uint64_t)f->pages * NVME_PAGE;

    f->image = aligned_alloc(NVME_PAGE, bytes);
    if (!f->image)
        return ENOMEM;
    return pread_all(f->fd, f->image, bytes, NVME_PAGE);
}

/* Blocks that a file of another shape or identity held. */
static uint64_t count_records(const struct bt_nvme_file *like,
                              const unsigned char *header)
{
    struct bt_nvme_file old = {.fd = like->fd, .epoch = get64(header + 40)};
    struct bt_nvme_record record;
    uint64_t blocks = get64(header + 24), count = 0;

    if (blocks == 0 || blocks > BLOCKS_MAX)
        return 0;
    shape(&old, get64(header + 16), (uint32_t)blocks);
    if (read_image(&old) == 0)
        for (uint32_t i = 0; i < old.block_count; i++)
            count += bt_nvme_record_get(&old, i, &record) == BT_OK;
    free(old.image);
    return count;
}

static enum bt_status make_empty(struct opening *o, uint64_t have)
{
    struct bt_nvme_file *f = o->file;
    uint64_t bytes = (uint64_t)f->pages * NVME_PAGE;
    enum bt_status status = BT_OK;
    int error;

    if (have > 0)
        status = make_room(o, have);
    if (status == BT_OK)
        status = write_header(o);
    if (status == BT_OK && have == 0)
        status = make_room(o, 0);
    if (status != BT_OK)
        return status;
    f->image = aligned_alloc(NVME_PAGE, bytes);
    if (!f->image)
        return failed(o, "index", ENOMEM);
    memset(f->image, 0, bytes);
    error = bt_nvme_pwrite(f->fd, f->image, bytes, NVME_PAGE);
    if (error == 0 && have > f->bytes && ftruncate(f->fd, (off_t)f->bytes) != 0)
        error = errno;
    if (error == 0 && fdatasync(f->fd) != 0)
        error = errno;
    f->bytes_at_open = f->bytes;
    return error ? failed(o, "writing the index", error) : BT_OK;
}

static enum bt_status take_over(struct opening *o, const unsigned char *header,
                                uint64_t have)
{
    struct bt_nvme_file *f = o->file;
    enum bt_status status;
    int error;

    if (memcmp(header, MAGIC, sizeof(MAGIC)) != 0) {
        snprintf(o->error, o->error_size,
                 "%s: not a pool of baton; left as it is", o->path);
        return BT_INCOMPATIBLE;
    }
    if (get64(header + NVME_PAGE - 8) !=
        bt_block_checksum(header, NVME_PAGE - 8)) {
        f->dropped = count_records(f, header);
        f->dropped += f->dropped == 0; /* the header itself */
        return make_empty(o, have);
    }
    if (get32(header + 8) != VERSION || get32(header + 12) != NVME_RECORD) {
        snprintf(o->error, o->error_size,
                 "%s: a pool of version %" PRIu32 ", this is version %u",
                 o->path, get32(header + 8), VERSION);
        return BT_INCOMPATIBLE;
    }
    if (get64(header + 16) != f->block_bytes ||
        get64(header + 24) != f->block_count ||
        get64(header + 32) != f->identity) {
        f->dropped = count_records(f, header);
        return make_empty(o, have);
    }
    f->epoch = get64(header + 40);
    f->bytes_at_open = have;
    error = read_image(f);
    status = error ? failed(o, "reading the index", error) : make_room(o, have);
    return status;
}

static enum bt_status look(struct opening *o)
{
    unsigned char *header;
    enum bt_status status;
    struct stat stat;
    int error;

    if (fstat(o->file->fd, &stat) != 0)
        return failed(o, "fstat", errno);
    if (stat.st_size == 0)
        return make_empty(o, 0);
    header = aligned_alloc(NVME_PAGE, NVME_PAGE);
    if (!header)
        return failed(o, "header", ENOMEM);
    error = pread_all(o->file->fd, header, NVME_PAGE, 0);
    status = error ? failed(o, "reading the header", error)
                   : take_over(o, header, (uint64_t)stat.st_size);
    free(header);
    return status;
}

enum bt_status bt_nvme_file_open(struct bt_nvme_file *file,
                                 const struct bt_nvme_config *config,
                                 char *error_out, size_t error_size)
{
    struct opening o = {.file = file,
                        .path = config->path,
                        .error = error_out,
                        .error_size = error_size};
    enum bt_status status;

    memset(file, 0, sizeof(*file));
    file->fd = -1;
    if (config->block_bytes == 0 || config->block_bytes > BLOCK_MAX ||
        config->block_count == 0 || config->block_count > BLOCKS_MAX) {
        snprintf(error_out, error_size, "%s: 1 to %u blocks of at most 1 GiB",
                 config->path, BLOCKS_MAX);
        return BT_INVALID;
    }
    shape(file, config->block_bytes, config->block_count);
    file->identity = config->identity;
    status = open_and_lock(&o);
    if (status == BT_OK)
        status = look(&o);
    if (status != BT_OK) {
        if (o.created)
            unlink(config->path);
        bt_nvme_file_close(file);
    }
    return status;
}

void bt_nvme_file_close(struct bt_nvme_file *file)
{
    free(file->image);
    file->image = NULL;
    if (file->fd >= 0) {
        /* The kernel may drop the ring's reference only later. */
        (void)flock(file->fd, LOCK_UN);
        close(file->fd);
    }
    file->fd = -1;
}
