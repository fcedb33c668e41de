/* The status table: names, texts, classes and HTTP codes, all from the one
 * X-macro in status.h. Decides nothing else. */
#include "baton/base/status.h"

struct entry {
    const char *name;
    const char *text;
    enum bt_status_class cls;
    int http;
};

static const struct entry table[] = {
#define X(code, name, text, cls, http) {name, text, BT_CLASS_##cls, http},
    BT_STATUS_LIST(X)
#undef X
};

static const struct entry *find(enum bt_status status)
{
    static const struct entry unknown = {"unknown", "unknown status",
                                         BT_CLASS_BUG, 500};
    unsigned int i = (unsigned int)status;

    return i < sizeof(table) / sizeof(table[0]) ? &table[i] : &unknown;
}

const char *bt_status_name(enum bt_status status)
{
    return find(status)->name;
}

const char *bt_status_text(enum bt_status status)
{
    return find(status)->text;
}

enum bt_status_class bt_status_class_of(enum bt_status status)
{
    return find(status)->cls;
}

int bt_status_http(enum bt_status status)
{
    return find(status)->http;
}
