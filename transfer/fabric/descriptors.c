/* See descriptors.h. Decides how it is found out: one is made, the others are
 * copies of it, which cost nothing but their number. Nothing stays open. */
#include "descriptors.h"

#include <assert.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool bt_descriptors_left(uint32_t count)
{
    int fds[BT_DESCRIPTORS_MAX];
    uint32_t have = 0;

    assert(count >= 1 && count <= BT_DESCRIPTORS_MAX);
    for (; have < count; have++) {
        fds[have] = have == 0 ? eventfd(0, EFD_CLOEXEC)
                              : fcntl(fds[0], F_DUPFD_CLOEXEC, 0);
        if (fds[have] < 0)
            break;
    }
    for (uint32_t i = 0; i < have; i++)
        close(fds[i]);
    return have == count;
}
