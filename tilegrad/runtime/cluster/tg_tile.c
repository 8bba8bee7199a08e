#include <string.h>
#include "tg_tile.h"

enum { NONE = -1 };

/* One tile: the range of each loop, and which loops moved since the tile before (all, for the first). */
typedef struct {
    int32_t index[TG_MAX_LOOPS], start[TG_MAX_LOOPS], size[TG_MAX_LOOPS];
    uint32_t moved;
    int number;
} tile_t;

/* Where the tile's part of an operand is. */
typedef struct {
    int32_t start[TG_MAX_RANK], size[TG_MAX_RANK];
    uint32_t bytes;
} box_t;

/* An operand while its nest runs. `slot` is the one that the tile loaded last lies in (for results: is computed in). */
typedef struct {
    int slot;
    int loading;    /* request under way, or NONE */
    int storing[2]; /* per slot */
} flight_t;

static int32_t minimum(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t maximum(int32_t a, int32_t b) { return a > b ? a : b; }

static int32_t floor_div(int32_t a, int32_t b)
{
    if (b == 1)
        return a;
    int32_t quotient = a / b;
    return quotient * b > a ? quotient - 1 : quotient;
}

static void enter_tile(const tg_nest *nest, tile_t *tile)
{
    for (int i = 0; i < nest->loop_count; i++) {
        tile->start[i] = tile->index[i] * nest->loops[i].tile;
        tile->size[i] = minimum(nest->loops[i].tile, nest->loops[i].extent - tile->start[i]);
    }
}

/* Innermost loop first; returns 0 behind the last tile. */
static int next_tile(const tg_nest *nest, tile_t *tile)
{
    tile->moved = 0;
    tile->number++;
    for (int i = nest->loop_count - 1; i >= 0; i--) {
        tile->moved |= 1u << i;
        tile->index[i]++;
        if (tile->index[i] * nest->loops[i].tile < nest->loops[i].extent) {
            enter_tile(nest, tile);
            return 1;
        }
        tile->index[i] = 0;
    }
    return 0;
}

static void find_box(const tg_operand *operand, const tile_t *tile, box_t *box)
{
    box->bytes = operand->element_bytes;
    for (int d = 0; d < operand->rank; d++) {
        const tg_dim *dim = &operand->dims[d];
        int32_t start = dim->low, stop = dim->high;
        if (dim->loop != NONE) {
            int32_t low = dim->coefficient * tile->start[dim->loop] + dim->low;
            int32_t high = dim->coefficient * (tile->start[dim->loop] + tile->size[dim->loop] - 1) + dim->high;
            start = maximum(0, -floor_div(-low, dim->divisor));
            stop = maximum(start, minimum(dim->extent, floor_div(high, dim->divisor) + 1));
        }
        box->start[d] = start;
        box->size[d] = stop - start;
        box->bytes *= (uint32_t)(stop - start);
    }
}

/* A nest while it runs. */
typedef struct {
    const tg_model *m;
    const tg_nest *nest;
    const uint32_t *homes;
    const char *who;
    flight_t flight[TG_MAX_OPERANDS];
} run_t;

static unsigned char *home_of(const run_t *run, int i)
{
    uint32_t home = run->homes[i];
    return home & TG_IN_STATE ? run->m->state + (home & ~TG_IN_STATE) : run->m->arena + home;
}

static unsigned char *scratch_slot(const tg_model *m, const tg_operand *operand, int slot)
{
    return m->scratch + operand->scratch + (uint32_t)slot * operand->slot_bytes;
}

/* Adds a part, cut into pieces that the engine takes. */
static void add_rows(int request, unsigned char *scratch, unsigned char *far, uint32_t row_bytes, uint32_t rows,
                     uint32_t far_stride)
{
    if (rows == 1 || row_bytes == far_stride) { /* contiguous: cut anywhere */
        for (uint32_t left = row_bytes * rows, piece; left > 0; left -= piece) {
            piece = left < TG_DMA_LONGEST ? left : TG_DMA_LONGEST & ~7u;
            tg_dma_add(request, scratch, far, piece, 1, piece);
            scratch += piece;
            far += piece;
        }
        return;
    }
    uint32_t most = TG_DMA_LONGEST / row_bytes;
    if (most == 0) {
        for (uint32_t row = 0; row < rows; row++)
            add_rows(request, scratch + row * row_bytes, far + row * far_stride, row_bytes, 1, row_bytes);
        return;
    }
    for (uint32_t piece; rows > 0; rows -= piece) {
        piece = rows < most ? rows : most;
        tg_dma_add(request, scratch, far, row_bytes, piece, far_stride);
        scratch += row_bytes * piece;
        far += far_stride * piece;
    }
}

/* Starts the transfer of a box, as few parts as possible: what is contiguous on both sides is one row, and one level of
 * rows is one part. */
static int start_transfer(const run_t *run, int i, const box_t *box, int slot, int inward)
{
    const tg_operand *operand = &run->nest->operands[i];
    unsigned char *scratch = scratch_slot(run->m, operand, slot);
    unsigned char *far = home_of(run, i);
    int32_t stride[TG_MAX_RANK + 1], index[TG_MAX_RANK] = {0};
    int rank = operand->rank, d;
    stride[rank] = operand->element_bytes;
    for (d = rank - 1; d >= 0; d--) {
        far += box->start[d] * stride[d + 1];
        stride[d] = stride[d + 1] * operand->dims[d].extent;
    }
    int inner = rank; /* dimensions inner.. are one row */
    uint32_t row_bytes = operand->element_bytes;
    while (inner > 0 && (inner == rank || box->size[inner] == operand->dims[inner].extent))
        row_bytes *= (uint32_t)box->size[--inner];
    uint32_t rows = inner > 0 ? (uint32_t)box->size[inner - 1] : 1;
    uint32_t far_stride = inner > 0 ? (uint32_t)stride[inner] : row_bytes;
    int request = tg_dma_open(inward);
    for (;;) {
        unsigned char *part = far;
        for (d = 0; d < inner - 1; d++)
            part += index[d] * stride[d + 1];
        add_rows(request, scratch, part, row_bytes, rows, far_stride);
        scratch += row_bytes * rows;
        for (d = inner - 2; d >= 0 && ++index[d] == box->size[d]; d--)
            index[d] = 0;
        if (d < 0)
            return request;
    }
}

/* Requests the operands that the tile reads and that the tile before did not have already. */
static void load_tile(run_t *run, const tile_t *tile)
{
    for (int i = 0; i < run->nest->operand_count; i++) {
        const tg_operand *operand = &run->nest->operands[i];
        flight_t *flight = &run->flight[i];
        box_t box;
        if (operand->access != TG_READ || run->homes[i] == TG_ABSENT)
            continue;
        if (tile->number > 0 && !(tile->moved & operand->loops))
            continue;
        find_box(operand, tile, &box);
        if (tile->number > 0 && operand->slots == 2)
            flight->slot ^= 1;
        flight->loading = box.bytes ? start_transfer(run, i, &box, flight->slot, 1) : NONE;
    }
}

static void settle(int *request)
{
    if (*request != NONE)
        tg_dma_wait(*request);
    *request = NONE;
}

/* The kernel's arguments for this tile. */
static void fill_arguments(const tg_nest *nest, const tile_t *tile, const box_t *boxes, int32_t *words)
{
    int first = 1, last = 1;
    for (int i = 0; i < nest->loop_count; i++) {
        if (nest->loops[i].reduction) {
            first &= tile->start[i] == 0;
            last &= tile->start[i] + tile->size[i] == nest->loops[i].extent;
        }
    }
    memcpy(words, nest->args, (size_t)nest->words * sizeof *words);
    for (int i = 0; i < nest->field_count; i++) {
        const tg_field *field = &nest->fields[i];
        const tg_operand *operand = &nest->operands[field->index];
        int32_t value = 0;
        switch (field->kind) {
        case TG_N:
            value = tile->size[field->index];
            break;
        case TG_AT:
            value = tile->start[field->index];
            break;
        case TG_FIRST:
            value = first;
            break;
        case TG_LAST:
            value = last;
            break;
        case TG_BOX_N:
            value = boxes[field->index].size[field->dim];
            break;
        case TG_BOX_O: {
            const tg_dim *dim = &operand->dims[field->dim];
            value = dim->coefficient * tile->start[dim->loop] + dim->offset -
                    dim->divisor * boxes[field->index].start[field->dim];
            break;
        }
        default: /* TG_STRIDE: boxes are dense */
            value = field->coefficient;
            for (int d = field->dim + 1; d < operand->rank; d++)
                value *= boxes[field->index].size[d];
            break;
        }
        words[field->word] += value;
    }
}

static void compute_tile(run_t *run, const tile_t *tile, const int *slots)
{
    const tg_nest *nest = run->nest;
    box_t boxes[TG_MAX_OPERANDS];
    void *at[TG_MAX_OPERANDS];
    uint32_t bytes[TG_MAX_OPERANDS];
    uint8_t access[TG_MAX_OPERANDS];
    int32_t words[TG_MAX_WORDS];
    for (int i = 0; i < nest->operand_count; i++) {
        const tg_operand *operand = &nest->operands[i];
        at[i] = 0;
        bytes[i] = 0;
        access[i] = operand->access;
        if (run->homes[i] == TG_ABSENT)
            continue;
        find_box(operand, tile, &boxes[i]);
        at[i] = scratch_slot(run->m, operand, slots[i]);
        bytes[i] = boxes[i].bytes;
        if (operand->access == TG_WRITE)
            settle(&run->flight[i].storing[slots[i]]);
    }
    fill_arguments(nest, tile, boxes, words);
    tg_job job = {run->who, tile->number, nest->operand_count, at, bytes, access, words};
    tg_run_on_cores(nest->call, &job);
}

/* Takes finished results back: those whose box the next tile leaves (`moved`), or all behind the last tile. */
static void store_tile(run_t *run, const tile_t *tile, uint32_t moved, int is_last)
{
    for (int i = 0; i < run->nest->operand_count; i++) {
        const tg_operand *operand = &run->nest->operands[i];
        flight_t *flight = &run->flight[i];
        box_t box;
        if (operand->access != TG_WRITE || run->homes[i] == TG_ABSENT || !(is_last || moved & operand->loops))
            continue;
        find_box(operand, tile, &box);
        if (box.bytes)
            flight->storing[flight->slot] = start_transfer(run, i, &box, flight->slot, 0);
        if (run->nest->mode != TG_DOUBLE)
            settle(&flight->storing[flight->slot]);
        if (operand->slots == 2)
            flight->slot ^= 1;
    }
}

static void run_in_tiles(run_t *run)
{
    const tg_nest *nest = run->nest;
    tile_t tile, next;
    memset(&tile, 0, sizeof tile);
    enter_tile(nest, &tile);
    load_tile(run, &tile);
    for (int more = 1; more;) {
        int slots[TG_MAX_OPERANDS];
        for (int i = 0; i < nest->operand_count; i++) {
            settle(&run->flight[i].loading);
            slots[i] = run->flight[i].slot;
        }
        next = tile;
        more = next_tile(nest, &next);
        if (more && nest->mode == TG_DOUBLE)
            load_tile(run, &next);
        compute_tile(run, &tile, slots);
        store_tile(run, &tile, next.moved, !more);
        if (more && nest->mode != TG_DOUBLE)
            load_tile(run, &next);
        tile = next;
    }
    for (int i = 0; i < nest->operand_count; i++) {
        settle(&run->flight[i].storing[0]);
        settle(&run->flight[i].storing[1]);
    }
}

/* Computes on the operands where they live. */
static void run_whole(const run_t *run)
{
    const tg_nest *nest = run->nest;
    void *at[TG_MAX_OPERANDS];
    uint32_t bytes[TG_MAX_OPERANDS];
    uint8_t access[TG_MAX_OPERANDS];
    tile_t tile;
    memset(&tile, 0, sizeof tile);
    for (int i = 0; i < nest->operand_count; i++) {
        const tg_operand *operand = &nest->operands[i];
        box_t box;
        at[i] = 0;
        bytes[i] = 0;
        access[i] = operand->access;
        if (run->homes[i] == TG_ABSENT)
            continue;
        find_box(operand, &tile, &box);
        unsigned char *start = home_of(run, i);
        int32_t stride = operand->element_bytes;
        uint32_t span = box.bytes ? operand->element_bytes : 0;
        for (int d = operand->rank - 1; d >= 0; d--) {
            start += box.start[d] * stride;
            span += box.bytes ? (uint32_t)(stride * (box.size[d] - 1)) : 0;
            stride *= operand->dims[d].extent;
        }
        at[i] = start;
        bytes[i] = span;
    }
    tg_job job = {run->who, 0, nest->operand_count, at, bytes, access, nest->args};
    tg_run_on_cores(nest->call, &job);
}

void tg_run_nest(const tg_model *m, const tg_nest *nest, const uint32_t *homes, const char *who)
{
    run_t run = {m, nest, homes, who, {{0, NONE, {NONE, NONE}}}};
    for (int i = 0; i < nest->operand_count; i++)
        run.flight[i] = (flight_t){0, NONE, {NONE, NONE}};
    tg_enter(who);
    if (nest->mode == TG_WHOLE)
        run_whole(&run);
    else
        run_in_tiles(&run);
}
