/* Reads a journal record by record, never trusting it: lengths are bounded,
 * checks compared, every array counted against what is there. */
#include "baton/orchestrator/journal.h"

#include "codes.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define PAYLOAD_MAX (128u << 20)

struct bt_journal_reader {
    FILE *file;
    uint64_t at; /* bytes read */
    struct coder coder;
    size_t capacity; /* of coder.data */
    struct journal_config config;
    struct event_arrays arrays;
    uint64_t events;
};

static uint32_t get_u32(const unsigned char *from)
{
    uint32_t v = 0;

    for (size_t i = 0; i < 4; i++)
        v |= (uint32_t)from[i] << (8 * i);
    return v;
}

static enum bt_status fault(const struct bt_journal_reader *r,
                            enum bt_status status, const char *what,
                            char *error_out, size_t error_size)
{
    snprintf(error_out, error_size, "byte %llu: %s", (unsigned long long)r->at,
             what);
    return status;
}

static bool get(struct bt_journal_reader *r, void *to, size_t size)
{
    size_t got = fread(to, 1, size, r->file);

    r->at += got;
    return got == size;
}

static bool grow(struct bt_journal_reader *r, size_t size)
{
    unsigned char *data;

    if (size <= r->capacity)
        return true;
    data = realloc(r->coder.data, size);
    if (data == NULL)
        return false;
    r->coder.data = data;
    r->capacity = size;
    return true;
}

/* The next record, its type taken off. */
static enum bt_status next_record(struct bt_journal_reader *r,
                                  uint8_t *type_out, char *error_out,
                                  size_t error_size)
{
    unsigned char head[4], check[4];
    size_t size;

    if (!get(r, head, sizeof(head)))
        return fault(r, BT_TRUNCATED, "the file ends without an end record",
                     error_out, error_size);
    size = (size_t)get_u32(head) + 1;
    if (size > PAYLOAD_MAX)
        return fault(r, BT_INVALID, "record longer than any can be", error_out,
                     error_size);
    if (!grow(r, size))
        return fault(r, BT_NO_MEMORY, "no memory for a record", error_out,
                     error_size);
    if (!get(r, r->coder.data, size) || !get(r, check, sizeof(check)))
        return fault(r, BT_TRUNCATED, "the file ends inside a record",
                     error_out, error_size);
    if ((uint32_t)XXH3_64bits(r->coder.data, size) != get_u32(check))
        return fault(r, BT_CHECKSUM, "record differs from its check", error_out,
                     error_size);
    r->coder.size = size;
    r->coder.at = 0;
    r->coder.bad = false;
    coder_u8(&r->coder, type_out);
    return BT_OK;
}

static enum bt_status read_head(struct bt_journal_reader *r, char *error_out,
                                size_t error_size)
{
    unsigned char magic[8], version[4];
    enum bt_status status;
    uint8_t type = 0;

    if (!get(r, magic, sizeof(magic)) ||
        memcmp(magic, JOURNAL_MAGIC, sizeof(magic)) != 0)
        return fault(r, BT_INVALID, "not a baton journal", error_out,
                     error_size);
    if (!get(r, version, sizeof(version)))
        return fault(r, BT_TRUNCATED, "the file ends inside its head",
                     error_out, error_size);
    if (get_u32(version) != JOURNAL_VERSION)
        return fault(r, BT_INCOMPATIBLE, "journal of another version",
                     error_out, error_size);
    status = next_record(r, &type, error_out, error_size);
    if (status != BT_OK)
        return status;
    if (type != RECORD_CONFIG)
        return fault(r, BT_INVALID, "the first record is not a configuration",
                     error_out, error_size);
    status = journal_config_read(&r->coder, &r->config);
    return status == BT_OK ? BT_OK
                           : fault(r, status, "configuration does not parse",
                                   error_out, error_size);
}

enum bt_status bt_journal_open(const char *path, struct bt_journal_reader **out,
                               char *error_out, size_t error_size)
{
    struct bt_journal_reader *r = calloc(1, sizeof(*r));
    enum bt_status status;

    if (r == NULL) {
        snprintf(error_out, error_size, "no memory");
        return BT_NO_MEMORY;
    }
    r->file = fopen(path, "rbe");
    if (r->file == NULL) {
        snprintf(error_out, error_size, "%s: cannot be opened", path);
        free(r);
        return BT_NOT_FOUND;
    }
    status = read_head(r, error_out, error_size);
    if (status != BT_OK) {
        bt_journal_reader_close(r);
        return status;
    }
    *out = r;
    return BT_OK;
}

const struct bt_core_config *
bt_journal_config(const struct bt_journal_reader *reader)
{
    return &reader->config.core;
}

const char *bt_journal_policy(const struct bt_journal_reader *reader)
{
    return reader->config.policy_name;
}

enum bt_status bt_journal_next(struct bt_journal_reader *reader,
                               struct bt_journal_entry *out, char *error_out,
                               size_t error_size)
{
    struct bt_journal_entry entry;
    enum bt_status status;
    uint8_t type = 0;

    status = next_record(reader, &type, error_out, error_size);
    if (status != BT_OK)
        return status;
    if (type == RECORD_END)
        return BT_NOT_FOUND;
    if (type != RECORD_EVENT)
        return fault(reader, BT_INVALID, "record of an unknown type", error_out,
                     error_size);
    coder_u64(&reader->coder, &entry.effects_hash);
    journal_event_read(&reader->coder, &entry.event, &reader->arrays);
    if (reader->coder.bad)
        return fault(reader, BT_INVALID, "event does not parse", error_out,
                     error_size);
    reader->events++;
    *out = entry;
    return BT_OK;
}

void bt_journal_reader_close(struct bt_journal_reader *reader)
{
    if (reader == NULL)
        return;
    fclose(reader->file);
    journal_config_fini(&reader->config);
    free(reader->coder.data);
    free(reader->arrays.numbers);
    free(reader->arrays.copies);
    free(reader);
}
