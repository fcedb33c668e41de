/* Decimal numbers from text that is not terminated, whatever the locale. */
#ifndef BATON_PROTO_NUMBER_H
#define BATON_PROTO_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

/* [+-] digits [. digits] [e [+-] digits], at least one digit in the mantissa;
 * the whole span must be used. Too large a number gives infinity, too small a
 * one 0. Digits after the 40th significant one are taken as 0. */
bool bt_number_read(const char *at, size_t bytes, double *out);

#endif
