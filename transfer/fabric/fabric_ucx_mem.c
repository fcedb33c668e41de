/* Memory of the UCX transport: registrations and keys.
 *
 *   bt_tmem (one map) --> reg (one registration, counted) --> ucp_mem_h
 *                          users 0: idle, least recently used goes first
 *
 * Decides what is registered and for how long: a range inside a registered one
 * shares it; on RDMA devices the last BT_UCX_IDLE_MAX unused registrations are
 * kept, because making one pins pages (30 ms a GiB). One that fails for want of
 * locked memory or keys is tried again with the idle ones given up, then it is
 * BT_LIMIT (field-failures E08).
 * Invariants: an idle registration is never used again once any part of its
 * range was unmapped, which ucm tells us on the thread that does it; the list
 * belongs to the loop, that thread only reads a slot's bounds and sets a flag.
 * A key is a number; only exported memory is found by it. With rma the key
 * holds the bounds and UCX's own, and the opener checks each piece. */
#include "fabric_ucx.h"

#include "baton/transfer/runs.h"
#include "memlock.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <ucm/api/ucm.h>

/* With rma, in front of UCX's own key. */
struct key_header {
    uint64_t key, base, bytes;
    uint64_t guard, guard_at; /* 0 but for near peers */
    uint64_t check; /* of all before and UCX's key; finds damage, no more */
};
/* ucp_ep_rkey_unpack is not told a length and reads what the bytes in it say:
 * at most 64 memory domains of 1 + 255 bytes behind a map. The copy that it
 * reads is so large, and zero behind the key. */
#define RKEY_READ_MAX (64u * 256u + 64u)

/* ---- registrations ---- */

static void on_unmapped(ucm_event_type_t type, ucm_event_t *event, void *arg)
{
    struct ucx *ucx = arg;
    uintptr_t begin = (uintptr_t)event->vm_unmapped.address;
    uintptr_t end = begin + event->vm_unmapped.size;

    (void)type;
    for (size_t i = 0; i < BT_UCX_IDLE_MAX; i++) {
        struct idle_slot *slot = &ucx->idle[i];

        if (begin < atomic_load(&slot->end) && atomic_load(&slot->begin) < end)
            atomic_store(&slot->is_stale, true);
    }
}

void bt_ucx_mem_init(struct ucx *ucx)
{
    LIST_INIT(&ucx->mems);
    TAILQ_INIT(&ucx->regs);
    TAILQ_INIT(&ucx->idle_regs);
    /* Without the hook nothing may be kept. */
    if (ucx->kind.rdma)
        ucx->is_hooked = ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED, 1000,
                                               on_unmapped, ucx) == UCS_OK;
}

static void reg_free(struct ucx *ucx, struct reg *reg)
{
    (void)ucp_mem_unmap(ucx->context, reg->memh);
    free(reg);
}

/* Out of the idle ones; false: its memory is no longer what it was. */
static bool idle_take(struct ucx *ucx, struct reg *reg)
{
    struct idle_slot *slot = &ucx->idle[reg->slot];
    bool good = !atomic_load(&slot->is_stale);

    TAILQ_REMOVE(&ucx->idle_regs, reg, entry);
    atomic_store(&slot->end, 0);
    slot->reg = NULL;
    reg->slot = -1;
    return good;
}

static void idle_evict(struct ucx *ucx, struct reg *reg)
{
    (void)idle_take(ucx, reg);
    ucx->reg_evicted++;
    reg_free(ucx, reg);
}

static int idle_slot(struct ucx *ucx)
{
    for (size_t i = 0; i < BT_UCX_IDLE_MAX; i++) {
        if (ucx->idle[i].reg == NULL)
            return (int)i;
    }
    return -1;
}

static void idle_add(struct ucx *ucx, struct reg *reg)
{
    struct idle_slot *slot;

    reg->slot = idle_slot(ucx);
    if (reg->slot < 0) {
        struct reg *oldest = TAILQ_FIRST(&ucx->idle_regs);

        reg->slot = oldest->slot;
        idle_evict(ucx, oldest);
    }
    slot = &ucx->idle[reg->slot];
    slot->reg = reg;
    atomic_store(&slot->is_stale, false);
    atomic_store(&slot->begin, reg->address);
    atomic_store(&slot->end, reg->address + reg->bytes);
    TAILQ_INSERT_TAIL(&ucx->idle_regs, reg, entry);
}

static void reg_put(struct ucx *ucx, struct reg *reg)
{
    if (--reg->users > 0)
        return;
    TAILQ_REMOVE(&ucx->regs, reg, entry);
    if (ucx->is_hooked)
        idle_add(ucx, reg);
    else
        reg_free(ucx, reg);
}

static struct reg *reg_find(struct reg_list *list, uintptr_t address,
                            size_t bytes)
{
    struct reg *reg;

    TAILQ_FOREACH(reg, list, entry)
    {
        if (address >= reg->address && address - reg->address <= reg->bytes &&
            bytes <= reg->bytes - (address - reg->address))
            return reg;
    }
    return NULL;
}

/* One that covers the range, in use or idle. */
static struct reg *reg_reuse(struct ucx *ucx, uintptr_t address, size_t bytes)
{
    struct reg *reg = reg_find(&ucx->regs, address, bytes);

    if (reg != NULL)
        return reg;
    for (uint32_t i = 0; i < BT_UCX_IDLE_MAX; i++) {
        reg = reg_find(&ucx->idle_regs, address, bytes);
        if (reg == NULL)
            return NULL;
        if (idle_take(ucx, reg)) {
            TAILQ_INSERT_TAIL(&ucx->regs, reg, entry);
            return reg;
        }
        reg_free(ucx, reg);
    }
    return NULL;
}

/* Once more with the idle ones given up, then with the limit raised. */
static ucs_status_t register_memory(struct ucx *ucx,
                                    const ucp_mem_map_params_t *params,
                                    ucp_mem_h *out)
{
    ucs_status_t status = ucp_mem_map(ucx->context, params, out);

    if (status != UCS_OK && !TAILQ_EMPTY(&ucx->idle_regs)) {
        while (!TAILQ_EMPTY(&ucx->idle_regs))
            idle_evict(ucx, TAILQ_FIRST(&ucx->idle_regs));
        status = ucp_mem_map(ucx->context, params, out);
    }
    if (status != UCS_OK && bt_memlock_raise())
        status = ucp_mem_map(ucx->context, params, out);
    return status;
}

static void refused(struct ucx *ucx, size_t bytes, ucs_status_t status)
{
    char limit[80];

    bt_memlock_text(limit, sizeof(limit));
    snprintf(ucx->map_error, sizeof(ucx->map_error),
             "%zu bytes cannot be registered%s (%.20s)", bytes, limit,
             ucs_status_string(status));
}

void bt_ucx_why(const struct bt_transport *transport, char *out, size_t size)
{
    snprintf(out, size, "%s", ((const struct ucx *)transport)->map_error);
}

static enum bt_status reg_make(struct ucx *ucx, void *address, size_t bytes,
                               struct reg **out)
{
    ucp_mem_map_params_t params = {
        .field_mask =
            UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = address,
        .length = bytes,
    };
    struct reg *reg = calloc(1, sizeof(*reg));
    ucs_status_t status;

    if (reg == NULL)
        return BT_NO_MEMORY;
    status = register_memory(ucx, &params, &reg->memh);
    if (status != UCS_OK) {
        refused(ucx, bytes, status);
        free(reg);
        return BT_LIMIT;
    }
    reg->address = (uintptr_t)address;
    reg->bytes = bytes;
    reg->slot = -1;
    TAILQ_INSERT_TAIL(&ucx->regs, reg, entry);
    ucx->reg_made++;
    *out = reg;
    return BT_OK;
}

enum bt_status bt_ucx_map(struct bt_transport *transport, void *address,
                          size_t bytes, struct bt_tmem **out)
{
    struct ucx *ucx = (struct ucx *)transport;
    struct bt_tmem *mem;
    struct reg *reg;
    enum bt_status status;

    if (bytes == 0)
        return BT_INVALID;
    mem = calloc(1, sizeof(*mem));
    if (mem == NULL)
        return BT_NO_MEMORY;
    reg = reg_reuse(ucx, (uintptr_t)address, bytes);
    if (reg != NULL) {
        ucx->reg_hits++;
    } else {
        status = reg_make(ucx, address, bytes, &reg);
        if (status != BT_OK) {
            free(mem);
            return status;
        }
    }
    reg->users++;
    mem->reg = reg;
    mem->address = (uintptr_t)address;
    mem->bytes = bytes;
    LIST_INSERT_HEAD(&ucx->mems, mem, entry);
    *out = mem;
    return BT_OK;
}

void bt_ucx_unmap(struct bt_transport *transport, struct bt_tmem *mem)
{
    LIST_REMOVE(mem, entry);
    explicit_bzero(&mem->guard, sizeof(mem->guard));
    reg_put((struct ucx *)transport, mem->reg);
    free(mem);
}

/* After the worker's connections, before the context. Whatever its owner has
 * not unmapped is left to him. */
void bt_ucx_mem_fini(struct ucx *ucx)
{
    if (ucx->is_hooked)
        ucm_unset_event_handler(UCM_EVENT_VM_UNMAPPED, on_unmapped, ucx);
    while (!TAILQ_EMPTY(&ucx->idle_regs))
        idle_evict(ucx, TAILQ_FIRST(&ucx->idle_regs));
}

const struct bt_tmem *bt_ucx_mem_of(const struct ucx *ucx, uint64_t key)
{
    const struct bt_tmem *mem;

    if (key == 0)
        return NULL;
    LIST_FOREACH(mem, &ucx->mems, entry)
    {
        if (mem->key == key)
            return mem;
    }
    return NULL;
}

/* ---- keys ---- */

/* Random, so that it is found nowhere else in memory. */
static bool guard_make(struct bt_tmem *mem)
{
    return mem->guard != 0 || getrandom(&mem->guard, sizeof(mem->guard), 0) ==
                                  (ssize_t)sizeof(mem->guard);
}

/* Of the header, and of UCX's key behind it. */
static uint64_t check_of(const struct key_header *header, const uint8_t *rkey,
                         size_t rkey_size)
{
    uint64_t check =
        bt_block_checksum(header, offsetof(struct key_header, check));

    return rkey_size == 0 ? check : check ^ bt_block_checksum(rkey, rkey_size);
}

enum bt_status bt_ucx_key_pack(struct bt_transport *transport,
                               struct bt_tmem *mem, uint8_t *out, size_t size,
                               uint16_t *used_out)
{
    struct ucx *ucx = (struct ucx *)transport;
    struct key_header header = {.base = mem->address, .bytes = mem->bytes};
    void *packed = NULL;
    size_t head = sizeof(header), more = 0;

    if (ucx->kind.rma) {
        if (ucp_rkey_pack(ucx->context, mem->reg->memh, &packed, &more) !=
            UCS_OK)
            return BT_IO;
    }
    if (head + more > size || more > UINT16_MAX - head) {
        if (packed != NULL)
            ucp_rkey_buffer_release(packed);
        return BT_TOO_LARGE;
    }
    if (mem->key == 0)
        mem->key = ++ucx->next_key;
    header.key = mem->key;
    if (ucx->kind.near && guard_make(mem)) {
        header.guard = mem->guard;
        header.guard_at = (uintptr_t)&mem->guard;
    }
    header.check = check_of(&header, packed, more);
    memcpy(out, &header, head);
    if (packed != NULL) {
        memcpy(out + head, packed, more);
        ucp_rkey_buffer_release(packed);
    }
    *used_out = (uint16_t)(head + more);
    return BT_OK;
}

static enum bt_status rkey_open(ucp_ep_h ep, const uint8_t *bytes, size_t size,
                                ucp_rkey_h *out)
{
    uint8_t *copy = calloc(1, RKEY_READ_MAX);
    ucs_status_t status;

    if (copy == NULL)
        return BT_NO_MEMORY;
    memcpy(copy, bytes, size);
    status = ucp_ep_rkey_unpack(ep, copy, out);
    free(copy);
    return status == UCS_OK ? BT_OK : BT_INVALID;
}

enum bt_status bt_ucx_key_open(struct bt_tconn *base, const uint8_t *bytes,
                               size_t size, struct bt_tkey **out)
{
    struct conn *conn = (struct conn *)base;
    bool rma = conn->ucx->kind.rma;
    size_t head = sizeof(struct key_header);
    struct key_header header = {0};
    struct bt_tkey *key;
    enum bt_status status;

    if (size < head || (size > head) != rma || size - head > RKEY_READ_MAX / 2)
        return BT_INVALID;
    memcpy(&header, bytes, head);
    if (header.check != check_of(&header, bytes + head, size - head) ||
        header.bytes > UINT64_MAX - header.base)
        return BT_INVALID;
    key = calloc(1, sizeof(*key));
    if (key == NULL)
        return BT_NO_MEMORY;
    key->key = header.key;
    key->base = header.base;
    key->bytes = header.bytes;
    key->guard = header.guard;
    key->guard_at = header.guard_at;
    if (key->guard_at != 0)
        bt_ucx_near_ask(conn);
    if (rma) {
        status = rkey_open(conn->ep, bytes + head, size - head, &key->rkey);
        if (status != BT_OK) {
            free(key);
            return status;
        }
    }
    *out = key;
    return BT_OK;
}

void bt_ucx_key_close(struct bt_tkey *key)
{
    if (key->rkey != NULL)
        ucp_rkey_destroy(key->rkey);
    free(key);
}
