/* `baton sim` as users run it: tables, JSON, exit codes, and that a seed gives
 * the same effects whoever runs beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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
    expect("--speed 0", 2, NULL, "--speed is a number above 0");
    expect("--seeds 0", 2, NULL, "--seeds is 1 to 64");
    expect("--seeds 1,x", 2, NULL, "--seeds is a number");
    expect("--hold maybe", 2, NULL, "--hold is on or off");
    expect("--generate poems", 2, NULL, "--generate is KIND");
    expect("--bias compute=-1", 2, NULL, "--bias is");
    expect("--prices queue", 2, NULL, "--prices is");
    expect("--faults kill:at=5", 2, NULL, "--faults is");
    expect("--degrade 8=2", 2, NULL, "--degrade is");
    expect("--capacity --study ties", 2, NULL, "one of --capacity");
    expect("--study dreams -n 50", 3, NULL, "no study 'dreams'");
    expect("--study ties --only T99 -n 50", 3, NULL, "no row 'T99'");
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
