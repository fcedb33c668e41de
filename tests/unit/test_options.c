/* bt_options_parse: each type takes what it should and refuses the rest, in
 * whatever order getopt_long meets it. Messages are tests/e2e/check_cli.sh's.
 */
#include "command.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first. */
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct values {
    bool flag;
    const char *string;
    uint64_t count, size, rate;
    double number;
    int64_t duration;
    struct bt_option_list list;
};

#define ROW(name, letter, type, argument)                                      \
    {                                                                          \
#name, letter, type, argument, "text", offsetof(struct values, name)   \
    }

static const struct bt_option OPTIONS[] = {
    ROW(flag, 'f', BT_OPTION_FLAG, NULL),
    ROW(string, 's', BT_OPTION_STRING, "S"),
    ROW(count, 'c', BT_OPTION_U64, "N"),
    ROW(number, 0, BT_OPTION_DOUBLE, "X"),
    ROW(size, 0, BT_OPTION_SIZE, "SIZE"),
    ROW(duration, 'd', BT_OPTION_DURATION, "TIME"),
    ROW(rate, 0, BT_OPTION_RATE, "RATE"),
    ROW(list, 'l', BT_OPTION_LIST, "ITEM"),
    {0},
};

static const struct bt_command COMMAND = {"test", "a test", "", OPTIONS, NULL};
static const struct bt_command BARE = {"bare", "no options", "", NULL, NULL};

#define ARGS_MAX 80

/* The words as argv; stderr is silenced, since what is refused says so. */
static int parse_as(const struct bt_command *command, struct values *v,
                    int *first, const char *const *words)
{
    static char copies[ARGS_MAX][64];
    char *argv[ARGS_MAX + 1] = {0};
    int argc = 0;
    for (; words[argc]; argc++) {
        snprintf(copies[argc], sizeof(copies[argc]), "%s", words[argc]);
        argv[argc] = copies[argc];
    }
    fflush(stderr);
    int saved = dup(2), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, 2);
    close(null);
    int code = bt_options_parse(command, argc, argv, v, first);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    return code;
}

#define PARSE(v, first, ...)                                                   \
    parse_as(&COMMAND, v, first,                                               \
             (const char *const[]){"test", __VA_ARGS__, NULL})

static void every_type_is_read(void **state)
{
    (void)state;
    struct values v = {0};
    int first = 0;
    assert_int_equal(PARSE(&v, &first, "--flag", "--string", "x y",
                           "--count=18446744073709551615", "--number", "0.25",
                           "--size", "64MiB", "--duration", "30s", "--rate",
                           "400Gbps", "--list", "a", "-l", "b", "rest"),
                     -1);
    assert_true(v.flag);
    assert_string_equal(v.string, "x y");
    assert_true(v.count == UINT64_MAX);
    assert_true(v.number == 0.25);
    assert_int_equal(v.size, 67108864);
    assert_int_equal(v.duration, 30000000000);
    assert_int_equal(v.rate, 50000000000);
    assert_int_equal(v.list.count, 2);
    assert_string_equal(v.list.items[1], "b");
    assert_int_equal(first, 17);
}

static void letters_and_order(void **state)
{
    (void)state;
    struct values v = {0};
    int first = 0;
    assert_int_equal(PARSE(&v, &first, "arg", "-fc7", "-s", "t", "-d1ms"), -1);
    assert_true(v.flag);
    assert_int_equal(v.count, 7);
    assert_string_equal(v.string, "t");
    assert_int_equal(v.duration, 1000000);
    assert_int_equal(first, 5); /* "arg" was moved behind the options */
    assert_int_equal(PARSE(&v, &first, "--", "--flag"), -1);
    assert_int_equal(first, 2);
}

static void wrong_values_leave_the_target(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"--count", "-1"},    {"--count", "1.5"},
        {"--count", "0x10"},  {"--count", ""},
        {"--count", " 1"},    {"--count", "12x"},
        {"--number", "-0.1"}, {"--number", "nan"},
        {"--number", "inf"},  {"--number", "1e999"},
        {"--number", ""},     {"--number", "1,5"},
        {"--size", "64"},     {"--duration", "30"},
        {"--rate", "12GB"},   {"--count", "18446744073709551616"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct values v = {
            .count = 5, .number = 5, .size = 5, .duration = 5, .rate = 5};
        int first = -7;
        int code = PARSE(&v, &first, bad[i][0], bad[i][1]);
        if (code != BT_EXIT_USAGE)
            print_error("%s '%s'\n", bad[i][0], bad[i][1]);
        assert_int_equal(code, BT_EXIT_USAGE);
        assert_true(v.count == 5 && v.number == 5 && v.size == 5);
        assert_true(v.duration == 5 && v.rate == 5);
        assert_int_equal(first, -7);
    }
}

static void wrong_options_are_usage_faults(void **state)
{
    (void)state;
    static const char *const bad[] = {"--flga",  "--flag=1", "-x",
                                      "--count", "-c",       "--help=1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct values v = {0};
        int first = 0;
        assert_int_equal(PARSE(&v, &first, bad[i]), BT_EXIT_USAGE);
    }
}

static void lists_are_bounded(void **state)
{
    (void)state;
    struct values v = {0};
    int first = 0;
    const char *words[BT_OPTION_LIST_MAX + 3] = {"test"};
    for (size_t i = 1; i <= BT_OPTION_LIST_MAX; i++)
        words[i] = "-lx";
    assert_int_equal(parse_as(&COMMAND, &v, &first, words), -1);
    assert_int_equal(v.list.count, BT_OPTION_LIST_MAX);
    words[BT_OPTION_LIST_MAX + 1] = "-lx";
    v.list.count = 0;
    assert_int_equal(parse_as(&COMMAND, &v, &first, words), BT_EXIT_USAGE);
}

static void no_table_is_an_empty_table(void **state)
{
    (void)state;
    struct values v = {0};
    int first = 0;
    assert_int_equal(
        parse_as(&BARE, &v, &first, (const char *const[]){"bare", "x", NULL}),
        -1);
    assert_int_equal(first, 1);
    assert_int_equal(
        parse_as(&BARE, &v, &first, (const char *const[]){"bare", "-x", NULL}),
        BT_EXIT_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_read),
        cmocka_unit_test(letters_and_order),
        cmocka_unit_test(wrong_values_leave_the_target),
        cmocka_unit_test(wrong_options_are_usage_faults),
        cmocka_unit_test(lists_are_bounded),
        cmocka_unit_test(no_table_is_an_empty_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
