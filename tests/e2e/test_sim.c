/* `baton sim` as users run it: tables, JSON, exit codes, and that a seed gives
 * the same effects whoever runs beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OUTPUT_MAX (4u << 20)
#define ARGS_MAX   32

static const char *program;

struct outcome {
    int code;
    char *out, *err;
};

static char *read_all(FILE *from)
{
    char *text = calloc(1, OUTPUT_MAX);

    rewind(from);
    (void)!fread(text, 1, OUTPUT_MAX - 1, from);
    fclose(from);
    return text;
}

/* Words parted by blanks. */
static struct outcome run(const char *words)
{
    char *copy = strdup(words), *rest = copy, *word;
    char *args[ARGS_MAX] = {strdup(program), strdup("sim")};
    FILE *out = tmpfile(), *err = tmpfile();
    struct outcome outcome;
    size_t count = 2;
    int how = 0;
    pid_t pid;

    assert_true(out && err);
    while ((word = strsep(&rest, " ")) != NULL && count + 1 < ARGS_MAX)
        args[count++] = strdup(word);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(err), STDERR_FILENO);
        execv(program, args);
        _exit(127);
    }
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
        ;
    outcome.code = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
    outcome.out = read_all(out);
    outcome.err = read_all(err);
    for (size_t i = 0; i < count; i++)
        free(args[i]);
    free(copy);
    return outcome;
}

static void outcome_fini(struct outcome *o)
{
    free(o->out);
    free(o->err);
}

static void expect(const char *words, int code, const char *out,
                   const char *err)
{
    struct outcome o = run(words);

    if (o.code != code)
        fail_msg("'%s': exit %d instead of %d\n%s", words, o.code, code, o.err);
    if (out && !strstr(o.out, out))
        fail_msg("'%s': stdout lacks '%s':\n%s", words, out, o.out);
    if (err && !strstr(o.err, err))
        fail_msg("'%s': stderr lacks '%s':\n%s", words, err, o.err);
    outcome_fini(&o);
}

static void a_newcomer_sees_a_table(void **state)
{
    struct outcome o = run("-n 150");

    (void)state;
    if (o.code != 0)
        fail_msg("exit %d: %s", o.code, o.err);
    assert_non_null(strstr(o.out, "fabric flat-50, speed 1"));
    assert_non_null(strstr(o.out, "fabric hetero, speed 1"));
    assert_non_null(strstr(o.out, "\njoint "));
    assert_non_null(strstr(o.out, "\nround_robin "));
    outcome_fini(&o);
}

static size_t widest(const char *text)
{
    size_t most = 0;

    while (*text) {
        size_t length = strcspn(text, "\n");

        most = length > most ? length : most;
        text += length + (text[length] == '\n');
    }
    return most;
}

/* Settings of one policy are told apart, and nothing is wider than 120. */
static void long_names_stay_whole(void **state)
{
    struct outcome o = run("-n 60 -f flat-50 -p joint "
                           "-p dynamo_wspt:queue_threshold=1|4,host_w=0.5");

    (void)state;
    assert_int_equal(o.code, 0);
    assert_non_null(
        strstr(o.out, "\ndynamo_wspt:queue_threshold=1,host_w=0.5\n"));
    assert_non_null(
        strstr(o.out, "\ndynamo_wspt:queue_threshold=4,host_w=0.5\n"));
    assert_in_range(widest(o.out), 100, 120);
    outcome_fini(&o);
    o = run("-n 60 --study ties --only T13a -x 1");
    assert_non_null(strstr(o.out, " s2:fetch=0,local=0+nohold+noprices\n"));
    assert_in_range(widest(o.out), 100, 120);
    outcome_fini(&o);
}

/* 100 requests at 4 per second last 25 s; ten times as many do not. */
static void a_burst_is_called_one(void **state)
{
    (void)state;
    expect("-n 100 -f flat-50 -p joint", 0, "note: a burst", NULL);
    expect("-n 80 -f flat-50 -p joint --capacity", 0, "\nBURST: at that speed",
           NULL);
    expect("-n 60 --study ties --only T3 -x 2", 0, "note: a burst", NULL);
    expect("-n 400 -f flat-50 -p joint -p prefix_load", 0,
           "note: every policy meets the SLO here", NULL);
}

/* The first child of a process, 0: none. */
static int child_of(pid_t pid)
{
    char path[64], line[64] = "";
    FILE *from;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid,
             (int)pid);
    from = fopen(path, "r");
    if (!from)
        return 0;
    if (!fgets(line, sizeof(line), from))
        line[0] = '\0';
    fclose(from);
    return (int)strtol(line, NULL, 10);
}

/* It ended, whether or not somebody has collected it. */
static bool has_ended(int pid)
{
    char path[64], state = 'Z';
    FILE *from;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    from = fopen(path, "r");
    if (!from)
        return true;
    if (fscanf(from, "%*d (%*[^)]) %c", &state) != 1)
        state = 'Z';
    fclose(from);
    return state == 'Z' || state == 'X';
}

static void interrupt_ends_all(void **state)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    FILE *err = tmpfile();
    int how = 0, child = 0;
    char *text;
    pid_t pid;

    (void)state;
    assert_non_null(err);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGINT, SIG_DFL);
        dup2(fileno(err), STDERR_FILENO);
        execl(program, program, "sim", "--capacity", "-n", "50000",
              (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 6000 && child == 0; i++) {
        child = child_of(pid);
        nanosleep(&pause, NULL);
    }
    kill(pid, SIGINT);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(child > 0);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGINT);
    for (int i = 0; i < 6000 && !has_ended(child); i++)
        nanosleep(&pause, NULL);
    assert_true(has_ended(child));
    text = read_all(err);
    assert_non_null(strstr(text, "baton sim: interrupted"));
    free(text);
}

/* No policy can answer more requests in time than arrive. */
static void goodput_is_the_met_share_of_the_rate(void **state)
{
    struct outcome o =
        run("-n 300 -f flat-50 -p round_robin --jitter 0s -x 20");
    const char *title = strstr(o.out, "speed 20: "),
               *row = strstr(o.out, "\nround_robin ");
    double rate, met, good;
    char *rest = NULL;

    (void)state;
    assert_true(title && row);
    rate = strtod(title + strlen("speed 20: "), NULL);
    met = strtod(row + strlen("\nround_robin "), &rest);
    good = strtod(rest, NULL);
    assert_true(met < 99); /* else the test says nothing */
    if (fabs(good - rate * met / 100) > 0.001 * rate + 0.01)
        fail_msg("%.2f of %.2f requests/s at %.1f %%", good, rate, met);
    outcome_fini(&o);
}

static void every_cluster_that_is_listed_has_a_fabric(void **state)
{
    (void)state;
    expect("--list", 0, "h100-70b-8p8d: ", NULL);
}

static json_t *json_of(const char *words)
{
    struct outcome o = run(words);
    json_error_t error;
    json_t *root;

    if (o.code != 0)
        fail_msg("'%s': exit %d: %s", words, o.code, o.err);
    root = json_loads(o.out, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("line %d: %s", error.line, error.text);
    outcome_fini(&o);
    return root;
}

static const char *hash_of(const json_t *root, size_t group, size_t seed)
{
    const json_t *runs = json_object_get(
        json_array_get(json_object_get(root, "groups"), group), "runs");

    return json_string_value(
        json_object_get(json_array_get(runs, seed), "effects_hash"));
}

/* Two policies, two seeds: the same in any number of processes, other for
 * another seed or policy. */
static void a_seed_gives_the_same_effects(void **state)
{
    static const char base[] = "-g chat -n 120 -f hetero -p joint -p dynamo "
                               "-s 1,2 -o json --check -j ";
    char words[160];
    json_t *one, *four;

    (void)state;
    snprintf(words, sizeof(words), "%s1", base);
    one = json_of(words);
    snprintf(words, sizeof(words), "%s4", base);
    four = json_of(words);
    for (size_t group = 0; group < 2; group++) {
        for (size_t seed = 0; seed < 2; seed++) {
            assert_non_null(hash_of(one, group, seed));
            assert_string_equal(hash_of(one, group, seed),
                                hash_of(four, group, seed));
        }
    }
    assert_string_not_equal(hash_of(one, 0, 0), hash_of(one, 0, 1));
    assert_string_not_equal(hash_of(one, 0, 0), hash_of(one, 1, 0));
    json_decref(one);
    json_decref(four);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    expect("--policy nobody", 2, NULL, "nobody");
    expect("--policy joint+quickly", 2, NULL, "after + stands");
    expect("--speed 0", 2, NULL, "--speed is a number from");
    expect("--seeds 0", 2, NULL, "--seeds is 1 to 64");
    expect("--seeds 1,x", 2, NULL, "--seeds is a number");
    expect("--hold maybe", 2, NULL, "--hold is on or off");
    expect("--generate poems", 2, NULL, "--generate is KIND");
    expect("--bias compute=-1", 2, NULL, "--bias is");
    expect("--prices queue", 2, NULL, "--prices is");
    expect("--speed 1e-9", 2, NULL, "--speed is a number from");
    expect("--speed 0.001 --rate 0.0001", 2, NULL, "the trace would last");
    expect("--seeds 3,3", 2, NULL, "one seed twice");
    expect("--fabric=", 2, NULL, "--fabric is NAME");
    expect("--faults kill:at=5", 2, NULL, "--faults is");
    expect("--faults kill", 2, NULL, "--faults is");
    expect("--faults kill:worker=16,at=1s", 2, NULL,
           "fabric flat-50 has workers 0 to 15");
    expect("--degrade 16=0.5", 2, NULL, "flat-50 has workers 0 to 15");
    expect("--degrade 1.5=0.5", 2, NULL, "--degrade is");
    expect("--journal /nonexistent/j -p joint -f flat-50", 1, NULL,
           "/nonexistent/j: No such file");
    expect("--study ties --policy joint", 2, NULL, "--policy does nothing");
    expect("--study ablation --only T1", 2, NULL, "--only does nothing");
    expect("--report /nonexistent/r --speed 2", 2, NULL, "--speed does");
    expect("--list --output json", 2, NULL, "--output json does nothing");
    expect("--trace x --rate 3", 2, NULL, "--rate is for a synthetic");
    expect("--median", 2, NULL, "--median belongs");
    expect("--degrade 8=2", 2, NULL, "--degrade is");
    expect("--capacity --study ties", 2, NULL, "one of --capacity");
    expect("--approximate maybe", 2, NULL, "--approximate is on or off");
    expect("--self-check 1", 2, NULL, "--self-check is on or off");
    expect("--approximate-ttl 0s", 2, NULL, "--approximate-ttl is above 0");
    expect("--approximate off --approximate-ttl 9s", 2, NULL,
           "--approximate-ttl does nothing");
    expect("--study staleness --approximate off", 2, NULL,
           "--approximate and --self-check do nothing here");
    expect("-n 60 -p joint -x 1 --approximate off --self-check off", 0,
           "no guesses, no self-check", NULL);
    expect("--study dreams -n 50", 3, NULL, "no study 'dreams'");
    expect("--study ties --only T99 -n 50", 3, NULL,
           "no row 'T99' in ties; rows: T1 T2 ");
    expect("--fabric ether", 3, NULL, "has no fabric 'ether'; it has:");
    expect("--cluster nowhere", 3, NULL, "no cluster 'nowhere'");
    expect("--trace /nonexistent.jsonl", 3, NULL, "/nonexistent.jsonl");
}

static void capacity_and_a_study_row_run(void **state)
{
    json_t *root;
    const json_t *first;

    (void)state;
    root = json_of("-g tool -n 80 -c h100-70b-4p4d -f flat-50 -p joint "
                   "--capacity -o json");
    first = json_array_get(json_object_get(root, "capacity"), 0);
    assert_true(json_number_value(json_object_get(first, "speed")) > 0.1);
    assert_true(json_is_null(json_object_get(first, "error")));
    json_decref(root);
    expect("-g tool -n 80 -c h100-70b-4p4d --study ties --only T3 -x 2 -s 2", 0,
           "verdicts:", NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_newcomer_sees_a_table),
        cmocka_unit_test(long_names_stay_whole),
        cmocka_unit_test(a_burst_is_called_one),
        cmocka_unit_test(interrupt_ends_all),
        cmocka_unit_test(goodput_is_the_met_share_of_the_rate),
        cmocka_unit_test(every_cluster_that_is_listed_has_a_fabric),
        cmocka_unit_test(a_seed_gives_the_same_effects),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(capacity_and_a_study_row_run),
    };

    if (argc < 2) {
        fprintf(stderr, "usage: %s BATON\n", argv[0]);
        return 2;
    }
    program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
