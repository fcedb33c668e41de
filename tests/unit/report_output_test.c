/* Tables word for word, JSON by its schema, the written report by what lies in
 * its directory. */
#include "report_world.h"
#include <ftw.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>

static struct world *world_of(const char *const *arms)
{
    struct world *w = malloc(sizeof(*w));

    world_init(w, arms);
    w->setup.seed_count = 2;
    w->setup.seeds[1] = 2;
    return w;
}

static void run(struct world *w, struct bt_report_matrix *m)
{
    memset(m, 0, sizeof(*m));
    m->setup = &w->setup;
    m->load_count = 1;
    m->loads[0] = m->speeds[0][0] = m->speeds[1][0] = 1.55;
    assert_int_equal(bt_report_matrix_run(m), BT_OK);
}

static char *text_of(enum bt_status (*print)(const struct bt_report_matrix *,
                                             FILE *),
                     const struct bt_report_matrix *m)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);

    assert_int_equal(print(m, to), BT_OK);
    fclose(to);
    return text;
}

/* speed 1.55: joint at half its capacity 3.1 has TTFT p50 1.5. */
static void the_table_reads_so(void **state)
{
    static const char *const arms[] = {"joint", "random", "lmetric", NULL};
    static const char expected[] =
        "cluster closed, requests 0..200 of the generated trace 'made', "
        "warm-up 10 %, engine: no overlap, delta\n"
        "knowledge: compute +0 %, links +0 %, telemetry every 100 ms (0 ms "
        "late), events 0 ms late, 0 % lost, learning\n"
        "SLO: TTFT <= 0.5 s + 3 x unloaded prefill, TPOT <= 50 ms; seeds: 1 2\n"
        "\nfabric flat, speed 1.55\n"
        "                           SLO    good    TTFT                    "
        "TTST   TPOT           slow   hit   moved changed error\n"
        "policy                   met %   req/s   p50 s   p90 s   p99 s  "
        "mean s p50 ms p99 ms   p99 x     %      GB       %     %\n"
        "joint                     97.0    2.00   1.500   3.000   6.000   "
        "0.000   10.0   20.0    2.00   0.0     0.0     0.0   0.0\n"
        "random                    97.0    3.65   1.912   3.824   7.647   "
        "0.000   10.0   20.0    2.00   0.0     0.0     0.0   0.0\n"
        "                          1 of 2 seeds failed: its process was "
        "ended by a signal (9)\n"
        "lmetric                   failed: fabric: no such thing\n"
        "note: a burst, no steady state: fewer than 30 s of arrivals; give "
        "more requests\n"; /* they come all at once */
    struct world *w = world_of(arms);
    struct bt_report_matrix m;
    char *text;

    (void)state;
    run(w, &m);
    text = text_of(bt_report_print_table, &m);
    assert_string_equal(text, expected);
    free(text);
    bt_report_matrix_fini(&m);
    free(w);
}

static const json_t *member(const json_t *from, const char *name)
{
    const json_t *found = json_object_get(from, name);

    if (!found)
        fail_msg("no member '%s'", name);
    return found;
}

static double number(const json_t *from, const char *name)
{
    const json_t *found = member(from, name);

    if (!json_is_number(found))
        fail_msg("'%s' is no number", name);
    return json_number_value(found);
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);

    if (!root)
        fail_msg("line %d: %s", error.line, error.text);
    return root;
}

static void the_json_holds_its_schema(void **state)
{
    static const char *const arms[] = {"joint", "random", NULL};
    struct world *w = world_of(arms);
    const json_t *groups, *group, *runs;
    struct bt_report_matrix m;
    json_t *root;
    char *text;

    (void)state;
    w->setup.regret_every = 10;
    snprintf(w->trace.name, sizeof(w->trace.name), "a \"b\" \\ c\n");
    run(w, &m);
    text = text_of(bt_report_print_json, &m);
    root = parse(text);
    assert_string_equal(json_string_value(member(root, "schema")),
                        "baton.sim/1");
    assert_int_equal(json_array_size(member(root, "seeds")), 2);
    groups = member(root, "groups");
    assert_int_equal(json_array_size(groups), 2);
    group = json_array_get(groups, 0);
    assert_string_equal(json_string_value(member(group, "arm")), "joint");
    assert_int_equal(
        strlen(json_string_value(member(group, "configuration_hash"))), 16);
    assert_true(number(member(group, "configuration"), "speed") == 1.55);
    assert_string_equal(
        json_string_value(
            member(member(member(group, "configuration"), "trace"), "name")),
        "a \"b\" \\ c\n");
    assert_true(number(member(group, "mean"), "ttft_p50_s") == 1.5);
    assert_true(number(member(group, "mean"), "regret_mean_s") == 0.25);
    runs = member(group, "runs");
    assert_int_equal(json_array_size(runs), 2);
    assert_true(json_is_null(
        member(member(json_array_get(runs, 1), "summary"), "regret_mean_s")));
    assert_string_equal(
        json_string_value(member(json_array_get(runs, 0), "effects_hash")),
        "00000000000003f7"); /* 1000 + 15 */
    assert_int_equal(
        json_array_size(member(json_array_get(runs, 0), "classes")), 4);
    group = json_array_get(groups, 1);
    assert_true(number(group, "failed") == 1);
    assert_string_equal(
        json_string_value(
            member(json_array_get(member(group, "runs"), 1), "status")),
        "peer_dead");
    json_decref(root);
    free(text);
    bt_report_matrix_fini(&m);
    free(w);
}

/* ---- the written report ---- */

static char *slurp(const char *directory, const char *name)
{
    char path[512], *text = calloc(1, 1u << 22);
    FILE *from;

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    from = fopen(path, "r");
    if (!from)
        fail_msg("no %s", path);
    assert_true(fread(text, 1, (1u << 22) - 1, from) > 0);
    fclose(from);
    return text;
}

static void has(const char *text, const char *piece)
{
    if (!strstr(text, piece))
        fail_msg("'%s' is not there", piece);
}

static int drop(const char *path, const struct stat *info, int kind,
                struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void drop_all(const char *directory)
{
    assert_int_equal(nftw(directory, drop, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void check_json(const char *directory)
{
    char *text = slurp(directory, "results.json");
    json_t *root = parse(text);
    const json_t *first;

    assert_string_equal(json_string_value(member(root, "schema")),
                        "baton.sim.report/1");
    /* 2 fabrics x 2 arms; x 3 loads; 2 fabrics x 3 loads x 1 rival x 6 */
    assert_int_equal(json_array_size(member(root, "capacity")), 4);
    assert_int_equal(json_array_size(member(root, "groups")), 12);
    assert_int_equal(json_array_size(member(root, "comparisons")), 36);
    first = json_array_get(member(root, "comparisons"), 0);
    assert_string_equal(json_string_value(member(first, "rival")), "dynamo");
    assert_true(number(member(first, "relative"), "high95") < 0);
    /* half of joint's capacity 3.1, found to 2 % */
    first = json_array_get(member(root, "groups"), 0);
    assert_true(number(first, "load") == 0.5);
    assert_true(fabs(number(member(first, "configuration"), "speed") - 1.55) <
                0.031);
    json_decref(root);
    free(text);
}

static void write_report(const char *directory, const char *path_variable)
{
    static const char *const arms[] = {"joint", "dynamo", NULL};
    const char *path = getenv("PATH");
    char error[BT_REPORT_ERROR_MIN] = "", *before = strdup(path ? path : "");
    struct world *w = world_of(arms);
    struct bt_report_options o;

    w->setup.scenario_count = 2;
    bt_report_options_init(&o);
    o.directory = directory;
    o.command = "baton sim --report x <&>";
    o.load_count = 3;
    if (path_variable)
        setenv("PATH", path_variable, 1);
    if (bt_report_write(&w->setup, &o, error, sizeof(error)) != BT_OK)
        fail_msg("%s", error);
    setenv("PATH", before, 1);
    free(before);
    free(w);
}

static void the_report_is_complete_without_gnuplot(void **state)
{
    char directory[] = "/tmp/baton-report-XXXXXX";
    char *page, *text;

    (void)state;
    assert_non_null(mkdtemp(directory));
    write_report(directory, "/nonexistent");
    check_json(directory);
    text = slurp(directory, "results.txt");
    has(text, "fabric racks: highest speed with");
    has(text, "load 95 %");
    page = slurp(directory, "index.html");
    has(page, "gnuplot is not installed");
    has(page, "baton sim --report x &lt;&amp;&gt;");
    has(page, "class=\"win\"");
    has(page, "Fabric racks");
    has(page, "joint against 1 rival<");
    has(page, "<h2 id=\"reading\">How to read it</h2>");
    has(page, "Bursts, no steady state");
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "<img"));
    free(page);
    free(text);
    drop_all(directory);
}

static bool have_gnuplot(void)
{
    const char *path_value = getenv("PATH");
    char *paths = strdup(path_value ? path_value : ""), *rest = paths, *dir;
    bool found = false;

    while ((dir = strsep(&rest, ":")) != NULL) {
        char path[512];

        snprintf(path, sizeof(path), "%s/gnuplot", dir);
        found = found || access(path, X_OK) == 0;
    }
    free(paths);
    return found;
}

static void plots_are_inside_the_page(void **state)
{
    char directory[] = "/tmp/baton-report-XXXXXX";
    char *page, *data;
    size_t images = 0;

    (void)state;
    if (!have_gnuplot())
        skip();
    assert_non_null(mkdtemp(directory));
    write_report(directory, NULL);
    page = slurp(directory, "index.html");
    for (const char *at = page; (at = strstr(at, "<img ")); at++)
        images++;
    assert_int_equal(images, 2 * (1 + 8));                 /* not TTST p50 */
    has(page, "src=\"data:image/svg+xml;base64,PD94bWwg"); /* <?xml */
    assert_null(strstr(page, "gnuplot failed"));
    /* joint: 1 + load, at half, 80 and 95 % of what was found */
    data = slurp(directory, "plots/0_ttft_p50.tsv");
    has(data, "50\t1.");
    has(data, "\n80\t1.");
    free(data);
    free(page);
    drop_all(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_reads_so),
        cmocka_unit_test(the_json_holds_its_schema),
        cmocka_unit_test(the_report_is_complete_without_gnuplot),
        cmocka_unit_test(plots_are_inside_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
