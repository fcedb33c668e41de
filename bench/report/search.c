/* One search for the highest speed that meets the SLO rule, as a machine that
 * asks for a speed and is told the outcome; who runs the probe is not its
 * business. Invariants: probes are bounded; low is always a speed that met,
 * high one that failed, low < high; an answer that contradicts a monotone
 * system is flagged and changes neither.
 *
 *   start -> up | down -> bisect -> below -> above -> over
 */
#include "report_priv.h"
#include <math.h>
#include <string.h>

#define BELOW 0.8
#define ABOVE 1.15

enum phase { START, UP, DOWN, BISECT, CHECK_BELOW, CHECK_ABOVE, OVER };

void bt_report_search_options_init(struct bt_report_search_options *o)
{
    memset(o, 0, sizeof(*o));
    o->start = 1;
    o->factor = 1.6;
    o->tolerance = 0.02;
    o->lowest = 1.0 / 64;
    o->highest = 256;
    o->probes_max = 24;
    o->verify = true;
}

void bt_report_search_init(struct bt_report_search *search,
                           const struct bt_report_search_options *options)
{
    memset(search, 0, sizeof(*search));
    search->options = *options;
    search->phase = START;
}

static void bracketed(struct bt_report_search *s)
{
    if (s->high <= s->low * (1 + s->options.tolerance))
        s->phase = s->options.verify ? CHECK_BELOW : OVER;
    else
        s->phase = BISECT;
}

/* Phases that need no probe are passed over. */
static void settle(struct bt_report_search *s)
{
    if (s->phase == UP && s->low >= s->options.highest) {
        s->all_met = true;
        s->phase = s->options.verify ? CHECK_BELOW : OVER;
    }
    if (s->phase == DOWN && s->high <= s->options.lowest) {
        s->none_met = true;
        s->phase = OVER;
    }
    if (s->phase == CHECK_ABOVE && s->all_met)
        s->phase = OVER;
    if (s->phase != OVER && s->probes >= s->options.probes_max) {
        s->out_of_probes = s->phase < CHECK_BELOW;
        s->phase = OVER;
    }
}

bool bt_report_search_next(struct bt_report_search *search, double *speed_out)
{
    const struct bt_report_search_options *o = &search->options;

    settle(search);
    switch ((enum phase)search->phase) {
    case START:
        search->asked = fmin(fmax(o->start, o->lowest), o->highest);
        break;
    case UP:
        search->asked = fmin(search->low * o->factor, o->highest);
        break;
    case DOWN:
        search->asked = fmax(search->high / o->factor, o->lowest);
        break;
    case BISECT:
        search->asked = sqrt(search->low * search->high);
        break;
    case CHECK_BELOW:
        search->asked = search->low * BELOW;
        break;
    case CHECK_ABOVE:
        search->asked = search->high * ABOVE;
        break;
    case OVER:
        return false;
    }
    *speed_out = search->asked;
    return true;
}

static void narrow(struct bt_report_search *s, bool met)
{
    if (met)
        s->low = s->asked;
    else
        s->high = s->asked;
    if (s->low > 0 && s->high > 0)
        bracketed(s);
    else
        s->phase = met ? UP : DOWN;
}

void bt_report_search_tell(struct bt_report_search *search, bool met)
{
    search->probes++;
    switch ((enum phase)search->phase) {
    case START:
    case UP:
    case DOWN:
    case BISECT:
        narrow(search, met);
        break;
    case CHECK_BELOW:
        search->below_failed = !met;
        search->phase = CHECK_ABOVE;
        break;
    case CHECK_ABOVE:
        search->above_met = met;
        search->phase = OVER;
        break;
    case OVER:
        break;
    }
}
