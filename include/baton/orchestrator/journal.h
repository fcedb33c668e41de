/* The journal: every event that went into a core, with the configuration it
 * was made from, so that the same decisions can be made again, or other ones
 * (`baton replay`). Written by `baton serve` (journal.file) and by the
 * simulator. Holds no prompt, token, body or cache salt: own block keys,
 * engine hashes, counts and times only.
 *
 *   file    "BATONJ1\n" u32 version, then records
 *   record  u32 bytes of payload, u8 type, payload, u32 check
 *           check = low half of XXH3_64(type || payload)
 *   types   1 configuration (first, once), 2 event, 3 end (events written,
 *           events left out)
 *
 * Little-endian throughout. A file that was cut (crash, full disk) reads up to
 * its last whole record and then says BT_TRUNCATED.
 */
#ifndef BATON_ORCHESTRATOR_JOURNAL_H
#define BATON_ORCHESTRATOR_JOURNAL_H

#include "baton/orchestrator/core.h"
#include <stddef.h>
#include <stdint.h>

/* Running hash of what a core answered: every field of every effect but the
 * decision, of which the outcome and the last placement count. Equal hashes
 * over the same events: equal decisions. */
uint64_t bt_effects_hash(uint64_t before, const struct bt_effects *effects);

/* ---- writing ---- */

struct bt_journal_writer;

/* A file that is there is replaced; a new one only its owner may read. config
 * as given to bt_core_init; spec: what its topology was compiled from,
 * NULL without one. bytes_max: the file does not grow beyond it, later events
 * are left out and counted (0: 1 GiB). BT_IO with errno; BT_LIMIT: no room
 * for the configuration; BT_NO_MEMORY. */
enum bt_status bt_journal_create(const char *path,
                                 const struct bt_core_config *config,
                                 const struct bt_topology_spec *spec,
                                 uint64_t bytes_max,
                                 struct bt_journal_writer **out);
/* The same into an open file, which is the writer's from then on: closed also
 * when this fails. */
enum bt_status bt_journal_create_fd(int fd, const struct bt_core_config *config,
                                    const struct bt_topology_spec *spec,
                                    uint64_t bytes_max,
                                    struct bt_journal_writer **out);
/* After the step that took the event; effects: what that step added. Store
 * events are written with own keys looked up in the core. Buffered; BT_IO is
 * reported once and ends the writing, BT_LIMIT when the file is full. */
enum bt_status bt_journal_event(struct bt_journal_writer *writer,
                                const struct bt_core *core,
                                const struct bt_event *event,
                                const struct bt_effects *effects);
uint64_t bt_journal_left_out(const struct bt_journal_writer *writer);
/* Writes the end record. BT_IO. writer may be NULL. */
enum bt_status bt_journal_close(struct bt_journal_writer *writer);

/* ---- reading ---- */

struct bt_journal_reader;

struct bt_journal_entry {
    struct bt_event event; /* arrays live until the next entry is read */
    uint64_t effects_hash; /* running, after this event, as recorded */
};

/* BT_NOT_FOUND: no such file; BT_INVALID, BT_INCOMPATIBLE (another version),
 * BT_TRUNCATED, BT_CHECKSUM: error_out says what at which byte. */
enum bt_status bt_journal_open(const char *path, struct bt_journal_reader **out,
                               char *error_out, size_t error_size);
/* Owned by the reader; policy may be NULL when this build does not know it
 * (policy_name says which). The topology is compiled. */
const struct bt_core_config *
bt_journal_config(const struct bt_journal_reader *reader);
const char *bt_journal_policy(const struct bt_journal_reader *reader);
/* BT_OK; BT_NOT_FOUND at a proper end; else as bt_journal_open. */
enum bt_status bt_journal_next(struct bt_journal_reader *reader,
                               struct bt_journal_entry *out, char *error_out,
                               size_t error_size);
void bt_journal_reader_close(struct bt_journal_reader *reader);

#endif
