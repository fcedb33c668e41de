/* `baton completion bash`: a completion script made from the command table, so
 * that it cannot fall behind. Decides which words are offered where; file
 * names are bash's. */
#include "baton/planner/place.h"
#include "command.h"
#include <stdio.h>
#include <string.h>

static const struct bt_option OPTIONS[] = {
    {0},
};

/* Values of options that have few; policies come from their table. */
static const struct {
    const char *option, *words;
} VALUES[] = {
    {"output|-o", "table json"},
    {"role", "prefill decode both"},
    {"event-encoding", "array map mapbatch"},
    {"event-hash", "int bytes sha256_cbor:0 xxhash_cbor:0"},
    {"replay-framing", "new old"},
    {"kv-load-failure-policy", "fail recompute"},
    {"format|-f", "auto mooncake bailian azure burstgpt"},
};

static void print_values(void)
{
    printf("    case ${COMP_WORDS[COMP_CWORD - 1]} in\n"
           "    --policy)\n        values='");
    for (size_t i = 0; bt_policy_at(i); i++)
        printf("%s%s", i ? " " : "", bt_policy_at(i)->name);
    printf("' ;;\n");
    for (size_t i = 0; i < sizeof(VALUES) / sizeof(VALUES[0]); i++)
        printf("    --%s)\n        values='%s' ;;\n", VALUES[i].option,
               VALUES[i].words);
    printf("    esac\n"
           "    if [ -n \"$values\" ]; then\n"
           "        COMPREPLY=($(compgen -W \"$values\" -- \"$cur\"))\n"
           "        return\n    fi\n");
}

/* "http|place" in the synopsis are words to offer; "FILE" is not, nor what
 * follows them. */
static void print_words(const char *arguments)
{
    if (arguments[0] < 'a' || arguments[0] > 'z')
        return;
    printf("        plain='");
    for (const char *c = arguments; *c && *c != ' '; c++)
        putchar(*c == '|' ? ' ' : *c);
    printf("'\n");
}

static void print_command(const struct bt_command *command)
{
    printf("    %s)\n", command->name);
    print_words(command->arguments);
    printf("        words='--help");
    for (const struct bt_option *o = command->options; o && o->name; o++)
        printf(" --%s", o->name);
    printf("' ;;\n");
}

static void print_bash(void)
{
    printf("# bash completion for baton %s; written by 'baton completion "
           "bash'\n_baton()\n{\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} words= plain= values=\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words='",
           bt_version());
    for (size_t i = 0; bt_command_at(i); i++)
        printf("%s ", bt_command_at(i)->name);
    printf("help --help --version'\n"
           "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "        return\n    fi\n    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; bt_command_at(i); i++)
        print_command(bt_command_at(i));
    printf("    help)\n        plain='");
    for (size_t i = 0; bt_command_at(i); i++)
        printf("%s%s", i ? " " : "", bt_command_at(i)->name);
    printf("' ;;\n    esac\n");
    print_values();
    printf("    case $cur in\n"
           "    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n"
           "    *)\n"
           "        if [ -n \"$plain\" ]; then\n"
           "            COMPREPLY=($(compgen -W \"$plain\" -- \"$cur\"))\n"
           "        else\n"
           "            COMPREPLY=($(compgen -f -- \"$cur\"))\n"
           "        fi ;;\n"
           "    esac\n}\n"
           "complete -o filenames -F _baton baton\n");
}

static int run(int argc, char **argv)
{
    int first = 0;
    char unused = 0;
    int code =
        bt_options_parse(&bt_command_completion, argc, argv, &unused, &first);
    if (code >= 0)
        return code;
    if (first + 1 != argc || strcmp(argv[first], "bash") != 0) {
        fprintf(stderr, "usage: baton completion bash\n");
        return BT_EXIT_USAGE;
    }
    print_bash();
    return BT_EXIT_OK;
}

const struct bt_command bt_command_completion = {
    .name = "completion",
    .summary = "print a shell completion script",
    .arguments = "bash",
    .options = OPTIONS,
    .run = run,
};
