/* Memory of the verbs transport: registrations, keys, and the slabs of message
 * buffers. Decides what a peer gets to know of a registration and how the limit
 * of locked memory is met (field-failures E07, E08). Leaves to the queue pair
 * when a peer may use a key at all. Invariants: memory has remote rights only
 * once its key was packed; a key is opened only if its range does not wrap; few
 * large registrations: eight connections share one slab. */
#include "fabric_verbs.h"
#include "memlock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES   24u
#define CHECK_BYTES 20u /* what the check covers */

/* ---- the limit of locked memory ---- */

static enum bt_status refused(struct bt_verbs *verbs, size_t bytes, int error)
{
    char limit[80] = "";

    if (error == ENOMEM || error == EAGAIN)
        bt_memlock_text(limit, sizeof(limit));
    bt_verbs_say(verbs, "%zu bytes cannot be registered%s (%s)", bytes, limit,
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
    if (!bt_memlock_raise())
        return NULL;
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

static struct ibv_mr *pin_mem(struct bt_verbs *verbs, const struct bt_tmem *mem,
                              int rights)
{
    return pin(verbs, mem->address, mem->bytes,
               IBV_ACCESS_LOCAL_WRITE | rights);
}

enum bt_status bt_verbs_map(struct bt_transport *transport, void *address,
                            size_t bytes, struct bt_tmem **out)
{
    struct bt_verbs *verbs = (struct bt_verbs *)transport;
    struct bt_tmem *mem = malloc(sizeof(*mem));

    if (mem == NULL)
        return BT_NO_MEMORY;
    *mem = (struct bt_tmem){.address = address, .bytes = bytes};
    mem->local = pin_mem(verbs, mem, 0);
    if (mem->local == NULL) {
        free(mem);
        return refused(verbs, bytes, errno);
    }
    LIST_INSERT_HEAD(&verbs->mems, mem, entry);
    *out = mem;
    return BT_OK;
}

static void unpin(struct ibv_mr **mr)
{
    if (*mr != NULL)
        (void)ibv_dereg_mr(*mr);
    *mr = NULL;
}

void bt_verbs_unmap(struct bt_transport *transport, struct bt_tmem *mem)
{
    (void)transport;
    LIST_REMOVE(mem, entry);
    unpin(&mem->exported);
    unpin(&mem->local);
    free(mem);
}

const struct ibv_mr *bt_verbs_mr(const struct bt_tmem *mem)
{
    return mem->local != NULL ? mem->local : mem->exported;
}

/* A registration with remote rights takes the place of the local one, so that
 * the memory is locked once; beside it only when requests under way may name
 * that. Rights cannot be added to one: not every device can change them. */
static enum bt_status export(struct bt_verbs *verbs, struct bt_tmem *mem) {
    enum bt_status status;

    if (mem->exported != NULL) return BT_OK;
    if (!mem->is_used) unpin(&mem->local);
    mem->exported = pin_mem(verbs, mem,
                            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    if (mem->exported != NULL) return BT_OK;
    status = refused(verbs, mem->bytes, errno);
    if (mem->local == NULL) mem->local = pin_mem(verbs, mem, 0);
    return status;
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
    enum bt_status status;

    if (size < KEY_BYTES)
        return BT_TOO_LARGE;
    status = export((struct bt_verbs *)transport, mem);
    if (status != BT_OK)
        return status;
    put_le(out, mem->exported->rkey, 4);
    put_le(out + 4, (uintptr_t)mem->address, 8);
    put_le(out + 12, mem->bytes, 8);
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
