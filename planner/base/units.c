/* Durations, sizes and rates as text. Decides the grammar (digits, one optional
 * fraction, a unit that must be there) and how many digits people see; leaves
 * which quantity a setting is to its caller.
 *
 * Invariant: parsing is exact integer arithmetic; a fraction is cut, never
 * rounded up, and only its first nine digits count.
 */
#include "baton/base/units.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define FRACTION_DIGITS 9

/* value = number * times / per */
struct unit {
    const char *name;
    uint64_t times;
    uint64_t per;
};

static const struct unit durations[] = {
    {"ns", 1, 1},         {"us", 1000, 1},       {"ms", 1000000, 1},
    {"s", 1000000000, 1}, {"m", 60000000000, 1}, {"h", 3600000000000, 1},
    {NULL, 0, 0},
};

static const struct unit sizes[] = {
    {"B", 1, 1},
    {"kB", 1000, 1},
    {"MB", 1000000, 1},
    {"GB", 1000000000, 1},
    {"TB", 1000000000000, 1},
    {"KiB", 1ULL << 10, 1},
    {"MiB", 1ULL << 20, 1},
    {"GiB", 1ULL << 30, 1},
    {"TiB", 1ULL << 40, 1},
    {NULL, 0, 0},
};

static const struct unit rates[] = {
    {"B/s", 1, 1},
    {"kB/s", 1000, 1},
    {"MB/s", 1000000, 1},
    {"GB/s", 1000000000, 1},
    {"TB/s", 1000000000000, 1},
    {"KiB/s", 1ULL << 10, 1},
    {"MiB/s", 1ULL << 20, 1},
    {"GiB/s", 1ULL << 30, 1},
    {"TiB/s", 1ULL << 40, 1},
    {"bps", 1, 8},
    {"kbps", 1000, 8},
    {"Mbps", 1000000, 8},
    {"Gbps", 1000000000, 8},
    {"Tbps", 1000000000000, 8},
    {NULL, 0, 0},
};

/* The units people see, smallest first. */
static const struct unit shown_durations[] = {
    {"ns", 1, 1},         {"us", 1000, 1},       {"ms", 1000000, 1},
    {"s", 1000000000, 1}, {"m", 60000000000, 1}, {"h", 3600000000000, 1},
    {NULL, 0, 0},
};

static const struct unit shown_sizes[] = {
    {"B", 1, 1},
    {"KiB", 1ULL << 10, 1},
    {"MiB", 1ULL << 20, 1},
    {"GiB", 1ULL << 30, 1},
    {"TiB", 1ULL << 40, 1},
    {NULL, 0, 0},
};

static const struct unit shown_rates[] = {
    {"B/s", 1, 1},           {"kB/s", 1000, 1},          {"MB/s", 1000000, 1},
    {"GB/s", 1000000000, 1}, {"TB/s", 1000000000000, 1}, {NULL, 0, 0},
};

struct number {
    uint64_t whole;
    uint64_t fraction; /* fraction / scale */
    uint64_t scale;    /* 10^digits, at most 10^9 */
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Returns the first character after the number, NULL when there is none. */
static const char *read_number(const char *s, struct number *out)
{
    struct number n = {0, 0, 1};

    if (!is_digit(*s))
        return NULL;
    for (; is_digit(*s); s++) {
        if (__builtin_mul_overflow(n.whole, (uint64_t)10, &n.whole) ||
            __builtin_add_overflow(n.whole, (uint64_t)(*s - '0'), &n.whole))
            return NULL;
    }
    if (*s == '.') {
        s++;
        if (!is_digit(*s))
            return NULL;
        for (int i = 0; is_digit(*s); s++, i++) {
            if (i >= FRACTION_DIGITS)
                continue;
            n.fraction = n.fraction * 10 + (uint64_t)(*s - '0');
            n.scale *= 10;
        }
    }
    *out = n;
    return s;
}

static const struct unit *find_unit(const struct unit *units, const char *name)
{
    for (; units->name != NULL; units++)
        if (strcmp(units->name, name) == 0)
            return units;
    return NULL;
}

/* number * times / per, cut; false on overflow. Only plain "bps" has a times
 * that per does not divide, and its fractions of a bit do not count. */
static bool scale_number(const struct number *n, const struct unit *u,
                         uint64_t *out)
{
    uint64_t q = u->times / n->scale;
    uint64_t r = u->times % n->scale;
    uint64_t part = n->fraction * q + n->fraction * r / n->scale;
    uint64_t whole;

    if (u->times % u->per != 0) {
        *out = n->whole / u->per;
        return true;
    }
    return !__builtin_mul_overflow(n->whole, u->times / u->per, &whole) &&
           !__builtin_add_overflow(whole, part / u->per, out);
}

static enum bt_status parse(const char *text, const struct unit *units,
                            uint64_t max, uint64_t *out)
{
    struct number n;
    const struct unit *u;
    const char *rest;
    uint64_t value = 0;

    if (text == NULL)
        return BT_INVALID;
    rest = read_number(text, &n);
    u = rest != NULL ? find_unit(units, rest) : NULL;
    if (u == NULL || !scale_number(&n, u, &value) || value > max)
        return BT_INVALID;
    *out = value;
    return BT_OK;
}

enum bt_status bt_duration_parse(const char *text, int64_t *ns_out)
{
    uint64_t ns = 0;
    enum bt_status st = parse(text, durations, INT64_MAX, &ns);

    if (st == BT_OK)
        *ns_out = (int64_t)ns;
    return st;
}

enum bt_status bt_size_parse(const char *text, uint64_t *bytes_out)
{
    return parse(text, sizes, UINT64_MAX, bytes_out);
}

enum bt_status bt_rate_parse(const char *text, uint64_t *bytes_per_s_out)
{
    return parse(text, rates, UINT64_MAX, bytes_per_s_out);
}

/* Three digits, or none after the point when the value is a whole number of
 * units. A value that would show as 1000 moves to the next unit. */
static char *format(uint64_t value, const char *sign, const struct unit *units,
                    char *buf, size_t size)
{
    const struct unit *u = units;
    double shown;
    int decimals;

    while (u[1].name != NULL && value >= u[1].times)
        u++;
    shown = (double)value / (double)u->times;
    if (u[1].name != NULL && u[1].times == 1000 * u->times && shown >= 999.5) {
        u++;
        shown = (double)value / (double)u->times;
    }
    if (value % u->times == 0 || shown >= 99.95)
        decimals = 0;
    else
        decimals = shown >= 9.995 ? 1 : 2;
    snprintf(buf, size, "%s%.*f %s", sign, decimals, shown, u->name);
    return buf;
}

char *bt_duration_format(int64_t ns, char *buf, size_t size)
{
    uint64_t magnitude = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;

    return format(magnitude, ns < 0 ? "-" : "", shown_durations, buf, size);
}

char *bt_size_format(uint64_t bytes, char *buf, size_t size)
{
    return format(bytes, "", shown_sizes, buf, size);
}

char *bt_rate_format(uint64_t bytes_per_s, char *buf, size_t size)
{
    return format(bytes_per_s, "", shown_rates, buf, size);
}
