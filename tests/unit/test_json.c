/* JSON scanner and editor: grammar by RFC 8259's own rules (cases from the
 * text of the RFC and the classes of the public JSON test suites), byte
 * preservation by comparing with hand-made results. */
#include "baton/orchestrator/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct bt_json parsed(const char *text)
{
    struct bt_json v;
    size_t at = 0;
    enum bt_status status = bt_json_parse(text, strlen(text), &v, &at);
    if (status != BT_OK)
        fail_msg("%s: %s at %zu", text, bt_status_name(status), at);
    return v;
}

static void accepts(void **state)
{
    static const char *const good[] = {
        "0",
        "-0",
        "12",
        "-1.5e+10",
        "1E5",
        "1e999",
        "18446744073709551615",
        "true",
        "false",
        "null",
        "\"\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"\\ud83d\\ude00\"",
        "\"\xe5\x8c\x97\"",
        "\"\xf0\x9f\x98\x80\"",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "[]",
        "{}",
        "[ ]",
        "{ }",
        " \t\r\n[1 , 2]\n",
        "{\"a\":1,\"a\":2}",
        "[[[]],{\"a\":[{}]}]",
        "\"\x7f\"",
        "{\"\":0}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        (void)parsed(good[i]);
}

static void refuses(void **state)
{
    static const struct {
        const char *text;
        size_t at;
    } bad[] = {
        {"", 0},
        {" ", 1},
        {"01", 1},
        {"-", 1},
        {"+1", 0},
        {".5", 0},
        {"1.", 2},
        {"1e", 2},
        {"1e+", 3},
        {"0x5", 1},
        {"NaN", 0},
        {"Infinity", 0},
        {"tru", 0},
        {"nul", 0},
        {"True", 0},
        {"\"", 1},
        {"\"a", 2},
        {"\"\\x\"", 1},
        {"\"\\u12g4\"", 1},
        {"\"\\u12", 1},
        {"\"\n\"", 1},
        {"\"\t\"", 1},
        {"\"\xff\"", 1},
        {"\"\xc0\x80\"", 1},
        {"\"\xed\xa0\x80\"", 1},
        {"\"\xf4\x90\x80\x80\"", 1},
        {"\"\xe5\x8c\"", 1},
        {"\"\x80\"", 1},
        {"[1,]", 3},
        {"[,1]", 1},
        {"[1 2]", 3},
        {"[1}", 2},
        {"{\"a\":1]", 6},
        {"{\"a\"}", 4},
        {"{\"a\":}", 5},
        {"{\"a\":1,}", 7},
        {"{a:1}", 1},
        {"{1:1}", 1},
        {"{'a':1}", 1},
        {"[1]x", 3},
        {"1 2", 2},
        {"[", 1},
        {"{\"a\":[", 6},
        {"\xef\xbb\xbf{}", 0},
        {"//c\n1", 0},
        {"]", 0},
        {"\"\\", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bt_json v;
        size_t at = 999;
        enum bt_status status =
            bt_json_parse(bad[i].text, strlen(bad[i].text), &v, &at);
        if (status != BT_INVALID || at != bad[i].at)
            fail_msg("%s: %s at %zu, not at %zu", bad[i].text,
                     bt_status_name(status), at, bad[i].at);
    }
    struct bt_json v;
    assert_int_equal(bt_json_parse("\"\0\"", 3, &v, NULL), BT_INVALID);
    assert_int_equal(bt_json_parse(NULL, 0, &v, NULL), BT_INVALID);
}

/* Runs of whole numbers are skipped quickly, not blindly. */
static void refuses_in_runs_of_numbers(void **state)
{
    static const struct {
        const char *text;
        size_t at;
    } bad[] = {
        {"[7,12,012]", 7}, {"[7,12,34x]", 8}, {"[7,12,34.]", 9},
        {"[7,12,34", 8},   {"[7,12,]", 6},    {"[7,12,34}", 8},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bt_json v;
        size_t at = 0;
        assert_int_equal(
            bt_json_parse(bad[i].text, strlen(bad[i].text), &v, &at),
            BT_INVALID);
        assert_int_equal(at, bad[i].at);
    }
}

static enum bt_status nested(size_t depth, char open, char shut)
{
    char *text = malloc(2 * depth);
    struct bt_json v;
    assert_non_null(text);
    memset(text, open, depth);
    memset(text + depth, shut, depth);
    enum bt_status status = bt_json_parse(text, 2 * depth, &v, NULL);
    free(text);
    return status;
}

static void depth_is_limited(void **state)
{
    (void)state;
    assert_int_equal(nested(BT_JSON_DEPTH_MAX, '[', ']'), BT_OK);
    assert_int_equal(nested(BT_JSON_DEPTH_MAX + 1, '[', ']'), BT_TOO_LARGE);
    assert_int_equal(nested(10000, '[', '['), BT_TOO_LARGE);
    assert_int_equal(nested(2, '[', '}'), BT_INVALID);
}

static void value_has_no_outer_space(void **state)
{
    (void)state;
    const char *text = " \n{ \"a\" : 1 } \t";
    struct bt_json v = parsed(text);
    assert_ptr_equal(v.at, text + 2);
    assert_int_equal(v.bytes, 11);
    assert_int_equal(v.type, BT_JSON_OBJECT);
}

static void walks_members(void **state)
{
    (void)state;
    struct bt_json v = parsed("{\"a\\n\":[1,\"]}\"], \"b\" : {\"c\":\"\\\\\"} "
                              ",\"d\":-1.5e3,\"\":null}");
    struct bt_json key, value;
    size_t cursor = 0;
    static const char *const keys[] = {"a\\n", "b", "d", ""};
    static const char *const values[] = {"[1,\"]}\"]", "{\"c\":\"\\\\\"}",
                                         "-1.5e3", "null"};
    for (size_t i = 0; i < 4; i++) {
        assert_true(bt_json_next(&v, &cursor, &key, &value));
        assert_int_equal(key.bytes, strlen(keys[i]));
        assert_memory_equal(key.at, keys[i], key.bytes);
        assert_int_equal(value.bytes, strlen(values[i]));
        assert_memory_equal(value.at, values[i], value.bytes);
    }
    assert_false(bt_json_next(&v, &cursor, &key, &value));
    assert_false(bt_json_next(&v, &cursor, NULL, &value));
    struct bt_json scalar = parsed("12");
    cursor = 0;
    assert_false(bt_json_next(&scalar, &cursor, NULL, &value));
}

static void member_compares_decoded_and_takes_the_last(void **state)
{
    (void)state;
    struct bt_json v =
        parsed("{\"model\":1,\"mod\\u0065l\":2,\"modelx\":3,\"mode\":4,"
               "\"model\\u0000\":5,\"caf\\u00e9\":6,\"\\ud83d\\ude00\":7}");
    struct bt_json m;
    size_t count;
    uint64_t n;
    assert_true(bt_json_member(&v, "model", &m, &count));
    assert_int_equal(count, 2);
    assert_int_equal(bt_json_u64(&m, &n), BT_OK);
    assert_int_equal(n, 2);
    assert_true(bt_json_member(&v, "caf\xc3\xa9", &m, NULL));
    assert_true(bt_json_member(&v, "\xf0\x9f\x98\x80", &m, NULL));
    assert_false(bt_json_member(&v, "absent", &m, &count));
    assert_int_equal(count, 0);
    struct bt_json list = parsed("[\"model\"]");
    assert_false(bt_json_member(&list, "model", &m, NULL));
}

static void whole_numbers(void **state)
{
    static const struct {
        const char *text;
        enum bt_status status;
        uint64_t value;
    } cases[] = {
        {"0", BT_OK, 0},
        {"-0", BT_OK, 0},
        {"12", BT_OK, 12},
        {"18446744073709551615", BT_OK, UINT64_MAX},
        {"18446744073709551616", BT_INVALID, 0},
        {"99999999999999999999999", BT_INVALID, 0},
        {"-1", BT_INVALID, 0},
        {"1e3", BT_TYPE, 0},
        {"12.0", BT_TYPE, 0},
        {"\"12\"", BT_TYPE, 0},
        {"true", BT_TYPE, 0},
        {"null", BT_TYPE, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bt_json v = parsed(cases[i].text);
        uint64_t n = 77;
        assert_int_equal(bt_json_u64(&v, &n), cases[i].status);
        assert_int_equal(n, cases[i].status == BT_OK ? cases[i].value : 77);
    }
}

static void doubles(void **state)
{
    static const char *const texts[] = {
        "0",
        "-1.5",
        "3.141592653589793",
        "1e-3",
        "1.7976931348623157e308",
        "5e-324",
        "1e-999",
        "123456789012345678901234567890",
        "0.1",
        "0.000000000000000000000000000000000000000000000000012345",
        "9007199254740993",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct bt_json v = parsed(texts[i]);
        double d = -1, want = strtod(texts[i], NULL);
        assert_int_equal(bt_json_double(&v, &d), BT_OK);
        assert_memory_equal(&d, &want, sizeof d);
    }
    struct bt_json big = parsed("1e999"), text = parsed("\"1\"");
    double d;
    assert_int_equal(bt_json_double(&big, &d), BT_INVALID);
    assert_int_equal(bt_json_double(&text, &d), BT_TYPE);
}

static void strings(void **state)
{
    static const struct {
        const char *text, *want;
        size_t bytes;
    } cases[] = {
        {"\"\"", "", 0},
        {"\"a\\n\\t\\b\\f\\r\\\"\\\\\\/\"", "a\n\t\b\f\r\"\\/", 9},
        {"\"\\u4e2d\\u00E9\"", "\xe4\xb8\xad\xc3\xa9", 5},
        {"\"\\ud83d\\uDE00\"", "\xf0\x9f\x98\x80", 4},
        {"\"\\ud800\"", "\xef\xbf\xbd", 3},
        {"\"\\udc00x\"", "\xef\xbf\xbdx", 4},
        {"\"\\ud800\\u0041\"",
         "\xef\xbf\xbd"
         "A",
         4},
        {"\"\\ud800\\ud83d\\ude00\"", "\xef\xbf\xbd\xf0\x9f\x98\x80", 7},
        {"\"a\\u0000b\"", "a\0b", 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bt_json v = parsed(cases[i].text);
        char buf[16];
        size_t n = 99;
        assert_int_equal(bt_json_string(&v, buf, cases[i].bytes, &n), BT_OK);
        assert_int_equal(n, cases[i].bytes);
        assert_memory_equal(buf, cases[i].want, n);
        if (n > 0)
            assert_int_equal(bt_json_string(&v, buf, n - 1, &n), BT_TOO_LARGE);
    }
    struct bt_json v = parsed("12"), e = parsed("\"en\\u0064\"");
    char buf[4];
    size_t n;
    assert_int_equal(bt_json_string(&v, buf, sizeof buf, &n), BT_TYPE);
    assert_true(bt_json_is(&e, "end"));
    assert_false(bt_json_is(&e, "en"));
    assert_false(bt_json_is(&e, "ende"));
    assert_false(bt_json_is(&v, "12"));
}

static void megabyte_of_escapes(void **state)
{
    (void)state;
    size_t units = 1 << 20, bytes = units * 6 + 2;
    char *text = malloc(bytes), *out = malloc(units * 3);
    struct bt_json v;
    size_t n;
    assert_non_null(text);
    assert_non_null(out);
    text[0] = text[bytes - 1] = '"';
    for (size_t i = 0; i < units; i++)
        memcpy(text + 1 + i * 6, "\\u4e2d", 6);
    assert_int_equal(bt_json_parse(text, bytes, &v, NULL), BT_OK);
    assert_int_equal(bt_json_string(&v, out, units * 3, &n), BT_OK);
    assert_int_equal(n, units * 3);
    free(text);
    free(out);
}

static void text_writes(void **state)
{
    char buf[256];
    struct bt_text t;
    (void)state;
    bt_text_init(&t, buf, sizeof buf);
    bt_text_u64(&t, 0);
    bt_text_str(&t, " ");
    bt_text_u64(&t, UINT64_MAX);
    bt_text_str(&t, " ");
    bt_text_i64(&t, INT64_MIN);
    bt_text_str(&t, " ");
    bt_text_fixed(&t, 1.2345, 2);
    bt_text_str(&t, " ");
    bt_text_fixed(&t, (double)__builtin_nanf(""), 2);
    bt_text_str(&t, " ");
    bt_text_fixed(&t, -(double)__builtin_inff(), 2);
    bt_text_add(&t, "", 1);
    assert_string_equal(
        buf, "0 18446744073709551615 -9223372036854775808 1.23 null null");
    assert_false(t.overflow);
}

static void text_quotes(void **state)
{
    char buf[256];
    struct bt_text t;
    (void)state;
    bt_text_init(&t, buf, sizeof buf);
    bt_text_quoted(&t, "a\"\\\n\x01\0\x7f\xe5\x8c\x97\xff\xe5\x8c!", 14);
    bt_text_add(&t, "", 1);
    assert_string_equal(buf, "\"a\\\"\\\\\\n\\u0001\\u0000\x7f\xe5\x8c\x97"
                             "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd!\"");
}

static void text_overflow_is_sticky(void **state)
{
    char buf[4];
    struct bt_text t;
    (void)state;
    bt_text_init(&t, buf, sizeof buf);
    bt_text_str(&t, "abc");
    bt_text_str(&t, "de");
    assert_true(t.overflow);
    bt_text_str(&t, "f");
    assert_true(t.overflow);
    assert_int_equal(t.used, 3);
}

#define ED(n, v)                                                               \
    {                                                                          \
        .name = (n), .value = (v), .bytes = sizeof(v) - 1                      \
    }
#define DEL(n)                                                                 \
    {                                                                          \
        .name = (n)                                                            \
    }
#define IF(n, v)                                                               \
    {                                                                          \
        .name = (n), .value = (v), .bytes = sizeof(v) - 1,                     \
        .only_if_present = true                                                \
    }

static void edits(void **state)
{
    static const struct {
        const char *from;
        struct bt_json_edit e[3];
        size_t n;
        const char *to;
    } cases[] = {
        {"{}", {DEL("a")}, 1, "{}"},
        {"{ \n}", {DEL("a")}, 1, "{ \n}"},
        {"{}", {ED("a", "1")}, 1, "{\"a\":1}"},
        {"{\"a\":1}", {DEL("a")}, 1, "{}"},
        {"{ \"a\" : 1 }", {DEL("a")}, 1, "{}"},
        {"{\"a\":1,\"b\":2,\"c\":3}", {DEL("a")}, 1, "{\"b\":2,\"c\":3}"},
        {"{\"a\":1,\"b\":2,\"c\":3}", {DEL("b")}, 1, "{\"a\":1,\"c\":3}"},
        {"{\"a\":1,\"b\":2,\"c\":3}", {DEL("c")}, 1, "{\"a\":1,\"b\":2}"},
        {"{\"a\":1,\"b\":2,\"c\":3}", {DEL("a"), DEL("c")}, 2, "{\"b\":2}"},
        {"{\"a\":1,\"b\":2}", {DEL("a"), DEL("b")}, 2, "{}"},
        {"{\"a\":1,\"b\":2}",
         {DEL("a"), DEL("b"), ED("c", "[]")},
         3,
         "{\"c\":[]}"},
        {"{\"a\":1}", {IF("b", "2")}, 1, "{\"a\":1}"},
        {"{\"a\":1,\"b\":9}", {IF("b", "2")}, 1, "{\"a\":1,\"b\":2}"},
        {"{\"a\":1,\"b\":3,\"a\":2}", {ED("a", "0")}, 1, "{\"b\":3,\"a\":0}"},
        {"{\"\\u0061\":1,\"b\":3}", {DEL("a")}, 1, "{\"b\":3}"},
        {"{ \"x\" :\t1e999 ,\n \"x\": 18446744073709551615\r,\"a\":0}",
         {DEL("a")},
         1,
         "{ \"x\" :\t1e999 ,\n \"x\": 18446744073709551615\r}"},
        {"{\"p\":\"},{\\\"a\\\":\",\"a\":{\"b\":[1,2]},\"q\":[{\"a\":1}]}",
         {DEL("a")},
         1,
         "{\"p\":\"},{\\\"a\\\":\",\"q\":[{\"a\":1}]}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char buf[256];
        struct bt_text t;
        struct bt_json v = parsed(cases[i].from);
        bt_text_init(&t, buf, sizeof buf);
        assert_int_equal(bt_json_edit(&v, cases[i].e, cases[i].n, &t), BT_OK);
        bt_text_add(&t, "", 1);
        assert_string_equal(buf, cases[i].to);
    }
}

static void edit_refusals(void **state)
{
    char buf[4];
    struct bt_text t;
    struct bt_json list = parsed("[1]"), object = parsed("{\"abc\":1}");
    (void)state;
    bt_text_init(&t, buf, sizeof buf);
    assert_int_equal(bt_json_edit(&list, NULL, 0, &t), BT_TYPE);
    assert_int_equal(bt_json_edit(&object, NULL, 0, &t), BT_TOO_LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts),
        cmocka_unit_test(refuses),
        cmocka_unit_test(refuses_in_runs_of_numbers),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(value_has_no_outer_space),
        cmocka_unit_test(walks_members),
        cmocka_unit_test(member_compares_decoded_and_takes_the_last),
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(doubles),
        cmocka_unit_test(strings),
        cmocka_unit_test(megabyte_of_escapes),
        cmocka_unit_test(text_writes),
        cmocka_unit_test(text_quotes),
        cmocka_unit_test(text_overflow_is_sticky),
        cmocka_unit_test(edits),
        cmocka_unit_test(edit_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
