/* Writes a journal through stdio, which buffers. Decides when a file is full
 * and that a failed write ends it; what a record holds is the coders'. */
#include "baton/orchestrator/journal.h"

#include "codes.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define BYTES_MAX_DEFAULT (1ULL << 30)
#define END_BYTES         25u /* of an end record */

struct bt_journal_writer {
    FILE *file;
    struct coder coder; /* [type, payload] of one record */
    uint64_t bytes, bytes_max;
    uint64_t events, left_out, hash;
    enum bt_status failed; /* BT_OK: writing */
};

static void put_u32(unsigned char *to, uint32_t v)
{
    for (size_t i = 0; i < 4; i++)
        to[i] = (unsigned char)(v >> (8 * i));
}

static enum bt_status put(struct bt_journal_writer *w, const void *data,
                          size_t size)
{
    if (fwrite(data, 1, size, w->file) != size)
        return BT_IO;
    w->bytes += size;
    return BT_OK;
}

static void begin(struct bt_journal_writer *w, enum journal_record type)
{
    uint8_t byte = (uint8_t)type;

    w->coder.at = 0;
    w->coder.bad = false;
    coder_u8(&w->coder, &byte);
}

/* BT_LIMIT: it would not leave room for the end. */
static enum bt_status commit(struct bt_journal_writer *w, size_t reserve)
{
    unsigned char head[4], check[4];
    size_t size = w->coder.at;
    enum bt_status status;

    if (w->coder.bad)
        return BT_NO_MEMORY;
    if (w->bytes + size + 8 + reserve > w->bytes_max)
        return BT_LIMIT;
    put_u32(head, (uint32_t)(size - 1));
    put_u32(check, (uint32_t)XXH3_64bits(w->coder.data, size));
    status = put(w, head, sizeof(head));
    if (status == BT_OK)
        status = put(w, w->coder.data, size);
    return status == BT_OK ? put(w, check, sizeof(check)) : status;
}

static enum bt_status start(struct bt_journal_writer *w,
                            const struct bt_core_config *config,
                            const struct bt_topology_spec *spec)
{
    unsigned char version[4];
    enum bt_status status;

    put_u32(version, JOURNAL_VERSION);
    status = put(w, JOURNAL_MAGIC, strlen(JOURNAL_MAGIC));
    if (status == BT_OK)
        status = put(w, version, sizeof(version));
    if (status != BT_OK)
        return status;
    begin(w, RECORD_CONFIG);
    journal_config_write(&w->coder, config, spec);
    return commit(w, END_BYTES);
}

enum bt_status bt_journal_create_fd(int fd, const struct bt_core_config *config,
                                    const struct bt_topology_spec *spec,
                                    uint64_t bytes_max,
                                    struct bt_journal_writer **out)
{
    struct bt_journal_writer *w = calloc(1, sizeof(*w));
    FILE *file = fdopen(fd, "wb");
    enum bt_status status = BT_NO_MEMORY;

    if (file == NULL)
        status = BT_IO;
    if (w == NULL || file == NULL)
        goto undo_file;
    w->coder.writing = true;
    w->bytes_max = bytes_max == 0 ? BYTES_MAX_DEFAULT : bytes_max;
    w->file = file;
    status = start(w, config, spec);
    if (status != BT_OK)
        goto undo_coder;
    *out = w;
    return BT_OK;
undo_coder:
    free(w->coder.data);
undo_file:
    if (file != NULL)
        fclose(file);
    else
        close(fd);
    free(w);
    return status;
}

enum bt_status bt_journal_create(const char *path,
                                 const struct bt_core_config *config,
                                 const struct bt_topology_spec *spec,
                                 uint64_t bytes_max,
                                 struct bt_journal_writer **out)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0)
        return BT_IO;
    return bt_journal_create_fd(fd, config, spec, bytes_max, out);
}

enum bt_status bt_journal_event(struct bt_journal_writer *writer,
                                const struct bt_core *core,
                                const struct bt_event *event,
                                const struct bt_effects *effects)
{
    enum bt_status status;

    writer->hash = bt_effects_hash(writer->hash, effects);
    if (writer->failed != BT_OK) {
        writer->left_out++;
        return BT_OK;
    }
    begin(writer, RECORD_EVENT);
    coder_u64(&writer->coder, &writer->hash);
    journal_event_write(&writer->coder, event, core);
    status = commit(writer, END_BYTES);
    if (status == BT_OK) {
        writer->events++;
        return BT_OK;
    }
    /* A hole would make every later decision another one. */
    writer->failed = status;
    writer->left_out++;
    return status;
}

uint64_t bt_journal_left_out(const struct bt_journal_writer *writer)
{
    return writer->left_out;
}

enum bt_status bt_journal_close(struct bt_journal_writer *writer)
{
    enum bt_status status;

    if (writer == NULL)
        return BT_OK;
    status = writer->failed == BT_LIMIT ? BT_OK : writer->failed;
    if (status == BT_OK) {
        begin(writer, RECORD_END);
        coder_u64(&writer->coder, &writer->events);
        coder_u64(&writer->coder, &writer->left_out);
        status = commit(writer, 0);
    }
    if (fclose(writer->file) != 0)
        status = BT_IO;
    free(writer->coder.data);
    free(writer);
    return status;
}
