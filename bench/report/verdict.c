/* From an interval to a verdict. Decides nothing else: which difference is
 * looked at, and the limits, belong to the study. */
#include "report_priv.h"

/* A subject that answers fewer than the rival by more than this share is not
 * compared: the requests it dropped are missing from its times. */
#define SHED_SHARE 0.01

const char *bt_report_verdict_name(enum bt_report_verdict verdict)
{
    switch (verdict) {
#define X(code, name)                                                          \
    case code:                                                                 \
        return name;
        BT_REPORT_VERDICT_LIST(X)
#undef X
    }
    return "?";
}

static bool sheds(const struct bt_report_difference *d)
{
    return d->answered_subject < d->answered_rival - SHED_SHARE;
}

enum bt_report_verdict
bt_report_judge_claim(const struct bt_report_claim_rule *rule,
                      const struct bt_report_difference *difference)
{
    const struct bt_stat_interval *r = &difference->relative;

    if (!difference->known)
        return BT_VERDICT_NO_DATA;
    if (sheds(difference))
        return BT_VERDICT_SHEDS;
    if (r->mean > rule->limit)
        return BT_VERDICT_FAILS;
    if (r->high > rule->limit)
        return rule->by_interval ? BT_VERDICT_FAILS : BT_VERDICT_OPEN;
    return r->mean > rule->expected_high ? BT_VERDICT_SMALLER
                                         : BT_VERDICT_HOLDS;
}

enum bt_report_verdict
bt_report_judge_tie(double margin,
                    const struct bt_report_difference *difference)
{
    const struct bt_stat_interval *r = &difference->relative;

    if (!difference->known)
        return BT_VERDICT_NO_DATA;
    if (sheds(difference))
        return BT_VERDICT_SHEDS;
    if (r->low >= -margin && r->high <= margin)
        return BT_VERDICT_TIES;
    if (r->low > margin)
        return BT_VERDICT_FAILS;
    return r->high < -margin ? BT_VERDICT_BETTER : BT_VERDICT_OPEN;
}

enum bt_report_verdict
bt_report_judge_floor(double margin,
                      const struct bt_report_difference *difference)
{
    const struct bt_stat_interval *r = &difference->relative;

    if (!difference->known)
        return BT_VERDICT_NO_DATA;
    if (sheds(difference))
        return BT_VERDICT_SHEDS;
    if (r->low > margin)
        return BT_VERDICT_FAILS;
    return r->high > margin ? BT_VERDICT_OPEN : BT_VERDICT_HOLDS;
}
