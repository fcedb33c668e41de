/* Instructions and last-level cache misses of this thread, by the kernel's
 * performance counters. Where the kernel refuses (containers mostly do) the
 * reason is kept in its own words and nothing is counted. */
#include "index_parts.h"
#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_one(uint64_t what)
{
    struct perf_event_attr a;

    memset(&a, 0, sizeof(a));
    a.type = PERF_TYPE_HARDWARE;
    a.size = sizeof(a);
    a.config = what;
    a.disabled = 1;
    a.exclude_kernel = 1;
    a.exclude_hv = 1;
    return (int)syscall(SYS_perf_event_open, &a, 0, -1, -1,
                        PERF_FLAG_FD_CLOEXEC);
}

void index_counters_open(struct index_counters *c, char *why_out, size_t size)
{
    why_out[0] = '\0';
    c->instructions = open_one(PERF_COUNT_HW_INSTRUCTIONS);
    if (c->instructions < 0)
        snprintf(why_out, size, "perf_event_open: %s", strerror(errno));
    c->misses = open_one(PERF_COUNT_HW_CACHE_MISSES);
    if (c->misses < 0 && !why_out[0])
        snprintf(why_out, size, "perf_event_open, cache misses: %s",
                 strerror(errno));
}

void index_counters_close(struct index_counters *c)
{
    if (c->instructions >= 0)
        close(c->instructions);
    if (c->misses >= 0)
        close(c->misses);
    c->instructions = c->misses = -1;
}

static void start(int fd)
{
    if (fd < 0)
        return;
    ioctl(fd, PERF_EVENT_IOC_RESET, 0);
    ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
}

static double stop(int fd)
{
    uint64_t value;

    if (fd < 0)
        return -1;
    ioctl(fd, PERF_EVENT_IOC_DISABLE, 0);
    return read(fd, &value, sizeof(value)) == (ssize_t)sizeof(value)
               ? (double)value
               : -1;
}

void index_counters_start(const struct index_counters *c)
{
    start(c->instructions);
    start(c->misses);
}

void index_counters_stop(const struct index_counters *c,
                         struct index_counts *out)
{
    out->instructions = stop(c->instructions);
    out->misses = stop(c->misses);
}
