/* One table of subcommands drives dispatch, --help, completion and the man
 * page. A subcommand is one file cmd_<name>.c that defines bt_command_<name>;
 * its options are a table too, parsed by bt_options_parse (getopt_long below).
 */
#ifndef BATON_CLI_COMMAND_H
#define BATON_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes of every subcommand. */
enum bt_exit {
    BT_EXIT_OK = 0,
    BT_EXIT_FAILED = 1,
    BT_EXIT_USAGE = 2,
    BT_EXIT_CONFIG = 3,
    BT_EXIT_PEER = 4,
    BT_EXIT_DIFFERENT = 5
};

enum bt_option_type {
    BT_OPTION_FLAG,     /* bool */
    BT_OPTION_STRING,   /* const char * */
    BT_OPTION_U64,      /* uint64_t, whole number */
    BT_OPTION_DOUBLE,   /* double, finite, >= 0 */
    BT_OPTION_SIZE,     /* uint64_t bytes, with unit */
    BT_OPTION_DURATION, /* int64_t ns, with unit */
    BT_OPTION_RATE,     /* uint64_t bytes/s, with unit */
    BT_OPTION_LIST      /* struct bt_option_list *, repeatable string */
};

#define BT_OPTION_LIST_MAX 64
struct bt_option_list {
    const char *items[BT_OPTION_LIST_MAX];
    size_t count;
};

struct bt_option {
    const char *name; /* long name without dashes */
    char letter;      /* short form, 0 = none */
    enum bt_option_type type;
    const char *argument; /* "FILE", shown in help; NULL for flags */
    const char *text;     /* one line, with default and unit */
    size_t offset;        /* of the target in the command's option struct */
};

struct bt_command {
    const char *name;
    const char *summary;               /* one line */
    const char *arguments;             /* "<request-id>", or "" */
    const struct bt_option *options;   /* name NULL ends it; may be NULL */
    int (*run)(int argc, char **argv); /* argv[0] = subcommand name */
};

/* Parse options into *target (defaults set by the caller beforehand);
 * --help prints the command's help on stdout. Returns -1 to go on (then
 * *first_out is the index of the first positional argument), else the exit
 * code to leave with (0 after --help, 2 on a bad option: message with the
 * nearest valid option on stderr). */
int bt_options_parse(const struct bt_command *command, int argc, char **argv,
                     void *target, int *first_out);

extern const struct bt_command bt_command_serve, bt_command_engine,
    bt_command_demo, bt_command_sim, bt_command_explain, bt_command_check,
    bt_command_bench, bt_command_completion, bt_command_replay,
    bt_command_trace, bt_command_topo, bt_command_index, bt_command_agent,
    bt_command_probe;

/* All commands in the order of help; NULL past the end. */
const struct bt_command *bt_command_at(size_t i);
/* "0.1.0" */
const char *bt_version(void);

#endif
