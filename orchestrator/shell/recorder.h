/* The journal of a server (journal.file); see recorder.c. */
#ifndef BATON_SHELL_RECORDER_H
#define BATON_SHELL_RECORDER_H

#include "baton/orchestrator/core.h"

struct bt_serve;

/* Before the first step. core: as given to bt_core_init. Nothing to do without
 * journal.file. BT_IO, BT_LIMIT, BT_NO_MEMORY: error says what; recorder_stop
 * is called all the same. */
enum bt_status recorder_start(struct bt_serve *serve,
                              const struct bt_core_config *core, char *error,
                              size_t error_size);
/* After each step; effects: what that step added. */
void recorder_event(struct bt_serve *serve, const struct bt_event *event,
                    const struct bt_effects *effects);
/* Events that found the journal full or broken. */
uint64_t recorder_left_out(const struct bt_serve *serve);
void recorder_stop(struct bt_serve *serve);

#endif
