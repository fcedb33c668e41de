/* Log writer: level filter, folding of repeats, text or JSON form. Leaves to
 * its callers what may be said: no prompt text ever comes here. The only
 * process-wide state of the server, because a logger has one sink.
 */
#include "baton/orchestrator/log.h"

#include "baton/orchestrator/json.h"
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORDS_MAX 1900
/* A whole line fits the room that poll promises on a pipe (PIPE_BUF). */
#define LINE_MAX_BYTES 4096
#define EVENTS_TRACKED 64
#define FOLD_AFTER     20

struct tracked {
    const char *event; /* static string of the caller, by pointer */
    time_t second;
    uint32_t count;
    uint64_t folded;
};

static struct {
    enum bt_log_level level;
    bool json;
    unsigned long long folded;
    struct tracked tracked[EVENTS_TRACKED];
} state = {.level = BT_LOG_INFO};

static const char *const level_names[] = {"error", "warn", "info", "debug",
                                          "trace"};

void bt_log_init(enum bt_log_level level, enum bt_log_format format)
{
    state.level = level;
    state.json = format == BT_LOG_JSON ||
                 (format == BT_LOG_AUTO && isatty(STDERR_FILENO) == 0);
}

unsigned long long bt_log_folded(void)
{
    return state.folded;
}

/* Workers' words (a version, a reason) must not make lines of their own. */
static void plain(char *words)
{
    for (char *c = words; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

/* True when the line may go out; *before is set to what was kept back. */
static bool admit(const char *event, time_t second, uint64_t *before)
{
    struct tracked *t =
        &state.tracked[((uintptr_t)event >> 3) % EVENTS_TRACKED];

    if (t->event != event || t->second != second) {
        *before = t->event == event ? t->folded : 0;
        *t = (struct tracked){.event = event, .second = second};
    }
    if (++t->count <= FOLD_AFTER)
        return true;
    t->folded++;
    state.folded++;
    return false;
}

void bt_log_stamp(char *buf, size_t size)
{
    struct timespec now;
    struct tm tm;
    char date[32];

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(buf, size, "%s.%06uZ", date, (unsigned)(now.tv_nsec / 1000));
}

void bt_log(enum bt_log_level level, const char *event, const char *format, ...)
{
    char words[WORDS_MAX], line[LINE_MAX_BYTES], when[64];
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    struct bt_text out;
    uint64_t before = 0;
    va_list args;

    if (level > state.level)
        return;
    if (!admit(event, time(NULL), &before))
        return;
    va_start(args, format);
    vsnprintf(words, sizeof(words), format, args);
    va_end(args);
    plain(words);
    bt_log_stamp(when, sizeof(when));
    bt_text_init(&out, line, sizeof(line) - 2);
    if (state.json) {
        bt_text_str(&out, "{\"ts\":\"");
        bt_text_str(&out, when);
        bt_text_str(&out, "\",\"level\":\"");
        bt_text_str(&out, level_names[level]);
        bt_text_str(&out, "\",\"event\":\"");
        bt_text_str(&out, event);
        bt_text_str(&out, "\",\"msg\":");
        bt_text_quoted(&out, words, strlen(words));
        if (before > 0) {
            bt_text_str(&out, ",\"folded\":");
            bt_text_u64(&out, before);
        }
        bt_text_str(&out, "}");
    } else {
        bt_text_str(&out, level_names[level]);
        bt_text_str(&out, " ");
        bt_text_str(&out, event);
        bt_text_str(&out, " ");
        bt_text_str(&out, words);
        if (before > 0) {
            bt_text_str(&out, " folded=");
            bt_text_u64(&out, before);
        }
    }
    line[out.used] = '\n';
    /* A full pipe loses the line, it never blocks the loop. */
    if (poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0 ||
        write(STDERR_FILENO, line, out.used + 1) < 0)
        state.folded++;
}
