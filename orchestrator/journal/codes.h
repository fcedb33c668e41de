/* Which fields the records of a journal have. Private to this folder. */
#ifndef BT_JOURNAL_CODES_H
#define BT_JOURNAL_CODES_H

#include "baton/orchestrator/core.h"
#include "coder.h"

#define JOURNAL_MAGIC   "BATONJ1\n"
#define JOURNAL_VERSION 3u

enum journal_record { RECORD_CONFIG = 1, RECORD_EVENT, RECORD_END };

#define POLICY_NAME_MAX 64

/* A configuration with everything it points to. Zeroed = empty. */
struct journal_config {
    struct bt_core_config core; /* pointers into the arrays below */
    char policy_name[POLICY_NAME_MAX];
    struct bt_core_worker_config *workers;
    struct bt_core_link_config *links;
    struct bt_core_model_config *models;
    bool has_topology;
    struct bt_topology_spec spec;
    struct bt_topology_rack *racks;
    struct bt_topology_pod *pods;
    struct bt_topology_node *nodes;
    struct bt_topology_worker *placed;
    char (*names)[64]; /* racks, pods, nodes */
    void *topology_memory;
};

/* Writing: from `from` (and spec, or NULL). */
void journal_config_write(struct coder *c, const struct bt_core_config *from,
                          const struct bt_topology_spec *spec);
/* Reading: fills out, which must be zeroed; fini also after a failure.
 * BT_INVALID, BT_NO_MEMORY. */
enum bt_status journal_config_read(struct coder *c, struct journal_config *out);
void journal_config_fini(struct journal_config *config);

/* Arrays of an event that was read; grown as needed. */
struct event_arrays {
    uint64_t *numbers;
    size_t capacity;
    uint32_t *copies;
    size_t copies_capacity;
    struct bt_kv_store store;
};
/* After the step: own keys of a KV_STORE are looked up in the core. */
void journal_event_write(struct coder *c, const struct bt_event *event,
                         const struct bt_core *core);
void journal_event_read(struct coder *c, struct bt_event *event,
                        struct event_arrays *arrays);

#endif
