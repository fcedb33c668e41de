/* Decisions per second of the joint policy on fleets of several sizes. Private
 * to bench/micro. */
#ifndef BENCH_MICRO_PLACE_SPEED_H
#define BENCH_MICRO_PLACE_SPEED_H

#include "baton/base/status.h"
#include "baton/bench/micro.h"
#include <stdint.h>

/* Rows and speeds for 8x8, 64x64, 256x256 and 1,000x1,000. BT_NO_MEMORY;
 * BT_NO_WORKER: a decision found no worker, which these fleets always have. */
enum bt_status place_speed(uint64_t seed, uint32_t largest,
                           struct bt_micro_report *report);

#endif
