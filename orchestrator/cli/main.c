/* main(): one table of subcommands drives dispatch, help, and (through
 * bt_command_at) completion and the documentation test. Leaves options to
 * options.c and the work to cmd_<name>.c. A subcommand joins the table when
 * its source is part of the build (BATON_HAVE_<NAME>, set by CMake). */
#include "baton/orchestrator/config.h"
#include "command.h"
#include <stdio.h>
#include <string.h>

#define COMMANDS_MAX 32u

static const struct bt_command *const TABLE[] = {
#ifdef BATON_HAVE_SERVE
    &bt_command_serve,
#endif
#ifdef BATON_HAVE_INDEX
    &bt_command_index,
#endif
#ifdef BATON_HAVE_AGENT
    &bt_command_agent,
#endif
#ifdef BATON_HAVE_ENGINE
    &bt_command_engine,
#endif
#ifdef BATON_HAVE_DEMO
    &bt_command_demo,
#endif
#ifdef BATON_HAVE_SIM
    &bt_command_sim,
#endif
#ifdef BATON_HAVE_EXPLAIN
    &bt_command_explain,
#endif
#ifdef BATON_HAVE_REPLAY
    &bt_command_replay,
#endif
    &bt_command_check,
#ifdef BATON_HAVE_TOPO
    &bt_command_topo,
#endif
#ifdef BATON_HAVE_PROBE
    &bt_command_probe,
#endif
#ifdef BATON_HAVE_TRACE
    &bt_command_trace,
#endif
#ifdef BATON_HAVE_BENCH
    &bt_command_bench,
#endif
    &bt_command_completion,
};

#define COMMANDS (sizeof(TABLE) / sizeof(TABLE[0]))
_Static_assert(COMMANDS <= COMMANDS_MAX, "find_command's list holds the table");

const struct bt_command *bt_command_at(size_t i)
{
    return i < COMMANDS ? TABLE[i] : NULL;
}

const char *bt_version(void)
{
    return BATON_VERSION;
}

static void print_help(FILE *out)
{
    fprintf(out, "usage: baton COMMAND [OPTION...] [ARGUMENT...]\n\n"
                 "KV-transfer-aware orchestrator for disaggregated LLM "
                 "serving\n\ncommands:\n");
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-12s %s\n", TABLE[i]->name, TABLE[i]->summary);
    fprintf(out, "  %-12s %s\n\n", "help", "help on a command");
    fprintf(out, "baton COMMAND --help shows the options of a command, "
                 "baton --version the version.\n"
                 "exit codes: 0 done, 1 failed, 2 usage, 3 bad "
                 "configuration,\n            4 peer unreachable, 5 check "
                 "found differences\n");
}

/* NULL after a message on stderr when there is no such command. */
static const struct bt_command *find_command(const char *name)
{
    const char *names[COMMANDS_MAX];
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(TABLE[i]->name, name) == 0)
            return TABLE[i];
        names[i] = TABLE[i]->name;
    }
    const char *hint = bt_nearest(name, names, COMMANDS);
    fprintf(stderr, "baton: unknown %s '%s'",
            name[0] == '-' ? "option" : "command", name);
    if (hint)
        fprintf(stderr, " (did you mean '%s'?)", hint);
    fprintf(stderr, "\ntry 'baton --help'\n");
    return NULL;
}

static int run_help(int argc, char **argv)
{
    char flag[] = "--help";
    if (argc < 2 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return BT_EXIT_OK;
    }
    const struct bt_command *command = find_command(argv[1]);
    char *args[] = {argv[1], flag, NULL};
    return command ? command->run(2, args) : BT_EXIT_USAGE;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return BT_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return run_help(argc - 1, argv + 1);
    if (strcmp(argv[1], "--version") == 0) {
        printf("baton %s\n", bt_version());
        return BT_EXIT_OK;
    }
    const struct bt_command *command = find_command(argv[1]);
    return command ? command->run(argc - 1, argv + 1) : BT_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    int code = dispatch(argc, argv);
    /* A full disk or a closed pipe must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == BT_EXIT_OK) {
        fprintf(stderr, "baton: standard output cannot be written\n");
        code = BT_EXIT_FAILED;
    }
    return code;
}
