/* Memory for an arena, large and read at random: the tables of the core and of
 * a prefix index. From BT_BIG_MEMORY_LEAST on it is mapped on huge pages, where
 * the kernel gives them (transparent_hugepage `always` or `madvise`), so that a
 * look-up does not also miss the page tables; below, it is the heap's. The
 * bound is that high because each table touched then takes 2 MiB at least: an
 * idle server with the default 279 MiB would grow by 10 MiB, for look-ups
 * about 5 % faster.
 */
#ifndef BATON_ORCHESTRATOR_BIG_MEMORY_H
#define BATON_ORCHESTRATOR_BIG_MEMORY_H

#include <stddef.h>

#define BT_BIG_MEMORY_LEAST ((size_t)1 << 30)

/* `bytes` of zeros, the caller's until given back with the same size; pages
 * that nobody touches take no memory. NULL: there is none. Blocks as malloc. */
void *bt_big_memory_take(size_t bytes);
/* NULL is fine. */
void bt_big_memory_give(void *memory, size_t bytes);

#endif
