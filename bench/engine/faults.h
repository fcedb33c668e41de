/* Fault knobs of an engine: a small table of what goes wrong, where and how
 * often. Pure; carrying a fault out is the caller's. */
#ifndef BATON_BENCH_ENGINE_FAULTS_H
#define BATON_BENCH_ENGINE_FAULTS_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define BT_FAULTS_MAX 32

enum bt_fault_kind {
    BT_FAULT_NONE,
    BT_FAULT_DIE,
    BT_FAULT_HANG,
    BT_FAULT_REFUSE,
    BT_FAULT_ERROR,
    BT_FAULT_SLOW,
    BT_FAULT_EVENTS_DROP,
    BT_FAULT_EVENTS_DELAY,
    BT_FAULT_EVENTS_REORDER,
    BT_FAULT_EVENTS_DUPLICATE,
    BT_FAULT_WRONG_BLOCK_SIZE,
    BT_FAULT_LEASE_EXPIRE,
    BT_FAULT_CORRUPT_BLOCK
};
#define BT_FAULT_KINDS 13

enum bt_fault_phase {
    BT_PHASE_ARRIVAL,
    BT_PHASE_BEFORE_PREFILL,
    BT_PHASE_DURING_PREFILL,
    BT_PHASE_AFTER_PREFILL,
    BT_PHASE_BEFORE_DECODE,
    BT_PHASE_DURING_DECODE,
    BT_PHASE_ALL, /* every route */
    BT_PHASE_NOW
};
#define BT_FAULT_PHASES 8

struct bt_fault {
    enum bt_fault_kind kind;
    enum bt_fault_phase phase;
    uint32_t count; /* firings left, 0 = no limit */
    double factor;  /* 0: the kind's default */
};

struct bt_faults {
    struct bt_fault items[BT_FAULTS_MAX];
    uint32_t count;
    uint64_t fired;
};

/* "KIND[@PHASE][:count=N][:factor=X]"; also the parts by name (NULL phase =
 * default). BT_INVALID. */
enum bt_status bt_fault_parse(const char *spec, struct bt_fault *out);
enum bt_status bt_fault_make(const char *kind, const char *phase,
                             uint32_t count, double factor,
                             struct bt_fault *out);
const char *bt_fault_kind_name(enum bt_fault_kind kind);
/* Remember it; one of the same kind and phase is replaced. BT_LIMIT. */
enum bt_status bt_faults_add(struct bt_faults *faults,
                             const struct bt_fault *fault);
/* The fault to carry out at this phase, if any: one firing is used up. */
enum bt_fault_kind bt_faults_fire(struct bt_faults *faults,
                                  enum bt_fault_phase phase);
/* Factor of a standing fault; `absent` without one. */
double bt_faults_factor(const struct bt_faults *faults, enum bt_fault_kind kind,
                        double absent);

#endif
