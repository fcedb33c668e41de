/* Command line of rdma_pull, the contents of its blocks, and small helpers of
 * its output. */
#include "rdma_pull.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage_text[] =
    "rdma_pull source|sink [--NAME VALUE]...\n"
    "  --fabric ucx|verbs|sim     (ucx)\n"
    "  --rail "
    "address=A,device=D,transports=T+T,gid=N,partition=N,mtu=N,rate=N\n"
    "                             again for each further rail\n"
    "  --host A --port N          sink: of the source; source: to listen on\n"
    "  --blocks N --block-bytes B region (256 of 65536)\n"
    "  --pull-blocks N            in each pull (32)\n"
    "  --at-once N                pulls under way (2)\n"
    "  --seconds S, --pulls N     sink: when to stop (5 s)\n"
    "  --deadline-ms N            of each pull (5000)\n"
    "  --heartbeat-ms N --chunk-bytes N\n"
    "Prints a line of JSON per event. Exit: 0 done, 3 could not start, 4 a\n"
    "pull never ended, 5 a wrong byte was called right.\n";

static bool fail(const char *what, const char *value)
{
    fprintf(stderr, "rdma_pull: %s: %s\n%s", what, value ? value : "",
            usage_text);
    return false;
}

static bool number(const char *text, double max, double *out)
{
    char *end = NULL;
    double value;

    errno = 0;
    value = strtod(text, &end);
    if (errno != 0 || end == text || *end != 0 || value < 0 || value > max)
        return fail("not a number in range", text);
    *out = value;
    return true;
}

static bool whole(const char *text, uint64_t max, uint64_t *out)
{
    char *end = NULL;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 0);
    if (errno != 0 || end == text || *end != 0 || *text == '-' || value > max)
        return fail("not a whole number in range", text);
    *out = value;
    return true;
}

/* UCX separates transports by commas; so do we, hence '+' there. */
static const char *with_commas(char *text)
{
    for (char *at = strchr(text, '+'); at != NULL; at = strchr(at, '+'))
        *at = ',';
    return text;
}

static bool rail_field(struct bt_rail_config *rail, char *name, char *value)
{
    uint64_t n = 0;

    if (strcmp(name, "address") == 0)
        rail->address = value;
    else if (strcmp(name, "device") == 0)
        rail->device = value;
    else if (strcmp(name, "name") == 0)
        rail->name = value;
    else if (strcmp(name, "gid") == 0)
        rail->gid = value;
    else if (strcmp(name, "transports") == 0)
        rail->transports = with_commas(value);
    else if (!whole(value, 1ull << 50, &n))
        return false;
    else if (strcmp(name, "partition") == 0 && n <= UINT16_MAX)
        rail->partition = (uint16_t)n;
    else if (strcmp(name, "mtu") == 0 && n <= UINT16_MAX)
        rail->mtu = (uint16_t)n;
    else if (strcmp(name, "rate") == 0)
        rail->rate_bytes_per_s = n;
    else
        return fail("no such part of a rail, or out of range", name);
    return true;
}

static bool rail_read(struct pull_args *args, char *text)
{
    struct bt_rail_config *rail = &args->rails[args->rail_count];

    if (args->rail_count == BT_RAILS_MAX)
        return fail("too many rails", text);
    memset(rail, 0, sizeof(*rail));
    for (char *part = strsep(&text, ","); part; part = strsep(&text, ",")) {
        char *value = strchr(part, '=');

        if (value == NULL)
            return fail("not NAME=VALUE", part);
        *value++ = 0;
        if (!rail_field(rail, part, value))
            return false;
    }
    args->rail_count++;
    return true;
}

struct option {
    const char *name;
    uint32_t *whole;
    double *real;
    uint64_t max;
    double scale; /* given * scale = stored */
};

static bool option_read(const struct option *option, const char *value)
{
    uint64_t n = 0;
    double x = 0;

    if (option->whole != NULL) {
        if (!whole(value, option->max, &n))
            return false;
        *option->whole = (uint32_t)n;
        return true;
    }
    if (!number(value, (double)option->max, &x))
        return false;
    *option->real = x * option->scale;
    return true;
}

static bool any_read(struct pull_args *args, const char *name, char *value)
{
    const struct option options[] = {
        {"--blocks", &args->blocks, NULL, 65536, 0},
        {"--block-bytes", &args->block_bytes, NULL, 1u << 26, 0},
        {"--pull-blocks", &args->pull_blocks, NULL, 65536, 0},
        {"--at-once", &args->at_once, NULL, PULL_AT_ONCE_MAX, 0},
        {"--pulls", &args->pulls, NULL, 1u << 30, 0},
        {"--chunk-bytes", &args->chunk_bytes, NULL, 1u << 30, 0},
        {"--seconds", NULL, &args->seconds, 3600, 1},
        {"--deadline-ms", NULL, &args->deadline_s, 600000, 1e-3},
        {"--heartbeat-ms", NULL, &args->heartbeat_s, 60000, 1e-3},
    };
    uint64_t port = 0;

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        if (strcmp(options[i].name, name) == 0)
            return option_read(&options[i], value);
    }
    if (strcmp(name, "--rail") == 0)
        return rail_read(args, value);
    if (strcmp(name, "--port") == 0) {
        if (!whole(value, 65535, &port))
            return false;
        args->port = (uint16_t)port;
    } else if (strcmp(name, "--host") == 0) {
        args->host = value;
    } else if (strcmp(name, "--fabric") == 0) {
        args->fabric = value;
    } else {
        return fail("no such option", name);
    }
    return true;
}

/* Each pull has a window of its own in the sink's region. */
static bool fits(const struct pull_args *args)
{
    if (args->blocks == 0 || args->block_bytes < 8 ||
        args->block_bytes % 8 != 0)
        return fail("--block-bytes", "a multiple of 8, and some --blocks");
    if (args->at_once == 0 || args->pull_blocks == 0 ||
        (uint64_t)args->at_once * args->pull_blocks > args->blocks)
        return fail("--at-once * --pull-blocks", "1..blocks");
    return true;
}

bool pull_args_read(int argc, char **argv, struct pull_args *out)
{
    struct pull_args args = {.fabric = "ucx",
                             .host = "127.0.0.1",
                             .blocks = 256,
                             .block_bytes = 65536,
                             .pull_blocks = 32,
                             .at_once = 2,
                             .seconds = 5,
                             .deadline_s = 5};

    if (argc < 2)
        return fail("what to do", NULL);
    args.is_source = strcmp(argv[1], "source") == 0;
    if (!args.is_source && strcmp(argv[1], "sink") != 0)
        return fail("neither source nor sink", argv[1]);
    for (int i = 2; i < argc; i += 2) {
        if (i + 1 == argc)
            return fail("no value", argv[i]);
        if (!any_read(&args, argv[i], argv[i + 1]))
            return false;
    }
    if (!fits(&args))
        return false;
    *out = args;
    return true;
}

/* ---- contents ---- */

/* Finalizer of splitmix64 (Steele, Lea, Flood 2014): no two words alike. */
uint64_t pull_word(uint32_t block, uint32_t word)
{
    uint64_t z = (((uint64_t)block << 32) | word) + 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void pull_fill(unsigned char *region, uint32_t blocks, uint32_t block_bytes)
{
    for (uint32_t b = 0; b < blocks; b++) {
        for (uint32_t w = 0; w < block_bytes / 8; w++) {
            uint64_t value = pull_word(b, w);

            memcpy(region + (size_t)b * block_bytes + (size_t)w * 8, &value, 8);
        }
    }
}

bool pull_is_block(const unsigned char *bytes, uint32_t block,
                   uint32_t block_bytes)
{
    for (uint32_t w = 0; w < block_bytes / 8; w++) {
        uint64_t value = pull_word(block, w);

        if (memcmp(bytes + (size_t)w * 8, &value, 8) != 0)
            return false;
    }
    return true;
}

double pull_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

void pull_quote(const char *text, char *out, size_t size)
{
    size_t used = 0;

    for (; *text != 0 && used + 1 < size; text++) {
        unsigned char c = (unsigned char)*text;

        out[used++] = c < ' ' || c == '"' || c == '\\' ? '\'' : *text;
    }
    if (size > 0)
        out[used] = 0;
}
