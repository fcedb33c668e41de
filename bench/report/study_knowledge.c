/* What the planner knows is wrong, late or missing: never below power of two
 * (mean TTFT and TTST within 1 %, SLO attainment within 1 point), which needs
 * no model, no events and no topology. K0 is the same cell told the truth. */
#include "study_priv.h"

#define WORLD .nic = 12500000000ULL, .racks = 4, .oversubscription = 4
#define FLOORS                                                                 \
    {                                                                          \
        {STUDY_FLOOR, STUDY_TTFT_MEAN, {.limit = 0.01}},                       \
            {STUDY_FLOOR, STUDY_TTST_MEAN, {.limit = 0.01}},                   \
        {                                                                      \
            STUDY_FLOOR, STUDY_ATTAINMENT,                                     \
            {                                                                  \
                .limit = 0.01                                                  \
            }                                                                  \
        }                                                                      \
    }
/* At 80 % of the best capacity, where rules part, and at 30 %, where power of
 * two has no queue to lose by. `other`: one more rival, or NULL. */
#define ROW_OF(id, text, subject, other, ...)                                  \
    {id,                                                                       \
     text,                                                                     \
     {WORLD, .load = 0.8, __VA_ARGS__},                                        \
     subject,                                                                  \
     {"power_of_two", other},                                                  \
     FLOORS},                                                                  \
    {                                                                          \
        id "l", text ", 30 % load", {WORLD, .load = 0.3, __VA_ARGS__},         \
            subject, {"power_of_two", other}, FLOORS                           \
    }
#define ROW(id, text, ...) ROW_OF(id, text, "joint", NULL, __VA_ARGS__)
/* Events that cannot be believed: by the fallback (guesses from placements,
 * self-check), which must not lose to doing without it; and without. */
#define BARE "joint+noapproximate+noselfcheck"
#define BLIND(id, text, ...)                                                   \
    ROW_OF(id, text ": guessed, checked", "joint+approximate+selfcheck", BARE, \
           __VA_ARGS__),                                                       \
        ROW_OF(id "n", text ": no fallback", BARE, NULL, __VA_ARGS__)
#define MS 1000000LL

const struct study_row STUDY_KNOWLEDGE[] = {
    ROW("K0", "as the cluster says: learned, telemetry, events", .stale_ns = 0),
    ROW("K1", "compute thought 30 % slower", .compute_bias = 0.3),
    ROW("K2", "compute thought 30 % faster", .compute_bias = -0.3),
    ROW("K3", "links thought 30 % faster", .link_bias = 0.3),
    ROW("K4", "links thought 30 % slower", .link_bias = -0.3),
    ROW("K5", "no telemetry", .stale_ns = -1),
    ROW("K6", "telemetry 10 ms old", .stale_ns = 10 * MS),
    ROW("K7", "telemetry 50 ms old", .stale_ns = 50 * MS),
    ROW("K8", "telemetry 500 ms old", .stale_ns = 500 * MS),
    ROW("K9", "1 % of event batches lost", .event_loss = 0.01),
    ROW("K10", "10 % of event batches lost", .event_loss = 0.1),
    BLIND("K11", "no events at all", .event_loss = 1),
    ROW("K12", "one decode NIC silently at 25 %", .degraded = 0.25),
    ROW("K13", "costs of workers and links shuffled, half the NICs at 1/8",
        .slow_nic = 1562500000ULL, .shuffled = true),
    BLIND("K14", "1 % of event batches lost for good", .event_loss = 0.01,
          .no_replay = true),
    BLIND("K15", "10 % of event batches lost for good", .event_loss = 0.1,
          .no_replay = true),
};
const size_t STUDY_KNOWLEDGE_COUNT =
    sizeof(STUDY_KNOWLEDGE) / sizeof(STUDY_KNOWLEDGE[0]);
