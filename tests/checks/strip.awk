# C source without comments and without the text of strings and characters:
# prints FILE:LINE:CODE for each line that has code left. Line numbers hold.
FNR == 1 { comment = 0 }
{
    code = ""
    quote = ""
    n = length($0)
    for (i = 1; i <= n; i++) {
        c = substr($0, i, 1)
        two = substr($0, i, 2)
        if (comment) {
            if (two == "*/") { comment = 0; i++ }
        } else if (quote != "") {
            if (c == "\\") i++
            else if (c == quote) { quote = ""; code = code c }
        } else if (two == "/*") { comment = 1; i++ }
        else if (two == "//") break
        else {
            if (c == "\"" || c == "'") quote = c
            code = code c
        }
    }
    if (code ~ /[^ \t]/) printf "%s:%d:%s\n", FILENAME, FNR, code
}
