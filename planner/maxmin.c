/* Max-min fair rates by water-filling (cost-models.md section 8): the link
 * with the least capacity per flow not yet frozen freezes its flows at that
 * share; again with what is left. A flow's own cap is a link of its own.
 *
 * Invariants: links that tie freeze in the same round and a round subtracts
 * its share times the count at once, so the order of flows changes no bit of a
 * rate; every round freezes a flow, so there are at most n; slot_of[] is all
 * zero between calls.
 */
#include "baton/planner/network.h"

#include <math.h>
#include <string.h>

/* Shares closer than this are one and the same. */
#define TIE (1 + 1e-12)

/* A link in use, or the cap of a flow. */
struct tap {
    double left;           /* capacity not given out */
    uint32_t active;       /* flows not frozen */
    uint32_t frozen;       /* in this round */
    uint32_t first, count; /* its flows in members[] */
    uint32_t at;           /* in live[] */
};

struct work {
    uint32_t *slot_of; /* by link: tap + 1; 0: not in use */
    struct tap *taps;
    uint32_t *members; /* flow indices, tap after tap */
    uint32_t *cap_tap; /* by flow, of its cap: tap + 1; 0: none */
    double *shares;    /* of live taps: left / active */
    uint32_t *live;    /* taps with active flows, in no order */
    uint32_t *tied;    /* taps that may have the least share */
    uint32_t *touched; /* taps with flows frozen in this round */
    uint32_t tap_count, live_count, tied_count, touched_count;
};

static size_t padded(size_t count, size_t bytes)
{
    return (count * bytes + 15) / 16 * 16;
}

static size_t uses_max(size_t flows)
{
    return flows * (BT_PATH_LINKS_MAX + 1);
}

size_t bt_maxmin_scratch(size_t flows, size_t links)
{
    size_t uses = uses_max(flows);

    return padded(links, sizeof(uint32_t)) + padded(uses, sizeof(struct tap)) +
           padded(uses, sizeof(double)) + 4 * padded(uses, sizeof(uint32_t)) +
           padded(flows, sizeof(uint32_t));
}

static void *cut(unsigned char **at, size_t count, size_t bytes)
{
    void *piece = *at;

    *at += padded(count, bytes);
    return piece;
}

static struct work lay_out(void *scratch, size_t flows, size_t links)
{
    size_t uses = uses_max(flows);
    unsigned char *at = scratch;
    struct work w = {.tap_count = 0};

    w.slot_of = cut(&at, links, sizeof(uint32_t));
    w.taps = cut(&at, uses, sizeof(struct tap));
    w.shares = cut(&at, uses, sizeof(double));
    w.members = cut(&at, uses, sizeof(uint32_t));
    w.live = cut(&at, uses, sizeof(uint32_t));
    w.tied = cut(&at, uses, sizeof(uint32_t));
    w.touched = cut(&at, uses, sizeof(uint32_t));
    w.cap_tap = cut(&at, flows, sizeof(uint32_t));
    return w;
}

/* Not a number and less than nothing give nothing. */
static uint32_t tap_make(struct work *w, double capacity)
{
    w->taps[w->tap_count] = (struct tap){.left = capacity > 0 ? capacity : 0};
    return ++w->tap_count;
}

static void count_uses(struct work *w, struct bt_maxmin_flow *flows, size_t n,
                       const double *capacity)
{
    for (size_t i = 0; i < n; i++) {
        struct bt_maxmin_flow *f = &flows[i];

        f->rate = -1; /* not frozen */
        for (uint32_t k = 0; k < f->count; k++) {
            uint32_t *slot = &w->slot_of[f->links[k]];

            if (*slot == 0)
                *slot = tap_make(w, capacity[f->links[k]]);
            w->taps[*slot - 1].count++;
        }
        w->cap_tap[i] = 0;
        if (!(f->cap_bytes_per_s > 0))
            continue;
        w->cap_tap[i] = tap_make(w, f->cap_bytes_per_s);
        w->taps[w->cap_tap[i] - 1].count++;
    }
}

static void add_member(struct work *w, uint32_t slot, size_t flow)
{
    struct tap *tap = &w->taps[slot - 1];

    w->members[tap->first + tap->active++] = (uint32_t)flow;
}

static void list_members(struct work *w, const struct bt_maxmin_flow *flows,
                         size_t n)
{
    uint32_t first = 0;

    for (uint32_t i = 0; i < w->tap_count; i++) {
        w->taps[i].first = first;
        first += w->taps[i].count;
    }
    for (size_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < flows[i].count; k++)
            add_member(w, w->slot_of[flows[i].links[k]], i);
        if (w->cap_tap[i] != 0)
            add_member(w, w->cap_tap[i], i);
    }
    for (uint32_t i = 0; i < w->tap_count; i++) {
        struct tap *tap = &w->taps[i];

        tap->at = i;
        w->live[i] = i;
        w->shares[i] = tap->left / tap->active;
    }
    w->live_count = w->tap_count;
}

static void freeze_on(struct work *w, uint32_t tap)
{
    if (w->taps[tap].frozen++ == 0)
        w->touched[w->touched_count++] = tap;
}

static void freeze(struct work *w, struct bt_maxmin_flow *flows, uint32_t flow,
                   double share)
{
    struct bt_maxmin_flow *f = &flows[flow];

    f->rate = share;
    for (uint32_t k = 0; k < f->count; k++)
        freeze_on(w, w->slot_of[f->links[k]] - 1);
    if (w->cap_tap[flow] != 0)
        freeze_on(w, w->cap_tap[flow] - 1);
}

static void freeze_members(struct work *w, struct bt_maxmin_flow *flows,
                           const struct tap *tap, double share)
{
    const uint32_t *members = &w->members[tap->first];

    for (uint32_t i = 0; i < tap->count; i++) {
        if (flows[members[i]].rate < 0)
            freeze(w, flows, members[i], share);
    }
}

/* Four chains, so that one comparison need not wait for the one before it. */
static double least_share(const struct work *w)
{
    double least[4] = {HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL};
    uint32_t i = 0;

    for (; i + 4 <= w->live_count; i += 4) {
        for (uint32_t k = 0; k < 4; k++)
            least[k] =
                w->shares[i + k] < least[k] ? w->shares[i + k] : least[k];
    }
    for (; i < w->live_count; i++)
        least[0] = w->shares[i] < least[0] ? w->shares[i] : least[0];
    for (uint32_t k = 1; k < 4; k++)
        least[0] = least[k] < least[0] ? least[k] : least[0];
    return least[0];
}

static void list_tied(struct work *w, double share)
{
    double within = share * TIE;

    w->tied_count = 0;
    for (uint32_t i = 0; i < w->live_count; i++) {
        if (w->shares[i] <= within)
            w->tied[w->tied_count++] = w->live[i];
    }
}

static void drop_tap(struct work *w, uint32_t at)
{
    uint32_t last = --w->live_count;

    w->live[at] = w->live[last];
    w->shares[at] = w->shares[last];
    w->taps[w->live[at]].at = at;
}

/* Give out what was frozen; taps without active flows are dropped. */
static void settle(struct work *w, double share)
{
    for (uint32_t i = 0; i < w->touched_count; i++) {
        struct tap *tap = &w->taps[w->touched[i]];

        tap->left -= share * tap->frozen;
        if (!(tap->left > 0))
            tap->left = 0;
        tap->active -= tap->frozen;
        tap->frozen = 0;
        if (tap->active > 0)
            w->shares[tap->at] = tap->left / tap->active;
        else
            drop_tap(w, tap->at);
    }
    w->touched_count = 0;
}

static void fill(struct work *w, struct bt_maxmin_flow *flows)
{
    while (w->live_count > 0) {
        double share = least_share(w);

        list_tied(w, share);
        for (uint32_t i = 0; i < w->tied_count; i++)
            freeze_members(w, flows, &w->taps[w->tied[i]], share);
        settle(w, share);
    }
}

void bt_maxmin_rates(struct bt_maxmin_flow *flows, size_t n,
                     const double *capacity, size_t link_count, void *scratch)
{
    struct work w = lay_out(scratch, n, link_count);

    count_uses(&w, flows, n, capacity);
    list_members(&w, flows, n);
    fill(&w, flows);
    for (size_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < flows[i].count; k++)
            w.slot_of[flows[i].links[k]] = 0;
        if (flows[i].rate < 0)
            flows[i].rate = HUGE_VAL;
    }
}
