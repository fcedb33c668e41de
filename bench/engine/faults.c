/* See faults.h. Decides whether a fault applies at a phase and uses up its
 * count. Invariant: an item with a count of N fires exactly N times, then
 * leaves the table.
 */
#include "faults.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[BT_FAULT_KINDS] = {
    "none",
    "die",
    "hang",
    "refuse",
    "error",
    "slow",
    "events_drop",
    "events_delay",
    "events_reorder",
    "events_duplicate",
    "wrong_block_size",
    "lease_expire",
    "corrupt_block",
};

static const char *const phase_names[BT_FAULT_PHASES] = {
    "arrival",
    "before_prefill",
    "during_prefill",
    "after_prefill",
    "before_decode",
    "during_decode",
    "all",
    "now",
};

const char *bt_fault_kind_name(enum bt_fault_kind kind)
{
    return kind_names[kind];
}

static int find(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

enum bt_status bt_fault_make(const char *kind, const char *phase,
                             uint32_t count, double factor,
                             struct bt_fault *out)
{
    int k = find(kind_names, BT_FAULT_KINDS, kind);
    int p = phase == NULL ? 0 : find(phase_names, BT_FAULT_PHASES, phase);
    if (k <= 0 || p < 0 || !isfinite(factor) || factor < 0) {
        return BT_INVALID;
    }
    bool everywhere = k == BT_FAULT_HANG || k == BT_FAULT_REFUSE;
    if ((p == BT_PHASE_ALL && !everywhere) ||
        (p == BT_PHASE_NOW && k != BT_FAULT_DIE)) {
        return BT_INVALID;
    }
    out->kind = (enum bt_fault_kind)k;
    out->phase = (enum bt_fault_phase)p;
    out->count = count;
    out->factor = factor;
    return BT_OK;
}

static bool number(const char *text, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out) && *out >= 0;
}

enum bt_status bt_fault_parse(const char *spec, struct bt_fault *out)
{
    char buf[128];
    if ((size_t)snprintf(buf, sizeof(buf), "%s", spec) >= sizeof(buf)) {
        return BT_INVALID;
    }
    double count = 0, factor = 0;
    for (char *part; (part = strrchr(buf, ':')) != NULL; *part = '\0') {
        bool ok = false;
        if (strncmp(part + 1, "count=", 6) == 0) {
            ok = number(part + 7, &count) && count <= UINT32_MAX;
        } else if (strncmp(part + 1, "factor=", 7) == 0) {
            ok = number(part + 8, &factor);
        }
        if (!ok) {
            return BT_INVALID;
        }
    }
    char *phase = strchr(buf, '@');
    if (phase != NULL) {
        *phase++ = '\0';
    }
    return bt_fault_make(buf, phase, (uint32_t)count, factor, out);
}

enum bt_status bt_faults_add(struct bt_faults *faults,
                             const struct bt_fault *fault)
{
    for (uint32_t i = 0; i < faults->count; i++) {
        struct bt_fault *f = &faults->items[i];
        if (f->kind == fault->kind && f->phase == fault->phase) {
            *f = *fault;
            return BT_OK;
        }
    }
    if (faults->count == BT_FAULTS_MAX) {
        return BT_LIMIT;
    }
    faults->items[faults->count++] = *fault;
    return BT_OK;
}

static bool stops_requests(enum bt_fault_kind kind)
{
    return kind == BT_FAULT_DIE || kind == BT_FAULT_HANG ||
           kind == BT_FAULT_REFUSE || kind == BT_FAULT_ERROR;
}

enum bt_fault_kind bt_faults_fire(struct bt_faults *faults,
                                  enum bt_fault_phase phase)
{
    for (uint32_t i = 0; i < faults->count; i++) {
        struct bt_fault *f = &faults->items[i];
        if (f->phase != phase || !stops_requests(f->kind)) {
            continue;
        }
        enum bt_fault_kind kind = f->kind;
        faults->fired++;
        if (f->count > 0 && --f->count == 0) {
            faults->items[i] = faults->items[--faults->count];
        }
        return kind;
    }
    return BT_FAULT_NONE;
}

double bt_faults_factor(const struct bt_faults *faults, enum bt_fault_kind kind,
                        double absent)
{
    for (uint32_t i = 0; i < faults->count; i++) {
        if (faults->items[i].kind == kind) {
            return faults->items[i].factor;
        }
    }
    return absent;
}
