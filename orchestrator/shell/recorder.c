/* The journal of a server: every event that its core took, for `baton replay`.
 * Decides the file's name and what is said when it ends early; what is written
 * is orchestrator/journal's.
 *
 * A file that is there is never written to: FILE, FILE.1, FILE.2, ... are tried
 * in turn, so that a restart keeps the journal that tells what went before it.
 * Invariant: recorder_event follows each step of the core, in order, until the
 * server ends or the journal has; what was recorded is then a whole beginning.
 */
#include "recorder.h"

#include "baton/orchestrator/journal.h"
#include "baton/orchestrator/topology_file.h"
#include "serve_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAMES_MAX  1000u /* FILE and FILE.1 .. FILE.999 */
#define NUMBER_MAX 5u    /* bytes that ".999" adds, its end included */

struct recorder {
    struct bt_journal_writer *writer;
    char *path; /* the name that was free */
    size_t path_size;
    uint64_t events; /* stepped since the start */
};

/* Open the first free name; -1: errno says why, r->path which. */
static int open_free(struct recorder *r, const char *file)
{
    int fd = -1;

    for (unsigned int i = 0; i < NAMES_MAX; i++) {
        if (i == 0)
            snprintf(r->path, r->path_size, "%s", file);
        else
            snprintf(r->path, r->path_size, "%s.%u", file, i);
        fd = open(r->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST)
            break;
    }
    return fd;
}

enum bt_status recorder_start(struct bt_serve *serve,
                              const struct bt_core_config *core, char *error,
                              size_t error_size)
{
    const struct bt_config *c = serve->config;
    const struct bt_topology_spec *spec =
        c->topology == NULL ? NULL : bt_topology_file_spec(c->topology);
    struct recorder *r;
    enum bt_status status;
    int fd;

    if (c->journal.file == NULL)
        return BT_OK;
    snprintf(error, error_size, "out of memory");
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return BT_NO_MEMORY;
    serve->recorder = r;
    r->path_size = strlen(c->journal.file) + NUMBER_MAX;
    r->path = malloc(r->path_size);
    if (r->path == NULL)
        return BT_NO_MEMORY;
    fd = open_free(r, c->journal.file);
    if (fd < 0) {
        snprintf(error, error_size, "journal.file %s: %s", r->path,
                 strerror(errno));
        return BT_IO;
    }
    status =
        bt_journal_create_fd(fd, core, spec, c->journal.bytes_max, &r->writer);
    if (status != BT_OK) {
        snprintf(error, error_size, "journal.file %s: %s", r->path,
                 status == BT_LIMIT
                     ? "journal.max has no room for the configuration"
                     : bt_status_text(status));
        unlink(r->path);
        return status;
    }
    bt_log(BT_LOG_INFO, "journal_started", "file=%s bytes_max=%" PRIu64,
           r->path, c->journal.bytes_max);
    return BT_OK;
}

void recorder_event(struct bt_serve *serve, const struct bt_event *event,
                    const struct bt_effects *effects)
{
    struct recorder *r = serve->recorder;
    enum bt_status status;

    if (r == NULL)
        return;
    r->events++;
    status = bt_journal_event(r->writer, serve->core, event, effects);
    if (status != BT_OK) /* said once: later events are only counted */
        bt_log(BT_LOG_WARN, "journal_stopped",
               "file=%s events=%" PRIu64 " reason=\"%s\"", r->path,
               r->events - 1,
               status == BT_LIMIT ? "journal.max is reached"
                                  : bt_status_text(status));
}

uint64_t recorder_left_out(const struct bt_serve *serve)
{
    return serve->recorder == NULL || serve->recorder->writer == NULL
               ? 0
               : bt_journal_left_out(serve->recorder->writer);
}

static void close_writer(struct recorder *r)
{
    uint64_t left_out = bt_journal_left_out(r->writer);
    enum bt_status status = bt_journal_close(r->writer);

    if (r->events == 0) { /* the server did not come up: leave no trace */
        unlink(r->path);
        return;
    }
    bt_log(status == BT_OK ? BT_LOG_INFO : BT_LOG_WARN, "journal_closed",
           "file=%s events=%" PRIu64 " left_out=%" PRIu64 " status=%s", r->path,
           r->events - left_out, left_out, bt_status_name(status));
}

void recorder_stop(struct bt_serve *serve)
{
    struct recorder *r = serve->recorder;

    if (r == NULL)
        return;
    if (r->writer != NULL)
        close_writer(r);
    free(r->path);
    free(r);
    serve->recorder = NULL;
}
