/* Whether this process has file descriptors left. */
#ifndef BATON_TRANSFER_DESCRIPTORS_H
#define BATON_TRANSFER_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>

#define BT_DESCRIPTORS_MAX 64u /* that can be asked about */

/* Could `count` (1..BT_DESCRIPTORS_MAX) be opened now? Takes that many for some
 * microseconds: the number in use says little, they may be used up by others
 * on this machine as well (ENFILE). Any thread. */
bool bt_descriptors_left(uint32_t count);

#endif
