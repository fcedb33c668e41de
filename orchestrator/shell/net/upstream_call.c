/* One call: its libcurl options, its call-backs, and the translation of
 * libcurl's outcome into bt_status. Leaves when things happen to upstream.c.
 *
 * Retry of a stale pooled connection is libcurl's (only while no response byte
 * came); on_request makes that retry use a fresh connection, so it happens
 * once and not once per stale connection in the pool.
 */
#include "upstream_internal.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONNECT_TIMEOUT_MS 2000L
#define HEADERS_MAX        64
#define KEEPALIVE_IDLE_S   30L
#define KEEPALIVE_EVERY_S  10L
#define READ_BYTES         8192L /* one such buffer per running call */

static const char no_expect[] = "Expect:";
static const char no_type[] = "Content-Type:";

/* ---- libcurl's call-backs ---- */

static int on_request(void *arg, char *to, char *from, int to_port,
                      int from_port)
{
    (void)to;
    (void)from;
    (void)to_port;
    (void)from_port;
    struct bt_call *call = arg;
    if (call->cancelled)
        return CURL_PREREQFUNC_ABORT;
    call->connected = true;
    curl_easy_setopt(call->easy, CURLOPT_FRESH_CONNECT, 1L);
    return CURL_PREREQFUNC_OK;
}

static size_t on_header(char *line, size_t size, size_t count, void *arg)
{
    struct bt_call *call = arg;
    size_t bytes = size * count;
    long status = 0;
    if (call->cancelled)
        return 0;
    if (call->head_given || bytes > 2 || (line[0] != '\r' && line[0] != '\n'))
        return bytes; /* a header line or a trailer */
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200)
        return bytes; /* interim answer */
    call->head_given = true;
    if (call->spec.head) {
        char *type = NULL;
        curl_easy_getinfo(call->easy, CURLINFO_CONTENT_TYPE, &type);
        struct bt_call_head head = {(int)status, type};
        call->spec.head(call->spec.arg, &head);
    }
    return call->cancelled ? 0 : bytes;
}

static size_t on_data(char *bytes, size_t size, size_t count, void *arg)
{
    struct bt_call *call = arg;
    size_t total = size * count;
    if (call->cancelled)
        return CURL_WRITEFUNC_ERROR;
    call->body_bytes += total;
    if (!call->spec.data)
        return total;
    call->in_data = true;
    call->resume = false;
    enum bt_status status = call->spec.data(call->spec.arg, bytes, total);
    call->in_data = false;
    if (call->cancelled)
        return CURL_WRITEFUNC_ERROR;
    if (status == BT_AGAIN && !call->resume) {
        call->paused = true;
        curl_easy_pause(call->easy, CURLPAUSE_RECV);
    }
    return total;
}

/* ---- options ---- */

static bool easy_init(struct bt_call *call)
{
    CURL *e = call->easy = curl_easy_init();
    if (!e)
        return false;
    CURLcode bad = 0;
    bad |= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    bad |=
        curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    bad |= curl_easy_setopt(e, CURLOPT_TCP_NODELAY, 1L);
    bad |= curl_easy_setopt(e, CURLOPT_BUFFERSIZE, READ_BYTES);
    bad |= curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    bad |= curl_easy_setopt(e, CURLOPT_TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    bad |= curl_easy_setopt(e, CURLOPT_TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
    bad |= curl_easy_setopt(e, CURLOPT_PROXY, "");
    bad |= curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    bad |= curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    bad |= curl_easy_setopt(e, CURLOPT_ERRORBUFFER, call->error);
    bad |= curl_easy_setopt(e, CURLOPT_PRIVATE, call);
    bad |= curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    bad |= curl_easy_setopt(e, CURLOPT_HEADERDATA, call);
    bad |= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_data);
    bad |= curl_easy_setopt(e, CURLOPT_WRITEDATA, call);
    bad |= curl_easy_setopt(e, CURLOPT_PREREQFUNCTION, on_request);
    bad |= curl_easy_setopt(e, CURLOPT_PREREQDATA, call);
    return bad == 0;
}

/* libcurl keeps the header list by pointer: nodes and texts are one block. */
static enum bt_status headers_set(struct bt_call *call,
                                  const struct bt_call_spec *spec)
{
    const char *lines[HEADERS_MAX + 2];
    size_t count = 0, bytes = 0;
    bool typed = false;
    for (; spec->headers && spec->headers[count]; count++) {
        if (count == HEADERS_MAX)
            return BT_INVALID;
        lines[count] = spec->headers[count];
        typed |= strncasecmp(lines[count], no_type, strlen(no_type)) == 0;
        bytes += strlen(lines[count]) + 1;
    }
    lines[count++] = no_expect;
    if (!typed)
        lines[count++] = no_type;
    bytes += sizeof(no_expect) + sizeof(no_type);
    struct curl_slist *nodes = malloc(count * sizeof(*nodes) + bytes);
    if (!nodes)
        return BT_NO_MEMORY;
    char *text = (char *)(nodes + count);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(lines[i]) + 1;
        memcpy(text, lines[i], length);
        nodes[i].data = text;
        nodes[i].next = i + 1 < count ? &nodes[i + 1] : NULL;
        text += length;
    }
    call->header_block = (char *)nodes;
    return curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, nodes) == CURLE_OK
               ? BT_OK
               : BT_NO_MEMORY;
}

static CURLcode method_set(CURL *e, const struct bt_call_spec *spec)
{
    bool post = strcmp(spec->method, "POST") == 0;
    bool get = strcmp(spec->method, "GET") == 0;
    CURLcode bad = 0;
    if (post || spec->body) {
        bad |= curl_easy_setopt(e, CURLOPT_POST, 1L);
        bad |= curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE,
                                (curl_off_t)spec->body_bytes);
        bad |= curl_easy_setopt(e, CURLOPT_POSTFIELDS,
                                spec->body ? spec->body : "");
    } else {
        bad |= curl_easy_setopt(e, CURLOPT_HTTPGET, 1L);
    }
    bool plain = post || (get && !spec->body);
    bad |=
        curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, plain ? NULL : spec->method);
    return bad;
}

static bool url_plausible(const char *url)
{
    size_t skip = strncmp(url, "http://", 7) == 0    ? 7
                  : strncmp(url, "https://", 8) == 0 ? 8
                                                     : 0;
    if (skip == 0 || url[skip] == 0 || url[skip] == '/')
        return false;
    for (const char *c = url; *c; c++)
        if ((unsigned char)*c <= 0x20 || *c == 0x7f)
            return false;
    return true;
}

enum bt_status call_prepare(struct bt_call *call,
                            const struct bt_call_spec *spec)
{
    CURL *e = call->easy;
    if (!url_plausible(spec->url))
        return BT_INVALID;
    call->spec = *spec;
    call->spec.method = call->spec.url = NULL; /* not kept */
    call->spec.headers = NULL;
    call->error[0] = 0;
    enum bt_status status = headers_set(call, spec);
    if (status != BT_OK)
        return status;
    long fresh = spec->fresh_connection ? 1L : 0L;
    CURLcode bad = curl_easy_setopt(e, CURLOPT_URL, spec->url);
    bad |= method_set(e, spec);
    bad |= curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS,
                            spec->connect_timeout_ms
                                ? (long)spec->connect_timeout_ms
                                : CONNECT_TIMEOUT_MS);
    bad |=
        curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)spec->total_timeout_ms);
    bad |= curl_easy_setopt(e, CURLOPT_FRESH_CONNECT, fresh);
    bad |= curl_easy_setopt(e, CURLOPT_FORBID_REUSE, fresh);
    return bad == 0 ? BT_OK : BT_NO_MEMORY;
}

/* ---- life ---- */

struct bt_call *call_take(struct bt_upstream *upstream)
{
    struct bt_call *call = upstream->free_calls;
    if (call) {
        upstream->free_calls = call->next_free;
        upstream->free_count--;
        return call;
    }
    call = calloc(1, sizeof(*call));
    if (!call)
        return NULL;
    call->upstream = upstream;
    if (!easy_init(call)) {
        call_destroy(call);
        return NULL;
    }
    return call;
}

void call_destroy(struct bt_call *call)
{
    if (call->easy)
        curl_easy_cleanup(call->easy);
    free(call->header_block);
    free(call);
}

void call_give(struct bt_call *call)
{
    struct bt_upstream *upstream = call->upstream;
    if (upstream->free_count >= upstream->free_max) {
        call_destroy(call);
        return;
    }
    curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, NULL);
    free(call->header_block);
    call->header_block = NULL;
    call->state = CALL_IDLE;
    call->cancelled = call->resume = call->paused = false;
    call->head_given = call->connected = false;
    call->body_bytes = 0;
    call->next_free = upstream->free_calls;
    upstream->free_calls = call;
    upstream->free_count++;
}

/* ---- outcome ---- */

static enum bt_status code_status(const struct bt_call *call, CURLcode code)
{
    if (code == CURLE_OK) /* libcurl takes a head that was cut for an answer */
        return call->head_given ? BT_OK : BT_RESET;
    if (code == CURLE_OPERATION_TIMEDOUT)
        return BT_TIMEOUT;
    if (code == CURLE_OUT_OF_MEMORY)
        return BT_NO_MEMORY;
    if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL)
        return call->connected ? BT_RESET : BT_INVALID;
    if (!call->connected)
        return BT_REFUSED;
    /* A malformed chunk is a receive error in libcurl's eyes. */
    if (code == CURLE_PARTIAL_FILE || strstr(call->error, "chunked-encoding"))
        return BT_TRUNCATED;
    return BT_RESET;
}

void call_finish(struct bt_call *call, CURLcode code)
{
    long http = 0;
    if (call->head_given)
        curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &http);
    struct bt_call_end end = {
        .status = code_status(call, code),
        .http = (int)http,
        .connected = call->connected,
        .body_bytes = call->body_bytes,
        .detail = call->error[0]     ? call->error
                  : call->head_given ? curl_easy_strerror(code)
                                     : "no whole response head came",
    };
    call->spec.done(call->spec.arg, &end);
}
