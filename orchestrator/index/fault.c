/* What is wrong with a body, in words: where it is not JSON, which key comes
 * twice. Leaves to its users what a key may hold. Nothing of a body's contents
 * goes into a text.
 */
#include "baton/orchestrator/index_query.h"

#include <stdarg.h>
#include <stdio.h>

const char *bt_index_fault(struct bt_index_fault *fault, const char *format,
                           ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(fault->text, sizeof(fault->text), format, args);
    va_end(args);
    return fault->text;
}

const char *bt_index_root(const char *body, size_t bytes, struct bt_json *out,
                          struct bt_index_fault *fault)
{
    size_t at = 0;
    enum bt_status status = bt_json_parse(body, bytes, out, &at);

    if (status == BT_TOO_LARGE)
        return bt_index_fault(fault, "the body is nested deeper than %u levels",
                              (unsigned int)BT_JSON_DEPTH_MAX);
    if (status != BT_OK)
        return bt_index_fault(fault,
                              at < bytes ? "the body is not JSON: byte %zu "
                                           "(counted from 0) does not fit"
                                         : "the body is not JSON: it ends too "
                                           "early, at byte %zu",
                              at);
    return out->type == BT_JSON_OBJECT ? NULL : "the body is not a JSON object";
}

const char *bt_index_once(const struct bt_json *object, const char *name,
                          struct bt_index_fault *fault)
{
    struct bt_json value;
    size_t count = 0;

    return bt_json_member(object, name, &value, &count) && count > 1
               ? bt_index_fault(fault, "'%s' is given %zu times", name, count)
               : NULL;
}
