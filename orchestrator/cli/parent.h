/* --die-with-parent of the long-running subcommands. */
#ifndef BATON_CLI_PARENT_H
#define BATON_CLI_PARENT_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PARENT_ENV "BATON_PARENT_PID"

/* From now on this process is killed when its parent ends. False, with a line
 * on stderr: the parent has ended already, which no signal would tell. That is
 * seen by its pid if the parent left it in BATON_PARENT_PID, else by an adopter
 * with pid 1 or one that came meanwhile. A parent that is pid 1 itself, or one
 * below a sub-reaper, has to set the variable. Call it before any thread is
 * started. */
static inline bool parent_follow(const char *command)
{
    const char *told = getenv(PARENT_ENV);
    char *end = NULL;
    long parent = told != NULL ? strtol(told, &end, 10) : (long)getppid();
    bool known = told != NULL ? end != told && *end == '\0' : parent != 1;
    if (known && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 &&
        (long)getppid() == parent) {
        return true;
    }
    fprintf(stderr,
            "baton %s: the parent has ended (" PARENT_ENV " names it)\n",
            command);
    return false;
}

#endif
