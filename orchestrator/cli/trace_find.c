/* See trace_find.h. A path is never guessed at: only a bare name is looked
 * for in the folders. */
#include "trace_find.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool fits(char *path, size_t size, const char *folder, const char *name,
                 const char *ending)
{
    int used = snprintf(path, size, "%s/%s%s", folder, name, ending);

    return used > 0 && (size_t)used < size && access(path, R_OK) == 0;
}

static bool look(const char *folder, const char *name, char *path, size_t size)
{
    static const char *const endings[] = {"", ".jsonl", "_trace.jsonl", ".csv"};

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
        if (fits(path, size, folder, name, endings[i]))
            return true;
    return false;
}

bool trace_find(const char *name, char *path_out, size_t size)
{
    const char *told = getenv("BATON_TRACES");

    if (!strchr(name, '/') && name[0] && access(name, R_OK) != 0) {
        if (told && told[0] && look(told, name, path_out, size))
            return true;
        if (look(BATON_TRACE_SOURCE_DIR, name, path_out, size))
            return true;
    }
    snprintf(path_out, size, "%s", name);
    return access(name, R_OK) == 0;
}

void trace_folders(char *out, size_t size)
{
    const char *told = getenv("BATON_TRACES");

    snprintf(out, size, "%s%s%s", told ? told : "", told && told[0] ? ", " : "",
             BATON_TRACE_SOURCE_DIR);
}
