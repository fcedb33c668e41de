/* The topology file that `baton topo --file` and `baton serve` read: a node and
 * a worker for each agent, with the rates of its two ways, and the cost beside
 * the bytes of the class that all their pairs are in. Written beside and moved
 * into place, so that a reader never sees half of it.
 *
 * Medians over paths: one slow path does not speak for all.
 */
#include "cmd_probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_over(const struct probe *p, bool setup)
{
    double *v = calloc((size_t)p->count * p->count + 1, sizeof(*v));
    size_t n = 0;

    for (uint32_t i = 0; v != NULL && i < p->count * p->count; i++) {
        if (p->pairs[i].measured)
            v[n++] = setup ? p->pairs[i].fit.setup_ns
                           : p->pairs[i].fit.descriptor_ns;
    }
    if (n > 0)
        qsort(v, n, sizeof(*v), by_value);
    double median = n > 0 ? v[(n - 1) / 2] : 0;
    free(v);
    return median;
}

static bool known(const struct probe *p, uint32_t a)
{
    return p->out_rate[a] > 0 || p->in_rate[a] > 0;
}

/* What such a file takes for a name; anything else becomes a dash. */
static const char *plain(const char *name, char out[64])
{
    snprintf(out, 64, "%s", name);
    for (char *c = out; *c != '\0'; c++) {
        if (!(*c >= 'a' && *c <= 'z') && !(*c >= 'A' && *c <= 'Z') &&
            !(*c >= '0' && *c <= '9') && strchr("._-", *c) == NULL)
            *c = '-';
    }
    return out;
}

static void write_rate(FILE *f, const char *name, double rate)
{
    if (rate > 0)
        fprintf(f, ", %s: %.0fB/s", name, rate);
}

static void write_body(const struct probe *p, FILE *f)
{
    char node[64], worker[64];

    fprintf(f, "# Measured by baton probe. Nodes here are agents: several "
               "workers on one\n# machine share its NIC, so name them under "
               "its node.\ntopology_schema: 1\nnodes:\n");
    for (uint32_t a = 0; a < p->count; a++) {
        if (known(p, a))
            fprintf(f, "  - {name: \"%s\"}\n", plain(p->agents[a].name, node));
    }
    fprintf(f, "workers:\n");
    for (uint32_t a = 0; a < p->count; a++) {
        if (!known(p, a))
            continue;
        fprintf(f, "  - {name: \"%s\", node: \"%s\"",
                plain(p->agents[a].worker, worker),
                plain(p->agents[a].name, node));
        write_rate(f, "out", p->out_rate[a]);
        write_rate(f, "in", p->in_rate[a]);
        fprintf(f, "}\n");
    }
    fprintf(f, "classes:\n  rack: {setup: %.0fns, descriptor: %.0fns}\n",
            median_over(p, true), median_over(p, false));
}

bool probe_write(const struct probe *p, const char *path)
{
    char beside[4096];
    int n =
        snprintf(beside, sizeof(beside), "%s.%ld.tmp", path, (long)getpid());

    if (n < 0 || (size_t)n >= sizeof(beside)) {
        fprintf(stderr, "baton probe: --write: the name is too long\n");
        return false;
    }
    FILE *f = fopen(beside, "w");
    bool well = f != NULL;
    if (well) {
        write_body(p, f);
        well = ferror(f) == 0 && fflush(f) == 0 && fsync(fileno(f)) == 0;
        well = fclose(f) == 0 && well;
    }
    well = well && rename(beside, path) == 0;
    if (!well) {
        fprintf(stderr, "baton probe: %s: %s\n", path, strerror(errno));
        (void)unlink(beside);
    }
    return well;
}
