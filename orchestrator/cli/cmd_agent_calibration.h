/* --calibration FILE of `baton agent`. */
#ifndef BATON_CLI_CMD_AGENT_CALIBRATION_H
#define BATON_CLI_CMD_AGENT_CALIBRATION_H

#include "baton/transfer/agent.h"

#include <stdbool.h>
#include <stdint.h>

#define AGENT_STARTS_MAX 256u

/* Paths to the agent of that name, from the JSON of `baton probe`; none is no
 * fault. False after a message on stderr. */
bool agent_calibration_read(const char *path, const char *name,
                            struct bt_agent_start *out, uint32_t *count_out);

#endif
