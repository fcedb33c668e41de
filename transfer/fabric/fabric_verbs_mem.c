/* Memory of the verbs transport: one registration per map, keys, and the slabs
 * of message buffers. Decides what a peer gets to know of a registration and
 * how the limit of locked memory is met (field-failures E07, E08). Leaves to
 * the queue pair when a peer may use a key at all. Invariants: a key is opened
 * only if its range does not wrap; few large registrations: eight connections
 * share one slab. */
#include "fabric_verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define KEY_BYTES   24u
#define CHECK_BYTES 20u /* what the check covers */

/* ---- the limit of locked memory ---- */

void bt_verbs_raise_memlock(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_MEMLOCK, &limit);
}

static enum bt_status refused(struct bt_verbs *verbs, size_t bytes, int error)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if ((error == ENOMEM || error == EAGAIN) && limit.rlim_cur < RLIM_INFINITY)
        bt_verbs_say(verbs,
                     "%zu bytes cannot be locked: the limit of locked memory "
                     "is %llu bytes; raise it (ulimit -l, LimitMEMLOCK=)",
                     bytes, (unsigned long long)limit.rlim_cur);
    else
        bt_verbs_say(verbs, "registration of %zu bytes: %s", bytes,
                     strerror(error));
    return error == ENOMEM || error == EAGAIN || error == ENOSPC ||
                   error == EMFILE
               ? BT_LIMIT
           : error == EFAULT || error == EINVAL ? BT_INVALID
                                                : BT_IO;
}

static struct ibv_mr *pin(struct bt_verbs *verbs, void *address, size_t bytes,
                          int access)
{
    struct ibv_mr *mr = ibv_reg_mr(verbs->pd, address, bytes, access);

    if (mr != NULL || (errno != ENOMEM && errno != EAGAIN))
        return mr;
    bt_verbs_raise_memlock();
    return ibv_reg_mr(verbs->pd, address, bytes, access);
}

/* ---- slabs ---- */

static struct bt_verbs_slab *slab_new(struct bt_verbs *verbs)
{
    const size_t bytes = (size_t)BT_VERBS_SLAB * BT_VERBS_SEGMENT;
    struct bt_verbs_slab *slab = calloc(1, sizeof(*slab));

    if (slab == NULL)
        return NULL;
    slab->bytes = aligned_alloc(4096, bytes);
    if (slab->bytes == NULL)
        goto undo_slab;
    slab->mr = pin(verbs, slab->bytes, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (slab->mr == NULL) {
        (void)refused(verbs, bytes, errno);
        goto undo_bytes;
    }
    LIST_INSERT_HEAD(&verbs->slabs, slab, entry);
    return slab;

undo_bytes:
    free(slab->bytes);
undo_slab:
    free(slab);
    return NULL;
}

enum bt_status bt_verbs_segment_take(struct bt_verbs_conn *conn)
{
    const uint32_t full = (1u << BT_VERBS_SLAB) - 1;
    struct bt_verbs_slab *slab;
    uint32_t n = 0;

    LIST_FOREACH(slab, &conn->verbs->slabs, entry)
    {
        if (slab->used != full)
            break;
    }
    if (slab == NULL)
        slab = slab_new(conn->verbs);
    if (slab == NULL)
        return BT_LIMIT;
    while (slab->used & (1u << n))
        n++;
    slab->used |= 1u << n;
    conn->slab = slab;
    conn->segment = slab->bytes + (size_t)n * BT_VERBS_SEGMENT;
    return BT_OK;
}

void bt_verbs_segment_give(struct bt_verbs_conn *conn)
{
    size_t n;

    if (conn->slab == NULL)
        return;
    n = (size_t)(conn->segment - conn->slab->bytes) / BT_VERBS_SEGMENT;
    conn->slab->used &= ~(1u << n);
    conn->slab = NULL;
    conn->segment = NULL;
}

void bt_verbs_slabs_free(struct bt_verbs *verbs)
{
    struct bt_verbs_slab *slab, *next;

    for (slab = LIST_FIRST(&verbs->slabs); slab != NULL; slab = next) {
        next = LIST_NEXT(slab, entry);
        LIST_REMOVE(slab, entry);
        (void)ibv_dereg_mr(slab->mr);
        free(slab->bytes);
        free(slab);
    }
}

/* ---- the owner's memory ---- */

/* Remote rights are in every registration, but a queue pair lets a peer use
 * them only after allow(), and keys go only where they are packed for. */
enum bt_status bt_verbs_map(struct bt_transport *transport, void *address,
                            size_t bytes, struct bt_tmem **out)
{
    struct bt_verbs *verbs = (struct bt_verbs *)transport;
    struct bt_tmem *mem = malloc(sizeof(*mem));

    if (mem == NULL)
        return BT_NO_MEMORY;
    mem->mr = pin(verbs, address, bytes,
                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                      IBV_ACCESS_REMOTE_WRITE);
    if (mem->mr == NULL) {
        free(mem);
        return refused(verbs, bytes, errno);
    }
    LIST_INSERT_HEAD(&verbs->mems, mem, entry);
    *out = mem;
    return BT_OK;
}

void bt_verbs_unmap(struct bt_transport *transport, struct bt_tmem *mem)
{
    (void)transport;
    LIST_REMOVE(mem, entry);
    (void)ibv_dereg_mr(mem->mr);
    free(mem);
}

/* ---- keys: rkey 4, address 8, bytes 8, check 4, little endian ----
 *
 * The check finds a damaged key, it does not keep anybody out: the device
 * checks rkey and range of each access, and allow() decides who may ask. */

static void put_le(uint8_t *out, uint64_t value, unsigned int bytes)
{
    for (unsigned int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_le(const uint8_t *in, unsigned int bytes)
{
    uint64_t value = 0;

    for (unsigned int i = 0; i < bytes; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

static uint32_t check_of(const uint8_t *key) /* FNV-1a */
{
    uint32_t hash = 2166136261u;

    for (unsigned int i = 0; i < CHECK_BYTES; i++)
        hash = (hash ^ key[i]) * 16777619u;
    return hash;
}

enum bt_status bt_verbs_key_pack(struct bt_transport *transport,
                                 struct bt_tmem *mem, uint8_t *out, size_t size,
                                 uint16_t *used_out)
{
    (void)transport;
    if (size < KEY_BYTES)
        return BT_TOO_LARGE;
    put_le(out, mem->mr->rkey, 4);
    put_le(out + 4, (uintptr_t)mem->mr->addr, 8);
    put_le(out + 12, mem->mr->length, 8);
    put_le(out + CHECK_BYTES, check_of(out), 4);
    *used_out = KEY_BYTES;
    return BT_OK;
}

enum bt_status bt_verbs_key_open(struct bt_tconn *base, const uint8_t *bytes,
                                 size_t size, struct bt_tkey **out)
{
    struct bt_tkey *key;
    uint64_t address, length;

    (void)base;
    if (size != KEY_BYTES || get_le(bytes + CHECK_BYTES, 4) != check_of(bytes))
        return BT_INVALID;
    address = get_le(bytes + 4, 8);
    length = get_le(bytes + 12, 8);
    if (length == 0 || address > UINT64_MAX - length)
        return BT_INVALID;
    key = malloc(sizeof(*key));
    if (key == NULL)
        return BT_NO_MEMORY;
    *key = (struct bt_tkey){.rkey = (uint32_t)get_le(bytes, 4),
                            .address = address,
                            .bytes = length};
    *out = key;
    return BT_OK;
}

void bt_verbs_key_close(struct bt_tkey *key)
{
    free(key);
}

bool bt_verbs_inside(uint64_t base, uint64_t size, uint64_t address,
                     uint64_t bytes)
{
    return address >= base && bytes <= size && address - base <= size - bytes;
}
