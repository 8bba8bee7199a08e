/* Guards. Included by model.c, behind what it guards: `guarded` has a tensor and its copy in each row.
 *
 * The parameters that gave a good loss are kept; a loss or an update that is bad brings them back. */
#ifndef TG_GUARD_H
#define TG_GUARD_H
#include <string.h>
#include "kernels/tg_fma.h"
#include "tg_parts.h"

enum { TG_GUARD_PART = 256 }; /* bytes on the stack */

static void copy_guarded(tg_model *m, int from, int to)
{
    unsigned char part[TG_GUARD_PART];
    for (uint32_t at = 0; at < tg_tensors[from].bytes; at += TG_GUARD_PART) {
        uint32_t left = tg_tensors[from].bytes - at, bytes = left < TG_GUARD_PART ? left : TG_GUARD_PART;
        tg_read_part(m, from, at, part, bytes);
        tg_write_part(m, to, at, part, bytes);
    }
}

/* What is there now is good. */
static void keep_good(tg_model *m)
{
    for (int i = 0; i < TG_GUARDED; i++)
        copy_guarded(m, guarded[i][0], guarded[i][1]);
    m->is_kept = 1;
    m->is_changed = 0;
#ifdef TG_COUNTS
    m->kept_updates = m->updates;
#endif
}

/* Brings back what was good last; the next step starts a new sum of gradients. */
static tg_status restore_good(tg_model *m, tg_status status)
{
    unsigned char starts_anew = 1;
    for (int i = 0; i < TG_GUARDED; i++)
        copy_guarded(m, guarded[i][1], guarded[i][0]);
    tg_write_part(m, TG_GUARD_FLAG, 0, &starts_anew, 1);
    m->is_changed = 0;
#ifdef TG_COUNTS
    m->updates = m->kept_updates;
#endif
    return status;
}

static int is_finite(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits >> 23 & 0xffu) != 0xffu;
}

static int is_good_loss(float loss)
{
#ifdef TG_GUARD_LOSS
    if (!(loss <= TG_GUARD_LOSS))
        return 0;
#endif
    return !TG_GUARD_FINITE || is_finite(loss);
}

/* Of what an update has written. */
static int is_all_finite(const tg_model *m)
{
    float part[TG_GUARD_PART / 4];
    for (int i = 0; i < TG_GUARDED; i++) {
        int index = guarded[i][0];
        if (!guarded[i][2]) /* no floats */
            continue;
        for (uint32_t at = 0; at < tg_tensors[index].bytes; at += TG_GUARD_PART) {
            uint32_t left = tg_tensors[index].bytes - at, bytes = left < TG_GUARD_PART ? left : TG_GUARD_PART;
            tg_read_part(m, index, at, part, bytes);
            for (uint32_t k = 0; k < bytes / 4; k++)
                if (!is_finite(part[k]))
                    return 0;
        }
    }
    return 1;
}

/* Whether there was a good step since the last update. */
static int has_gradients(const tg_model *m)
{
    unsigned char starts_anew;
    tg_read_part(m, TG_GUARD_FLAG, 0, &starts_anew, 1);
    return !starts_anew;
}

/* At the start of a step: what somebody has written since (tg_init, tg_load, tg_write_tensor) counts as good. */
static void begin_guarded_step(tg_model *m)
{
    if (!m->is_kept)
        keep_good(m);
}

static tg_status end_guarded_step(tg_model *m, float loss)
{
    if (!is_good_loss(loss))
        return restore_good(m, TG_BAD_LOSS);
    if (m->is_changed || TG_GUARD_EVERY_STEP)
        keep_good(m);
    return TG_OK;
}

static tg_status end_guarded_update(tg_model *m)
{
    if (TG_GUARD_FINITE && !is_all_finite(m))
        return restore_good(m, TG_NOT_FINITE);
    m->is_changed = 1;
    return TG_OK;
}

/* Blocks of 64 elements by fma, then the blocks' sums in order, over the tensors in the order of tg_tensors: as clipping
 * sums them. */
tg_status tg_norm(const tg_model *m, const char *role, float *norm)
{
    float part[TG_GUARD_PART / 4], total = 0.0f;
    int found = 0;
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (role == NULL || norm == NULL)
        return TG_NULL_POINTER;
    for (int index = 0; index < TG_TENSOR_COUNT; index++) {
        int same = 0;
        while (role[same] != '\0' && role[same] == tg_tensors[index].role[same])
            same++;
        if (role[same] != tg_tensors[index].role[same] || !is_float[index])
            continue;
        found = 1;
        for (uint32_t at = 0; at < tg_tensors[index].bytes; at += TG_GUARD_PART) {
            uint32_t left = tg_tensors[index].bytes - at, bytes = left < TG_GUARD_PART ? left : TG_GUARD_PART;
            float sum = 0.0f;
            tg_read_part(m, index, at, part, bytes);
            for (uint32_t k = 0; k < bytes / 4; k++)
                sum = TG_FMA(part[k], part[k], sum);
            total = total + sum;
        }
    }
    *norm = TG_SQRT(total);
    return found ? TG_OK : TG_BAD_INDEX;
}

#endif
