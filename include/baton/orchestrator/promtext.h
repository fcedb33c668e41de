/* Reader of Prometheus text exposition: visits each sample of a scrape. Pure,
 * no allocation; lines longer than 4 KiB and malformed lines are skipped and
 * counted. */
#ifndef BATON_ORCHESTRATOR_PROMTEXT_H
#define BATON_ORCHESTRATOR_PROMTEXT_H

#include <stdbool.h>
#include <stddef.h>

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

#endif
