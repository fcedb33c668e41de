/* A cluster on a shaped bed (tests/e2e/netbed): how an engine is put on its
 * host, which addresses it has, and the same hosts as a topology file. Decides
 * names and addresses as netbed.sh does; making and shaping the bed is that
 * script's. Engine i is on host i + 1; serve and the client are wherever the
 * caller is. */
#include "cluster_priv.h"
#include "demo_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

static const char *ip_program(void)
{
    static const char *const places[] = {"/usr/sbin/ip", "/sbin/ip",
                                         "/usr/bin/ip", "/bin/ip"};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (access(places[i], X_OK) == 0)
            return places[i];
    }
    return places[0];
}

void netbed_address(uint32_t engine, uint32_t rail, char *out, size_t size)
{
    snprintf(out, size, "10.%u.0.%u", 81 + rail, engine + 1);
}

void netbed_before(struct arguments *a, const struct bt_cluster *cluster,
                   uint32_t engine)
{
    arguments_add(a, "%s", ip_program());
    arguments_add(a, "netns");
    arguments_add(a, "exec");
    arguments_add(a, "%s-h%u", cluster->spec.netbed, engine + 1);
}

void netbed_after(struct arguments *a, const struct bt_cluster *cluster,
                  uint32_t engine)
{
    const struct bt_cluster_spec *s = &cluster->spec;
    const struct engine *e = &cluster->engines[engine];
    char address[32];

    netbed_address(engine, 0, address, sizeof(address));
    arguments_add(a, "--address=%s", address);
    if (!e->events[0])
        arguments_add(a, "--events=tcp://%s:*", address);
    if (!e->replay[0])
        arguments_add(a, "--replay=tcp://%s:*", address);
    for (uint32_t rail = 0; rail < s->rails; rail++) {
        netbed_address(engine, rail, address, sizeof(address));
        arguments_add(a, "--transfer-rail=r%u=%s@r%u", rail, address, rail);
    }
}

enum bt_status netbed_topology_write(const struct bt_cluster *cluster,
                                     const char *path)
{
    static const char *const classes[] = {"rack", "pod", "cross_pod"};
    const struct bt_cluster_spec *s = &cluster->spec;
    FILE *to = fopen(path, "we");
    int failed;

    if (!to)
        return BT_IO;
    fprintf(to, "# written by baton's benchmark cluster\n"
                "topology_schema: 1\n"
                "racks:\n"
                "  - {name: bed}\n"
                "nodes:\n");
    for (uint32_t i = 0; i < s->engine_count; i++)
        fprintf(to,
                "  - {name: h%u, rack: bed, rails: %u, rail_rate: %lluB/s}\n",
                i + 1, s->rails,
                (unsigned long long)(s->engines[i].nic_bytes_per_s / s->rails));
    fprintf(to, "workers:\n");
    for (uint32_t i = 0; i < s->engine_count; i++)
        fprintf(to, "  - {name: %s, node: h%u}\n", s->engines[i].name, i + 1);
    fprintf(to, "classes:\n");
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
        fprintf(to, "  %s: {setup: %lldus, descriptor: %lldus}\n", classes[i],
                (long long)(s->setup_ns / 1000),
                (long long)(s->descriptor_ns / 1000));
    failed = ferror(to);
    return fclose(to) != 0 || failed ? BT_IO : BT_OK;
}

enum bt_status demo_netbed_enter(const char *bed, uint32_t host)
{
    char path[128];
    int fd, failed;

    snprintf(path, sizeof(path), "/run/netns/%.64s-h%u", bed, host);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    failed = fd < 0 || setns(fd, CLONE_NEWNET) != 0;
    if (failed)
        fprintf(stderr,
                "baton demo: --netbed: %s: %s (tests/e2e/netbed/netbed.sh -n "
                "%s up %u makes the bed)\n",
                path, strerror(errno), bed, host);
    if (fd >= 0)
        close(fd);
    return failed ? BT_IO : BT_OK;
}
