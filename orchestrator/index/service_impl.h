/* Private to orchestrator/index: the service's parts. */
#ifndef BATON_INDEX_SERVICE_IMPL_H
#define BATON_INDEX_SERVICE_IMPL_H

#include "baton/orchestrator/httpd.h"
#include "baton/orchestrator/index_service.h"
#include "baton/orchestrator/snapshot.h"
#include <ev.h>

#define NO_ROW UINT32_MAX

struct scope;

struct rank {
    uint32_t row; /* of the scope's index */
    enum bt_stream_state state;
    enum bt_stream_cause cause;
    bool cut;            /* its connection is down */
    uint32_t wrong_size; /* tokens per block that its events said, 0 none */
};

/* One registration; its position is the plane's source number. */
struct instance {
    struct bt_index_instance is;
    struct scope *scope; /* NULL: free */
    bool from_file;      /* of the configuration: no note in snapshots */
    bool plain;          /* it has announced blocks that are no Eagle windows */
    struct rank *ranks;  /* [is.ranks] */
    uint64_t seen;       /* batches when last looked at */
    double quiet_since;  /* loop's time, s */
    bool checking;       /* watch.c has asked for the last batch again */
};

struct scope {
    bool used;
    struct bt_index_instance like; /* its first; the fields that name a scope */
    struct bt_prefix_index *index;
    void *memory;
    size_t bytes;        /* of memory */
    struct rank **owner; /* of each row, [workers_max]; NULL: free */
    /* Rows by instance and rank, for answers; state is filled in when asked. */
    struct bt_index_row *rows;
    uint32_t row_count;
};

struct index_counts {
    uint64_t queries, query_faults, query_blocks, hit_blocks;
    uint64_t registered, unregistered;
    uint64_t saves, save_failures, save_pause_ns;
    struct bt_snapshot_size saved;
    uint64_t resumed_entries, resumed_sources;
    struct bt_prefix_index_stats gone; /* counters of ended scopes */
};

struct bt_index_service {
    struct ev_loop *loop;
    struct bt_index_service_config config;
    struct bt_event_plane *plane;
    struct bt_httpd *httpd;
    struct scope *scopes;       /* [scopes_max] */
    struct instance *instances; /* [workers_max] */
    uint32_t instance_count;
    uint32_t *depths;           /* [workers_max * BT_TIERS], twice */
    struct bt_index_row *asked; /* [workers_max] */
    struct bt_snapshot *warm;   /* until begin */
    struct bt_snapshot_saver *saver;
    struct bt_snapshot_trouble save_trouble;
    ev_timer save_timer, watch;
    struct index_counts counts;
};

/* members.c: scopes and instances. NULL when there is none. */
struct scope *scope_find(struct bt_index_service *s,
                         const struct bt_index_instance *like);
enum bt_status member_add(struct bt_index_service *s,
                          const struct bt_index_instance *in, bool from_file,
                          char *error, size_t error_size);
void member_remove(struct bt_index_service *s, struct instance *instance);
/* Frees all, the plane is gone already. */
void members_free(struct bt_index_service *s);

/* feed.c: what the plane tells. */
struct bt_event_sink feed_sink(struct bt_index_service *s);

/* requests.c: bodies of /register and /unregister. */
const char *read_instance(const char *body, size_t bytes,
                          struct bt_index_instance *out,
                          struct bt_index_fault *fault);
const char *read_identity(const char *body, size_t bytes,
                          struct bt_index_instance *out, bool *has_rank_out,
                          struct bt_index_fault *fault);
/* The same as JSON text, to be read by read_instance. */
void write_instance(struct bt_text *t, const struct bt_index_instance *in);

/* front.c, report.c */
void index_handle(void *arg, struct bt_httpd_request *req);
void index_reply(struct bt_httpd_request *req, int status, const char *body,
                 size_t bytes);
void index_refuse(struct bt_httpd_request *req, int status,
                  const char *message);
char *index_text(struct bt_text *text, size_t size);
/* Sends what the text holds, or 503 without memory; frees buf. */
void index_send(struct bt_httpd_request *req, const char *type, char *buf,
                const struct bt_text *text);
void field_u64(struct bt_text *t, const char *name, uint64_t value);
void field_str(struct bt_text *t, const char *name, const char *value);
void report_workers(struct bt_index_service *s, struct bt_httpd_request *req);
void report_dump(struct bt_index_service *s, struct bt_httpd_request *req);
void report_health(struct bt_index_service *s, struct bt_httpd_request *req);
void report_stats(struct bt_index_service *s, struct bt_httpd_request *req);
void report_metrics(struct bt_index_service *s, struct bt_httpd_request *req);
/* Adds the counters of more to sum; gauges, too, when it is alive. */
void stats_add(struct bt_prefix_index_stats *sum,
               const struct bt_prefix_index_stats *more, bool alive);

/* watch.c: quiet streams are asked whether they live. */
void watch_start(struct bt_index_service *s);
void watch_stop(struct bt_index_service *s);
void watch_begin(struct bt_index_service *s, struct instance *instance);

/* keep.c: snapshots. */
void keep_load(struct bt_index_service *s);
/* Blocks and streams of a new instance; false: the snapshot has none. */
bool keep_resume(struct bt_index_service *s, struct instance *instance);
void keep_start(struct bt_index_service *s);
void keep_stop(struct bt_index_service *s);
void keep_register_again(struct bt_index_service *s);

void index_say(const struct bt_index_service *s, int level, const char *word,
               const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
