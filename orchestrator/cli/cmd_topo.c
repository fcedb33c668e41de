/* `baton topo`: shows this node's devices and rails (cmd_topo_node.c), or, with
 * --file, lints a topology file and draws it: pods, racks, nodes and
 * workers as a tree with their rates, then what the pairs of workers have
 * between them, then remarks. Decides only how it reads; the rules are
 * bt_topology_file_load's, the paths and remarks the planner's. */
#include "cmd_topo.h"
#include "baton/base/units.h"
#include "baton/orchestrator/topology_file.h"
#include "command.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct topo_options {
    const char *file;
    const char *output;
    const char *hwloc_xml;
    const char *gpu;
    uint64_t rails;
};

static const struct bt_option OPTIONS[] = {
    {"file", 'f', BT_OPTION_STRING, "FILE",
     "draw this topology (YAML) instead of this node",
     offsetof(struct topo_options, file)},
    {"rails", 'r', BT_OPTION_U64, "N", "this node: rails to choose (default 8)",
     offsetof(struct topo_options, rails)},
    {"gpu", 'g', BT_OPTION_STRING, "PCI",
     "this node: rails for the GPU at 0000:1b:00.0",
     offsetof(struct topo_options, gpu)},
    {"hwloc-xml", 0, BT_OPTION_STRING, "FILE",
     "another node's: what lstopo FILE.xml wrote there",
     offsetof(struct topo_options, hwloc_xml)},
    {"output", 'o', BT_OPTION_STRING, "FORMAT", "table or json (default table)",
     offsetof(struct topo_options, output)},
    {0},
};

/* What the ordered pairs of one class have between them. */
struct class_sum {
    uint64_t pairs;
    uint64_t rate_min, rate_max; /* 0: no limit */
};

struct topo {
    const struct bt_topology_spec *spec;
    const struct bt_topology *t;
    struct class_sum sums[BT_PATH_CLASS_COUNT];
};

/* No limit is above every rate. */
static uint64_t limit_of(uint64_t rate)
{
    return rate == 0 ? UINT64_MAX : rate;
}

static void add_pair(struct class_sum *sum, uint64_t rate)
{
    if (sum->pairs++ == 0 || limit_of(rate) < limit_of(sum->rate_min))
        sum->rate_min = rate;
    if (sum->pairs == 1 || limit_of(rate) > limit_of(sum->rate_max))
        sum->rate_max = rate;
}

static void sum_classes(struct topo *topo)
{
    uint32_t n = topo->spec->worker_count;
    for (uint32_t a = 0; a < n; a++) {
        for (uint32_t b = 0; b < n; b++) {
            struct bt_path path;
            if (a == b)
                continue;
            bt_topology_path(topo->t, a, b, &path);
            add_pair(&topo->sums[path.path_class], path.rate_bytes_per_s);
        }
    }
}

/* Rate of all NICs of a rack that send, 0 when one of them has no limit. */
static double rack_out(const struct topo *topo, uint32_t rack)
{
    const struct bt_topology_spec *s = topo->spec;
    double sum = 0;
    for (uint32_t i = 0; i < bt_topology_link_count(topo->t); i++) {
        const struct bt_topology_link *link = bt_topology_link_at(topo->t, i);
        uint32_t node = link->owner;
        if (link->kind != BT_LINK_NIC_OUT)
            continue;
        if (link->owner_is_worker)
            node = s->workers[link->owner].node;
        if (s->nodes[node].rack == rack)
            sum += (double)link->rate_bytes_per_s;
    }
    return sum;
}

/* ---- text ---- */

static const char *rate_text(uint64_t rate, char text[32])
{
    if (rate == 0)
        return "no limit";
    return bt_rate_format(rate, text, 32);
}

static uint64_t link_rate(const struct topo *topo, uint32_t link)
{
    return link == BT_LINK_NONE
               ? 0
               : bt_topology_link_at(topo->t, link)->rate_bytes_per_s;
}

static void draw_worker(const struct topo *topo, uint32_t w)
{
    uint32_t out = bt_topology_nic_out(topo->t, w);
    uint32_t in = bt_topology_nic_in(topo->t, w);
    bool own = (out != BT_LINK_NONE &&
                bt_topology_link_at(topo->t, out)->owner_is_worker) ||
               (in != BT_LINK_NONE &&
                bt_topology_link_at(topo->t, in)->owner_is_worker);
    char up[32], down[32];
    printf("      %s  out %s, in %s%s\n", topo->spec->workers[w].name,
           rate_text(link_rate(topo, out), up),
           rate_text(link_rate(topo, in), down),
           own ? ", NICs of its own" : "");
}

static void draw_node(const struct topo *topo, uint32_t n)
{
    const struct bt_topology_node *node = &topo->spec->nodes[n];
    char text[32];
    printf("    node %s", node->name);
    if (node->rails > 0)
        printf("  %u rail%s of %s", node->rails, node->rails == 1 ? "" : "s",
               rate_text(node->rail_bytes_per_s, text));
    if (node->nvlink_domain)
        printf("  nvlink %s", rate_text(node->nvlink_bytes_per_s, text));
    printf("\n");
    for (uint32_t w = 0; w < topo->spec->worker_count; w++)
        if (topo->spec->workers[w].node == n)
            draw_worker(topo, w);
}

static void draw_nodes(const struct topo *topo, uint32_t rack)
{
    for (uint32_t n = 0; n < topo->spec->node_count; n++)
        if (topo->spec->nodes[n].rack == rack)
            draw_node(topo, n);
}

static void draw_rack(const struct topo *topo, uint32_t r)
{
    const struct bt_topology_rack *rack = &topo->spec->racks[r];
    double out = rack_out(topo, r);
    char up[32], down[32];
    printf("  rack %s  up %s, down %s", rack->name,
           rate_text(rack->up_bytes_per_s, up),
           rate_text(rack->down_bytes_per_s, down));
    if (rack->up_bytes_per_s > 0 && out > 0)
        printf("  (%.1f:1)", out / (double)rack->up_bytes_per_s);
    printf("\n");
    draw_nodes(topo, r);
}

static void draw_pods(const struct topo *topo)
{
    const struct bt_topology_spec *s = topo->spec;
    char up[32], down[32];
    for (uint32_t p = 0; p < s->pod_count; p++) {
        printf("pod %s  up %s, down %s\n", s->pods[p].name,
               rate_text(s->pods[p].up_bytes_per_s, up),
               rate_text(s->pods[p].down_bytes_per_s, down));
        for (uint32_t r = 0; r < s->rack_count; r++)
            if (s->racks[r].pod == p)
                draw_rack(topo, r);
    }
}

/* What has no pod, no rack or no node of its own. */
static void draw_rest(const struct topo *topo)
{
    const struct bt_topology_spec *s = topo->spec;
    bool loose = false;
    for (uint32_t r = 0; r < s->rack_count; r++)
        loose = loose || s->racks[r].pod == BT_LINK_NONE;
    for (uint32_t n = 0; n < s->node_count; n++)
        loose = loose || s->nodes[n].rack == BT_LINK_NONE;
    if (loose && s->pod_count > 0)
        printf("in no pod\n");
    for (uint32_t r = 0; r < s->rack_count; r++)
        if (s->racks[r].pod == BT_LINK_NONE)
            draw_rack(topo, r);
    draw_nodes(topo, BT_LINK_NONE);
    for (uint32_t w = 0; w < s->worker_count; w++)
        if (s->workers[w].node == BT_LINK_NONE)
            printf("on no node: %s\n", s->workers[w].name);
}

static void draw_classes(const struct topo *topo)
{
    printf("\n%-10s %10s  %-24s %-10s %-10s %s\n", "PATH", "PAIRS", "RATE",
           "SETUP", "DESCRIPTOR", "ONE FLOW");
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++) {
        const struct class_sum *sum = &topo->sums[i];
        const struct bt_topology_class *c = &topo->spec->classes[i];
        char low[32], high[32], range[80], setup[32], each[32], flow[32];
        if (sum->pairs == 0)
            continue;
        snprintf(range, sizeof(range), "%s", rate_text(sum->rate_min, low));
        if (i == BT_PATH_UNKNOWN)
            snprintf(range, sizeof(range), "pair links");
        else if (sum->rate_min != sum->rate_max)
            snprintf(range, sizeof(range), "%s .. %s",
                     rate_text(sum->rate_min, low),
                     rate_text(sum->rate_max, high));
        printf("%-10s %10llu  %-24s %-10s %-10s %s\n",
               bt_path_class_name((enum bt_path_class)i),
               (unsigned long long)sum->pairs, range,
               bt_duration_format(c->setup_ns, setup, sizeof(setup)),
               bt_duration_format(c->per_descriptor_ns, each, sizeof(each)),
               rate_text(c->flow_bytes_per_s_max, flow));
    }
}

static int print_table(const struct topo *topo)
{
    char text[160];
    draw_pods(topo);
    draw_rest(topo);
    draw_classes(topo);
    printf("\n%u workers on %u nodes, %u links\n", topo->spec->worker_count,
           topo->spec->node_count, bt_topology_link_count(topo->t));
    for (size_t i = 0; bt_topology_warning(topo->t, i, text, sizeof(text)); i++)
        printf("remark: %s\n", text);
    return BT_EXIT_OK;
}

/* ---- json ---- */

static json_t *links_json(const struct topo *topo)
{
    json_t *links = json_array();
    for (uint32_t i = 0; i < bt_topology_link_count(topo->t); i++) {
        const struct bt_topology_link *link = bt_topology_link_at(topo->t, i);
        char name[96];
        bt_topology_link_name(topo->t, i, name, sizeof(name));
        json_array_append_new(
            links, json_pack("{s:s, s:s, s:I}", "name", name, "kind",
                             bt_link_kind_name(link->kind), "bytes_per_s",
                             (json_int_t)link->rate_bytes_per_s));
    }
    return links;
}

static json_t *workers_json(const struct topo *topo)
{
    const struct bt_topology_spec *s = topo->spec;
    json_t *workers = json_array();
    for (uint32_t w = 0; w < s->worker_count; w++) {
        uint32_t node = s->workers[w].node;
        uint32_t rack = node == BT_LINK_NONE ? node : s->nodes[node].rack;
        uint32_t pod = rack == BT_LINK_NONE ? rack : s->racks[rack].pod;
        json_array_append_new(
            workers,
            json_pack(
                "{s:s, s:s?, s:s?, s:s?, s:I, s:I}", "name", s->workers[w].name,
                "node", node == BT_LINK_NONE ? NULL : s->nodes[node].name,
                "rack", rack == BT_LINK_NONE ? NULL : s->racks[rack].name,
                "pod", pod == BT_LINK_NONE ? NULL : s->pods[pod].name,
                "out_bytes_per_s",
                (json_int_t)link_rate(topo, bt_topology_nic_out(topo->t, w)),
                "in_bytes_per_s",
                (json_int_t)link_rate(topo, bt_topology_nic_in(topo->t, w))));
    }
    return workers;
}

static json_t *classes_json(const struct topo *topo)
{
    json_t *classes = json_array();
    for (int i = 0; i < BT_PATH_CLASS_COUNT; i++) {
        const struct bt_topology_class *c = &topo->spec->classes[i];
        if (topo->sums[i].pairs == 0)
            continue;
        json_array_append_new(
            classes,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "class",
                      bt_path_class_name((enum bt_path_class)i), "pairs",
                      (json_int_t)topo->sums[i].pairs, "min_bytes_per_s",
                      (json_int_t)topo->sums[i].rate_min, "max_bytes_per_s",
                      (json_int_t)topo->sums[i].rate_max, "setup_ns",
                      (json_int_t)c->setup_ns, "descriptor_ns",
                      (json_int_t)c->per_descriptor_ns, "flow_max_bytes_per_s",
                      (json_int_t)c->flow_bytes_per_s_max));
    }
    return classes;
}

static int print_json(const struct topo *topo, const char *path)
{
    json_t *remarks = json_array(), *root;
    char text[160], *dump;
    for (size_t i = 0; bt_topology_warning(topo->t, i, text, sizeof(text)); i++)
        json_array_append_new(remarks, json_string(text));
    root = json_pack("{s:s, s:b, s:o, s:o, s:o, s:o}", "file", path, "ok", 1,
                     "workers", workers_json(topo), "links", links_json(topo),
                     "classes", classes_json(topo), "remarks", remarks);
    dump = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!dump) {
        fprintf(stderr, "baton topo: out of memory\n");
        return BT_EXIT_FAILED;
    }
    puts(dump);
    free(dump);
    return BT_EXIT_OK;
}

static void print_fault_json(const char *path, enum bt_status status,
                             const char *error)
{
    json_t *root = json_pack("{s:s, s:b, s:s, s:s}", "file", path, "ok", 0,
                             "status", bt_status_name(status), "error", error);
    char *dump = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (dump)
        puts(dump);
    free(dump);
}

static int show_file(const char *path, bool json)
{
    struct bt_topology_file *file = NULL;
    struct topo topo = {0};
    char error[512];
    int code;
    enum bt_status status =
        bt_topology_file_load(path, NULL, 0, &file, error, sizeof(error));
    if (status != BT_OK) {
        fprintf(stderr, "%s\n", error);
        if (json)
            print_fault_json(path, status, error);
        return BT_EXIT_CONFIG;
    }
    topo.spec = bt_topology_file_spec(file);
    topo.t = bt_topology_file_topology(file);
    sum_classes(&topo);
    code = json ? print_json(&topo, path) : print_table(&topo);
    bt_topology_file_destroy(file);
    return code;
}

static int run(int argc, char **argv)
{
    struct topo_options options = {.output = "table", .rails = 8};
    int first = 0;
    int code = bt_options_parse(&bt_command_topo, argc, argv, &options, &first);
    if (code >= 0)
        return code;
    bool json = strcmp(options.output, "json") == 0;
    if (!json && strcmp(options.output, "table") != 0) {
        fprintf(stderr, "baton topo: --output is table or json, not '%s'\n",
                options.output);
        return BT_EXIT_USAGE;
    }
    if (first != argc) {
        fprintf(stderr, "usage: baton topo [OPTION...]\n");
        return BT_EXIT_USAGE;
    }
    if (options.file)
        return show_file(options.file, json);
    return topo_node(&(struct topo_node_options){
        .hwloc_xml = options.hwloc_xml,
        .gpu = options.gpu,
        .rails =
            options.rails > UINT32_MAX ? UINT32_MAX : (uint32_t)options.rails,
        .json = json,
    });
}

const struct bt_command bt_command_topo = {
    .name = "topo",
    .summary = "show this node's NICs and rails, or draw a topology file",
    .arguments = "",
    .options = OPTIONS,
    .run = run,
};
