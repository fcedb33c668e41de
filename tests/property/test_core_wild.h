/* Policies for random worlds: any feasible answer by the dice, with every
 * liberty that place.h gives a policy. They hold back and refuse when they may,
 * name a source now and then, let d serve alone, and at the hand-off name any
 * d, also one that cannot be taken. Some keep a memory, one of each order. */
#ifndef TEST_CORE_WILD_H
#define TEST_CORE_WILD_H

#include "baton/planner/place.h"

#define WILD_POLICIES 3

const struct bt_policy *wild_policy(size_t i);

#endif
