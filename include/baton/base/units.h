/* Quantities with a unit, as operators write them: "30s", "512MiB",
 * "400Gbps", "12.5GB/s". A bare number is refused where a unit is required.
 *
 * Durations: ns us ms s m h. Sizes: B kB MB GB TB (10^3n) KiB MiB GiB TiB
 * (2^10n). Rates: a size per second ("12GB/s") or bits per second ("400Gbps",
 * decimal, 8 bits to the byte). One optional decimal fraction; no sign, no
 * exponent. Overflow is BT_INVALID. */
#ifndef BATON_BASE_UNITS_H
#define BATON_BASE_UNITS_H

#include "baton/base/status.h"
#include <stddef.h>
#include <stdint.h>

#define BT_NS_PER_US 1000LL
#define BT_NS_PER_MS 1000000LL
#define BT_NS_PER_S  1000000000LL

enum bt_status bt_duration_parse(const char *text, int64_t *ns_out);
enum bt_status bt_size_parse(const char *text, uint64_t *bytes_out);
enum bt_status bt_rate_parse(const char *text, uint64_t *bytes_per_s_out);

/* Write the shortest exact-enough form ("1.50 GiB", "12.3 ms") into buf;
 * always terminated; returns buf. size >= 32 is always enough. */
char *bt_duration_format(int64_t ns, char *buf, size_t size);
char *bt_size_format(uint64_t bytes, char *buf, size_t size);
char *bt_rate_format(uint64_t bytes_per_s, char *buf, size_t size);

#endif
