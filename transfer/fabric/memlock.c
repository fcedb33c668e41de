/* See memlock.h. Leaves to the transports when a failed registration is tried
 * again; they need no rights for this, only the soft limit is moved. */
#include "memlock.h"

#include <stdio.h>
#include <sys/resource.h>

bool bt_memlock_raise(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        limit.rlim_cur == limit.rlim_max)
        return false;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

void bt_memlock_text(char *out, size_t size)
{
    struct rlimit limit;

    if (size > 0)
        out[0] = '\0';
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY)
        return;
    snprintf(out, size, ", locked memory (memlock) is limited to %llu bytes",
             (unsigned long long)limit.rlim_cur);
}
