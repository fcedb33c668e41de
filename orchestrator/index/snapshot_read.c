/* Reads a snapshot: the whole file is checked (size, checksum, every piece)
 * before anything of it is given out, so nothing is ever half applied. Leaves
 * to its users which sources they know.
 */
#include "snapshot_form.h"

#include "baton/planner/block_hash.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

struct bt_snapshot {
    unsigned char *bytes;
    size_t size;
    size_t *at; /* of each source's first byte */
    uint32_t count;
    uint64_t entries;
};

/* ---- pieces ---- */

/* Position in bytes that may be anything; bad sticks. */
struct cursor {
    const unsigned char *at, *end;
    bool bad;
};

static uint64_t take(struct cursor *c, size_t bytes)
{
    uint64_t value = 0;

    if (c->bad || (size_t)(c->end - c->at) < bytes) {
        c->bad = true;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)c->at[i] << (8 * i);
    c->at += bytes;
    return value;
}

static const char *take_bytes(struct cursor *c, size_t max, size_t *bytes_out)
{
    size_t n = (size_t)take(c, 2);
    const char *at = (const char *)c->at;

    if (c->bad || n > max || (size_t)(c->end - c->at) < n) {
        c->bad = true;
        n = 0;
    }
    c->at += n;
    *bytes_out = n;
    return at;
}

/* After the tag. */
static void take_source(struct cursor *c, struct bt_snapshot_source *out)
{
    out->block_tokens = (uint32_t)take(c, 4);
    out->ranks = (uint32_t)take(c, 4);
    out->name = take_bytes(c, BT_SNAPSHOT_NAME_MAX, &out->name_bytes);
    out->note = take_bytes(c, BT_SNAPSHOT_NOTE_MAX, &out->note_bytes);
    if (out->ranks == 0 || out->ranks > BT_SNAPSHOT_RANKS_MAX ||
        out->name_bytes == 0)
        c->bad = true;
}

static void take_mark(struct cursor *c, struct bt_stream_mark *out)
{
    unsigned int flags;

    memset(out, 0, sizeof(*out));
    out->incarnation = take(c, 8);
    out->next = take(c, 8);
    flags = (unsigned int)take(c, 1);
    out->started = (flags & MARK_STARTED) != 0;
    out->from_zero = (flags & MARK_FROM_ZERO) != 0;
    out->hole = (flags & MARK_HOLE) != 0;
    out->counting =
        (flags & MARK_SET) != 0 ? BT_KV_COUNT_SET : BT_KV_COUNT_COPIES;
    out->block_tokens = (uint32_t)take(c, 4);
    out->groups.untold = take(c, 8);
    out->groups.full = take(c, 8);
    out->groups.other = take(c, 8);
    out->groups.bent = take(c, 8);
    out->recent_count = (uint32_t)take(c, 1);
    if ((flags & ~MARK_FLAGS) != 0 || out->recent_count > BT_STREAM_RECENT) {
        c->bad = true;
        out->recent_count = 0;
    }
    for (uint32_t i = 0; i < out->recent_count; i++) {
        out->recent[i].seq = take(c, 8);
        out->recent[i].hash = take(c, 8);
    }
}

/* False: the end of the rank's entries, or a bad one. */
static bool take_entry(struct cursor *c, struct bt_prefix_entry *out)
{
    unsigned int form = (unsigned int)take(c, 1);

    if (c->bad || form == 0)
        return false;
    memset(out, 0, sizeof(*out));
    out->keyed = (form & ENTRY_KEYED) != 0;
    out->hash = take(c, 8);
    if (out->keyed)
        out->key = take(c, 8);
    if (out->keyed)
        out->ns = (form & ENTRY_NS) != 0 ? take(c, 8) : BT_NS_PLAIN;
    for (unsigned int t = 0; t < BT_TIERS; t++) {
        if ((form & ENTRY_TIER << t) == 0)
            continue;
        out->copies[t] = (form & ENTRY_COUNTS) != 0 ? (uint32_t)take(c, 4) : 1;
        c->bad = c->bad || out->copies[t] == 0;
    }
    if ((form & ENTRY_TIERS) == 0 || (form & 0x80u) != 0 ||
        (!out->keyed && (form & ENTRY_NS) != 0))
        c->bad = true;
    return !c->bad;
}

/* ---- checking ---- */

/* Each rank at most once. Returns its entries. */
static uint64_t check_rank(struct cursor *c, const struct bt_snapshot_source *s,
                           uint64_t *seen)
{
    struct bt_stream_mark mark;
    struct bt_prefix_entry entry;
    uint32_t rank = (uint32_t)take(c, 4);
    uint64_t entries = 0;

    if (rank >= s->ranks || (*seen >> rank & 1) != 0) {
        c->bad = true;
        return 0;
    }
    *seen |= 1ull << rank;
    take_mark(c, &mark);
    while (take_entry(c, &entry))
        entries++;
    return entries;
}

/* Walks all pieces; at_out NULL: only counts the sources. */
static bool check_pieces(struct bt_snapshot *s, size_t *at_out)
{
    struct cursor c = {s->bytes + SNAPSHOT_HEAD_BYTES, s->bytes + s->size - 8,
                       false};
    struct bt_snapshot_source source = {0};
    uint64_t seen = 0;
    unsigned int tag;

    s->count = 0;
    s->entries = 0;
    while ((tag = (unsigned int)take(&c, 1)) != SNAPSHOT_END && !c.bad) {
        if (tag == SNAPSHOT_SOURCE && s->count < BT_SNAPSHOT_SOURCES_MAX) {
            if (at_out != NULL)
                at_out[s->count] = (size_t)(c.at - s->bytes);
            take_source(&c, &source);
            s->count++;
            seen = 0;
        } else if (tag == SNAPSHOT_RANK && s->count > 0) {
            s->entries += check_rank(&c, &source, &seen);
        } else {
            return false;
        }
    }
    return take(&c, 4) == s->count && take(&c, 8) == s->entries && !c.bad &&
           c.at == c.end;
}

static enum bt_status check_bytes(const struct bt_snapshot *s, char *error,
                                  size_t error_size)
{
    struct cursor c = {s->bytes + SNAPSHOT_MAGIC_BYTES, s->bytes + s->size,
                       false};
    struct cursor tail = {s->bytes + s->size - 8, s->bytes + s->size, false};
    uint64_t version;

    if (memcmp(s->bytes, SNAPSHOT_MAGIC, SNAPSHOT_MAGIC_BYTES) != 0) {
        snprintf(error, error_size, "not a snapshot of an index");
        return BT_INVALID;
    }
    version = take(&c, 4);
    if (version != BT_SNAPSHOT_VERSION) {
        snprintf(error, error_size, "version %llu, this program reads %u",
                 (unsigned long long)version, BT_SNAPSHOT_VERSION);
        return BT_UNSUPPORTED;
    }
    if (take(&tail, 8) != XXH3_64bits(s->bytes, s->size - 8)) {
        snprintf(error, error_size, "checksum differs: damaged or cut short");
        return BT_CHECKSUM;
    }
    return BT_OK;
}

static enum bt_status check_all(struct bt_snapshot *s, char *error,
                                size_t error_size)
{
    enum bt_status status = check_bytes(s, error, error_size);

    if (status != BT_OK)
        return status;
    snprintf(error, error_size, "its parts contradict each other");
    if (!check_pieces(s, NULL))
        return BT_INVALID;
    s->at = calloc((size_t)s->count + 1, sizeof(*s->at));
    if (s->at == NULL) {
        snprintf(error, error_size, "out of memory");
        return BT_NO_MEMORY;
    }
    return check_pieces(s, s->at) ? BT_OK : BT_INVALID;
}

/* ---- the file ---- */

static enum bt_status read_all(int fd, struct bt_snapshot *s)
{
    size_t done = 0;

    while (done < s->size) {
        ssize_t n = read(fd, s->bytes + done, s->size - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? BT_CHECKSUM : BT_IO;
        done += (size_t)n;
    }
    return BT_OK;
}

static enum bt_status read_file(int fd, uint64_t bytes_max,
                                struct bt_snapshot *s, char *error,
                                size_t error_size)
{
    struct stat st;
    enum bt_status status;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        snprintf(error, error_size, "not a regular file");
        return BT_IO;
    }
    if ((uint64_t)st.st_size > bytes_max ||
        (uint64_t)st.st_size > BT_SNAPSHOT_BYTES_MAX) {
        snprintf(error, error_size, "%lld bytes are more than the limit",
                 (long long)st.st_size);
        return BT_TOO_LARGE;
    }
    if (st.st_size < (off_t)(SNAPSHOT_HEAD_BYTES + SNAPSHOT_TAIL_BYTES)) {
        snprintf(error, error_size, "cut short: %lld bytes",
                 (long long)st.st_size);
        return BT_CHECKSUM;
    }
    s->size = (size_t)st.st_size;
    s->bytes = malloc(s->size);
    snprintf(error, error_size, "out of memory");
    if (s->bytes == NULL)
        return BT_NO_MEMORY;
    snprintf(error, error_size, "cannot be read");
    status = read_all(fd, s);
    return status == BT_OK ? check_all(s, error, error_size) : status;
}

enum bt_status bt_snapshot_load(const char *path, uint64_t bytes_max,
                                struct bt_snapshot **out, char *error_out,
                                size_t error_size)
{
    struct bt_snapshot *s;
    enum bt_status status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        snprintf(error_out, error_size, "%s", strerror(errno));
        return errno == ENOENT ? BT_NOT_FOUND : BT_IO;
    }
    s = calloc(1, sizeof(*s));
    snprintf(error_out, error_size, "out of memory");
    status = s == NULL ? BT_NO_MEMORY
                       : read_file(fd, bytes_max, s, error_out, error_size);
    close(fd);
    if (status == BT_OK)
        *out = s;
    else if (s != NULL)
        bt_snapshot_free(s);
    return status;
}

void bt_snapshot_free(struct bt_snapshot *s)
{
    free(s->bytes);
    free(s->at);
    free(s);
}

bool bt_snapshot_set_aside(const char *path)
{
    char bad[4096];

    return snprintf(bad, sizeof(bad), "%s.bad", path) < (int)sizeof(bad) &&
           rename(path, bad) == 0;
}

/* ---- giving out ---- */

uint32_t bt_snapshot_count(const struct bt_snapshot *s)
{
    return s->count;
}

uint64_t bt_snapshot_entries(const struct bt_snapshot *s)
{
    return s->entries;
}

static struct cursor cursor_at(const struct bt_snapshot *s, uint32_t i)
{
    return (struct cursor){s->bytes + s->at[i], s->bytes + s->size, false};
}

void bt_snapshot_at(const struct bt_snapshot *s, uint32_t i,
                    struct bt_snapshot_source *out)
{
    struct cursor c = cursor_at(s, i);

    take_source(&c, out);
}

enum bt_status bt_snapshot_find(const struct bt_snapshot *s, const char *name,
                                uint32_t *i_out)
{
    struct bt_snapshot_source source;
    size_t n = strlen(name);

    for (uint32_t i = 0; i < s->count; i++) {
        bt_snapshot_at(s, i, &source);
        if (source.name_bytes == n && memcmp(source.name, name, n) == 0) {
            *i_out = i;
            return BT_OK;
        }
    }
    return BT_NOT_FOUND;
}

/* Entries of one kind, until there are enough for a store. */
struct gather {
    const struct bt_snapshot_visitor *visitor;
    uint32_t rank, count;
    struct bt_kv_store store;
    uint64_t hashes[BT_SNAPSHOT_STORE_BLOCKS], keys[BT_SNAPSHOT_STORE_BLOCKS];
};

static void gather_send(struct gather *g)
{
    if (g->count == 0)
        return;
    g->store.hash_count = g->count;
    g->visitor->store(g->visitor->arg, g->rank, &g->store);
    g->count = 0;
}

static void gather_add(struct gather *g, const struct bt_prefix_entry *entry,
                       enum bt_tier tier)
{
    const uint64_t *keys = entry->keyed ? g->keys : NULL;

    if (g->count == BT_SNAPSHOT_STORE_BLOCKS || g->store.own_keys != keys ||
        g->store.own_ns != entry->ns || g->store.tier != tier)
        gather_send(g);
    g->store.own_keys = keys;
    g->store.own_ns = entry->ns;
    g->store.tier = tier;
    g->store.full_attention = entry->keyed;
    g->hashes[g->count] = entry->hash;
    g->keys[g->count++] = entry->key;
}

static void visit_rank(struct cursor *c, struct gather *g)
{
    struct bt_stream_mark mark;
    struct bt_prefix_entry entry;

    g->rank = (uint32_t)take(c, 4);
    take_mark(c, &mark);
    while (take_entry(c, &entry))
        for (int t = 0; t < BT_TIERS; t++)
            for (uint32_t n = 0;
                 n < entry.copies[t] && n < BT_SNAPSHOT_COPIES_MAX; n++)
                gather_add(g, &entry, (enum bt_tier)t);
    gather_send(g);
    g->visitor->rank(g->visitor->arg, g->rank, &mark);
}

void bt_snapshot_visit(const struct bt_snapshot *s, uint32_t i,
                       const struct bt_snapshot_visitor *visitor)
{
    struct cursor c = cursor_at(s, i);
    struct gather g = {.visitor = visitor};
    struct bt_snapshot_source source;

    take_source(&c, &source);
    g.store.hashes = g.hashes;
    g.store.block_tokens = source.block_tokens;
    while (take(&c, 1) == SNAPSHOT_RANK)
        visit_rank(&c, &g);
}
