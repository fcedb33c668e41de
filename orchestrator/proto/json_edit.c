/* Decides which members of an object stay when it is edited. The object is
 * taken as '{' segment (',' segment)* '}': a segment is everything between two
 * separators, white space included. Kept segments are copied whole and joined
 * by the commas they need, so the bytes of untouched members never change.
 */
#include "json_walk.h"
#include <assert.h>
#include <string.h>

#define EDITS_MAX 64

struct editing {
    const struct bt_json_edit *edits;
    size_t count;
    const char *drop_prefix;
    uint64_t seen; /* bit i: edits[i].name occurs */
    struct bt_text *out;
    size_t kept; /* members written */
};

static bool is_dropped(struct editing *e, const struct bt_json *key)
{
    bool dropped = e->drop_prefix && bt_json_key_starts(key, e->drop_prefix);
    for (size_t i = 0; i < e->count; i++) {
        if (!bt_json_key_is(key, e->edits[i].name))
            continue;
        e->seen |= (uint64_t)1 << i;
        dropped = true;
    }
    return dropped;
}

static void comma_add(struct editing *e)
{
    if (e->kept++ > 0)
        bt_text_add(e->out, ",", 1);
}

/* Offset of the ',' or '}' that ends the segment whose value ends at `at`. */
static size_t segment_end(const struct bt_json *object, size_t at)
{
    while (at < object->bytes && object->at[at] != ',' && object->at[at] != '}')
        at++;
    return at;
}

static void segments_copy(struct editing *e, const struct bt_json *object)
{
    struct bt_json key, value;
    size_t cursor = 0, from = 1, members = 0;
    while (bt_json_next(object, &cursor, &key, &value)) {
        size_t to = segment_end(object, cursor);
        members++;
        if (!is_dropped(e, &key)) {
            comma_add(e);
            bt_text_add(e->out, object->at + from, to - from);
        }
        from = to + 1;
    }
    if (members == 0) /* keep the white space of "{ }" */
        bt_text_add(e->out, object->at + 1, object->bytes - 2);
}

static void members_append(struct editing *e)
{
    for (size_t i = 0; i < e->count; i++) {
        const struct bt_json_edit *edit = &e->edits[i];
        bool present = e->seen >> i & 1;
        if (edit->value == NULL || (edit->only_if_present && !present))
            continue;
        comma_add(e);
        bt_text_quoted(e->out, edit->name, strlen(edit->name));
        bt_text_add(e->out, ":", 1);
        bt_text_add(e->out, edit->value, edit->bytes);
    }
}

enum bt_status bt_json_edit_drop(const struct bt_json *object,
                                 const struct bt_json_edit *edits, size_t count,
                                 const char *drop_prefix, struct bt_text *out)
{
    assert(count <= EDITS_MAX);
    if (object->type != BT_JSON_OBJECT || object->bytes < 2)
        return BT_TYPE;
    struct editing e = {
        .edits = edits, .count = count, .drop_prefix = drop_prefix, .out = out};
    bt_text_add(out, "{", 1);
    segments_copy(&e, object);
    members_append(&e);
    bt_text_add(out, "}", 1);
    return out->overflow ? BT_TOO_LARGE : BT_OK;
}

enum bt_status bt_json_edit(const struct bt_json *object,
                            const struct bt_json_edit *edits, size_t count,
                            struct bt_text *out)
{
    return bt_json_edit_drop(object, edits, count, NULL, out);
}
