/* See transfer_options.h. Decides what the texts of these options mean; whether
 * there is such a device or address, the fabric finds out. */
#include "transfer_options.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool good_rail_name(const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)name[i]) && strchr("._-", name[i]) == NULL)
            return false;
    }
    return n > 0 && n < 32;
}

bool transfer_rail_add(struct transfer_rails *rails, const char *text)
{
    char *copy =
        rails->count < BT_RAILS_MAX ? rails->texts[rails->count] : NULL;
    if (copy == NULL || strlen(text) >= sizeof(rails->texts[0]))
        return false;
    memcpy(copy, text, strlen(text) + 1);
    char *address = strchr(copy, '=');
    if (address == NULL)
        return false;
    *address++ = '\0';
    char *device = strchr(address, '@');
    if (device != NULL)
        *device++ = '\0';
    for (uint32_t i = 0; i < rails->count; i++) {
        if (strcmp(rails->rails[i].name, copy) == 0)
            return false;
    }
    if (!good_rail_name(copy) || (device != NULL && *device == '\0') ||
        (*address == '\0' && device == NULL))
        return false;
    rails->rails[rails->count++] = (struct bt_rail_config){
        .name = copy,
        .address = *address != '\0' ? address : NULL,
        .device = device,
    };
    return true;
}

bool transfer_fabric_known(const char *kind)
{
    return strcmp(kind, "ucx") == 0 || strcmp(kind, "verbs") == 0 ||
           strcmp(kind, "sim") == 0;
}

/* ---- key ---- */

static int digit(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (unsigned char)tolower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool from_hex(const unsigned char *text, size_t size,
                     uint8_t key_out[TRANSFER_KEY])
{
    while (size > 0 && isspace(text[size - 1]))
        size--;
    if (size != (size_t)2 * TRANSFER_KEY)
        return false;
    for (size_t i = 0; i < TRANSFER_KEY; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        key_out[i] = (uint8_t)(high * 16 + low);
    }
    return true;
}

bool transfer_key_read(const char *command, const char *path,
                       uint8_t key_out[TRANSFER_KEY])
{
    unsigned char text[160];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text)) : -1;

    if (n < 0)
        fprintf(stderr, "baton %s: key file %s: %s\n", command, path,
                strerror(errno));
    if (n >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 077) != 0)
        fprintf(stderr,
                "baton %s: key file %s: others may read it: chmod 600\n",
                command, path);
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return false;
    if (n == TRANSFER_KEY)
        memcpy(key_out, text, TRANSFER_KEY);
    else if (!from_hex(text, (size_t)n, key_out))
        n = -1;
    if (n < 0)
        fprintf(stderr,
                "baton %s: key file %s: not 64 hex digits or 32 bytes\n",
                command, path);
    return n >= 0;
}
