/* Where traces are found by name. Private to orchestrator/cli. */
#ifndef BATON_CLI_TRACE_FIND_H
#define BATON_CLI_TRACE_FIND_H

#include <stdbool.h>
#include <stddef.h>

/* Path of a trace: the name itself when there is such a file or it names a
 * folder, else NAME, NAME.jsonl, NAME_trace.jsonl, NAME.csv in the folder that
 * BATON_TRACES names, then in ../shared/traces of the source tree the program
 * was built from. False: no such file; path_out is then the name. */
bool trace_find(const char *name, char *path_out, size_t size);
/* The folders, for messages: "A, B". */
void trace_folders(char *out, size_t size);

#endif
