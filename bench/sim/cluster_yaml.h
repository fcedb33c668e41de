/* Strict reading of a small YAML file by tables of keys: unknown and repeated
 * keys, wrong kinds and values out of range are faults with their place. The
 * meaning of the values is the caller's. Private to bench/sim.
 */
#ifndef BATON_SIM_CLUSTER_YAML_H
#define BATON_SIM_CLUSTER_YAML_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define YAML_TEXT_MAX 48 /* bytes of a text value with its end */
#define YAML_KEYS_MAX 24 /* keys of one mapping */

enum yaml_kind {
    YAML_TEXT,     /* char[YAML_TEXT_MAX] */
    YAML_U32,      /* uint32_t */
    YAML_U64,      /* uint64_t */
    YAML_DOUBLE,   /* double */
    YAML_NUMBERS3, /* double[3], a list of three */
    YAML_SIZE,     /* uint64_t bytes, with unit */
    YAML_RATE,     /* uint64_t bytes per second, with unit */
    YAML_DURATION, /* int64_t ns, with unit */
    YAML_FLAG,     /* bool: true or false */
    YAML_WORD,     /* uint32_t: index in words[] */
    YAML_MAP,      /* nothing: see at[] */
    YAML_LIST      /* nothing: see at[] */
};

struct yaml_key {
    const char *name; /* NULL ends a table */
    enum yaml_kind kind;
    bool required;
    size_t offset;   /* in the caller's struct */
    double min, max; /* of numbers, bytes, ns; both 0: no range */
    const char *const *words;
};

/* First member of each struct that is read: the mapping's node and the node
 * of the value of each key, in the order of the table; 0: not given. */
struct yaml_given {
    int node;
    int at[YAML_KEYS_MAX];
};

struct yaml_file;

/* BT_NOT_FOUND, BT_TOO_LARGE, BT_INVALID, BT_NO_MEMORY: error holds
 * "FILE:LINE:COLUMN: what", or "FILE: why". */
enum bt_status yaml_file_open(const char *path, char *error, size_t error_size,
                              struct yaml_file **file_out);
void yaml_file_close(struct yaml_file *file);
int yaml_root(const struct yaml_file *file);

/* Reads the mapping at `node` into out, which starts with a yaml_given and
 * holds the defaults. */
enum bt_status yaml_read(struct yaml_file *file, int node,
                         const struct yaml_key *keys, void *out);
/* Items of a list; 0 for anything else. */
uint32_t yaml_count(const struct yaml_file *file, int node);
int yaml_item(const struct yaml_file *file, int node, uint32_t i);

/* Writes the fault and returns status; node 0: no place. */
enum bt_status yaml_fault(struct yaml_file *file, int node,
                          enum bt_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
