/* Totals per link class, booked once per pull when it ends. Decides nothing;
 * classes come from the pace rules, "default" is everything else. */
#include "fabric.h"

#include <string.h>

/* The class's row, made if needed; NULL: the table is full. */
static struct bt_fabric_meter *row(struct bt_fabric *fabric,
                                   const char *link_class)
{
    struct bt_fabric_meter *m;

    for (size_t i = 0; i < fabric->meter_count; i++) {
        if (strcmp(fabric->meters[i].link_class, link_class) == 0)
            return &fabric->meters[i];
    }
    if (fabric->meter_count == BT_FABRIC_RULES_MAX + 1)
        return NULL;
    m = &fabric->meters[fabric->meter_count++];
    memcpy(m->link_class, link_class, strlen(link_class) + 1);
    return m;
}

enum bt_status bt_meter_add(struct bt_fabric *fabric, const char *link_class)
{
    return row(fabric, link_class) != NULL ? BT_OK : BT_LIMIT;
}

void bt_meter_note(struct bt_fabric *fabric, const char *link_class,
                   const struct bt_kv_pull_end *end)
{
    struct bt_fabric_meter *m = row(fabric, link_class);

    if (m == NULL)
        return;
    m->bytes += end->bytes;
    m->pulls++;
    m->descriptors += end->descriptors;
    m->failed += end->status != BT_OK;
    m->busy_ns += end->duration_ns;
}

size_t bt_fabric_meters(const struct bt_fabric *fabric,
                        struct bt_fabric_meter *out, size_t max)
{
    size_t count = fabric->meter_count < max ? fabric->meter_count : max;

    if (count > 0)
        memcpy(out, fabric->meters, count * sizeof(*out));
    return count;
}
