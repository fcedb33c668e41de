# Rules first (FNR == NR), then lines FILE:LINE:KIND HEADER, KIND q or a for
# "..." and <...>. Prints each include that no rule allows.
function glob(pattern, text,    star) {
    star = index(pattern, "*")
    if (!star) return pattern == text
    return substr(text, 1, star - 1) == substr(pattern, 1, star - 1)
}
function under(prefix, file) {
    if (prefix == file) return 1
    if (substr(prefix, length(prefix)) != "/") prefix = prefix "/"
    return substr(file, 1, length(prefix)) == prefix
}
# The longest prefix of a kind that holds the file.
function longest(kind, file,    key, best) {
    best = ""
    for (key in rules) {
        split(key, part, SUBSEP)
        if (part[1] == kind && under(part[2], file) &&
            length(part[2]) > length(best)) best = part[2]
    }
    return best
}
function any(list, text,    n, i, item) {
    n = split(list, item, " ")
    for (i = 1; i <= n; i++) if (glob(item[i], text)) return 1
    return 0
}
function fault(why) {
    printf "%s:%s: %s: %s\n", file, line, header, why
    bad = 1
}
function check_baton(    layer) {
    layer = longest("layer", file)
    if (layer == "") fault("no layer rule for this folder")
    else if (!any(rules["layer", layer], header))
        fault("not for files under " layer)
}
function check_lib(    pure, i, seen, n, item, j) {
    pure = longest("pure", file)
    if (pure != "" && !any(rules["pure", pure], header)) {
        fault("not for the pure " pure)
        return
    }
    for (i in places) {
        if (!glob(i, header)) continue
        n = split(places[i], item, " ")
        for (j = 1; j <= n; j++) if (under(item[j], file)) return
        fault("a library header that only " places[i] " may include")
        return
    }
    if (!any(libc, header)) fault("no rule names this header")
}
FNR == NR {
    sub(/#.*/, "")
    if (NF < 2) next
    rest = ""
    for (i = 3; i <= NF; i++) rest = rest " " $i
    if ($1 == "libc") libc = libc " " $2 rest
    else if ($1 == "lib") places[$2] = places[$2] rest
    else rules[$1, $2] = rules[$1, $2] rest
    next
}
{
    split($1, at, ":")
    file = at[1]
    line = at[2]
    kind = at[3]
    header = $2
    if (kind == "a") check_lib()
    else if (header ~ /^baton\//) check_baton()
    else if (header ~ /\.\./) fault("a private header of another folder")
}
END { exit bad }
