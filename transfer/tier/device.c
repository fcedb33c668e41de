/* Device memory through CUDA's driver, found at run time. Decides which
 * functions are needed, how a copy is started and how its end is seen: one
 * stream, an event per copy, polled. Leaves pipelining to move.c.
 * Invariants: the device's primary context is current only inside a call here
 * (pushed and popped), so the caller's threads keep theirs; an event belongs to
 * at most one copy; closing waits for the copies that are out. The types below
 * are the driver's ABI, unchanged since CUDA 4. */
#include "device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COPIES_MAX 256u
#define SUCCESS    0
#define NOT_READY  600

#define NON_BLOCKING   1   /* CU_STREAM_NON_BLOCKING */
#define NO_TIMING      2   /* CU_EVENT_DISABLE_TIMING */
#define HAS_RDMA       116 /* ..._GPU_DIRECT_RDMA_SUPPORTED */
#define HAS_DMA_BUF    124 /* ..._DMA_BUF_SUPPORTED */
#define ALREADY_PEERS  704 /* CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED */
#define HOST_PORTABLE  1   /* CU_MEMHOSTREGISTER_PORTABLE */
#define ALREADY_PINNED 712 /* ..._HOST_MEMORY_ALREADY_REGISTERED */

typedef unsigned long long device_address;

/* X(member, symbol, arguments) */
#define DRIVER_LIST(X)                                                         \
    X(init, "cuInit", (unsigned))                                              \
    X(count, "cuDeviceGetCount", (int *))                                      \
    X(get, "cuDeviceGet", (int *, int))                                        \
    X(attribute, "cuDeviceGetAttribute", (int *, int, int))                    \
    X(pci, "cuDeviceGetPCIBusId", (char *, int, int))                          \
    X(can_access, "cuDeviceCanAccessPeer", (int *, int, int))                  \
    X(retain, "cuDevicePrimaryCtxRetain", (void **, int))                      \
    X(release, "cuDevicePrimaryCtxRelease_v2", (int))                          \
    X(push, "cuCtxPushCurrent_v2", (void *))                                   \
    X(pop, "cuCtxPopCurrent_v2", (void **))                                    \
    X(enable_peer, "cuCtxEnablePeerAccess", (void *, unsigned))                \
    X(alloc, "cuMemAlloc_v2", (device_address *, size_t))                      \
    X(release_memory, "cuMemFree_v2", (device_address))                        \
    X(pin, "cuMemHostRegister_v2", (void *, size_t, unsigned))                 \
    X(unpin, "cuMemHostUnregister", (void *))                                  \
    X(to_device, "cuMemcpyHtoDAsync_v2",                                       \
      (device_address, const void *, size_t, void *))                          \
    X(from_device, "cuMemcpyDtoHAsync_v2",                                     \
      (void *, device_address, size_t, void *))                                \
    X(within, "cuMemcpyDtoDAsync_v2",                                          \
      (device_address, device_address, size_t, void *))                        \
    X(between, "cuMemcpyPeerAsync",                                            \
      (device_address, void *, device_address, void *, size_t, void *))        \
    X(stream_create, "cuStreamCreate", (void **, unsigned))                    \
    X(stream_wait, "cuStreamSynchronize", (void *))                            \
    X(stream_destroy, "cuStreamDestroy_v2", (void *))                          \
    X(event_create, "cuEventCreate", (void **, unsigned))                      \
    X(event_record, "cuEventRecord", (void *, void *))                         \
    X(event_query, "cuEventQuery", (void *))                                   \
    X(event_destroy, "cuEventDestroy_v2", (void *))                            \
    X(error_name, "cuGetErrorName", (int, const char **))

struct driver {
#define X(member, symbol, arguments) int(*member) arguments; /* NOLINT */
    DRIVER_LIST(X)
#undef X
};

struct bt_device {
    void *library;
    struct driver driver;
    int ordinal, handle;
    void *context, *stream;
    bool retained, peer;
    char pci[16], error[96];
    void *events[COPIES_MAX]; /* made when first needed */
    bool used[COPIES_MAX];
    uint32_t out;
    int reach_handle; /* last device asked about; -1 none */
    bool reach;
};

static enum bt_status say(struct bt_device *d, const char *what, int code)
{
    const char *name = NULL;

    if (code == SUCCESS)
        return BT_OK;
    if (!d->driver.error_name || d->driver.error_name(code, &name) != SUCCESS ||
        !name)
        name = "unknown error";
    snprintf(d->error, sizeof(d->error), "%s: %s (%d)", what, name, code);
    return BT_IO;
}

static bool enter(struct bt_device *d)
{
    return say(d, "cuCtxPushCurrent", d->driver.push(d->context)) == BT_OK;
}

static void leave(struct bt_device *d)
{
    void *context;

    (void)d->driver.pop(&context);
}

/* ---- opening ---- */

static bool find(void *library, const char *symbol, void *slot,
                 const char **missing)
{
    void *at = dlsym(library, symbol);

    if (!at)
        *missing = symbol;
    memcpy(slot, &at, sizeof(at));
    return at != NULL;
}

static bool load(struct bt_device *d, const char *library, char *error_out,
                 size_t error_size)
{
    const char *missing = NULL, *why;
    bool all = true;

    d->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!d->library) {
        why = dlerror();
        snprintf(error_out, error_size, "no device driver: %s",
                 why ? why : library);
        return false;
    }
#define X(member, symbol, arguments)                                           \
    all = find(d->library, symbol, &d->driver.member, &missing) && all;
    DRIVER_LIST(X)
#undef X
    if (!all)
        snprintf(error_out, error_size, "%s: has no %s", library, missing);
    return all;
}

/* By dma-buf the kernel's RDMA core maps device memory itself; without it a
 * module of the vendor has to. */
static bool reachable_by_nic(struct bt_device *d)
{
    int yes = 0;

    if (d->driver.attribute(&yes, HAS_DMA_BUF, d->handle) == SUCCESS && yes)
        return true;
    yes = 0;
    return d->driver.attribute(&yes, HAS_RDMA, d->handle) == SUCCESS && yes &&
           access("/sys/module/nvidia_peermem", F_OK) == 0;
}

static void lower(char *text)
{
    for (; *text; text++)
        if (*text >= 'A' && *text <= 'F')
            *text = (char)(*text - 'A' + 'a');
}

static enum bt_status find_device(struct bt_device *d, char *error_out,
                                  size_t error_size)
{
    struct driver *cu = &d->driver;
    int count = 0;

    if (say(d, "cuInit", cu->init(0)) != BT_OK ||
        say(d, "cuDeviceGetCount", cu->count(&count)) != BT_OK)
        return BT_UNSUPPORTED;
    if (d->ordinal < 0 || d->ordinal >= count) {
        snprintf(error_out, error_size, "no device %d: the driver has %d",
                 d->ordinal, count);
        return BT_UNSUPPORTED;
    }
    if (say(d, "cuDeviceGet", cu->get(&d->handle, d->ordinal)) != BT_OK ||
        say(d, "cuDeviceGetPCIBusId",
            cu->pci(d->pci, sizeof(d->pci), d->handle)) != BT_OK)
        return BT_UNSUPPORTED;
    lower(d->pci);
    d->peer = reachable_by_nic(d);
    return BT_OK;
}

static enum bt_status make_stream(struct bt_device *d)
{
    enum bt_status status;

    if (say(d, "cuDevicePrimaryCtxRetain",
            d->driver.retain(&d->context, d->handle)) != BT_OK)
        return BT_UNSUPPORTED;
    d->retained = true;
    if (!enter(d))
        return BT_UNSUPPORTED;
    status = say(d, "cuStreamCreate",
                 d->driver.stream_create(&d->stream, NON_BLOCKING));
    leave(d);
    return status == BT_OK ? BT_OK : BT_UNSUPPORTED;
}

enum bt_status bt_device_open(const char *library, int ordinal,
                              struct bt_device **out, char *error_out,
                              size_t error_size)
{
    struct bt_device *d = calloc(1, sizeof(*d));
    enum bt_status status = BT_UNSUPPORTED;

    if (!d)
        return BT_NO_MEMORY;
    d->ordinal = ordinal;
    d->reach_handle = -1;
    if (load(d, library ? library : "libcuda.so.1", error_out, error_size)) {
        status = find_device(d, error_out, error_size);
        if (status == BT_OK)
            status = make_stream(d);
        if (status != BT_OK && d->error[0])
            snprintf(error_out, error_size, "%s", d->error);
    }
    if (status != BT_OK) {
        bt_device_close(d);
        return status;
    }
    *out = d;
    return BT_OK;
}

void bt_device_close(struct bt_device *device)
{
    if (!device)
        return;
    if (device->stream && enter(device)) {
        (void)device->driver.stream_wait(device->stream);
        for (uint32_t i = 0; i < COPIES_MAX; i++)
            if (device->events[i])
                (void)device->driver.event_destroy(device->events[i]);
        (void)device->driver.stream_destroy(device->stream);
        leave(device);
    }
    if (device->retained)
        (void)device->driver.release(device->handle);
    if (device->library)
        dlclose(device->library);
    free(device);
}

bool bt_device_peer(const struct bt_device *device)
{
    return device->peer;
}

const char *bt_device_pci(const struct bt_device *device)
{
    return device->pci;
}

const char *bt_device_error(const struct bt_device *device)
{
    return device->error;
}

/* ---- memory ---- */

enum bt_status bt_device_alloc(struct bt_device *device, uint64_t bytes,
                               void **out)
{
    device_address at = 0;
    enum bt_status status;

    if (!enter(device))
        return BT_IO;
    status = say(device, "cuMemAlloc", device->driver.alloc(&at, bytes));
    leave(device);
    if (status != BT_OK)
        return BT_NO_MEMORY;
    *out = (void *)(uintptr_t)at;
    return BT_OK;
}

void bt_device_free(struct bt_device *device, void *memory)
{
    if (!memory || !enter(device))
        return;
    (void)say(device, "cuMemFree",
              device->driver.release_memory((uintptr_t)memory));
    leave(device);
}

enum bt_status bt_device_pin(struct bt_device *device, void *base,
                             uint64_t bytes)
{
    int code;

    if (!enter(device))
        return BT_IO;
    code = device->driver.pin(base, bytes, HOST_PORTABLE);
    leave(device);
    if (code == ALREADY_PINNED)
        return BT_EXISTS;
    return say(device, "cuMemHostRegister", code) == BT_OK ? BT_OK : BT_LIMIT;
}

void bt_device_unpin(struct bt_device *device, void *base)
{
    if (!enter(device))
        return;
    (void)say(device, "cuMemHostUnregister", device->driver.unpin(base));
    leave(device);
}

/* ---- copies ---- */

bool bt_device_reaches(struct bt_device *device, struct bt_device *peer)
{
    int yes = 0, code;

    if (peer->handle == device->handle)
        return true;
    if (device->reach_handle == peer->handle)
        return device->reach;
    if (device->driver.can_access(&yes, device->handle, peer->handle) !=
        SUCCESS)
        yes = 0;
    if (yes && enter(device)) {
        code = device->driver.enable_peer(peer->context, 0);
        yes = code == SUCCESS || code == ALREADY_PEERS;
        leave(device);
    }
    device->reach_handle = peer->handle;
    device->reach = yes != 0;
    return device->reach;
}

static int start(struct bt_device *d, const struct bt_device_copy *c)
{
    device_address to = (uintptr_t)c->to, from = (uintptr_t)c->from;

    switch (c->kind) {
    case BT_COPY_TO_DEVICE:
        return d->driver.to_device(to, c->from, c->bytes, d->stream);
    case BT_COPY_FROM_DEVICE:
        return d->driver.from_device(c->to, from, c->bytes, d->stream);
    case BT_COPY_WITHIN:
        break;
    }
    if (!c->peer || c->peer->handle == d->handle)
        return d->driver.within(to, from, c->bytes, d->stream);
    return d->driver.between(to, c->peer->context, from, d->context, c->bytes,
                             d->stream);
}

static bool event_of(struct bt_device *d, uint32_t *ticket_out)
{
    uint32_t i = 0;

    while (i < COPIES_MAX && d->used[i])
        i++;
    if (i == COPIES_MAX)
        return false;
    *ticket_out = i;
    return true;
}

/* A copy whose event could not be recorded is still under way: its end is
 * waited for, so that the caller may reuse its memory. */
static enum bt_status start_and_mark(struct bt_device *d,
                                     const struct bt_device_copy *copy,
                                     uint32_t ticket)
{
    void **event = &d->events[ticket];
    enum bt_status status = BT_OK;

    if (!*event)
        status =
            say(d, "cuEventCreate", d->driver.event_create(event, NO_TIMING));
    if (status == BT_OK)
        status = say(d, "copy", start(d, copy));
    if (status != BT_OK)
        return status;
    status = say(d, "cuEventRecord", d->driver.event_record(*event, d->stream));
    if (status != BT_OK)
        (void)d->driver.stream_wait(d->stream);
    return status;
}

enum bt_status bt_device_copy(struct bt_device *device,
                              const struct bt_device_copy *copy,
                              uint32_t *ticket_out)
{
    enum bt_status status;
    uint32_t ticket;

    if (!event_of(device, &ticket))
        return BT_LIMIT;
    if (!enter(device))
        return BT_IO;
    status = start_and_mark(device, copy, ticket);
    leave(device);
    if (status != BT_OK)
        return status;
    device->used[ticket] = true;
    device->out++;
    *ticket_out = ticket;
    return BT_OK;
}

enum bt_status bt_device_poll(struct bt_device *device, uint32_t ticket)
{
    int code;

    if (!enter(device))
        return BT_IO;
    code = device->driver.event_query(device->events[ticket]);
    if (code != SUCCESS && code != NOT_READY)
        (void)device->driver.stream_wait(device->stream);
    leave(device);
    if (code == NOT_READY)
        return BT_AGAIN;
    device->used[ticket] = false;
    device->out--;
    return say(device, "cuEventQuery", code);
}
