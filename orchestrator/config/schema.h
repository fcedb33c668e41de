/* Private to orchestrator/config: the key table, the position index and the
 * error buffer that its files share. */
#ifndef BATON_CONFIG_SCHEMA_H
#define BATON_CONFIG_SCHEMA_H

#include "baton/orchestrator/config.h"

#define CONFIG_FILE_BYTES_MAX (4u << 20)
#define CONFIG_NODES_MAX      262144u
#define CONFIG_SCOPE_KEYS_MAX 96u /* rows of one scope */
#define CONFIG_PATH_MAX       128u
#define CONFIG_VALUE_MAX      1024u /* bytes of one value */
#define CONFIG_MODELS_MAX     64u
#define CONFIG_ADAPTERS_MAX   256u
#define CONFIG_WORKERS_MAX    4096u
#define CONFIG_LINKS_MAX      4096u
#define CONFIG_GROUPS_MAX     4096u /* pods, racks, nodes of a topology */

enum key_kind {
    KEY_SCHEMA,   /* the number 1 */
    KEY_U16,      /* uint16_t */
    KEY_U32,      /* uint32_t */
    KEY_U64,      /* uint64_t */
    KEY_SIZE32,   /* uint32_t bytes */
    KEY_SIZE64,   /* uint64_t bytes */
    KEY_DURATION, /* int64_t ns */
    KEY_RATE,     /* uint64_t bytes per second */
    KEY_DOUBLE,   /* double */
    KEY_TEXT,     /* char *, owned */
    KEY_OPTIONAL, /* char *, owned; NULL for "" */
    KEY_CHOICE,   /* unsigned int: index in words[] */
    KEY_FLAG,     /* bool: index in words[], odd = true */
    KEY_PRICE,    /* double; -1 for "adaptive" */
    KEY_ROLES,    /* unsigned int: 1 + index in words[] */
    KEY_MODEL,    /* uint32_t: index of the model of that name */
    KEY_LIST      /* char ** and uint32_t: adapters */
};

struct key {
    struct bt_config_key doc; /* fallback NULL: the key is required */
    enum key_kind kind;
    size_t offset; /* in struct bt_config or the element's struct */
    double min, max;
    const char *const *words; /* NULL-terminated */
};

/* A scope is a run of rows: the top of the file, or one kind of element. */
enum scope_id { SCOPE_TOP, SCOPE_MODEL, SCOPE_WORKER, SCOPE_LINK, SCOPE_COUNT };

struct scope {
    const char *list;   /* "models", NULL for the top */
    const char *prefix; /* "models[].", "" for the top */
    size_t first, count;
    uint32_t max; /* elements */
};

/* What a file may say: the walk takes the table of its kind of file. */
struct key_table {
    const struct key *rows;
    size_t count;
    bool keep_text; /* positions carry the values as written */
};
const struct key_table *config_table(void);
const struct key_table *topology_table(void);

size_t key_count(void);
const struct key *key_at(size_t row);
const struct scope *scope_at(enum scope_id id);

/* What libcyaml fills: one string per row of the scope, NULL = not given. The
 * layout is made of pointer-sized cells so that the schema can be derived from
 * the key table. */
struct raw_model {
    char *value[16];
    char **adapters;
    uint64_t adapter_count;
};
struct raw_worker {
    char *value[24];
};
struct raw_link {
    char *value[8];
};
struct raw_config {
    char *value[CONFIG_SCOPE_KEYS_MAX];
    struct raw_model *models;
    struct raw_worker *workers;
    struct raw_link *links;
    uint64_t model_count, worker_count, link_count;
};

/* Where each key and value of the file stands; 1-based. */
struct position {
    char path[CONFIG_PATH_MAX]; /* "workers[2].role" */
    unsigned int key_line, key_column;
    unsigned int line, column; /* of the value */
    char *text;                /* owned; NULL: not kept, or no plain value */
};

struct positions {
    struct position *items;
    size_t count, capacity;
};

struct fault {
    const char *file;
    char *text; /* "FILE:LINE:COLUMN: ..." */
    size_t size;
};

/* Format the fault; returns status for `return fault_at(...)`. */
enum bt_status fault_at(struct fault *fault, enum bt_status status,
                        unsigned int line, unsigned int column,
                        const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* libyaml pass: syntax, unknown and repeated keys, anchors, more than one
 * document; fills positions (caller frees them). */
enum bt_status config_walk(const struct key_table *table, const char *data,
                           size_t size, struct fault *fault,
                           struct positions *positions);
void positions_free(struct positions *positions);
/* NULL when the path is not in the file. */
const struct position *position_find(const struct positions *positions,
                                     const char *path);

/* libcyaml pass: wrong kinds (a list where a value is due, ...); on success
 * *raw_out is freed by config_raw_free. */
enum bt_status config_raw_load(const char *data, size_t size,
                               struct fault *fault,
                               struct raw_config **raw_out);
void config_raw_free(struct raw_config *raw);

/* "workers[2].role" from a row's "workers[].role". */
void path_make(char path[CONFIG_PATH_MAX], const struct key *key,
               uint64_t index);

struct load {
    struct fault *fault;
    const struct positions *positions;
    struct raw_config *raw;
    struct bt_config *config;
};

/* The whole file, at most CONFIG_FILE_BYTES_MAX; the caller frees it. */
enum bt_status config_file_read(struct fault *fault, char **data_out,
                                size_t *size_out);

/* One value: text as written, to its place in the struct at base. */
enum bt_status config_value(const struct load *load, const struct key *key,
                            uint64_t index, const char *text, void *base);
/* Strings to values, each within its own range. */
enum bt_status config_convert(const struct load *load);
/* What only holds between several keys. */
enum bt_status config_check(const struct load *load);
/* Its parts on KV events: the top, one worker, one model's hash. */
enum bt_status check_events(const struct load *load);
enum bt_status check_worker_events(const struct load *load, uint32_t worker);
enum bt_status check_engine_hash(const struct load *load, uint32_t model);
/* "workers[3].url": path of a key of an element. */
const char *element_path(char path[CONFIG_PATH_MAX], const char *list,
                         uint32_t index, const char *key);
/* HOST:PORT and nothing after it; HOST may be [IPv6]. */
bool host_port_ok(const char *text);
/* Fault at the value of a path, or at the nearest enclosing thing that is in
 * the file. */
enum bt_status load_fault(const struct load *load, enum bt_status status,
                          const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
