/* Bytes of a snapshot file (snapshot.h has the layout), and what saver.c needs
 * of a writer. */
#ifndef BATON_INDEX_SNAPSHOT_FORM_H
#define BATON_INDEX_SNAPSHOT_FORM_H

#include "baton/orchestrator/snapshot.h"

#define SNAPSHOT_MAGIC       "BTPFXSN1"
#define SNAPSHOT_MAGIC_BYTES 8u
#define SNAPSHOT_HEAD_BYTES  16u
#define SNAPSHOT_TAIL_BYTES  21u /* 'E', sources, entries, checksum */

#define SNAPSHOT_SOURCE 'S'
#define SNAPSHOT_RANK   'R'
#define SNAPSHOT_END    'E'

#define MARK_STARTED   1u
#define MARK_FROM_ZERO 2u
#define MARK_HOLE      4u
#define MARK_SET       8u
#define MARK_FLAGS     15u

#define ENTRY_KEYED  1u
#define ENTRY_NS     2u
#define ENTRY_TIER   4u /* shifted by the tier */
#define ENTRY_TIERS  0x3cu
#define ENTRY_COUNTS 0x40u

/* First bytes of the file. */
void snapshot_begin(struct bt_snapshot_writer *writer);
/* Closes and frees, leaves the file to the child that has it as well. */
void snapshot_forget(struct bt_snapshot_writer *writer);
int snapshot_fd(const struct bt_snapshot_writer *writer);
/* Takes PATH.tmp away. */
void snapshot_temporary(const char *path);
/* The same of the writer's. */
void snapshot_unlink(const struct bt_snapshot_writer *writer);

#endif
