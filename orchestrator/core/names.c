/* Names of the core's enums, from the X-macros of core.h: they appear
 * unchanged in logs, metrics and docs. A foreign value is "unknown". */
#include "baton/orchestrator/core.h"

#define NAME(code, name)                                                       \
    case code:                                                                 \
        return name;

const char *bt_worker_state_name(enum bt_worker_state state)
{
    switch (state) {
        BT_WORKER_STATE_LIST(NAME)
    }
    return "unknown";
}

const char *bt_stream_state_name(enum bt_stream_state state)
{
    switch (state) {
        BT_STREAM_STATE_LIST(NAME)
    }
    return "unknown";
}

const char *bt_stream_cause_name(enum bt_stream_cause cause)
{
    switch (cause) {
        BT_STREAM_CAUSE_LIST(NAME)
    case BT_STREAM_CAUSE_COUNT:
        break;
    }
    return "unknown";
}

const char *bt_overlap_source_name(enum bt_overlap_source source)
{
    switch (source) {
        BT_PREFIX_SOURCE_LIST(NAME)
    case BT_PREFIX_SOURCE_COUNT:
        break;
    }
    return "unknown";
}

const char *bt_outcome_name(enum bt_outcome outcome)
{
    switch (outcome) {
        BT_OUTCOME_LIST(NAME)
    case BT_OUTCOME_COUNT:
        break;
    }
    return "unknown";
}

const char *bt_fallback_name(enum bt_fallback fallback)
{
    switch (fallback) {
        BT_FALLBACK_LIST(NAME)
    case BT_FALLBACK_COUNT:
        break;
    }
    return "unknown";
}
