/* --event-lag and --event-loss of `baton sim`: one value each for a run, lists
 * for the study of staleness. */
#include "baton/base/units.h"
#include "cmd_sim.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(const char *what, const char *value)
{
    fprintf(stderr, "baton sim: %s, got '%s'\n", what, value);
    return BT_EXIT_USAGE;
}

/* The next of a comma list; false at the end, *rest moves on. */
static bool next_item(const char **rest, char *out, size_t size)
{
    size_t length = strcspn(*rest, ",");

    if (**rest == '\0')
        return false;
    snprintf(out, size, "%.*s", (int)(length < size ? length : size - 1),
             *rest);
    *rest += length + ((*rest)[length] == ',');
    return true;
}

static int take_lags(const char *text, struct sim_events *e)
{
    const char *rest = text;
    char item[32];

    while (next_item(&rest, item, sizeof(item))) {
        int64_t *lag = &e->lags[e->lag_count];

        if (e->lag_count == BT_REPORT_EVENTS_MAX ||
            bt_duration_parse(item, lag) != BT_OK ||
            (e->lag_count > 0 && *lag <= lag[-1]))
            return usage("--event-lag is a time such as 500ms, or for --study "
                         "staleness at most 8 that grow",
                         text);
        e->lag_count++;
    }
    return e->lag_count ? 0 : usage("--event-lag names no time", text);
}

static int take_losses(const char *text, struct sim_events *e)
{
    const char *rest = text;
    char item[32], *end;

    while (next_item(&rest, item, sizeof(item))) {
        double loss = strtod(item, &end);

        if (e->loss_count == BT_REPORT_EVENTS_MAX || end == item || *end ||
            !(loss >= 0 && loss <= 1) ||
            (e->loss_count > 0 && loss <= e->losses[e->loss_count - 1]))
            return usage("--event-loss is a share, 0 to 1, or for --study "
                         "staleness at most 8 that grow",
                         text);
        e->losses[e->loss_count++] = loss;
    }
    return e->loss_count ? 0 : usage("--event-loss names no share", text);
}

int sim_events_take(const struct sim_options *o, struct sim_events *e)
{
    bool lists = o->study && strcmp(o->study, "staleness") == 0;
    int code = 0;

    memset(e, 0, sizeof(*e));
    if (o->event_lag)
        code = take_lags(o->event_lag, e);
    if (code == 0 && o->event_loss)
        code = take_losses(o->event_loss, e);
    if (code == 0 && !lists && e->lag_count > 1)
        return usage("several values of --event-lag belong to --study "
                     "staleness",
                     o->event_lag);
    if (code == 0 && !lists && e->loss_count > 1)
        return usage("several values of --event-loss belong to --study "
                     "staleness",
                     o->event_loss);
    if (code == 0 && lists && o->no_event_replay)
        return usage("--no-event-replay does nothing here: the study has rows "
                     "with replay and without",
                     o->study);
    if (code == 0 && lists && (o->approximate || o->self_check))
        return usage("--approximate and --self-check do nothing here: the "
                     "study has rows with both and with neither",
                     o->study);
    return code;
}
