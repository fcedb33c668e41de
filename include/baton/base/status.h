/* Status codes of every fallible call in baton.
 *
 * One X-macro is the only list: code, name, text, class, HTTP status that the
 * front answers when the code reaches a client. BT_OK is 0; no code is ever
 * renumbered once released (append only).
 */
#ifndef BATON_BASE_STATUS_H
#define BATON_BASE_STATUS_H

/* X(code, name, text, class, http) */
#define BT_STATUS_LIST(X)                                                      \
    X(BT_OK, "ok", "success", NONE, 200)                                       \
    X(BT_AGAIN, "again", "not now, wait for the call-back", RETRY, 503)        \
    X(BT_LIMIT, "limit", "a configured limit is reached", RETRY, 429)          \
    X(BT_NO_MEMORY, "no_memory", "memory could not be had", RETRY, 503)        \
    X(BT_NOT_FOUND, "not_found", "no such object", CONFIG, 404)                \
    X(BT_EXISTS, "exists", "the object is there already", CONFIG, 409)         \
    X(BT_STALE, "stale", "handle of an ended generation", RETRY, 503)          \
    X(BT_INVALID, "invalid", "malformed or out of range input", CONFIG, 400)   \
    X(BT_TYPE, "type", "input of the wrong type", CONFIG, 400)                 \
    X(BT_DUPLICATE, "duplicate", "given twice", CONFIG, 400)                   \
    X(BT_UNSUPPORTED, "unsupported", "not supported", CONFIG, 501)             \
    X(BT_TOO_LARGE, "too_large", "larger than the limit", CONFIG, 413)         \
    X(BT_TIMEOUT, "timeout", "deadline passed", RETRY, 504)                    \
    X(BT_CANCELLED, "cancelled", "ended by its owner", NONE, 499)              \
    X(BT_REFUSED, "refused", "connection refused by the peer", PEER, 502)      \
    X(BT_RESET, "reset", "connection lost", PEER, 502)                         \
    X(BT_PEER_DEAD, "peer_dead", "the peer stopped answering", PEER, 502)      \
    X(BT_PEER_ERROR, "peer_error", "the peer answered with an error", PEER,    \
      502)                                                                     \
    X(BT_TRUNCATED, "truncated", "the stream ended too early", PEER, 502)      \
    X(BT_INCOMPATIBLE, "incompatible", "layouts or versions differ", CONFIG,   \
      502)                                                                     \
    X(BT_LEASE_EXPIRED, "lease_expired", "the lease on the blocks is over",    \
      PEER, 502)                                                               \
    X(BT_CHECKSUM, "checksum", "bytes differ from their checksum", PEER, 502)  \
    X(BT_OVERLOADED, "overloaded", "refused: it would miss its limit", RETRY,  \
      429)                                                                     \
    X(BT_NO_WORKER, "no_worker", "no worker can take the request", RETRY, 503) \
    X(BT_IO, "io", "operating system call failed", PEER, 500)                  \
    X(BT_BUG, "bug", "an invariant of baton does not hold", BUG, 500)

enum bt_status {
#define X(code, name, text, cls, http) code,
    BT_STATUS_LIST(X)
#undef X
};

/* What a caller may do about it: RETRY later, avoid the PEER, mend the CONFIG
 * or the input, report a BUG. */
enum bt_status_class {
    BT_CLASS_NONE,
    BT_CLASS_RETRY,
    BT_CLASS_PEER,
    BT_CLASS_CONFIG,
    BT_CLASS_BUG
};

/* Stable lower-case name ("lease_expired"); "unknown" for a foreign value.
 * Static storage. */
const char *bt_status_name(enum bt_status status);
/* One phrase for people. Static storage. */
const char *bt_status_text(enum bt_status status);
enum bt_status_class bt_status_class_of(enum bt_status status);
/* HTTP status a client sees for it. */
int bt_status_http(enum bt_status status);

#endif
