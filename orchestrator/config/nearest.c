/* Nearest of a list of words, for "did you mean": optimal string alignment
 * distance (insert, delete, replace, swap neighbours). Leaves the wording to
 * its callers. Words over WORD_MAX bytes have no neighbour. */
#include "baton/orchestrator/config.h"
#include <string.h>

#define WORD_MAX 63u

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

static size_t distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t rows[3][WORD_MAX + 1];
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3];
        const size_t *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t replace = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = min3(above[j] + 1, row[j - 1] + 1, replace);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
                a[i - 2] == b[j - 1] && above2[j - 2] + 1 < row[j])
                row[j] = above2[j - 2] + 1;
        }
    }
    return rows[na % 3][nb];
}

const char *bt_nearest(const char *word, const char *const *candidates,
                       size_t count)
{
    size_t length = strlen(word);
    size_t limit = length < 3 ? 1 : length < 6 ? 2 : 3;
    const char *best = NULL;
    if (length == 0 || length > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(candidates[i]);
        if (other == 0 || other > WORD_MAX)
            continue;
        size_t d = distance(word, length, candidates[i], other);
        /* A word cut short, or written out, is close whatever its length. */
        size_t shorter = length < other ? length : other;
        if (shorter >= 4 && strncmp(word, candidates[i], shorter) == 0 && d > 3)
            d = 3;
        if (d <= limit && d < (length > other ? length : other)) {
            best = candidates[i];
            limit = d > 0 ? d - 1 : 0;
            if (d <= 1)
                break;
        }
    }
    return best;
}
