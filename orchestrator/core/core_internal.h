/* Private shapes of the core: one struct per thing it keeps, and the calls the
 * files of this folder make to each other. See README.md for the map. */
#ifndef BT_CORE_INTERNAL_H
#define BT_CORE_INTERNAL_H

#include "baton/orchestrator/core.h"
#include "baton/planner/approx_index.h"
#include "baton/planner/calibrate.h"
#include "baton/planner/ledger.h"
#include "baton/planner/slot.h"

#define NO_SLOT UINT32_MAX

/* Most effects one unit of work (an event for one request) may add. Loops stop
 * when fewer are left; step() asserts that many on entry. */
#define UNIT_EFFECTS 4u

/* Prefetches on the way at once, in the whole fleet; one per worker. */
#define PREFETCHES_MAX 16u

/* A leg without own limit on its answer (whole_answer) ends after this. */
#define ANSWER_MAX_NS (3600LL * 1000000000LL)

/* One (worker, rank): a worker of the prefix index, its rank there 0. */
struct row {
    uint32_t worker;
    enum bt_stream_state stream;
    enum bt_stream_cause cause;
    bool guessed; /* the approximate index stands in */
    bool seeded;  /* with what events had told until then */
};

/* Self-check of one worker, see credit.c. Tokens. */
struct hits {
    uint64_t predicted, actual, unforeseen, checks;
    uint64_t unforeseen_checks; /* a block found or more, none predicted */
    uint64_t scored;            /* checks that told something of the credit */
    double came_true, sum;      /* of the recent ones, decayed */
    int64_t scored_ns;          /* the last one, or when the doubt was halved */
    bool reports;               /* it has reported cached tokens at all */
    bool disproved;
    double credit; /* 0..1 */
};

struct worker {
    const struct bt_core_worker_config *config; /* into core->worker_configs */
    enum bt_worker_state state;
    uint32_t row, ranks;         /* its rows: row .. row + ranks - 1 */
    enum bt_stream_state stream; /* worst of its rows, and what hits say */
    enum bt_stream_cause cause;
    struct hits hits;
    bool known;          /* READY since it was last pending or refused */
    uint32_t generation; /* 0 until the first READY */
    uint64_t incarnation;
    uint64_t kv_capacity_tokens; /* in force: configured, else reported */
    uint32_t block_tokens;
    /* In force: the configured one, or the calibrated. */
    const struct bt_compute_model *model;
    double prefill_error;               /* relative sigma, 0 unknown */
    uint64_t prefill_seen, decode_seen; /* observations */
    int64_t prefill_end_ns;       /* when the last prefill left its queue */
    int64_t prefill_disturbed_ns; /* when one left it otherwise than done */
    bool has_room; /* little enough work before it, as last looked at */
    uint32_t running, waiting;
    double kv_usage;
    int64_t stats_at_ns;
    uint32_t failures; /* consecutive */
    int64_t suspect_since_ns, suspect_until_ns;
};

/* A request that the policy holds back: enough to order it without looking at
 * the fleet or at the request. */
struct hold_item {
    uint32_t slot, model;
    uint64_t number, tenant;
    struct bt_order_item order; /* waited_ns and tenant_lead are set when it
                                   is looked at */
    int64_t asked_ns;
    uint64_t asked_epoch; /* struct model_state.epoch when it was asked */
};

/* Predictions below 100 ms, 400 ms, 1.6 s, and longer ones. */
#define TOTAL_SIZES 4

/* Per base model. */
struct model_state {
    /* Prefill workers with room, and others that serve locally, as last looked
     * at. */
    uint32_t room, local_room;
    uint64_t epoch; /* grows when a prefill worker gets room */
    struct bt_length output;
    uint64_t output_seen;
    /* Time to first token since the placement, over what was predicted: by
     * size of the prediction, of one reason and of all. Empty unless the core
     * calibrates. */
    struct bt_residual totals[BT_REASON_COUNT][TOTAL_SIZES];
    struct bt_residual total[TOTAL_SIZES];
};

/* One of the few held requests that a drain will ask about. */
struct hold_pick {
    struct bt_order_key key;
    uint64_t number;
    uint32_t slot;
};

struct request {
    uint32_t generation;
    bool live;
    enum bt_request_state state;
    uint32_t live_prev, live_next;   /* slots, acceptance order */
    uint32_t queue_prev, queue_next; /* slots, while QUEUED */
    uint64_t number;                 /* of acceptance, from 1 */
    struct bt_ev_request ask;
    uint32_t prompt_tokens; /* >= 1 */
    uint32_t output_tokens; /* expected, >= 1 */
    struct bt_booking booking;
    struct bt_worker_id p, d;        /* of the last placement; p may be none */
    struct bt_place_source source;   /* of it; tokens 0: none */
    bool held;                       /* the policy wants it later */
    uint32_t held_at;                /* then: place in core->held */
    struct bt_place_source prefetch; /* sent ahead, tokens 0: nothing */
    struct bt_worker_id prefetch_to;
    int64_t prefetch_until_ns; /* when it is there, as predicted */
    bool leg_out;              /* an attempt is out: its leg and number below */
    enum bt_leg leg;
    uint32_t attempt;
    int64_t sent_ns;
    bool with_params;    /* the leg D that is out carries P's parameters */
    bool handoff_held;   /* P answered with parameters, no D has seen them */
    bool no_params_seen; /* one retry only for an answer without hand-off */
    bool transfer_clean; /* d had room when leg D was sent: its first token
                            tells the time of the transfer */
    int64_t progress_ns; /* last sign of life of leg D */
    int64_t promised_at_ns, promised_ns; /* last placement, its total */
    /* Of the prefill that was placed last; credit.c. */
    bool predicted_known, predicted_fetch;
    uint32_t predicted_tokens; /* to be found in its cache */
    bool has_rank;             /* record.overlap_rank should get leg P */
    struct bt_decision record;
};

/* What a placement is asked for; a request or a what-if. */
struct place_query {
    uint32_t model;
    uint32_t prompt_tokens, output_tokens; /* both >= 1 */
    bool tokens_known;
    const uint64_t *keys;
    size_t key_count;
    const struct request *request; /* workers it tried are avoided; or NULL */
    bool allow_tried_d;            /* a d that failed it is better than none */
    bool may_hold;                 /* the policy may answer BT_AGAIN */
    uint64_t body_bytes;
    int64_t waited_ns, ttft_slo_ns;
};

/* Who may be chosen, after tiers: marks[slot] holds bits of enum bt_role. */
struct eligible {
    uint32_t p_count, d_count;
};

/* Retries: `min` per window are free, the rest come from a bucket that every
 * accepted request fills by `ratio`. Millionths of a retry. */
struct retry_budget {
    uint64_t ratio_e6, bucket_e6;
    uint32_t min, used;
    int64_t window_start_ns;
};

/* What view_links shows beside idle links: reset by the next build. Behind a
 * pointer, so that a copy of the core's head shares it. */
struct view_marks {
    size_t *busy; /* positions in view_links with flows, requests_max */
    size_t busy_count;
    bool closed; /* some links are shown without a rate */
    struct bt_place_bounds bounds;
    bool bounded; /* bounds hold for every pair; only flows_max changes */
};

/* Learned models; NULL in the core unless config.calibrate. */
struct calibration {
    struct bt_compute_calibration *workers; /* by slot */
    struct bt_link_calibration *links;      /* of the topology; may be NULL */
    struct bt_setup_calibration setups[BT_PATH_CLASS_COUNT];
    int64_t age_at_ns; /* when links are looked at for their age next */
};

struct bt_core {
    struct bt_core_config config;
    struct bt_core_worker_config *worker_configs;
    struct worker *workers;
    size_t *link_row;               /* of p; 0 when it never prefills */
    uint32_t *link_column;          /* of d; 0 when it never decodes */
    int64_t *pair_suspect_until_ns; /* [core_pair_at(p, d)] */
    int64_t any_pair_suspect_until_ns;
    int64_t credit_age_at_ns; /* when doubts are looked at next */
    struct request *requests;
    uint32_t *free_slots; /* ring, first in first out */
    uint32_t free_head, free_count;
    uint32_t live_first, live_last, live_count;
    uint32_t queue_first, queue_last, queue_count;
    struct bt_ledger *ledger;
    struct bt_network *network; /* NULL: no topology */
    struct bt_prefix_index *index;
    struct row *rows;
    uint32_t row_count;
    uint32_t guessed_rows;          /* of them */
    struct bt_approx_index *approx; /* NULL: never guess */
    int64_t guess_now_ns;           /* time of the step; not of a what-if */
    struct bt_policy_state policy_state;
    size_t policy_memory_bytes; /* of policy_state.memory */
    void *guest_memory;         /* of policies in what-ifs; NULL: none */
    size_t guest_memory_bytes;
    struct calibration *calibration;
    struct model_state *models;
    uint32_t *paces; /* workers with different compute models, see slo.c */
    uint32_t pace_count;
    struct bt_fairness fairness;
    uint64_t accepted;
    int64_t deadline_ns;    /* no limit of timers.c ends before */
    int64_t drain_at_ns;    /* when held requests are looked at again */
    struct hold_item *held; /* requests_max, in no order */
    uint32_t held_count;
    struct bt_order_turn turn;
    bool oldest_due;         /* the next dispatch is the longest waiting's */
    struct hold_pick *picks; /* scratch of a drain, config.hold.ask_max */
    /* Where the request that was held last is likely to go, until
     * core_prefetch has looked at it; likely_of NO_SLOT: nobody's. */
    struct bt_place_candidate likely;
    uint32_t likely_of;
    uint32_t prefetches[PREFETCHES_MAX]; /* slots of requests, in no order */
    uint32_t prefetch_count;             /* of them; see prefetch.c */
    struct retry_budget budget;
    struct bt_core_counters counters;
    int64_t now_ns;
    /* scratch of one placement */
    struct bt_place_worker *view_workers;
    struct bt_place_link *view_links; /* [core_pair_at(p, d)] */
    struct view_marks *view_marks;
    uint64_t *flows;  /* requests_max: each request has one transfer at most */
    uint32_t *depths; /* [worker * BT_TIERS + tier] */
    /* The same by row; the same array when there are no ranks. */
    uint32_t *row_depths;
    uint32_t *guess_depths; /* [row]; NULL without approx */
    unsigned char *marks, *tiers_p, *tiers_d;
};

/* request_states.c: assert the step and keep the live gauges. */
bool core_request_state_is_live(enum bt_request_state state);
void core_request_move(struct bt_core *core, struct request *r,
                       enum bt_request_state next);

/* requests.c */
struct request *core_request_take(struct bt_core *core); /* NULL: none free */
void core_request_give(struct bt_core *core, struct request *r);
struct request *core_request_find(struct bt_core *core,
                                  struct bt_request_id id);
struct bt_request_id core_request_id_of(const struct bt_core *core,
                                        const struct request *r);
uint32_t core_request_slot_of(const struct bt_core *core,
                              const struct request *r);

/* setup.c */
struct bt_policy_limits core_policy_limits(const struct bt_core_config *config);

/* queue.c */
bool core_queue_push(struct bt_core *core, struct request *r); /* false: full */
void core_queue_remove(struct bt_core *core, struct request *r);
/* Those that nobody could take. */
void core_queue_drain(struct bt_core *core, struct bt_effects *fx);

/* hold.c: those that the policy holds back. */
void core_hold_note_again(struct bt_core *core, struct request *r,
                          const struct bt_place_view *view,
                          const struct bt_placement *answer);
void core_hold_forget(struct bt_core *core, struct request *r);
/* A held request that no other of its model goes before, as of now. */
bool core_hold_is_first(struct bt_core *core, const struct request *r);
/* A booking was made on the worker. */
void core_hold_note_booked(struct bt_core *core, uint32_t slot);
/* Something ended or came back: look again at the end of this step. */
void core_hold_kick(struct bt_core *core);
/* Asks the policy for the first ones if it is time; leaves `reserve` effects
 * free. */
void core_hold_drain(struct bt_core *core, struct bt_effects *fx,
                     size_t reserve);

/* prefetch.c: a prefix ahead of a held request that hold.c has just noted; and
 * its end: the request is placed with its prefill on worker p (before that is
 * booked), or ends, p NO_SLOT. What is still on the way to p stays booked and
 * r->source names it. */
void core_prefetch(struct bt_core *core, struct request *r,
                   struct bt_effects *fx);
void core_prefetch_end(struct bt_core *core, struct request *r, uint32_t p);

/* slo.c: TTFT limit of a prompt, 0 none; and the least time of its prefill. */
void core_paces_find(struct bt_core *core);
int64_t core_fastest_prefill_ns(const struct bt_core *core, uint32_t model,
                                uint32_t prompt_tokens);
int64_t core_ttft_slo_ns(const struct bt_core *core, uint32_t model,
                         uint32_t prompt_tokens);

/* learn.c: what is observed; each does nothing unless config.calibrate. */
void core_learn_start(struct bt_core *core);
/* Rates of links that nothing was sent over for long; cheap when not due. */
void core_learn_age(struct bt_core *core);
/* Before the ledger lets the prefill go. cached_tokens 0: not reported. */
void core_learn_prefill(struct bt_core *core, const struct request *r,
                        const struct bt_ev_prefill_done *ev);
void core_learn_prefill_end(struct bt_core *core, const struct request *r,
                            bool done);
void core_learn_handoff(struct bt_core *core, struct request *r);
void core_learn_first_token(struct bt_core *core, const struct request *r);
void core_learn_second_token(struct bt_core *core, const struct request *r);
void core_learn_output(struct bt_core *core, const struct request *r);
/* At each placement: what is predicted of it, and its p90 for the record. */
void core_promise(struct bt_core *core, struct request *r);
void core_learn_total(struct bt_core *core, const struct request *r);
uint32_t core_expected_output(const struct bt_core *core, uint32_t model,
                              uint32_t max_tokens);

/* workers.c */
enum bt_status core_worker_state_event(struct bt_core *core,
                                       const struct bt_ev_worker_state *ev);
struct bt_worker_id core_worker_id_of(const struct bt_core *core,
                                      uint32_t slot);
bool core_worker_is_current(const struct bt_core *core, struct bt_worker_id id);
bool core_worker_is_suspect(const struct bt_core *core, uint32_t slot);
void core_worker_failed(struct bt_core *core, struct bt_worker_id id);
void core_worker_succeeded(struct bt_core *core, struct bt_worker_id id,
                           int64_t sent_ns);
void core_pair_suspect(struct bt_core *core, struct bt_worker_id p,
                       struct bt_worker_id d);
bool core_pair_is_suspect(const struct bt_core *core, uint32_t p, uint32_t d);

/* budget.c */
void core_budget_init(struct retry_budget *budget, double ratio, uint32_t min);
void core_budget_request(struct retry_budget *budget);
bool core_budget_take(
    struct bt_core *core); /* counts retries, retries_denied */

/* eligible.c */
struct eligible core_eligible_mark(const struct bt_core *core,
                                   const struct place_query *q);
bool core_decode_may_ever_fit(const struct bt_core *core,
                              const struct place_query *q);

/* Tables of pairs have a row for each worker that may prefill and a column for
 * each that may decode. Other pairs have no place in them. */
static inline bool core_roles_allow(const struct bt_core *core, uint32_t p,
                                    uint32_t d)
{
    return (core->worker_configs[p].roles & BT_ROLE_PREFILL) != 0 &&
           (core->worker_configs[d].roles & BT_ROLE_DECODE) != 0;
}

static inline size_t core_pair_at(const struct bt_core *core, uint32_t p,
                                  uint32_t d)
{
    return core->link_row[p] + core->link_column[d];
}

/* view_links.c: fill before bounds, both with fresh marks. */
size_t core_view_pairs(const struct bt_core_config *config);
void core_view_start(struct bt_core *core);
void core_view_links_fill(const struct bt_core *core);
const struct bt_place_bounds *
core_view_links_bounds(const struct bt_core *core);
void core_view_avoid_suspect_pairs(const struct bt_core *core,
                                   const struct bt_place_view *view);

/* view.c: marks must be fresh. */
void core_view_build(const struct bt_core *core, const struct place_query *q,
                     struct bt_place_view *view_out);
enum bt_stream_state core_view_worst_stream(const struct bt_core *core,
                                            enum bt_stream_cause *cause_out);
/* Keys that are looked at. */
size_t core_key_count(const struct bt_core *core, const struct place_query *q);
/* Whole blocks, at most the prompt. */
uint32_t core_tokens_of(const struct bt_core *core, const struct place_query *q,
                        uint32_t blocks);
/* When d has room for `need` more KV tokens, see view.c. */
int64_t core_decode_free_ns(const struct bt_core *core, uint32_t slot,
                            uint64_t need, uint32_t output_tokens);

/* rows.c: KV events, one row of the index per (worker, rank). */
uint32_t core_rows_total(const struct bt_core_config *config);
void core_rows_start(struct bt_core *core);
enum bt_status core_kv_event(struct bt_core *core,
                             const struct bt_event *event);
/* A new process: nothing is known of what it holds. */
void core_rows_forget(struct bt_core *core, uint32_t slot);
int core_stream_badness(enum bt_stream_state state);
/* Its rows or its hits have changed: state and cause of the worker anew. */
void core_worker_stream_update(struct bt_core *core, uint32_t slot);

/* guess.c: the approximate index; each does nothing for rows that are not
 * guessed. */
void core_guess_start(struct bt_core *core);
void core_guess_mode(struct bt_core *core, uint32_t row);
void core_guess_store(struct bt_core *core, uint32_t row,
                      const struct bt_kv_store *store);
/* Key of a hash that is about to be removed; false: nothing to do. */
bool core_guess_key(const struct bt_core *core, uint32_t row, uint64_t hash,
                    uint64_t *key_out);
/* It has been removed: gone, unless another hash or tier holds it. */
void core_guess_removed(struct bt_core *core, uint32_t row, uint64_t key);
void core_guess_clear(struct bt_core *core, uint32_t row);
void core_guess_capacity(struct bt_core *core, uint32_t slot);
/* The worker computes or gets the whole prompt. */
void core_guess_prompt(struct bt_core *core, const struct request *r,
                       uint32_t slot, uint32_t rank);
void core_guess_expire(struct bt_core *core);

/* overlap.c: depths of the workers, and what the record says of them. */
void core_overlap_match(const struct bt_core *core,
                        const struct place_query *q);
/* Blocks of depths that count for a worker's prefill, without credit. */
uint32_t core_overlap_blocks(const struct bt_core *core, uint32_t slot);
/* After a choice, while its view is there. */
void core_overlap_note(struct bt_core *core, struct request *r,
                       const struct place_query *q, uint32_t slot);

/* credit.c: predicted hits against those that engines report. */
void core_credit_start(struct bt_core *core, uint32_t slot);
uint32_t core_credit_of(const struct worker *w, uint32_t blocks);
/* Called at each event: doubts that nothing confirms. */
void core_credit_age(struct bt_core *core);
void core_credit_check(struct bt_core *core, struct request *r,
                       struct bt_worker_id worker, uint32_t cached_tokens);

/* placing.c: choose and book, or BT_NO_WORKER with nothing booked. */
struct place_query core_query_of(const struct bt_core *core,
                                 const struct request *r);
enum bt_status core_policy_choose(const struct bt_core *core,
                                  struct bt_policy_state *state,
                                  const struct bt_place_view *view,
                                  const struct place_query *q,
                                  struct bt_placement *out);
enum bt_status core_plain_choose(const struct bt_core *core,
                                 const struct bt_place_view *view,
                                 struct bt_placement *out);
/* With may_hold also BT_AGAIN (r->held) and BT_OVERLOADED. */
enum bt_status core_place_pair(struct bt_core *core, struct request *r,
                               bool may_hold);
enum bt_status core_place_plain(struct bt_core *core, struct request *r,
                                enum bt_reason reason, bool allow_tried_d);
enum bt_status core_place_handoff(struct bt_core *core, struct request *r);
void core_book(struct bt_core *core, struct request *r,
               const struct bt_place_candidate *c);

/* handoff.c: d chosen anew while the KV lies on p; the booking moves. */
void core_handoff_reconsider(struct bt_core *core, struct request *r);

/* life.c: acceptance, first placement, the end. */
enum bt_status core_request_event(struct bt_core *core,
                                  const struct bt_ev_request *ev,
                                  struct bt_effects *fx);
enum bt_status core_client_gone_event(struct bt_core *core,
                                      struct bt_request_id id,
                                      struct bt_effects *fx);
/* BT_AGAIN: nobody can take it now, or the policy holds it back (state
 * unchanged); else it was handled. */
enum bt_status core_request_dispatch(struct bt_core *core, struct request *r,
                                     struct bt_effects *fx);
void core_request_finish(struct bt_core *core, struct request *r,
                         enum bt_outcome outcome, int status,
                         struct bt_effects *fx);
void core_request_finish_unplaced(struct bt_core *core, struct request *r,
                                  struct bt_effects *fx);

/* legs.c: what is sent and taken back. */
void core_send_prefill(struct bt_core *core, struct request *r,
                       struct bt_effects *fx);
void core_send_decode(struct bt_core *core, struct request *r, bool with_params,
                      struct bt_effects *fx);
void core_send_placed(struct bt_core *core, struct request *r,
                      struct bt_effects *fx);
void core_leg_abort(struct bt_core *core, struct request *r,
                    struct bt_effects *fx);
void core_handoff_abandon(struct bt_core *core, struct request *r,
                          struct bt_effects *fx);
bool core_handoff_is_usable(const struct bt_core *core,
                            const struct request *r);
struct bt_effect *core_effect_add(struct bt_core *core, struct bt_effects *fx,
                                  enum bt_effect_type type,
                                  const struct request *r);
size_t core_effects_room(const struct bt_effects *fx);

/* prefill_leg.c, decode_leg.c: how a leg ended and what follows. */
struct leg_failure {
    enum bt_leg_failure how;
    int status;
    bool bytes_sent;
};
enum bt_status core_prefill_done_event(struct bt_core *core,
                                       const struct bt_ev_prefill_done *ev,
                                       struct bt_effects *fx);
void core_prefill_failed(struct bt_core *core, struct request *r,
                         const struct leg_failure *failure,
                         struct bt_effects *fx);
enum bt_status core_progress_event(struct bt_core *core,
                                   const struct bt_ev_progress *ev, bool first);
enum bt_status core_decode_done_event(struct bt_core *core,
                                      const struct bt_ev_progress *ev,
                                      struct bt_effects *fx);
void core_decode_failed(struct bt_core *core, struct request *r,
                        const struct leg_failure *failure,
                        struct bt_effects *fx);
enum bt_status core_leg_failed_event(struct bt_core *core,
                                     const struct bt_ev_leg_failed *ev,
                                     struct bt_effects *fx);
bool core_failure_is_client_error(const struct leg_failure *failure);
bool core_failure_is_charged(const struct leg_failure *failure);
int core_failure_status(const struct leg_failure *failure);

/* timers.c */
void core_timers_scan(struct bt_core *core, struct bt_effects *fx);
/* The request has entered a phase with another limit. */
void core_timers_note(struct bt_core *core, const struct request *r);

/* record.c */
void core_record_open(struct bt_core *core, struct request *r);
void core_record_placement(struct bt_core *core, struct request *r,
                           const struct bt_placement *placement);
void core_record_handoff(struct bt_core *core, struct request *r,
                         const struct bt_place_candidate *c);
void core_record_fallback(struct bt_core *core, struct request *r,
                          enum bt_fallback fallback);
void core_record_attempt(struct bt_core *core, struct request *r,
                         enum bt_leg leg, struct bt_worker_id worker);
void core_record_attempt_end(struct bt_core *core, struct request *r, bool ok,
                             enum bt_leg_failure how, int status);
bool core_record_tried(const struct request *r, enum bt_leg leg, uint32_t slot);
bool core_record_failed_on(const struct request *r, uint32_t slot);

#endif
