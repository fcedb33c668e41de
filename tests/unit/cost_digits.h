/* Compare with a figure of cost-models.md section 20: all six of its
 * significant digits. */
#ifndef BATON_TESTS_COST_DIGITS_H
#define BATON_TESTS_COST_DIGITS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

static inline void digits_at(double got, double want, const char *file,
                             int line)
{
    double last = pow(10, floor(log10(fabs(want))) - 5);

    /* The thousandth covers the nanosecond a duration is rounded to. */
    if (!(fabs(got - want) <= 0.501 * last)) {
        print_error("got %.9g, the reference says %.6g\n", got, want);
        _fail(file, line);
    }
}
#define assert_digits(got, want) digits_at(got, want, __FILE__, __LINE__)

static inline void near_at(double got, double want, double rel,
                           const char *file, int line)
{
    if (!(fabs(got - want) <= rel * fabs(want))) {
        print_error("got %.9g instead of %.9g +- %g %%\n", got, want,
                    rel * 100);
        _fail(file, line);
    }
}
#define assert_near(got, want, rel) near_at(got, want, rel, __FILE__, __LINE__)

#endif
