/* Reads the few files of /sys that ibverbs and hwloc do not cover: MTU and
 * speed of netdevs, trained PCIe links, kernel modules, ACS. Decides nothing;
 * what is not there is not an error. */
#include "discover_priv.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 512

static bool path_of(const struct collect *c, const char *path, char *out)
{
    int n = snprintf(out, PATH_BYTES, "%s/%s", c->sys, path);

    return n > 0 && n < PATH_BYTES;
}

bool bt_sys_line(const struct collect *c, const char *path, char *out,
                 size_t size)
{
    char full[PATH_BYTES];
    FILE *file = path_of(c, path, full) ? fopen(full, "re") : NULL;
    bool ok;

    if (file == NULL)
        return false;
    ok = fgets(out, (int)size, file) != NULL;
    fclose(file);
    if (ok)
        out[strcspn(out, "\n")] = '\0';
    return ok;
}

long long bt_sys_number(const struct collect *c, const char *path,
                        long long absent)
{
    char line[64], *end;
    long long value;

    if (!bt_sys_line(c, path, line, sizeof(line)))
        return absent;
    value = strtoll(line, &end, 0);
    return end == line ? absent : value;
}

bool bt_sys_exists(const struct collect *c, const char *path)
{
    char full[PATH_BYTES];

    return path_of(c, path, full) && access(full, F_OK) == 0;
}

bool bt_sys_link(const struct collect *c, const char *path, char *out,
                 size_t size)
{
    char full[PATH_BYTES], target[PATH_BYTES];
    const char *last;
    ssize_t n;

    if (!path_of(c, path, full))
        return false;
    n = readlink(full, target, sizeof(target) - 1);
    if (n <= 0)
        return false;
    target[n] = '\0';
    last = strrchr(target, '/');
    last = last == NULL ? target : last + 1;
    return (size_t)snprintf(out, size, "%s", last) < size;
}

/* ---- ACS: PCIe extended capability 0x000d; control at +6 ---- */

#define CONFIG_BYTES  4096
#define EXTENDED_BASE 0x100
#define ACS_CAP       0x000d
#define ACS_REDIRECTS 0x001c /* request, completion redirect; upstream */
#define CAPS_MAX      64

static uint32_t read_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
           (uint32_t)at[3] << 24;
}

static bool acs_in(const unsigned char *config, size_t size)
{
    size_t at = EXTENDED_BASE;

    for (int i = 0; i < CAPS_MAX && at >= EXTENDED_BASE && at + 8 <= size;
         i++) {
        uint32_t head = read_u32(config + at);

        if (head == 0 || head == UINT32_MAX)
            return false;
        if ((head & 0xffff) == ACS_CAP)
            return (config[at + 6] & ACS_REDIRECTS) != 0;
        at = head >> 20;
    }
    return false;
}

bool bt_sys_acs_on(const struct collect *c, const char *pci)
{
    unsigned char config[CONFIG_BYTES];
    char path[96], full[PATH_BYTES];
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "bus/pci/devices/%s/config", pci);
    if (!path_of(c, path, full))
        return false;
    fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, config, sizeof(config));
    close(fd);
    return n > 0 && acs_in(config, (size_t)n);
}
