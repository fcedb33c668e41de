/* Zeroed memory for large arenas. Decides when it is mapped and on which pages;
 * leaves to the caller what lies in it. A mapping starts at a huge page's
 * boundary and is whole pages long; what was mapped too much to reach that is
 * unmapped at once.
 */
#include "baton/orchestrator/big_memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* 0: too large. */
static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (bytes > SIZE_MAX - HUGE_PAGE - page)
        return 0;
    return (bytes + page - 1) / page * page;
}

void *bt_big_memory_take(size_t bytes)
{
    size_t size, before;
    unsigned char *at;

    if (bytes < BT_BIG_MEMORY_LEAST)
        return calloc(1, bytes > 0 ? bytes : 1);
    size = whole_pages(bytes);
    if (size == 0)
        return NULL;
    at = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    before = (HUGE_PAGE - (uintptr_t)at % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0)
        (void)munmap(at, before);
    if (before < HUGE_PAGE)
        (void)munmap(at + before + size, HUGE_PAGE - before);
    (void)madvise(at + before, size, MADV_HUGEPAGE); /* only a wish */
    return at + before;
}

void bt_big_memory_give(void *memory, size_t bytes)
{
    if (bytes < BT_BIG_MEMORY_LEAST)
        free(memory);
    else if (memory != NULL)
        (void)munmap(memory, whole_pages(bytes));
}
