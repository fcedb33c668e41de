/* Decides how values are written as JSON text into memory of the caller. A
 * text that does not fit sets `overflow` for good and adds nothing more; used
 * never passes size.
 */
#include "baton/orchestrator/json.h"

#include "utf8.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

void bt_text_init(struct bt_text *t, char *at, size_t size)
{
    t->at = at;
    t->size = size;
    t->used = 0;
    t->overflow = false;
}

void bt_text_add(struct bt_text *t, const char *bytes, size_t count)
{
    if (t->overflow || count > t->size - t->used) {
        t->overflow = true;
        return;
    }
    if (count > 0)
        memcpy(t->at + t->used, bytes, count);
    t->used += count;
}

void bt_text_str(struct bt_text *t, const char *terminated)
{
    bt_text_add(t, terminated, strlen(terminated));
}

void bt_text_u64(struct bt_text *t, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    bt_text_add(t, digits + at, sizeof digits - at);
}

void bt_text_i64(struct bt_text *t, int64_t value)
{
    if (value < 0)
        bt_text_add(t, "-", 1);
    bt_text_u64(t, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void bt_text_fixed(struct bt_text *t, double value, int digits)
{
    char buf[352]; /* 309 digits, sign, point, 17 decimals */
    if (!isfinite(value)) {
        bt_text_str(t, "null");
        return;
    }
    int shown = digits < 0 ? 0 : digits > 17 ? 17 : digits;
    int n = snprintf(buf, sizeof buf, "%.*f", shown, value);
    bt_text_add(t, buf, (size_t)n);
}

static void control_add(struct bt_text *t, unsigned char c)
{
    static const char from[] = "\b\f\n\r\t\"\\", to[] = "bfnrt\"\\";
    char buf[8];
    const char *named = c != '\0' ? strchr(from, c) : NULL;
    if (named != NULL)
        (void)snprintf(buf, sizeof buf, "\\%c", to[named - from]);
    else
        (void)snprintf(buf, sizeof buf, "\\u%04x", (unsigned)c);
    bt_text_str(t, buf);
}

void bt_text_quoted(struct bt_text *t, const char *bytes, size_t count)
{
    const unsigned char *p = (const unsigned char *)bytes, *end = p + count;
    bt_text_add(t, "\"", 1);
    const unsigned char *plain = p; /* start of the run to copy as it is */
    while (p < end) {
        size_t n = utf8_size(p, end);
        if (n > 0 && *p >= 0x20 && *p != '"' && *p != '\\') {
            p += n;
            continue;
        }
        bt_text_add(t, (const char *)plain, (size_t)(p - plain));
        if (n == 0)
            bt_text_str(t, "\xef\xbf\xbd");
        else
            control_add(t, *p);
        plain = ++p;
    }
    bt_text_add(t, (const char *)plain, (size_t)(p - plain));
    bt_text_add(t, "\"", 1);
}
