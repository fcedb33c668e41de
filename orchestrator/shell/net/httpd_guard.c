/* Refuses requests whose framing another HTTP program could read differently
 * (request smuggling). libmicrohttpd is lenient here even in strict mode.
 *
 * libmicrohttpd parses in place: it ends each name and value with NULs in the
 * buffer it received. So this file can walk the original bytes: every name
 * must begin exactly where the line before it ended with CRLF. A NUL inside a
 * value, a folded line, a bare LF or doubled spaces all break the walk.
 */
#include "httpd_internal.h"
#include <string.h>
#include <strings.h>

#define VERSION_BYTES 8 /* "HTTP/1.1" */

struct walk {
    const char *next; /* where the next name must begin */
    const char *reason;
    unsigned lengths, codings, hosts;
    const char *length_text;
    size_t length_bytes;
};

static bool is_token(const char *text, size_t bytes)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                     (c >= 'a' && c <= 'z');
        if (!alnum && (c == 0 || !strchr(others, c)))
            return false;
    }
    return bytes > 0;
}

static bool is_field_value(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

static bool name_is(const char *name, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && strncasecmp(name, wanted, bytes) == 0;
}

static void note_framing(struct walk *w, const char *name, size_t name_bytes,
                         const char *value, size_t value_bytes)
{
    if (name_is(name, name_bytes, "content-length")) {
        w->lengths++;
        w->length_text = value;
        w->length_bytes = value_bytes;
    } else if (name_is(name, name_bytes, "transfer-encoding")) {
        w->codings++;
        if (!name_is(value, value_bytes, "chunked"))
            w->reason = "Transfer-Encoding other than chunked";
    } else if (name_is(name, name_bytes, "host")) {
        w->hosts++;
    }
}

static enum MHD_Result on_header(void *arg, enum MHD_ValueKind kind,
                                 const char *name, size_t name_bytes,
                                 const char *value, size_t value_bytes)
{
    (void)kind;
    struct walk *w = arg;
    if (name != w->next || !is_token(name, name_bytes)) {
        w->reason = "malformed header line";
        return MHD_NO;
    }
    const char *gap = name + name_bytes + 1;
    while (gap < value && (*gap == ' ' || *gap == '\t'))
        gap++;
    if (gap != value || !is_field_value(value, value_bytes)) {
        w->reason = "malformed header value";
        return MHD_NO;
    }
    note_framing(w, name, name_bytes, value, value_bytes);
    w->next = value + value_bytes + 2; /* over the CR and LF */
    return w->reason ? MHD_NO : MHD_YES;
}

static bool line_walk(const struct bt_httpd_request *req, const char *version)
{
    return !req->bad_target && req->raw_target &&
           req->raw_target == req->method + strlen(req->method) + 1 &&
           version == req->raw_target + req->raw_target_bytes + 1 &&
           strlen(version) == VERSION_BYTES &&
           is_token(req->method, strlen(req->method));
}

static bool length_parse(const char *text, size_t bytes, uint64_t *out)
{
    if (bytes == 0 || bytes > 18)
        return false;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    *out = value;
    return true;
}

static const char *framing_fault(const struct walk *w, const char *version,
                                 uint64_t *content_bytes_out)
{
    if (w->lengths > 0 && w->codings > 0)
        return "both Content-Length and Transfer-Encoding";
    if (w->lengths > 1)
        return "more than one Content-Length";
    if (w->codings > 1)
        return "more than one Transfer-Encoding";
    if (w->hosts > 1)
        return "more than one Host";
    if (w->codings > 0 && strcmp(version, "HTTP/1.1") != 0)
        return "Transfer-Encoding needs HTTP/1.1";
    if (w->lengths == 1 &&
        !length_parse(w->length_text, w->length_bytes, content_bytes_out))
        return "malformed Content-Length";
    return NULL;
}

int httpd_guard(struct bt_httpd_request *req, const char *version,
                uint64_t *content_bytes_out, const char **reason_out)
{
    struct walk w = {0};
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        req->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    size_t head_bytes = info ? info->header_size : 0;
    *content_bytes_out = 0;
    if (head_bytes > req->httpd->limits.header_bytes_max) {
        *reason_out = "request line and headers are too large";
        return MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE;
    }
    if (!line_walk(req, version)) {
        *reason_out = "malformed request line";
        return MHD_HTTP_BAD_REQUEST;
    }
    w.next = version + VERSION_BYTES + 2;
    MHD_get_connection_values_n(req->mhd, MHD_HEADER_KIND, on_header, &w);
    /* The empty line ends the head. */
    if (!w.reason && w.next + 2 != req->method + head_bytes)
        w.reason = "malformed header line";
    if (!w.reason)
        w.reason = framing_fault(&w, version, content_bytes_out);
    *reason_out = w.reason;
    return w.reason ? MHD_HTTP_BAD_REQUEST : 0;
}
