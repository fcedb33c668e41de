/* Byte-preserving JSON: a validating scanner that finds members and an editor
 * that changes only what it is told. Why not a tree: what baton has no
 * business with must arrive at the worker as the client wrote it, escapes,
 * digits, repeated keys and all (engine-wire.md 4.2). Pure: no
 * allocation, no recursion; nesting limit BT_JSON_DEPTH_MAX.
 */
#ifndef BATON_ORCHESTRATOR_JSON_H
#define BATON_ORCHESTRATOR_JSON_H

#include "baton/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_JSON_DEPTH_MAX 64

enum bt_json_type {
    BT_JSON_OBJECT,
    BT_JSON_ARRAY,
    BT_JSON_STRING,
    BT_JSON_NUMBER,
    BT_JSON_TRUE,
    BT_JSON_FALSE,
    BT_JSON_NULL
};

/* A value inside somebody else's buffer. */
struct bt_json {
    const char *at;
    size_t bytes;
    enum bt_json_type type;
};

/* Check that text is exactly one JSON value (RFC 8259: strict numbers, valid
 * UTF-8, no lone control characters; lone surrogate escapes are accepted) and
 * return it without the surrounding white space. BT_INVALID sets *error_at to
 * the byte offset of the fault (if not NULL); BT_TOO_LARGE: nested deeper than
 * the limit. */
enum bt_status bt_json_parse(const char *text, size_t bytes,
                             struct bt_json *value_out, size_t *error_at);

/* Iterate over a valid object or array: start with *cursor = 0. False at the
 * end. key_out (objects; raw, between the quotes, escapes kept) may be NULL. */
bool bt_json_next(const struct bt_json *container, size_t *cursor,
                  struct bt_json *key_out, struct bt_json *value_out);

/* Last member of that name (as engines' parsers take it), comparing the
 * decoded key with the plain name. False if absent. count_out (may be NULL):
 * how often it occurs. */
bool bt_json_member(const struct bt_json *object, const char *name,
                    struct bt_json *value_out, size_t *count_out);

/* Whole numbers only ("12", not "1e3", "12.0"); BT_TYPE otherwise,
 * BT_INVALID out of range. */
enum bt_status bt_json_u64(const struct bt_json *value, uint64_t *out);
enum bt_status bt_json_double(const struct bt_json *value, double *out);
/* Decode a string into buf (not terminated). BT_TYPE; BT_TOO_LARGE when it
 * does not fit. Lone surrogates become U+FFFD. */
enum bt_status bt_json_string(const struct bt_json *value, char *buf,
                              size_t size, size_t *bytes_out);
/* True when value is a string whose decoded form equals text. */
bool bt_json_is(const struct bt_json *value, const char *text);

/* Output buffer over caller memory; overflow is sticky. */
struct bt_text {
    char *at;
    size_t size, used;
    bool overflow;
};
void bt_text_init(struct bt_text *t, char *at, size_t size);
void bt_text_add(struct bt_text *t, const char *bytes, size_t count);
void bt_text_str(struct bt_text *t, const char *terminated);
void bt_text_u64(struct bt_text *t, uint64_t value);
void bt_text_i64(struct bt_text *t, int64_t value);
/* Fixed notation, `digits` after the point; NaN and infinity print null. */
void bt_text_fixed(struct bt_text *t, double value, int digits);
/* A quoted, escaped JSON string; invalid UTF-8 becomes U+FFFD. */
void bt_text_quoted(struct bt_text *t, const char *bytes, size_t count);

/* One change to a top-level member. */
struct bt_json_edit {
    const char *name;
    const char *value; /* raw JSON to set; NULL = remove every occurrence */
    size_t bytes;
    bool only_if_present; /* set only where the member exists */
};
/* Copy object to out applying the edits: all occurrences of a set name are
 * dropped and one is appended; everything else is copied byte for byte.
 * BT_TYPE: not an object; BT_TOO_LARGE: out overflowed. */
enum bt_status bt_json_edit(const struct bt_json *object,
                            const struct bt_json_edit *edits, size_t count,
                            struct bt_text *out);

#endif
