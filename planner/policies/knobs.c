/* Knobs of policies as text: "name:knob=value,knob=value". Decides what a spec
 * means and says what is wrong with it, with the nearest name; leaves files and
 * command lines to their readers. Values are plain decimals; each knob at most
 * once, within its range.
 */
#include "baton/planner/place.h"

#include <stdio.h>
#include <string.h>

/* Longest name or value of a spec; longer ones are no names. */
#define WORD_MAX 40

static const struct bt_policy_knob *knobs_of(const struct bt_policy *policy)
{
    static const struct bt_policy_knob none = {0};

    return policy->knobs != NULL ? policy->knobs : &none;
}

void bt_policy_defaults(const struct bt_policy *policy,
                        double knobs_out[BT_POLICY_KNOBS_MAX])
{
    const struct bt_policy_knob *knobs = knobs_of(policy);

    memset(knobs_out, 0, BT_POLICY_KNOBS_MAX * sizeof(knobs_out[0]));
    for (size_t i = 0; i < BT_POLICY_KNOBS_MAX && knobs[i].name != NULL; i++)
        knobs_out[i] = knobs[i].value;
}

/* ---- nearest name ---- */

static size_t least3(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;

    return least < c ? least : c;
}

/* Letters to add, drop or change. */
static size_t distance(const char *a, const char *b)
{
    size_t row[WORD_MAX + 1], n = strlen(b);

    if (n > WORD_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t corner = row[0];

        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t above = row[j + 1];

            row[j + 1] =
                least3(above + 1, row[j] + 1, corner + (a[i] == b[j] ? 0 : 1));
            corner = above;
        }
    }
    return row[n];
}

struct nearest {
    const char *name;
    size_t distance;
};

static void offer_name(struct nearest *best, const char *word, const char *name)
{
    size_t d = distance(word, name);

    if (d < best->distance)
        *best = (struct nearest){name, d};
}

/* ---- pieces of a spec ---- */

/* Up to `stop` or the end; false: empty or too long. */
static bool take_word(const char **at, const char *stop, char out[WORD_MAX + 1])
{
    size_t n = strcspn(*at, stop);

    if (n == 0 || n > WORD_MAX)
        return false;
    memcpy(out, *at, n);
    out[n] = '\0';
    *at += n;
    return true;
}

/* digits[.digits], an optional sign; exact to the last of 15 digits. */
static bool number_of(const char *text, double *out)
{
    bool minus = *text == '-', point = false;
    unsigned int digits = 0;
    double whole = 0, scale = 1;

    text += minus;
    for (; *text != '\0'; text++) {
        if (*text == '.' && !point) {
            point = true;
            continue;
        }
        if (*text < '0' || *text > '9' || ++digits > 15)
            return false;
        whole = whole * 10 + (*text - '0');
        if (point)
            scale *= 10;
    }
    if (digits == 0)
        return false;
    *out = minus ? -(whole / scale) : whole / scale;
    return true;
}

struct parse {
    const struct bt_policy *policy;
    double knobs[BT_POLICY_KNOBS_MAX];
    bool given[BT_POLICY_KNOBS_MAX];
    char *error;
    size_t error_size;
};

static enum bt_status unknown_knob(const struct parse *p, const char *word)
{
    const struct bt_policy_knob *knobs = knobs_of(p->policy);
    struct nearest best = {NULL, SIZE_MAX};

    for (size_t i = 0; knobs[i].name != NULL; i++)
        offer_name(&best, word, knobs[i].name);
    if (best.name == NULL)
        snprintf(p->error, p->error_size, "policy '%s' has no knobs, got '%s'",
                 p->policy->name, word);
    else
        snprintf(p->error, p->error_size,
                 "policy '%s' has no knob '%s' (did you mean '%s'?)",
                 p->policy->name, word, best.name);
    return BT_INVALID;
}

static enum bt_status set_knob(struct parse *p, const char *word,
                               const char *text)
{
    const struct bt_policy_knob *knobs = knobs_of(p->policy);
    size_t i = 0;
    double value;

    while (knobs[i].name != NULL && strcmp(knobs[i].name, word) != 0)
        i++;
    if (knobs[i].name == NULL)
        return unknown_knob(p, word);
    if (p->given[i]) {
        snprintf(p->error, p->error_size, "knob '%s' is given twice", word);
        return BT_INVALID;
    }
    if (!number_of(text, &value) || value < knobs[i].min ||
        value > knobs[i].max) {
        snprintf(p->error, p->error_size,
                 "knob '%s': expected a number from %g to %g, got '%s'", word,
                 knobs[i].min, knobs[i].max, text);
        return BT_INVALID;
    }
    p->knobs[i] = value;
    p->given[i] = true;
    return BT_OK;
}

/* One "knob=value" and the comma after it. */
static enum bt_status take_knob(struct parse *p, const char **at)
{
    char word[WORD_MAX + 1], text[WORD_MAX + 1];
    const char *from = *at;

    if (!take_word(at, "=,", word) || *(*at)++ != '=' ||
        !take_word(at, ",", text)) {
        snprintf(p->error, p->error_size,
                 "expected knob=value[,knob=value ...] at '%.40s'", from);
        return BT_INVALID;
    }
    if (**at == ',') {
        ++*at;
        if (**at == '\0') {
            snprintf(p->error, p->error_size, "a knob is missing after ','");
            return BT_INVALID;
        }
    }
    return set_knob(p, word, text);
}

/* ---- the whole ---- */

static enum bt_status unknown_policy(const struct parse *p, const char *name)
{
    struct nearest best = {NULL, SIZE_MAX};

    for (size_t i = 0; bt_policy_at(i) != NULL; i++)
        offer_name(&best, name, bt_policy_at(i)->name);
    snprintf(p->error, p->error_size,
             "unknown policy '%s' (did you mean "
             "'%s'?)",
             name, best.name != NULL ? best.name : "");
    return BT_NOT_FOUND;
}

enum bt_status bt_policy_parse(const char *spec,
                               const struct bt_policy **policy_out,
                               double knobs_out[BT_POLICY_KNOBS_MAX],
                               char *error_out, size_t error_size)
{
    struct parse p = {.error = error_out, .error_size = error_size};
    char name[WORD_MAX + 1];
    const char *at = spec;
    enum bt_status s = BT_OK;

    if (!take_word(&at, ":", name)) {
        snprintf(error_out, error_size,
                 "expected policy[:knob=value,...], got '%.40s'", spec);
        return BT_INVALID;
    }
    p.policy = bt_policy_find(name);
    if (p.policy == NULL)
        return unknown_policy(&p, name);
    bt_policy_defaults(p.policy, p.knobs);
    if (*at == ':') { /* at least one knob follows */
        at++;
        do
            s = take_knob(&p, &at);
        while (s == BT_OK && *at != '\0');
    }
    if (s != BT_OK)
        return s;
    *policy_out = p.policy;
    memcpy(knobs_out, p.knobs, sizeof(p.knobs));
    return BT_OK;
}
