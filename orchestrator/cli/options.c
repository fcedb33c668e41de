/* Options of a subcommand from its table, over getopt_long: types, units,
 * --help, and the nearest valid name for a wrong one. Leaves defaults and
 * meaning to the subcommand. Invariant: a target is written only with a value
 * of its type. */
#include "baton/base/units.h"
#include "baton/orchestrator/config.h"
#include "command.h"
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 64
#define LONG_BASE   256 /* above every letter */
#define HELP_VALUE  (LONG_BASE + OPTIONS_MAX)

/* What getopt_long reads, made from the table. */
struct parser {
    struct option options[OPTIONS_MAX + 2];
    char letters[2 * OPTIONS_MAX + 4];
    const char *names[OPTIONS_MAX + 1];
    int count;
};

static void parser_init(struct parser *parser, const struct bt_command *command)
{
    size_t used = 0;
    memset(parser, 0, sizeof(*parser));
    parser->letters[used++] = ':';
    parser->letters[used++] = 'h';
    for (const struct bt_option *o = command->options; o && o->name; o++) {
        assert(parser->count < OPTIONS_MAX);
        bool value = o->type != BT_OPTION_FLAG;
        parser->names[parser->count] = o->name;
        parser->options[parser->count] =
            (struct option){o->name, value ? required_argument : no_argument,
                            NULL, LONG_BASE + parser->count};
        parser->count++;
        if (o->letter)
            parser->letters[used++] = o->letter;
        if (o->letter && value)
            parser->letters[used++] = ':';
    }
    parser->names[parser->count] = "help";
    parser->options[parser->count] =
        (struct option){"help", no_argument, NULL, HELP_VALUE};
}

static void print_help(const struct bt_command *command)
{
    printf("usage: baton %s%s%s%s\n\n%s\n\noptions:\n", command->name,
           " [OPTION...]", command->arguments[0] ? " " : "", command->arguments,
           command->summary);
    for (const struct bt_option *o = command->options; o && o->name; o++) {
        char left[96];
        snprintf(left, sizeof(left), "%c%c%s --%s%s%s", o->letter ? '-' : ' ',
                 o->letter ? o->letter : ' ', o->letter ? "," : " ", o->name,
                 o->argument ? " " : "", o->argument ? o->argument : "");
        if (strlen(left) > 30)
            printf("  %s\n  %-30s %s\n", left, "", o->text);
        else
            printf("  %-30s %s\n", left, o->text);
    }
    printf("  %-30s %s\n", "-h, --help", "show this help");
}

static int usage_hint(const struct bt_command *command)
{
    fprintf(stderr, "try 'baton %s --help'\n", command->name);
    return BT_EXIT_USAGE;
}

static bool parse_u64(const char *text, uint64_t *out)
{
    size_t length = strlen(text);
    char *end = NULL;
    if (length == 0 || strspn(text, "0123456789") != length)
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    *out = value;
    return true;
}

static bool parse_double(const char *text, double *out)
{
    char *end = NULL;
    if (strspn(text, "0123456789.eE+-") != strlen(text))
        return false;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 0)
        return false;
    *out = value;
    return true;
}

static bool list_add(struct bt_option_list *list, const char *text)
{
    if (list->count == BT_OPTION_LIST_MAX)
        return false;
    list->items[list->count++] = text;
    return true;
}

static bool set_target(enum bt_option_type type, const char *text, void *target)
{
    switch (type) {
    case BT_OPTION_FLAG:
        *(bool *)target = true;
        return true;
    case BT_OPTION_STRING:
        *(const char **)target = text;
        return true;
    case BT_OPTION_U64:
        return parse_u64(text, target);
    case BT_OPTION_DOUBLE:
        return parse_double(text, target);
    case BT_OPTION_SIZE:
        return bt_size_parse(text, target) == BT_OK;
    case BT_OPTION_DURATION:
        return bt_duration_parse(text, target) == BT_OK;
    case BT_OPTION_RATE:
        return bt_rate_parse(text, target) == BT_OK;
    case BT_OPTION_LIST:
        return list_add(target, text);
    }
    return false;
}

static const char *type_text(enum bt_option_type type)
{
    switch (type) {
    case BT_OPTION_FLAG:
        return "no value";
    case BT_OPTION_STRING:
        return "a value";
    case BT_OPTION_U64:
        return "a whole number";
    case BT_OPTION_DOUBLE:
        return "a number >= 0";
    case BT_OPTION_SIZE:
        return "a size with a unit (such as 64MiB)";
    case BT_OPTION_DURATION:
        return "a duration with a unit (such as 30s)";
    case BT_OPTION_RATE:
        return "a rate with a unit (such as 12GB/s)";
    case BT_OPTION_LIST:
        return "at most 64 values";
    }
    return "a value";
}

static int fail_unknown(const struct bt_command *command,
                        const struct parser *parser, const char *word)
{
    char name[64];
    const char *hint = NULL;
    if (strncmp(word, "--", 2) == 0) {
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="),
                 word + 2);
        hint = bt_nearest(name, parser->names, (size_t)parser->count + 1);
        fprintf(stderr, "baton %s: unknown option '--%s'", command->name, name);
    } else {
        fprintf(stderr, "baton %s: unknown option '-%c'", command->name,
                optopt);
    }
    if (hint)
        fprintf(stderr, " (did you mean '--%s'?)", hint);
    fprintf(stderr, "\n");
    return usage_hint(command);
}

/* getopt answers '?' for an unknown option, an ambiguous abbreviation and a
 * value given to a flag; in the last case optopt is the flag's value. */
static int fail_question(const struct bt_command *command,
                         const struct parser *parser, const char *word)
{
    if (optopt < LONG_BASE)
        return fail_unknown(command, parser, word);
    fprintf(stderr, "baton %s: --%s takes no value\n", command->name,
            optopt == HELP_VALUE ? "help"
                                 : command->options[optopt - LONG_BASE].name);
    return usage_hint(command);
}

/* Index in the command's table for what getopt_long returned. */
static int option_index(const struct bt_command *command, int value)
{
    int i = 0;
    if (value >= LONG_BASE)
        return value - LONG_BASE;
    while (command->options[i].letter != value)
        i++;
    return i;
}

static int take_option(const struct bt_command *command, int value,
                       void *target)
{
    const struct bt_option *option =
        &command->options[option_index(command, value)];
    if (set_target(option->type, optarg,
                   (unsigned char *)target + option->offset))
        return -1;
    fprintf(stderr, "baton %s: --%s expects %s, got '%s'\n", command->name,
            option->name, type_text(option->type), optarg);
    return usage_hint(command);
}

static int fail_missing(const struct bt_command *command)
{
    fprintf(stderr, "baton %s: --%s needs %s\n", command->name,
            command->options[option_index(command, optopt)].name,
            type_text(command->options[option_index(command, optopt)].type));
    return usage_hint(command);
}

int bt_options_parse(const struct bt_command *command, int argc, char **argv,
                     void *target, int *first_out)
{
    struct parser parser;
    int value, code = -1;
    parser_init(&parser, command);
    opterr = 0;
    optind = 0; /* GNU: start over, whoever parsed before */
    while (code < 0) {
        const char *word = argv[optind > 0 ? optind : 1];
        value = getopt_long(argc, argv, parser.letters, parser.options, NULL);
        if (value == -1)
            break;
        if (optind > 1 && optind <= argc && argv[optind - 1][0] == '-')
            word = argv[optind - 1];
        if (value == 'h' || value == HELP_VALUE) {
            print_help(command);
            return BT_EXIT_OK;
        }
        if (value == '?')
            code = fail_question(command, &parser, word);
        else if (value == ':')
            code = fail_missing(command);
        else
            code = take_option(command, value, target);
    }
    if (code < 0)
        *first_out = optind;
    return code;
}
