/* One rail from its word on the command line,
 *
 *   NAME=[ADDRESS][@DEVICE][,KEY=VALUE]...     r0=10.0.0.1@mlx5_0:1,gid=3
 *
 * Decides what the word means and which values can be right at all; whether
 * this machine has such a device, GID or partition, the fabric finds out. What
 * is wrong is said with the column of the word that is wrong. Invariant: a rail
 * is added whole or not at all.
 */
#include "transfer_options.h"

#include "baton/base/units.h"
#include "baton/orchestrator/config.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The word being read: `copy` is cut up in place, so an offset into it is one
 * into what the user wrote. */
struct reader {
    char *copy;
    struct bt_rail_config *rail;
    char *error_out;
    size_t error_size;
};

static bool __attribute__((format(printf, 3, 4)))
wrong(const struct reader *r, const char *at, const char *format, ...)
{
    char text[160];
    va_list args;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is */
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(r->error_out, r->error_size, "column %d: %s",
             (int)(at - r->copy) + 1, text);
    return false;
}

/* ---- values ---- */

/* Decimal, or hexadecimal after 0x; no sign, no blank, at most 16 bits. */
static bool whole(const char *text, uint32_t *out)
{
    bool is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char *at = is_hex ? text + 2 : text;
    uint32_t value = 0;

    for (size_t i = 0; at[i] != '\0'; i++) {
        int c = tolower((unsigned char)at[i]);
        bool is_letter = is_hex && c >= 'a' && c <= 'f';

        if (!is_letter && !isdigit(c))
            return false;
        value = value * (is_hex ? 16 : 10) +
                (uint32_t)(is_letter ? c - 'a' + 10 : c - '0');
        if (value > UINT16_MAX)
            return false;
    }
    *out = value;
    return *at != '\0';
}

static bool set_gid(struct reader *r, char *value)
{
    uint32_t n;

    if (strlen(value) > 3 || strspn(value, "0123456789") != strlen(value) ||
        !whole(value, &n) || n > UINT8_MAX)
        return wrong(r, value, "gid is an index, 0 to 255, not '%.32s'", value);
    r->rail->gid = value;
    return true;
}

/* The top bit says full member; a key of 0 below it is none. */
static bool set_partition(struct reader *r, char *value)
{
    uint32_t n;

    if (!whole(value, &n) || (n & 0x7FFF) == 0)
        return wrong(r, value,
                     "partition is a key, 0x0001 to 0x7fff or 0x8001 to "
                     "0xffff, not '%.32s'",
                     value);
    r->rail->partition = (uint16_t)n;
    return true;
}

static bool set_mtu(struct reader *r, char *value)
{
    uint32_t n;

    if (!whole(value, &n) || (n & (n - 1)) != 0 || n < 256 || n > 4096)
        return wrong(r, value,
                     "mtu is 256, 512, 1024, 2048 or 4096 bytes, not '%.32s'",
                     value);
    r->rail->mtu = (uint16_t)n;
    return true;
}

static bool set_class(struct reader *r, char *value)
{
    uint32_t n;

    if (!whole(value, &n) || n > UINT8_MAX)
        return wrong(r, value, "class is 0 to 255, not '%.32s'", value);
    r->rail->traffic_class = (uint8_t)n;
    return true;
}

static bool set_rate(struct reader *r, char *value)
{
    if (bt_rate_parse(value, &r->rail->rate_bytes_per_s) != BT_OK)
        return wrong(r, value,
                     "rate has a unit, such as 25GB/s or 200Gbps: '%.32s'",
                     value);
    return true;
}

/* UCX lists them by commas, which end a key here: '+' stands for one. */
static bool set_transports(struct reader *r, char *value)
{
    if (*value == '\0')
        return wrong(r, value, "transports is a list such as rc+self");
    for (char *at = value; *at != '\0'; at++)
        *at = *at == '+' ? ',' : *at;
    r->rail->transports = value;
    return true;
}

static const struct {
    const char *name;
    bool (*set)(struct reader *, char *);
} keys[] = {
    {"gid", set_gid},   {"partition", set_partition},
    {"mtu", set_mtu},   {"class", set_class},
    {"rate", set_rate}, {"transports", set_transports},
};
#define KEYS (sizeof(keys) / sizeof(keys[0]))

static bool unknown(struct reader *r, const char *key)
{
    const char *names[KEYS], *near;

    for (size_t i = 0; i < KEYS; i++)
        names[i] = keys[i].name;
    near = bt_nearest(key, names, KEYS);
    if (near != NULL)
        return wrong(r, key, "no key '%.32s' (did you mean '%s'?)", key, near);
    return wrong(r, key,
                 "no key '%.32s': gid, partition, mtu, class, rate, transports",
                 key);
}

/* KEY=VALUE[,KEY=VALUE]... */
static bool read_keys(struct reader *r, char *text)
{
    bool seen[KEYS] = {0};

    while (text != NULL) {
        char *key = strsep(&text, ","), *value = strchr(key, '=');
        size_t i = 0;

        if (value == NULL)
            return wrong(r, key, "'%.32s' is not KEY=VALUE", key);
        *value++ = '\0';
        while (i < KEYS && strcmp(keys[i].name, key) != 0)
            i++;
        if (i == KEYS)
            return unknown(r, key);
        if (seen[i])
            return wrong(r, key, "%s is given twice", key);
        seen[i] = true;
        if (!keys[i].set(r, value))
            return false;
    }
    return true;
}

/* ---- the word ---- */

static bool good_name(const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)name[i]) && strchr("._-", name[i]) == NULL)
            return false;
    }
    return n > 0 && n < 32;
}

static bool read_rail(struct reader *r)
{
    char *address = strchr(r->copy, '='), *keys_at, *device;

    if (address == NULL)
        return wrong(r, r->copy, "not NAME=ADDRESS[@DEVICE][,KEY=VALUE]...");
    *address++ = '\0';
    if (!good_name(r->copy))
        return wrong(r, r->copy,
                     "a name is 1 to 31 letters, digits, '.', '_' or '-'");
    keys_at = strchr(address, ',');
    if (keys_at != NULL)
        *keys_at++ = '\0';
    device = strchr(address, '@');
    if (device != NULL)
        *device++ = '\0';
    if (device != NULL && *device == '\0')
        return wrong(r, device, "no device after '@'");
    if (*address == '\0' && device == NULL)
        return wrong(r, address, "neither an address nor a @DEVICE");
    *r->rail = (struct bt_rail_config){
        .name = r->copy,
        .address = *address != '\0' ? address : NULL,
        .device = device,
    };
    return keys_at == NULL || read_keys(r, keys_at);
}

bool transfer_rail_add(struct transfer_rails *rails, const char *text,
                       char *error_out, size_t error_size)
{
    struct reader r = {.error_out = error_out, .error_size = error_size};
    size_t size = strlen(text) + 1;

    if (rails->count == BT_RAILS_MAX || size > sizeof(rails->texts[0])) {
        snprintf(error_out, error_size,
                 rails->count == BT_RAILS_MAX ? "more than 8 rails"
                                              : "longer than 255 characters");
        return false;
    }
    r.copy = rails->texts[rails->count];
    r.rail = &rails->rails[rails->count];
    memcpy(r.copy, text, size);
    if (!read_rail(&r))
        return false;
    for (uint32_t i = 0; i < rails->count; i++) {
        if (strcmp(rails->rails[i].name, r.rail->name) == 0)
            return wrong(&r, r.copy, "two rails are called %s", r.rail->name);
    }
    rails->count++;
    return true;
}
