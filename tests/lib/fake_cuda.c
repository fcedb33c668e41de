/* A driver library in host memory, for tests of device.c without a GPU: two
 * devices, streams whose copies happen only when an event is asked after them
 * for the second time (or the stream is waited for), and strict rules. A device
 * address cannot be dereferenced by the host: it has a bit that no host address
 * has. Written from the driver's published function signatures. */
#include "fake_cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_BIT (UINT64_C(1) << 60)
#define MAX        1024
#define OK         0
#define INVALID    1
#define NO_MEMORY  2
#define BAD_DEVICE 101
#define BAD_CTX    201
#define BAD_HANDLE 400
#define NOT_READY  600
#define NO_PEER    217

typedef unsigned long long address;
#define EXPORT __attribute__((visibility("default")))
/* A prototype, then the definition. */
#define CU(name, ...)                                                          \
    EXPORT int name(__VA_ARGS__);                                              \
    int name(__VA_ARGS__)

struct allocation {
    unsigned char *at;
    size_t bytes;
    int device;
};
struct event {
    bool live, recorded, done;
    int asked;
};
struct op {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    struct event *event; /* a mark */
};
struct stream {
    bool live;
    struct op ops[MAX];
    int count;
};
struct name_count {
    char name[48];
    long calls;
};

static struct allocation allocations[MAX];
static struct event events[MAX];
static struct stream streams[8];
static void *pins[MAX];
static struct name_count names[64];
static int contexts[2], *stack[8], depth, retained[2], peers[2];
static int can_peer = 1, dma_buf = 1, devices = 2, faults, fail_nth, fail_code;
static char fail_name[48], last_fault[128];
static bool initialised;

static int fault(const char *what, int code)
{
    faults++;
    snprintf(last_fault, sizeof(last_fault), "%s", what);
    return code;
}

/* Counts the call; a code other than OK is to be returned. */
static int entered(const char *name)
{
    int i = 0;

    while (i < 63 && names[i].name[0] && strcmp(names[i].name, name) != 0)
        i++;
    snprintf(names[i].name, sizeof(names[i].name), "%s", name);
    names[i].calls++;
    if (fail_nth > 0 && strcmp(name, fail_name) == 0 && --fail_nth == 0)
        return fail_code;
    return OK;
}

static int current(void)
{
    return depth > 0 ? (int)(stack[depth - 1] - contexts) : -1;
}

#define ENTER()                                                                \
    do {                                                                       \
        int code_ = entered(__func__);                                         \
        if (code_ != OK)                                                       \
            return code_;                                                      \
    } while (0)
#define ENTER_CTX()                                                            \
    do {                                                                       \
        ENTER();                                                               \
        if (current() < 0)                                                     \
            return fault(__func__, BAD_CTX);                                   \
    } while (0)

/* NULL, and a fault: not wholly inside one allocation of the device. */
static unsigned char *range(address at, size_t bytes, int device)
{
    unsigned char *host = (unsigned char *)(uintptr_t)(at & ~DEVICE_BIT);

    for (int i = 0; i < MAX; i++) {
        const struct allocation *a = &allocations[i];

        if (a->at && (at & DEVICE_BIT) && a->device == device &&
            host >= a->at && bytes <= a->bytes &&
            (size_t)(host - a->at) <= a->bytes - bytes)
            return host;
    }
    fault("copy outside device memory", INVALID);
    return NULL;
}

static bool host_pointer(const void *at)
{
    if (at && !((uintptr_t)at & DEVICE_BIT))
        return true;
    fault("not a host pointer", INVALID);
    return false;
}

static int enqueue(void *handle, struct op op)
{
    struct stream *s = handle;

    if (s < streams || s >= streams + 8 || !s->live)
        return fault("bad stream", BAD_HANDLE);
    if (s->count == MAX)
        return fault("stream overflow", NO_MEMORY);
    s->ops[s->count++] = op;
    return OK;
}

/* Everything up to and with the event; NULL: all. */
static void execute(struct stream *s, const struct event *until)
{
    int done = 0;
    bool found = false;

    while (done < s->count && !found) {
        struct op *op = &s->ops[done++];

        if (op->event)
            op->event->done = true;
        else
            memmove(op->to, op->from, op->bytes);
        found = until && op->event == until;
    }
    memmove(s->ops, s->ops + done, (size_t)(s->count - done) * sizeof(*s->ops));
    s->count -= done;
}

/* ---- devices ---- */

CU(cuInit, unsigned flags)
{
    ENTER();
    initialised = flags == 0;
    return flags == 0 ? OK : fault("flags of cuInit", INVALID);
}

CU(cuDeviceGetCount, int *out)
{
    ENTER();
    if (!initialised)
        return fault("not initialised", 3);
    *out = devices;
    return OK;
}

CU(cuDeviceGet, int *out, int ordinal)
{
    ENTER();
    if (ordinal < 0 || ordinal >= devices)
        return fault("ordinal", BAD_DEVICE);
    *out = ordinal;
    return OK;
}

CU(cuDeviceGetAttribute, int *out, int attribute, int device)
{
    ENTER();
    if (device < 0 || device >= devices)
        return fault("device", BAD_DEVICE);
    *out = attribute == 124 ? dma_buf : 0;
    return OK;
}

CU(cuDeviceGetPCIBusId, char *out, int size, int device)
{
    ENTER();
    snprintf(out, (size_t)size, "0000:%02X:00.0", 0x1B + device);
    return OK;
}

CU(cuDeviceCanAccessPeer, int *out, int device, int peer)
{
    ENTER();
    *out = can_peer && device != peer;
    return OK;
}

CU(cuDevicePrimaryCtxRetain, void **out, int device)
{
    ENTER();
    retained[device]++;
    *out = &contexts[device];
    return OK;
}

CU(cuDevicePrimaryCtxRelease_v2, int device)
{
    ENTER();
    return --retained[device] < 0 ? fault("released too often", BAD_CTX) : OK;
}

CU(cuCtxPushCurrent_v2, void *context)
{
    int *at = context;

    ENTER();
    if (at < contexts || at > contexts + 1 || !retained[at - contexts])
        return fault("bad context", BAD_CTX);
    if (depth == 8)
        return fault("contexts pile up", BAD_CTX);
    stack[depth++] = at;
    return OK;
}

CU(cuCtxPopCurrent_v2, void **out)
{
    ENTER_CTX();
    *out = stack[--depth];
    return OK;
}

CU(cuCtxEnablePeerAccess, void *context, unsigned flags)
{
    ENTER_CTX();
    if (flags != 0 || !can_peer)
        return fault("peer access", NO_PEER);
    (void)context;
    peers[current()] = 1;
    return OK;
}

/* ---- memory ---- */

CU(cuMemAlloc_v2, address *out, size_t bytes)
{
    ENTER_CTX();
    for (int i = 0; i < MAX && bytes > 0; i++) {
        struct allocation *a = &allocations[i];

        if (a->at)
            continue;
        a->at = malloc(bytes);
        if (!a->at)
            return NO_MEMORY;
        memset(a->at, 0xDD, bytes);
        a->bytes = bytes;
        a->device = current();
        *out = (uintptr_t)a->at | DEVICE_BIT;
        return OK;
    }
    return NO_MEMORY;
}

static bool pending(const struct allocation *a)
{
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < streams[i].count; k++) {
            const struct op *op = &streams[i].ops[k];

            if (op->event)
                continue;
            if ((op->to >= a->at && op->to < a->at + a->bytes) ||
                (op->from >= a->at && op->from < a->at + a->bytes))
                return true;
        }
    return false;
}

CU(cuMemFree_v2, address at)
{
    ENTER_CTX();
    for (int i = 0; i < MAX; i++) {
        struct allocation *a = &allocations[i];

        if (!a->at || ((uintptr_t)a->at | DEVICE_BIT) != at)
            continue;
        if (pending(a))
            return fault("freed under a copy", INVALID);
        free(a->at);
        memset(a, 0, sizeof(*a));
        return OK;
    }
    return fault("freed what is not allocated", INVALID);
}

CU(cuMemHostRegister_v2, void *at, size_t bytes, unsigned flags)
{
    ENTER_CTX();
    (void)flags;
    for (int i = 0; i < MAX && bytes > 0; i++)
        if (pins[i] == at)
            return 712;
    for (int i = 0; i < MAX && bytes > 0; i++)
        if (!pins[i]) {
            pins[i] = at;
            return OK;
        }
    return INVALID;
}

CU(cuMemHostUnregister, void *at)
{
    ENTER_CTX();
    for (int i = 0; i < MAX; i++)
        if (pins[i] && pins[i] == at) {
            pins[i] = NULL;
            return OK;
        }
    return fault("unpinned what is not pinned", 713);
}

/* ---- copies ---- */

CU(cuMemcpyHtoDAsync_v2, address to, const void *from, size_t bytes, void *s)
{
    struct op op = {.from = from, .bytes = bytes};

    ENTER_CTX();
    op.to = range(to, bytes, current());
    if (!op.to || !host_pointer(from))
        return INVALID;
    return enqueue(s, op);
}

CU(cuMemcpyDtoHAsync_v2, void *to, address from, size_t bytes, void *s)
{
    struct op op = {.to = to, .bytes = bytes};

    ENTER_CTX();
    op.from = range(from, bytes, current());
    if (!op.from || !host_pointer(to))
        return INVALID;
    return enqueue(s, op);
}

CU(cuMemcpyDtoDAsync_v2, address to, address from, size_t bytes, void *s)
{
    struct op op = {.bytes = bytes};

    ENTER_CTX();
    op.to = range(to, bytes, current());
    op.from = range(from, bytes, current());
    return op.to && op.from ? enqueue(s, op) : INVALID;
}

CU(cuMemcpyPeerAsync, address to, void *to_context, address from,
   void *from_context, size_t bytes, void *s)
{
    struct op op = {.bytes = bytes};
    const int *target = to_context, *source = from_context;

    ENTER_CTX();
    if (!peers[current()])
        return fault("no peer access", NO_PEER);
    op.to = range(to, bytes, (int)(target - contexts));
    op.from = range(from, bytes, (int)(source - contexts));
    return op.to && op.from ? enqueue(s, op) : INVALID;
}

CU(cuStreamCreate, void **out, unsigned flags)
{
    ENTER_CTX();
    (void)flags;
    for (int i = 0; i < 8; i++)
        if (!streams[i].live) {
            streams[i].live = true;
            *out = &streams[i];
            return OK;
        }
    return NO_MEMORY;
}

CU(cuStreamSynchronize, void *handle)
{
    ENTER_CTX();
    execute(handle, NULL);
    return OK;
}

CU(cuStreamDestroy_v2, void *handle)
{
    struct stream *s = handle;

    ENTER_CTX();
    if (!s->live)
        return fault("destroyed twice", BAD_HANDLE);
    if (s->count > 0)
        fault("stream destroyed under copies", BAD_HANDLE);
    s->live = false;
    return OK;
}

CU(cuEventCreate, void **out, unsigned flags)
{
    ENTER_CTX();
    (void)flags;
    for (int i = 0; i < MAX; i++)
        if (!events[i].live) {
            events[i] = (struct event){.live = true};
            *out = &events[i];
            return OK;
        }
    return NO_MEMORY;
}

CU(cuEventRecord, void *handle, void *stream)
{
    struct event *e = handle;

    ENTER_CTX();
    if (!e->live || (e->recorded && !e->done))
        return fault("event in use", BAD_HANDLE);
    *e = (struct event){.live = true, .recorded = true};
    return enqueue(stream, (struct op){.event = e});
}

CU(cuEventQuery, void *handle)
{
    struct event *e = handle;

    ENTER_CTX();
    if (!e->live || !e->recorded)
        return fault("event never recorded", BAD_HANDLE);
    for (int i = 0; !e->done && i < 8 && e->asked >= 1; i++)
        for (int k = 0; k < streams[i].count; k++)
            if (streams[i].ops[k].event == e) {
                execute(&streams[i], e);
                break;
            }
    e->asked++;
    return e->done ? OK : NOT_READY;
}

CU(cuEventDestroy_v2, void *handle)
{
    struct event *e = handle;

    ENTER_CTX();
    if (!e->live)
        return fault("event destroyed twice", BAD_HANDLE);
    e->live = false;
    return OK;
}

CU(cuGetErrorName, int code, const char **out)
{
    *out = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return OK;
}

/* ---- control ---- */

static void control_fail(const char *function, int nth, int code)
{
    snprintf(fail_name, sizeof(fail_name), "%s", function);
    fail_nth = nth;
    fail_code = code;
}

static void control_set(int peer, int buffers, int count)
{
    can_peer = peer;
    dma_buf = buffers;
    devices = count;
}

static int control_faults(const char **last_out)
{
    *last_out = last_fault;
    return faults;
}

static int control_live(void)
{
    int live = depth;

    for (int i = 0; i < MAX; i++)
        live +=
            (allocations[i].at != NULL) + events[i].live + (pins[i] != NULL);
    for (int i = 0; i < 8; i++)
        live += streams[i].live;
    return live + retained[0] + retained[1];
}

static long control_calls(const char *function)
{
    for (int i = 0; i < 64; i++)
        if (strcmp(names[i].name, function) == 0)
            return names[i].calls;
    return 0;
}

static void control_reset(void)
{
    control_set(1, 1, 2);
    faults = fail_nth = peers[0] = peers[1] = 0;
    memset(names, 0, sizeof(names));
}

EXPORT const struct fake_cuda_control *fake_cuda_control(void);
const struct fake_cuda_control *fake_cuda_control(void)
{
    static const struct fake_cuda_control control = {
        control_fail, control_set,   control_faults,
        control_live, control_calls, control_reset};

    return &control;
}
