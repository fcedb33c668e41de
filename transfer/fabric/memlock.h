/* The limit of locked memory of this process, which registrations count
 * against (field-failures E07, E08). */
#ifndef BATON_TRANSFER_FABRIC_MEMLOCK_H
#define BATON_TRANSFER_FABRIC_MEMLOCK_H

#include <stdbool.h>
#include <stddef.h>

/* Soft limit up to the hard one; true if that changed it. */
bool bt_memlock_raise(void);
/* ", locked memory (memlock) is limited to 65536 bytes"; "" without a limit. */
void bt_memlock_text(char *out, size_t size);

#endif
