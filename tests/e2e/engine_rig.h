/* Rig for tests of the emulated engine: engines as child processes (fork, one
 * loop each), a blocking HTTP client, waiting on observable state. */
#ifndef BATON_TESTS_ENGINE_RIG_H
#define BATON_TESTS_ENGINE_RIG_H

#include "baton/bench/engine.h"
#include "baton/bench/oracle.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct rig {
    pid_t pid;
    unsigned int http;
    char events[160], replay[160];
};

struct answer {
    long status; /* 0: no whole answer */
    char *body;
    size_t bytes;
};

/* A small fast engine: 64 blocks of 16, speed-up 1000. */
void rig_config(struct bt_engine_config *config, const char *name);
void rig_start(struct rig *rig, const struct bt_engine_config *config);
/* SIGTERM; fails the test unless it ends with exit code 0. */
void rig_stop(struct rig *rig);
void rig_kill(struct rig *rig);

/* POST (body != NULL) or GET. Free with answer_free. */
struct answer rig_call(const struct rig *rig, const char *path,
                       const char *body);
void answer_free(struct answer *answer);
/* The parts of it: send the request (returns the socket), add what has arrived
 * to a raw answer (false: the end), split it into status and body. */
int rig_open(const struct rig *rig, const char *path, const char *body);
bool rig_read(int fd, struct answer *raw);
void rig_parse(struct answer *raw);
void rig_fault(const struct rig *rig, const char *json);

/* /admin/state as a number: "blocks.free", "leases", "totals.requests". */
long long rig_state(const struct rig *rig, const char *path);
/* Wait (at most 10 s) until it has this value / is at least it. */
void rig_wait(const struct rig *rig, const char *path, long long value);
void rig_wait_least(const struct rig *rig, const char *path, long long value);
/* Bytes pulled, over all link classes. */
long long rig_bytes_pulled(const struct rig *rig);

/* Completion request bodies; static buffers are the caller's. */
void body_plain(char *out, size_t size, const char *prompt, int max_tokens);
void body_prefill(char *out, size_t size, const char *prompt);
void body_decode(char *out, size_t size, const char *prompt, int max_tokens,
                 const char *params);

/* Text of choice 0, from a whole answer or joined from a stream. "" if none. */
void answer_text(const struct answer *answer, char *out, size_t size);
/* kv_transfer_params of an answer as malloc'd JSON. */
char *answer_params(const struct answer *answer);
/* What the oracle says for a text prompt (config of rig_config). */
void oracle_text(const char *prompt, const char *salt, int n, char *out);
/* A prompt of `bytes` printable bytes, different for each variant. */
void make_prompt(char *out, size_t bytes, unsigned int variant);

#endif
