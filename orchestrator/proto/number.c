/* Decides what double a decimal text stands for. The digits are gathered as an
 * integer with an exponent and handed to strtod in that form, so that the
 * decimal point of the locale never matters and the length of the input does
 * not either. Invariant: the scratch text holds at most 40 digits.
 */
#include "number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX   40
#define EXPONENT_MAX 100000

struct decimal {
    char digits[DIGITS_MAX + 1];
    size_t used;
    long exponent; /* of the last digit kept */
    bool any;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void digit_add(struct decimal *d, char c, bool fraction)
{
    d->any = true;
    if (d->used == 0 && c == '0') {
        d->exponent -= fraction;
        return;
    }
    if (d->used < DIGITS_MAX) {
        d->digits[d->used++] = c;
        d->exponent -= fraction;
    } else {
        d->exponent += !fraction;
    }
}

static const char *mantissa_read(const char *p, const char *end,
                                 struct decimal *d)
{
    while (p < end && is_digit(*p))
        digit_add(d, *p++, false);
    if (p < end && *p == '.') {
        p++;
        while (p < end && is_digit(*p))
            digit_add(d, *p++, true);
    }
    return p;
}

/* After the 'e'; NULL when there is no digit. */
static const char *exponent_read(const char *p, const char *end, long *out)
{
    bool negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+'))
        p++;
    if (p >= end || !is_digit(*p))
        return NULL;
    long e = 0;
    for (; p < end && is_digit(*p); p++)
        if (e < EXPONENT_MAX)
            e = e * 10 + (*p - '0');
    *out = negative ? -e : e;
    return p;
}

static long clamp(long e)
{
    return e > EXPONENT_MAX    ? EXPONENT_MAX
           : e < -EXPONENT_MAX ? -EXPONENT_MAX
                               : e;
}

bool bt_number_read(const char *at, size_t bytes, double *out)
{
    const char *p = at, *end = at + bytes;
    bool negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+'))
        p++;
    struct decimal d = {.used = 0};
    p = mantissa_read(p, end, &d);
    if (!d.any)
        return false;
    if (p < end && (*p == 'e' || *p == 'E')) {
        long e = 0;
        p = exponent_read(p + 1, end, &e);
        if (p == NULL)
            return false;
        d.exponent += e;
    }
    if (p != end)
        return false;
    char text[DIGITS_MAX + 32];
    d.digits[d.used] = '\0';
    (void)snprintf(text, sizeof text, "%s%se%ld", negative ? "-" : "",
                   d.used ? d.digits : "0", clamp(d.exponent));
    *out = strtod(text, NULL);
    return true;
}
