/* Rig for tests of `baton index`: it and emulated engines as processes of the
 * program itself, restarted in place, killed; and the truth of an engine. */
#ifndef BATON_TESTS_INDEX_RIG_H
#define BATON_TESTS_INDEX_RIG_H

#include "engine_rig.h"

#include <stdbool.h>
#include <stdint.h>

struct process {
    struct rig rig; /* for rig_call: pid and HTTP port */
    const char *name, *encoding;
    unsigned int metrics; /* port, serve only */
};

/* The program under test; set by main. */
extern const char *rig_program;

/* An engine of 64 blocks of 16. A second start takes the same ports. */
void engine_start(struct process *e, const char *name, const char *encoding);
/* extra: more options, NULL-terminated. */
void index_start(struct process *x, const char *const *extra);
/* `baton serve`; its admin listener is what is called. */
void serve_start(struct process *x, const char *config);
/* Exit code after a signal. */
int process_end(struct process *p, int signal);
/* Run `baton index` with options until it ends by itself. */
int index_exit_code(const char *const *options);

/* POST; returns the status, parses the answer into *out unless NULL. */
long index_post(const struct process *x, const char *path, const char *body,
                json_t **out);
json_t *index_get(const struct process *x, const char *path);
/* A number of /stats. */
long long index_stat(const struct process *x, const char *name);
/* A stream of /workers by instance; NULL: none. The root is the caller's. */
json_t *stream_of(json_t *workers, const char *instance);
/* Wait until the stream is exact and has all that the engine has sent. */
void index_wait(const struct process *x, const struct process *engine);

/* A completion of prompt `variant` on the engine. */
void engine_ask(const struct process *e, unsigned int variant);
/* Leading tokens of that prompt that the engine has, from /admin/blocks. */
long long engine_truth(const struct process *e, unsigned int variant);
/* What x says that `instance` has of it in its device tier, Dynamo's shape;
 * -1: its stream is not exact. */
long long index_says(const struct process *x, const char *instance,
                     unsigned int variant);
/* Body of a query for that prompt. model: the name of the model's field. */
void query_body(char *out, size_t size, const char *model, unsigned int variant,
                const char *more);

#endif
