/* Decides how families, rows, label values and numbers of a Prometheus page are
 * spelt; which there are is left to the caller, and so is a page that does not
 * fit (bt_text's overflow). Invariant: whatever a label's value holds, a row
 * stays one line and its quotes stay paired.
 */
#include "baton/orchestrator/promtext.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void bt_prom_observe(struct bt_prom_histogram *h, double value)
{
    size_t i = 0;

    assert(h->bound_count <= BT_PROM_BUCKETS_MAX);
    if (!(value > 0))
        value = 0;
    while (i < h->bound_count && value > h->bounds[i])
        i++;
    h->buckets[i]++;
    h->sum += value;
    h->count++;
}

void bt_prom_family(struct bt_text *t, const char *name, const char *type,
                    const char *help)
{
    bt_text_str(t, "# HELP ");
    bt_text_str(t, name);
    bt_text_str(t, " ");
    bt_text_str(t, help);
    bt_text_str(t, "\n# TYPE ");
    bt_text_str(t, name);
    bt_text_str(t, " ");
    bt_text_str(t, type);
    bt_text_str(t, "\n");
}

static void put_escaped(struct bt_text *t, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            bt_text_str(t, "\\n");
        } else if ((unsigned char)*text < ' ') {
            bt_text_str(t, "_");
        } else {
            if (*text == '"' || *text == '\\')
                bt_text_str(t, "\\");
            bt_text_add(t, text, 1);
        }
    }
}

/* Name and labels, and the space before the value. */
static void put_series(struct bt_text *t, const char *name,
                       const struct bt_prom_pair *labels)
{
    bt_text_str(t, name);
    if (labels != NULL && labels->label != NULL) {
        for (size_t i = 0; labels[i].label != NULL; i++) {
            bt_text_str(t, i == 0 ? "{" : ",");
            bt_text_str(t, labels[i].label);
            bt_text_str(t, "=\"");
            put_escaped(t, labels[i].value);
            bt_text_str(t, "\"");
        }
        bt_text_str(t, "}");
    }
    bt_text_str(t, " ");
}

/* False: value is none of the three, nothing was written. */
static bool put_unreal(struct bt_text *t, double value)
{
    if (isfinite(value))
        return false;
    if (isnan(value))
        bt_text_str(t, "NaN\n");
    else
        bt_text_str(t, value > 0 ? "+Inf\n" : "-Inf\n");
    return true;
}

void bt_prom_row(struct bt_text *t, const char *name,
                 const struct bt_prom_pair *labels, double value)
{
    char number[40];

    put_series(t, name, labels);
    if (put_unreal(t, value))
        return;
    if (value == floor(value) && fabs(value) < 1e15)
        snprintf(number, sizeof(number), "%.0f\n", value);
    else
        snprintf(number, sizeof(number), "%.9g\n", value);
    bt_text_str(t, number);
}

void bt_prom_row_u64(struct bt_text *t, const char *name,
                     const struct bt_prom_pair *labels, uint64_t value)
{
    put_series(t, name, labels);
    bt_text_u64(t, value);
    bt_text_str(t, "\n");
}

void bt_prom_row_fixed(struct bt_text *t, const char *name,
                       const struct bt_prom_pair *labels, double value,
                       int digits)
{
    put_series(t, name, labels);
    if (put_unreal(t, value))
        return;
    bt_text_fixed(t, value, digits);
    bt_text_str(t, "\n");
}

void bt_prom_labelled(struct bt_text *t, const char *name, const char *label,
                      const char *text, double value)
{
    const struct bt_prom_pair labels[] = {{label, text}, {NULL, NULL}};

    bt_prom_row(t, name, labels, value);
}

void bt_prom_one(struct bt_text *t, const char *name, const char *type,
                 const char *help, double value)
{
    bt_prom_family(t, name, type, help);
    bt_prom_row(t, name, NULL, value);
}

void bt_prom_histogram_write(struct bt_text *t, const char *name,
                             const char *help,
                             const struct bt_prom_histogram *h)
{
    char full[96], bound[32];
    uint64_t sum = 0;

    bt_prom_family(t, name, "histogram", help);
    assert(strlen(name) + sizeof("_bucket") <= sizeof(full));
    snprintf(full, sizeof(full), "%s_bucket", name);
    for (size_t i = 0; i < h->bound_count; i++) {
        sum += h->buckets[i];
        snprintf(bound, sizeof(bound), "%g", h->bounds[i]);
        bt_prom_labelled(t, full, "le", bound, (double)sum);
    }
    bt_prom_labelled(t, full, "le", "+Inf", (double)h->count);
    snprintf(full, sizeof(full), "%s_sum", name);
    bt_prom_row(t, full, NULL, h->sum);
    snprintf(full, sizeof(full), "%s_count", name);
    bt_prom_row(t, full, NULL, (double)h->count);
}
