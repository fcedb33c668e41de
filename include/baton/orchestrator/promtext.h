/* Prometheus text exposition (format 0.0.4), both ways. Pure, no allocation.
 *
 * The reader visits each sample of a scrape; lines longer than 4 KiB and
 * malformed lines are skipped and counted. The writer adds families and rows to
 * a bt_text, whose sticky overflow says that the page did not fit: whoever
 * answers the scrape then refuses it (500), so that no page is cut. */
#ifndef BATON_ORCHESTRATOR_PROMTEXT_H
#define BATON_ORCHESTRATOR_PROMTEXT_H

#include "baton/orchestrator/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- reader ---- */

struct bt_prom_sample {
    const char *name; /* not terminated */
    size_t name_bytes;
    const char *labels; /* between the braces, raw; may be NULL */
    size_t label_bytes;
    double value;
};

typedef void (*bt_prom_fn)(void *arg, const struct bt_prom_sample *sample);

/* Returns the number of malformed lines. */
size_t bt_prom_read(const char *text, size_t bytes, bt_prom_fn fn, void *arg);
/* True when the sample has this name. */
bool bt_prom_is(const struct bt_prom_sample *sample, const char *name);
/* Value of a label into buf (terminated); false when absent or too long. */
bool bt_prom_label(const struct bt_prom_sample *sample, const char *label,
                   char *buf, size_t size);

/* ---- writer ---- */

/* Content-Type of a page. */
#define BT_PROM_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* One label; a list of them ends with {NULL, NULL}. The value may be any text:
 * quote, backslash and newline are escaped as the format has it, other control
 * bytes become '_'. It takes at most twice its bytes. */
struct bt_prom_pair {
    const char *label, *value;
};

#define BT_PROM_BUCKETS_MAX 24

/* Counts of values at most each bound; bounds ascend and are the caller's. */
struct bt_prom_histogram {
    const double *bounds;
    size_t bound_count;                        /* <= BT_PROM_BUCKETS_MAX */
    uint64_t buckets[BT_PROM_BUCKETS_MAX + 1]; /* the last: beyond them all */
    double sum;
    uint64_t count;
};

/* Count one value; below zero and NaN count as zero. */
void bt_prom_observe(struct bt_prom_histogram *h, double value);

/* HELP and TYPE: once per family, before its rows. name, type and help are our
 * own plain text. */
void bt_prom_family(struct bt_text *t, const char *name, const char *type,
                    const char *help);
/* A row of the family; labels may be NULL. Whole numbers below 1e15 are written
 * in full, others to 9 significant digits. */
void bt_prom_row(struct bt_text *t, const char *name,
                 const struct bt_prom_pair *labels, double value);
/* Every digit. */
void bt_prom_row_u64(struct bt_text *t, const char *name,
                     const struct bt_prom_pair *labels, uint64_t value);
/* Fixed notation; NaN and infinity, which a gauge may be, as the format has
 * them. */
void bt_prom_row_fixed(struct bt_text *t, const char *name,
                       const struct bt_prom_pair *labels, double value,
                       int digits);
/* A row with one label. */
void bt_prom_labelled(struct bt_text *t, const char *name, const char *label,
                      const char *text, double value);
/* A family of one row without labels. */
void bt_prom_one(struct bt_text *t, const char *name, const char *type,
                 const char *help, double value);
/* A family: cumulative buckets, sum and count. */
void bt_prom_histogram_write(struct bt_text *t, const char *name,
                             const char *help,
                             const struct bt_prom_histogram *h);

#endif
