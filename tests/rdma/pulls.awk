# Lines of rdma_pull -> one line of figures over the pulls that ended between
# `since` and `until` (ms of the lines' clock; times are relative to since):
#   ok failed wrong first_ok first_failed slowest status rail0 rail1
# status is the last one that was not ok. A line cut short by a kill is left.

# What follows "name": up to the next comma or end of a list or object.
function field(name,    at, rest) {
    at = index($0, "\"" name "\":")
    if (!at) return ""
    rest = substr($0, at + length(name) + 3)
    sub(/^"/, "", rest)
    match(rest, /^[^",}]*/)
    return substr(rest, 1, RLENGTH)
}

BEGIN {
    ok = failed = wrong = slowest = rail[1] = rail[2] = 0
    first_ok = first_failed = -1
    status = "none"
}
!/^{"event":"pull"/ || !/}$/ { next }
{
    at = field("at_ms") - since
    if (at < 0 || (until > 0 && at > until - since)) next
    wrong += field("wrong")
    took = field("ms") + 0
    if (took > slowest) slowest = took
    list = $0
    sub(/.*"rails":\[/, "", list)
    sub(/\].*/, "", list)
    n = split(list, bytes, ",")
    for (i = 1; i <= n && i <= 2; i++) rail[i] += bytes[i]
    if (field("status") == "ok") {
        ok++
        if (first_ok < 0) first_ok = at
        next
    }
    failed++
    status = field("status")
    if (first_failed < 0) first_failed = at
}
END {
    printf "ok=%d failed=%d wrong=%d first_ok=%d first_failed=%d " \
        "slowest=%d status=%s rail0=%.0f rail1=%.0f\n", ok, failed, wrong,
        first_ok, first_failed, slowest, status, rail[1], rail[2]
}
