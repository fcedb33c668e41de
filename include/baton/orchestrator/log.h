/* The log of `baton serve` and `baton index`. One per process; on its loop's
 * thread only.
 *
 * Log lines on stderr: "event key=value ..." for a terminal, one JSON object
 * per line otherwise. Never a prompt, completion, token id or secret.
 *
 * Repeats are folded: after 20 lines of one event name within a second the
 * rest are counted and reported with the next second's first line.
 */
#ifndef BATON_ORCHESTRATOR_LOG_H
#define BATON_ORCHESTRATOR_LOG_H

#include "baton/orchestrator/config.h"

void bt_log_init(enum bt_log_level level, enum bt_log_format format);
/* event: static lower-case word; format: "key=value ..." */
void bt_log(enum bt_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Now as RFC 3339 in UTC with microseconds; size >= 64. */
void bt_log_stamp(char *buf, size_t size);
/* Lines that folding kept back so far. */
unsigned long long bt_log_folded(void);

#endif
