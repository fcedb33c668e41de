/* io_uring for one file: operations in, whole results out. Decides whether a
 * buffer goes as a registered one, continues short transfers, and repeats what
 * the kernel asks to repeat (bounded). Leaves the order of operations to
 * nvme_commit.c, their number to nvme_pool.c: the ring has an entry for each
 * that may be out. Invariant: `done` is called once per started operation. */
#include "nvme.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CHUNK_MAX (UINT64_C(1) << 30) /* of one read or write */

int bt_nvme_ring_init(struct bt_nvme_ring *ring, uint32_t entries, int fd)
{
    int error = io_uring_queue_init(entries, &ring->uring, 0);

    ring->event_fd = -1;
    if (error != 0)
        return -error;
    ring->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (ring->event_fd < 0) {
        error = -errno;
        goto undo;
    }
    error = io_uring_register_eventfd(&ring->uring, ring->event_fd);
    if (error == 0)
        error = io_uring_register_files(&ring->uring, &fd, 1);
    if (error != 0)
        goto undo;
    ring->sparse =
        io_uring_register_buffers_sparse(&ring->uring, NVME_PIECES) == 0;
    return 0;
undo:
    bt_nvme_ring_fini(ring);
    return -error;
}

void bt_nvme_ring_fini(struct bt_nvme_ring *ring)
{
    io_uring_queue_exit(&ring->uring);
    if (ring->event_fd >= 0)
        close(ring->event_fd);
    ring->event_fd = -1;
}

static enum bt_status update(struct bt_nvme_ring *ring, uint32_t at,
                             uintptr_t base, uint64_t bytes)
{
    struct iovec piece = {.iov_base = bytes ? (void *)base : NULL,
                          .iov_len = bytes};
    __u64 tag = 0;
    int n =
        io_uring_register_buffers_update_tag(&ring->uring, at, &piece, &tag, 1);

    ring->piece[at].base = base;
    ring->piece[at].bytes = n == 1 ? bytes : 0;
    if (n == 1)
        return BT_OK;
    return n == -ENOMEM || n == -EAGAIN ? BT_LIMIT : BT_IO;
}

/* One entry of the kernel holds at most 1 GiB: a region is several; a block
 * across two of them goes unregistered. */
enum bt_status bt_nvme_ring_register(struct bt_nvme_ring *ring, void *base,
                                     uint64_t bytes)
{
    uint32_t first = ring->pieces;
    enum bt_status status = BT_OK;
    uint64_t piece;

    if (!ring->sparse)
        return BT_UNSUPPORTED;
    if (bytes == 0)
        return BT_INVALID;
    if (ring->regions == NVME_REGIONS ||
        (bytes - 1) / NVME_PIECE_BYTES >= NVME_PIECES - ring->pieces)
        return BT_LIMIT;
    for (uint64_t at = 0; at < bytes && status == BT_OK; at += piece) {
        piece = bytes - at < NVME_PIECE_BYTES ? bytes - at : NVME_PIECE_BYTES;
        status = update(ring, ring->pieces, (uintptr_t)base + at, piece);
        ring->pieces += status == BT_OK;
    }
    if (status == BT_OK) {
        ring->regions++;
        return BT_OK;
    }
    while (ring->pieces > first)
        (void)update(ring, --ring->pieces, 0, 0);
    return status;
}

static int piece_of(const struct bt_nvme_ring *ring, const void *at,
                    uint64_t bytes)
{
    uintptr_t start = (uintptr_t)at;

    for (uint32_t i = 0; i < ring->pieces; i++)
        if (start >= ring->piece[i].base && bytes <= ring->piece[i].bytes &&
            start - ring->piece[i].base <= ring->piece[i].bytes - bytes)
            return (int)i;
    return -1;
}

/* What is left to move; a flush has no memory. */
static unsigned char *memory_of(const struct bt_nvme_op *op)
{
    return op->buffer != NULL ? op->buffer + op->done : NULL;
}

static int tell(struct bt_nvme_ring *ring, const struct bt_nvme_op *op,
                bool submit, int result)
{
    struct bt_nvme_event event = {.kind = op->kind,
                                  .submit = submit,
                                  .at = op->at + op->done,
                                  .bytes = op->bytes - op->done,
                                  .buffer = memory_of(op),
                                  .result = result};

    return ring->hook ? ring->hook(ring->hook_arg, &event) : result;
}

static void prepare(struct bt_nvme_ring *ring, const struct bt_nvme_op *op)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    unsigned char *at = memory_of(op);
    uint64_t left = op->bytes - op->done, from = op->at + op->done;
    unsigned bytes = (unsigned)(left < CHUNK_MAX ? left : CHUNK_MAX);
    int piece;

    if (!sqe) {
        bt_nvme_ring_submit(ring);
        sqe = io_uring_get_sqe(&ring->uring);
    }
    assert(sqe);
    piece = op->kind == BT_NVME_FLUSH ? -1 : piece_of(ring, at, bytes);
    switch (op->kind) {
    case BT_NVME_READ:
        if (piece < 0)
            io_uring_prep_read(sqe, 0, at, bytes, from);
        else
            io_uring_prep_read_fixed(sqe, 0, at, bytes, from, piece);
        break;
    case BT_NVME_WRITE:
    case BT_NVME_RECORDS:
        if (piece < 0)
            io_uring_prep_write(sqe, 0, at, bytes, from);
        else
            io_uring_prep_write_fixed(sqe, 0, at, bytes, from, piece);
        break;
    case BT_NVME_FLUSH:
        io_uring_prep_fsync(sqe, 0, IORING_FSYNC_DATASYNC);
        break;
    }
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, (void *)(uintptr_t)op);
}

void bt_nvme_ring_start(struct bt_nvme_ring *ring, struct bt_nvme_op *op)
{
    op->done = 0;
    op->tries = 0;
    (void)tell(ring, op, true, 0);
    prepare(ring, op);
    ring->out++;
}

void bt_nvme_ring_wake(struct bt_nvme_ring *ring)
{
    (void)eventfd_write(ring->event_fd, 1);
}

void bt_nvme_ring_submit(struct bt_nvme_ring *ring)
{
    if (io_uring_sq_ready(&ring->uring) == 0)
        return;
    /* Busy kernel: what is left goes with the next turn of the loop. */
    if (io_uring_submit(&ring->uring) < 0 ||
        io_uring_sq_ready(&ring->uring) > 0)
        bt_nvme_ring_wake(ring);
}

/* True: the operation goes on. */
static bool again(struct bt_nvme_ring *ring, struct bt_nvme_op *op, int result)
{
    if (result == -EAGAIN || result == -EINTR) {
        if (++op->tries > NVME_TRIES)
            return false;
    } else if (result > 0 && op->kind != BT_NVME_FLUSH) {
        op->done += (uint64_t)result;
        if (op->done >= op->bytes)
            return false;
        /* Of a full-sized chunk no try is used up. */
        if ((uint64_t)result < CHUNK_MAX && ++op->tries > NVME_TRIES)
            return false;
    } else {
        return false;
    }
    prepare(ring, op);
    return true;
}

static int error_of(const struct bt_nvme_op *op, int result)
{
    if (result < 0)
        return -result;
    if (op->kind == BT_NVME_FLUSH || op->done >= op->bytes)
        return 0;
    return EIO; /* the file ends there, or too many short transfers */
}

static void finish(struct bt_nvme_ring *ring, struct io_uring_cqe *cqe)
{
    struct bt_nvme_op *op = io_uring_cqe_get_data(cqe);
    int result = tell(ring, op, false, cqe->res);

    if (again(ring, op, result))
        return;
    ring->out--;
    ring->done(ring->arg, op, error_of(op, result));
}

void bt_nvme_ring_reap(struct bt_nvme_ring *ring)
{
    struct io_uring_cqe *cqe;
    eventfd_t count;

    (void)eventfd_read(ring->event_fd, &count);
    /* Bounded: only what is out can complete. */
    for (uint32_t left = ring->out; left > 0; left--) {
        struct io_uring_cqe copy;

        if (io_uring_peek_cqe(&ring->uring, &cqe) != 0)
            break;
        copy.user_data = cqe->user_data;
        copy.res = cqe->res;
        io_uring_cqe_seen(&ring->uring, cqe);
        finish(ring, &copy);
    }
}

void bt_nvme_ring_wait(struct bt_nvme_ring *ring)
{
    struct io_uring_cqe *cqe;

    if (ring->out == 0)
        return;
    (void)io_uring_submit(&ring->uring);
    (void)io_uring_wait_cqe(&ring->uring, &cqe);
}
