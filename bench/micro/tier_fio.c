/* Runs fio (io_uring, direct, registered buffers and file: its fast way) as a
 * process and reads its JSON. Decides nothing about sizes or rounds: tier.c. */
#include "tier.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGS_MAX   24
#define ARG_BYTES  320
#define ANSWER_MAX (1u << 18)

struct arguments {
    char text[ARGS_MAX][ARG_BYTES];
    char *list[ARGS_MAX + 1];
    int count;
};

static void add(struct arguments *a, const char *format, const char *text,
                uint64_t number)
{
    char *at = a->text[a->count];

    if (text)
        snprintf(at, ARG_BYTES, "--%s=%s", format, text);
    else
        snprintf(at, ARG_BYTES, "--%s=%llu", format,
                 (unsigned long long)number);
    a->list[a->count++] = at;
    a->list[a->count] = NULL;
}

static void describe(const struct tier_run *run, bool fill, struct arguments *a)
{
    memset(a, 0, sizeof(*a));
    snprintf(a->text[0], ARG_BYTES, "fio");
    a->list[a->count++] = a->text[0];
    add(a, "name", "baton", 0);
    add(a, "filename", run->path, 0);
    add(a, "size", NULL, run->file_bytes);
    add(a, "bs", NULL, fill ? 1u << 20 : run->block_bytes);
    add(a, "iodepth", NULL, fill ? 8 : run->depth);
    add(a, "rw", fill ? "write" : run->write ? "randwrite" : "randread", 0);
    add(a, "ioengine", "io_uring", 0);
    add(a, "direct", NULL, 1);
    add(a, "fixedbufs", NULL, 1);
    add(a, "registerfiles", NULL, 1);
    add(a, "overwrite", NULL, 0);
    add(a, "end_fsync", NULL, fill || run->flush);
    add(a, "randrepeat", NULL, 0);
    add(a, "output-format", "json", 0);
}

/* Its standard output; NULL when it could not be run. */
static char *run_fio(const struct arguments *a, int *status_out)
{
    posix_spawn_file_actions_t actions;
    char *answer = calloc(1, ANSWER_MAX);
    size_t used = 0;
    int ends[2], error;
    ssize_t n;
    pid_t pid;

    if (!answer || pipe2(ends, O_CLOEXEC) != 0) {
        free(answer);
        return NULL;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null",
                                     O_WRONLY, 0);
    error = posix_spawnp(&pid, "fio", &actions, NULL, a->list, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    while (error == 0 && used < ANSWER_MAX - 1) {
        n = read(ends[0], answer + used, ANSWER_MAX - 1 - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    close(ends[0]);
    if (error != 0 || waitpid(pid, status_out, 0) != pid) {
        free(answer);
        errno = error;
        return NULL;
    }
    return answer;
}

static double bandwidth(const char *answer, bool write)
{
    /* Warnings may come before the object. */
    const char *start = strchr(answer, '{');
    json_t *root = start ? json_loads(start, 0, NULL) : NULL;
    const json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    const json_t *side = json_object_get(job, write ? "write" : "read");
    double value = json_number_value(json_object_get(side, "bw_bytes"));

    json_decref(root);
    return value;
}

enum bt_status tier_fio(const struct tier_run *run, bool fill,
                        double *bytes_per_s_out, char *why_out, size_t why_size)
{
    struct arguments arguments;
    double value;
    char *answer;
    int status = -1;

    describe(run, fill, &arguments);
    answer = run_fio(&arguments, &status);
    if (!answer) {
        snprintf(why_out, why_size, "fio was not run: %s", strerror(errno));
        return errno == ENOENT ? BT_NOT_FOUND : BT_IO;
    }
    value = bandwidth(answer, run->write || fill);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || value <= 0) {
        snprintf(why_out, why_size, "fio failed (status %d): %.120s", status,
                 answer);
        free(answer);
        return BT_IO;
    }
    free(answer);
    *bytes_per_s_out = value;
    return BT_OK;
}
