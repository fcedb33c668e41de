/* Private to orchestrator/proto: what the JSON files share. */
#ifndef BATON_PROTO_JSON_WALK_H
#define BATON_PROTO_JSON_WALK_H

#include "baton/orchestrator/json.h"

/* Type by a value's first byte. */
enum bt_json_type bt_json_type_at(const char *first);

/* Does the raw key (between the quotes) decode to name, or begin with it? */
bool bt_json_key_is(const struct bt_json *key, const char *name);
bool bt_json_key_starts(const struct bt_json *key, const char *prefix);

/* bt_json_edit that also drops members whose decoded name begins with
 * drop_prefix (NULL: none). */
enum bt_status bt_json_edit_drop(const struct bt_json *object,
                                 const struct bt_json_edit *edits, size_t count,
                                 const char *drop_prefix, struct bt_text *out);

#endif
