/* JSON scanner against jansson as a second implementation, and the editor
 * against its own promises: no edit changes no byte, a removed name is gone, a
 * set one occurs once, the result is valid. */
#include "baton/orchestrator/json.h"
#include "fuzz.h"

#include <jansson.h>
#include <string.h>

static const char *const seeds[] = {
    "{\"model\":\"m\",\"a\":1,\"b\":[1,2,{\"a\":null}],\"a\":\"x\"}",
    "{ \"a\" : true , \"\\u0061\" : false ,\n\"c\":\"\\ud83d\\ude00\" }",
    "[0,-1,1.5e10,1e999,\"\\\"\\\\\\n\",\"\xe5\x8c\x97\",{}]",
    "{\"a\":{\"b\":{\"c\":[[[[]]]]}},\"\":18446744073709551615}",
    "\"\\ud800\\u0000\"",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1",
};

size_t fuzz_seed(size_t index, uint8_t *out, size_t max)
{
    if (index >= sizeof seeds / sizeof seeds[0] || strlen(seeds[index]) > max)
        return 0;
    memcpy(out, seeds[index], strlen(seeds[index]));
    return strlen(seeds[index]);
}

static void against_jansson(const char *text, size_t size,
                            enum bt_status status)
{
    json_error_t error;
    if (memchr(text, '\0', size) != NULL) /* jansson passes over some */
        return;
    json_t *tree =
        json_loadb(text, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (tree != NULL)
        FUZZ_CHECK(status == BT_OK || status == BT_TOO_LARGE);
    else if (status == BT_OK) { /* jansson's own limits */
        enum json_error_code code = json_error_code(&error);
        FUZZ_CHECK(code == json_error_numeric_overflow ||
                   code == json_error_null_byte_in_key ||
                   code == json_error_null_character ||
                   strstr(error.text, "Unicode") != NULL);
    }
    json_decref(tree);
}

static size_t count_of(const struct bt_json *object, const char *name)
{
    struct bt_json value;
    size_t count;
    (void)bt_json_member(object, name, &value, &count);
    return count;
}

static void edits_hold(const struct bt_json *v, char *out, size_t room)
{
    static const struct bt_json_edit edits[] = {
        {.name = "a"},
        {.name = "model", .value = "[7]", .bytes = 3},
        {.name = "b", .value = "null", .bytes = 4, .only_if_present = true},
    };
    struct bt_text t;
    bt_text_init(&t, out, room);
    FUZZ_CHECK(bt_json_edit(v, NULL, 0, &t) == BT_OK);
    FUZZ_CHECK(t.used == v->bytes && memcmp(out, v->at, t.used) == 0);
    size_t before = count_of(v, "b"), other = count_of(v, "c");
    struct bt_json after;
    bt_text_init(&t, out, room);
    FUZZ_CHECK(bt_json_edit(v, edits, 3, &t) == BT_OK);
    FUZZ_CHECK(bt_json_parse(out, t.used, &after, NULL) == BT_OK);
    FUZZ_CHECK(count_of(&after, "a") == 0);
    FUZZ_CHECK(count_of(&after, "model") == 1);
    FUZZ_CHECK(count_of(&after, "b") == (before > 0));
    FUZZ_CHECK(count_of(&after, "c") == other);
}

static void scalars(const struct bt_json *v)
{
    char small[16], *quoted = malloc(v->bytes * 6 + 2);
    size_t n;
    double d;
    uint64_t u;
    struct bt_text t;
    FUZZ_CHECK(quoted != NULL);
    (void)bt_json_u64(v, &u);
    (void)bt_json_double(v, &d);
    (void)bt_json_is(v, "model");
    (void)bt_json_string(v, small, sizeof small, &n);
    bt_text_init(&t, quoted, v->bytes * 6 + 2);
    bt_text_quoted(&t, v->at, v->bytes);
    struct bt_json again;
    FUZZ_CHECK(bt_json_parse(quoted, t.used, &again, NULL) == BT_OK);
    FUZZ_CHECK(again.type == BT_JSON_STRING);
    free(quoted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct bt_json v, key, value;
    size_t at = 0, cursor = 0;
    enum bt_status status = bt_json_parse(text, size, &v, &at);
    FUZZ_CHECK(at <= size);
    against_jansson(text, size, status);
    if (status != BT_OK)
        return 0;
    scalars(&v);
    while (bt_json_next(&v, &cursor, &key, &value)) {
        struct bt_json again;
        FUZZ_CHECK(value.at >= v.at &&
                   value.at + value.bytes <= v.at + v.bytes);
        FUZZ_CHECK(bt_json_parse(value.at, value.bytes, &again, NULL) == BT_OK);
        FUZZ_CHECK(again.bytes == value.bytes && again.type == value.type);
        scalars(&value);
    }
    if (v.type == BT_JSON_OBJECT) {
        char *out = malloc(v.bytes + 64);
        FUZZ_CHECK(out != NULL);
        edits_hold(&v, out, v.bytes + 64);
        free(out);
    }
    return 0;
}
