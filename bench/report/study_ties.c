/* Where nothing may be gained (evaluation reference, section 11): within 1 % of
 * the median, 2 % of p99 and of goodput. The subject is the placement alone:
 * no holding, fetch, local prefill or prices on either side, so that those are
 * not what differs. "better" is outside the margin to our good: not a failure,
 * but not a tie either. */
#include "study_priv.h"

#define TIES                                                                   \
    {                                                                          \
        {STUDY_TIE, STUDY_TTFT_P50, {.limit = 0.01}},                          \
            {STUDY_TIE, STUDY_TTFT_P99, {.limit = 0.02}},                      \
            {STUDY_TIE, STUDY_TTST_P99, {.limit = 0.02}},                      \
        {                                                                      \
            STUDY_TIE, STUDY_GOODPUT,                                          \
            {                                                                  \
                .limit = 0.02                                                  \
            }                                                                  \
        }                                                                      \
    }
#define FLOORS                                                                 \
    {                                                                          \
        {STUDY_FLOOR, STUDY_TTFT_MEAN, {.limit = 0.01}},                       \
        {                                                                      \
            STUDY_FLOOR, STUDY_TTST_MEAN,                                      \
            {                                                                  \
                .limit = 0.01                                                  \
            }                                                                  \
        }                                                                      \
    }
#define BARE "joint:fetch=0,local=0+nohold+noprices"
#define S2   "s2:fetch=0,local=0+nohold+noprices"
#define S1   "s1:fetch=0,local=0+nohold+noprices"

const struct study_row STUDY_TIES[] = {
    {"T1",
     "uniform non-blocking fabric, 8 x 400G per worker",
     {.nic = 400 * GB, .load = 0.8},
     BARE,
     {"prefix_load"},
     TIES},
    {"T2",
     "layer-wise overlap, bandwidth far above the production rate",
     {.nic = 400 * GB, .layers = true, .load = 0.8},
     BARE,
     {"prefix_load"},
     TIES},
    {"T3",
     "prompts of 400 tokens, 34,560 bytes of KV per token (MLA)",
     {.nic = 50 * GB,
      .input = 400,
      .output = 200,
      .kv_bytes_per_token = 34560,
      .load = 0.8},
     BARE,
     {"prefix_load"},
     TIES},
    {"T4a",
     "one prefill worker",
     {.nic = 50 * GB, .prefill = 1, .decode = 8, .load = 0.8},
     BARE,
     {"prefix_load"},
     TIES},
    {"T4b",
     "one decode worker",
     {.nic = 50 * GB, .prefill = 8, .decode = 1, .load = 0.8},
     BARE,
     {"prefix_load"},
     TIES},
    {"T5",
     "all pairs in one NVLink domain (900 GB/s each)",
     {.nic = 900 * GB, .load = 0.8},
     BARE,
     {"prefix_load"},
     TIES},
    {"T6",
     "the prefix is on d already: 8K prompts, 97 % common",
     {.nic = 50 * GB, .input = 8192, .output = 200, .hit = 0.97, .load = 0.8},
     BARE,
     {"prefix_load"},
     TIES},
    {"T7",
     "overload, 130 % of the best capacity",
     {.nic = 50 * GB, .load = 1.3},
     BARE,
     {"prefix_load"},
     TIES},
    {"T8",
     "the slot is always later than the arrival",
     {.nic = 400 * GB,
      .prefill = 12,
      .decode = 4,
      .decode_slots = 16,
      .load = 0.9},
     BARE,
     {"prefix_load"},
     TIES},
    {"T9",
     "costs of workers and links shuffled: falls back to load + prefix",
     {.nic = 50 * GB, .slow_nic = 6250000000ULL, .shuffled = true, .load = 0.5},
     BARE,
     {"prefix_load"},
     FLOORS},
    {"T10a",
     "telemetry missing, events 500 ms stale: the static tier's level",
     {.nic = 12500000000ULL,
      .racks = 4,
      .oversubscription = 4,
      .stale_ns = -1,
      .load = 0.8},
     BARE,
     {S1},
     FLOORS},
    {"T10b",
     "telemetry 500 ms stale: never below power of two",
     {.nic = 12500000000ULL,
      .racks = 4,
      .oversubscription = 4,
      .stale_ns = 500000000LL,
      .load = 0.8},
     BARE,
     {"power_of_two"},
     FLOORS},
    {"T11",
     "very low load, 10 %",
     {.nic = 50 * GB, .load = 0.1},
     BARE,
     {"prefix_load"},
     TIES},
    {"T12",
     "compute bound: 8K prompts that share nothing, 8 x 400G",
     {.nic = 400 * GB, .input = 8192, .output = 200, .load = 0.8},
     BARE,
     {"prefix_load"},
     TIES},
    {"T13a",
     "4 racks 4:1 at 50 GB/s, against the sequential twin",
     {.nic = 50 * GB, .racks = 4, .oversubscription = 4, .load = 0.7},
     BARE,
     {S2},
     TIES},
    {"T13b",
     "flat 12.5 GB/s, against the sequential twin",
     {.nic = 12500000000ULL, .load = 0.7},
     BARE,
     {S2},
     TIES},
    {"T14",
     "half the capacity: held or not",
     {.nic = 50 * GB, .load = 0.5},
     "joint:fetch=0,local=0+noprices",
     {BARE},
     TIES},
};
const size_t STUDY_TIE_COUNT = sizeof(STUDY_TIES) / sizeof(STUDY_TIES[0]);
