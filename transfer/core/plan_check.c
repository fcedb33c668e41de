/* The judge of a transfer plan. It keeps one state per grain of every block
 * asked for and moves it 0 (not moved) -> 1 (out) -> 2 (moved), or back; any
 * other step is a bug of the planner. Written from the rules in jobs.h alone:
 * no code is shared with runs.c or jobs*.c. Memory is the caller's. */
#include "baton/transfer/plan_check.h"

#include <inttypes.h>
#include <stdio.h>

enum grain { GRAIN_ASKED, GRAIN_OUT, GRAIN_MOVED };
static const char *const grain_names[] = {"not moved", "out", "moved"};

/* Where complaints go. */
struct text {
    char *out;
    size_t size;
};

/* ---- which block is asked for ---- */

/* Shell sort, gaps of Ciura and then 1. */
void bt_plan_index(struct bt_plan_check *check, uint32_t *by_local)
{
    static const uint32_t gaps[] = {1391376, 463792, 154597, 51532, 17177,
                                    5725,    1750,   701,    301,   132,
                                    57,      23,     10,     4,     1};

    for (uint32_t i = 0; i < check->count; i++)
        by_local[i] = i;
    for (size_t g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++) {
        for (uint32_t i = gaps[g]; i < check->count; i++) {
            uint32_t held = by_local[i], at = i;

            while (at >= gaps[g] &&
                   check->local[by_local[at - gaps[g]]] > check->local[held]) {
                by_local[at] = by_local[at - gaps[g]];
                at -= gaps[g];
            }
            by_local[at] = held;
        }
    }
    check->by_local = by_local;
}

static bool asked_scan(const struct bt_plan_check *check, uint64_t local,
                       uint32_t *position_out)
{
    for (uint32_t i = 0; i < check->count; i++) {
        if (check->local[i] == local) {
            *position_out = i;
            return true;
        }
    }
    return false;
}

/* Position of a local block in what was asked. */
static bool asked(const struct bt_plan_check *check, uint64_t local,
                  uint32_t *position_out)
{
    uint32_t low = 0, high = check->count;

    if (check->by_local == NULL)
        return asked_scan(check, local, position_out);
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (check->local[check->by_local[mid]] < local)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == check->count || check->local[check->by_local[low]] != local)
        return false;
    *position_out = check->by_local[low];
    return true;
}

/* ---- steps of grains ---- */

static enum bt_status step(uint8_t *grain, enum grain from, enum grain to,
                           const struct bt_job_piece *piece,
                           const struct text *text)
{
    if (*grain != from) {
        snprintf(text->out, text->size,
                 "local byte %" PRIu64 ": %s, expected %s", piece->local,
                 *grain <= GRAIN_MOVED ? grain_names[*grain] : "?",
                 grain_names[from]);
        return BT_BUG;
    }
    *grain = (uint8_t)to;
    return BT_OK;
}

/* The part of a piece that lies in one local block. */
static enum bt_status part_step(struct bt_plan_check *check,
                                const struct bt_job_piece *part,
                                const enum grain steps[2],
                                const struct text *text)
{
    uint64_t size = check->block_bytes, offset = part->local % size;
    uint32_t position = 0, per_block = check->block_bytes / check->grain;
    uint8_t *grains;

    if (!asked(check, part->local / size, &position)) {
        snprintf(text->out, text->size,
                 "local byte %" PRIu64 ": block %" PRIu64 " was not asked for",
                 part->local, part->local / size);
        return BT_BUG;
    }
    if (part->remote != check->remote[position] * size + offset) {
        snprintf(text->out, text->size,
                 "local byte %" PRIu64 " from remote byte %" PRIu64
                 ", asked from block %" PRIu32,
                 part->local, part->remote, check->remote[position]);
        return BT_BUG;
    }
    grains = check->state + (size_t)position * per_block;
    for (uint64_t at = offset; at < offset + part->bytes; at += check->grain) {
        enum bt_status status =
            step(&grains[at / check->grain], steps[0], steps[1], part, text);

        if (status != BT_OK)
            return status;
    }
    return BT_OK;
}

static enum bt_status piece_step(struct bt_plan_check *check,
                                 const struct bt_job_piece *piece,
                                 const enum grain steps[2],
                                 const struct text *text)
{
    struct bt_job_piece part = *piece;
    uint64_t left = piece->bytes;

    if (piece->bytes == 0 || piece->bytes % check->grain != 0 ||
        piece->local % check->grain != 0) {
        snprintf(text->out, text->size,
                 "piece of %" PRIu32 " bytes at %" PRIu64
                 " does not fit the grain %" PRIu32,
                 piece->bytes, piece->local, check->grain);
        return BT_BUG;
    }
    while (left > 0) {
        uint64_t room = check->block_bytes - part.local % check->block_bytes;
        enum bt_status status;

        part.bytes = (uint32_t)(left < room ? left : room);
        status = part_step(check, &part, steps, text);
        if (status != BT_OK)
            return status;
        part.local += part.bytes;
        part.remote += part.bytes;
        left -= part.bytes;
    }
    return BT_OK;
}

static enum bt_status op_step(struct bt_plan_check *check,
                              const struct bt_job_op *op,
                              const enum grain steps[2],
                              const struct text *text)
{
    for (uint32_t i = 0; i < op->piece_count; i++) {
        enum bt_status status = piece_step(check, &op->pieces[i], steps, text);

        if (status != BT_OK)
            return status;
    }
    return BT_OK;
}

/* ---- operations ---- */

static enum bt_status op_sound(uint32_t lane, const struct bt_job_op *op,
                               const struct text *text)
{
    uint64_t sum = 0;

    if (lane >= BT_JOB_LANES_MAX || op->piece_count == 0 ||
        op->piece_count > BT_JOB_PIECES_MAX) {
        snprintf(text->out, text->size,
                 "operation of %" PRIu32 " pieces on lane %" PRIu32,
                 op->piece_count, lane);
        return BT_BUG;
    }
    for (uint32_t i = 0; i < op->piece_count; i++)
        sum += op->pieces[i].bytes;
    if (sum != op->bytes) {
        snprintf(text->out, text->size,
                 "operation of %" PRIu64 " bytes with pieces of %" PRIu64,
                 op->bytes, sum);
        return BT_BUG;
    }
    return BT_OK;
}

/* 0: no limit. One operation alone may be larger than the window. */
static enum bt_status window(const struct bt_plan_check *check, uint32_t lane,
                             const struct text *text)
{
    uint64_t bytes_max = check->window_bytes[lane];
    uint32_t ops_max = check->window_ops[lane];

    if ((ops_max > 0 && check->out_ops[lane] > ops_max) ||
        (bytes_max > 0 && check->out_bytes[lane] > bytes_max &&
         check->out_ops[lane] > 1)) {
        snprintf(text->out, text->size,
                 "lane %" PRIu32 ": %" PRIu32 " operations, %" PRIu64
                 " bytes out; window %" PRIu32 ", %" PRIu64,
                 lane, check->out_ops[lane], check->out_bytes[lane], ops_max,
                 bytes_max);
        return BT_BUG;
    }
    return BT_OK;
}

enum bt_status bt_plan_posted(struct bt_plan_check *check, uint32_t lane,
                              const struct bt_job_op *op, char *text_out,
                              size_t text_size)
{
    static const enum grain steps[] = {GRAIN_ASKED, GRAIN_OUT};
    const struct text text = {text_out, text_size};
    enum bt_status status = op_sound(lane, op, &text);

    if (status != BT_OK)
        return status;
    status = op_step(check, op, steps, &text);
    if (status != BT_OK)
        return status;
    check->out_ops[lane]++;
    check->out_bytes[lane] += op->bytes;
    return window(check, lane, &text);
}

enum bt_status bt_plan_ended(struct bt_plan_check *check, uint32_t lane,
                             const struct bt_job_op *op, bool ok,
                             char *text_out, size_t text_size)
{
    const enum grain steps[] = {GRAIN_OUT, ok ? GRAIN_MOVED : GRAIN_ASKED};
    const struct text text = {text_out, text_size};
    enum bt_status status = op_sound(lane, op, &text);

    if (status != BT_OK)
        return status;
    if (check->out_ops[lane] == 0 || check->out_bytes[lane] < op->bytes) {
        snprintf(text_out, text_size,
                 "lane %" PRIu32 ": an operation ended that was not out", lane);
        return BT_BUG;
    }
    check->out_ops[lane]--;
    check->out_bytes[lane] -= op->bytes;
    return op_step(check, op, steps, &text);
}

enum bt_status bt_plan_again(struct bt_plan_check *check, uint32_t position)
{
    uint32_t per_block = check->block_bytes / check->grain;
    uint8_t *grains;

    if (position >= check->count)
        return BT_BUG;
    grains = check->state + (size_t)position * per_block;
    for (uint32_t i = 0; i < per_block; i++) {
        if (grains[i] != GRAIN_MOVED)
            return BT_BUG;
    }
    for (uint32_t i = 0; i < per_block; i++)
        grains[i] = GRAIN_ASKED;
    return BT_OK;
}

enum bt_status bt_plan_done(const struct bt_plan_check *check, bool ok,
                            char *text_out, size_t text_size)
{
    uint32_t per_block = check->block_bytes / check->grain;

    for (uint32_t lane = 0; lane < BT_JOB_LANES_MAX; lane++) {
        if (check->out_ops[lane] == 0 && check->out_bytes[lane] == 0)
            continue;
        snprintf(text_out, text_size,
                 "ended with %" PRIu32 " operations out on lane %" PRIu32,
                 check->out_ops[lane], lane);
        return BT_BUG;
    }
    for (size_t i = 0; i < (size_t)check->count * per_block; i++) {
        if (check->state[i] != GRAIN_OUT &&
            (!ok || check->state[i] == GRAIN_MOVED))
            continue;
        snprintf(text_out, text_size, "ended %s with block %zu of the list %s",
                 ok ? "well" : "badly", i / per_block,
                 check->state[i] == GRAIN_OUT ? "out" : "not moved");
        return BT_BUG;
    }
    return BT_OK;
}
