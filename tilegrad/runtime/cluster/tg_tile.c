#include "tg_tile.h"

enum { NONE = -1 };

static tg_nest *nest_of(const tg_tiles *t) { return (tg_nest *)(void *)t->words; }
static tg_operand *operands_of(tg_nest *nest) { return (tg_operand *)(void *)(nest + 1); }
static tg_loop *loops_of(tg_nest *nest) { return (tg_loop *)(void *)(operands_of(nest) + nest->operand_count); }
static const uint32_t *homes_of(const tg_call *call) { return (const uint32_t *)(const void *)(call + 1); }

static unsigned char *home_of(const tg_tiles *t, uint32_t home)
{
    return home & TG_IN_STATE ? t->state + (home & ~TG_IN_STATE) : t->arena + home;
}

static void settle(int *request)
{
    if (*request != NONE)
        tg_dma_wait(*request);
    *request = NONE;
}

/* Adds rows, cut into pieces that the engine takes. */
static void add_pieces(int request, unsigned char *scratch, unsigned char *far, uint32_t row_bytes, uint32_t rows,
                       uint32_t stride)
{
    uint32_t most = TG_DMA_LONGEST / row_bytes, piece;
    if (most == 0) {
        for (; rows > 0; rows--, far += stride - row_bytes)
            for (uint32_t left = row_bytes; left > 0; left -= piece, scratch += piece, far += piece) {
                piece = left < TG_DMA_LONGEST ? left : TG_DMA_LONGEST & ~7u;
                tg_dma_add(request, scratch, far, piece, 1, 0);
            }
        return;
    }
    for (; rows > 0; rows -= piece, scratch += piece * row_bytes, far += piece * stride) {
        piece = rows < most ? rows : most;
        tg_dma_add(request, scratch, far, row_bytes, piece, stride);
    }
}

/* A box of more levels than the engine has, or one that may be too long for it. */
static void add_levels(int request, const tg_operand *operand, unsigned char *scratch, unsigned char *far,
                       const uint32_t *levels, uint32_t depth)
{
    uint32_t inner = operand->row_bytes * operand->rows;
    if (depth == 0) {
        if (inner <= TG_DMA_LONGEST)
            tg_dma_add(request, scratch, far, operand->row_bytes, operand->rows, operand->stride);
        else
            add_pieces(request, scratch, far, operand->row_bytes, operand->rows, operand->stride);
        return;
    }
    for (uint32_t i = 1; i < depth; i++)
        inner *= levels[2 * i - 2];
    for (uint32_t i = 0; i < levels[2 * depth - 2]; i++)
        add_levels(request, operand, scratch + i * inner, far + i * levels[2 * depth - 1], levels, depth - 1);
}

static int add_large_box(const uint32_t *words, const tg_operand *operand, unsigned char *scratch, unsigned char *far,
                         int request)
{
    if (operand->row_bytes == 0 || operand->rows == 0)
        return request;
    if (request == NONE)
        request = tg_dma_open(operand->access == TG_READ);
    add_levels(request, operand, scratch, far, words + operand->levels + 1, words[operand->levels]);
    return request;
}

/* Adds boxes of operands, given as bits, to a request, which is opened for the first. What they are for says whether
 * slots change: the next tile's operands go into the other one, results leave it behind. */
enum { FIRST_TILE, NEXT_TILE, RESULTS };
static inline int add_boxes(const tg_tiles *t, const tg_call *call, uint32_t *words, uint32_t mask, int what, int request)
{
    tg_operand *operand = operands_of((tg_nest *)(void *)words);
    const uint32_t *home = homes_of(call);
    unsigned char *slots = t->scratch + call->slots;
    for (; mask; mask >>= 1, operand++, home++) {
        if (!(mask & 1))
            continue;
        if (what == NEXT_TILE)
            operand->scratch = operand->turn - operand->scratch;
        unsigned char *scratch = slots + operand->scratch, *far = home_of(t, *home) + operand->far;
        if (operand->levels == 0) {
            if (request == NONE)
                request = tg_dma_open(what != RESULTS);
            tg_dma_add(request, scratch, far, operand->row_bytes, operand->rows, operand->stride);
        } else {
            request = add_large_box(words, operand, scratch, far, request);
        }
        if (what == RESULTS)
            operand->scratch = operand->turn - operand->scratch;
    }
    return request;
}

static void load_first(tg_tiles *t, const uint32_t *call_words, uint32_t *words, uint32_t mask)
{
    t->loading = add_boxes(t, (const tg_call *)(const void *)call_words, words, mask, FIRST_TILE, t->loading);
}

static void move_dims(uint32_t *words, const tg_loop *loop, tg_dim *dim, int count)
{
    for (; count > 0; count--, dim++) {
        int32_t start = loop->start, size = loop->size;
        if (dim->divisor) {
            int32_t reach = dim->coefficient * (size - 1);
            int32_t low = dim->coefficient * start + dim->low + (reach < 0 ? reach : 0);
            int32_t high = dim->coefficient * start + dim->high + (reach > 0 ? reach : 0);
            if (dim->divisor > 1) { /* exact quotients between the ends: up from below, down from above */
                low = low > 0 ? (low + dim->divisor - 1) / dim->divisor : 0;
                high = high < 0 ? -1 : high / dim->divisor;
            }
            start = low > 0 ? low : 0;
            size = (high < dim->extent ? high + 1 : dim->extent) - start;
            if (size < 0)
                size = 0;
        }
        ((tg_operand *)(void *)(words + dim->operand))->far += (uint32_t)((start - dim->start) * dim->far_stride);
        dim->start = start;
        if (dim->shape) {
            dim->size = size;
            words[dim->shape] = (uint32_t)(dim->factor * size);
        }
    }
}

/* The next tile along a simple loop. */
static inline void step(uint32_t *words, const tg_loop *loop, tg_dim *dim, tg_operand *operand)
{
    operand->far += (uint32_t)dim->far_step;
    dim->start = loop->start;
    if (dim->shape) {
        dim->size = loop->size;
        words[dim->shape] = (uint32_t)(dim->factor * loop->size);
    }
}

/* What moves for the next tile: loops, innermost first, and the operands that they move. */
typedef struct {
    int loops;
    uint32_t reads, results;
} moved_t;

/* Boxes of what is read move along. */
static moved_t advance(tg_nest *nest, uint32_t *words)
{
    moved_t moved = {0, 0, 0};
    for (tg_loop *loop = loops_of(nest);; loop++) {
        loop->start += loop->tile;
        int32_t left = loop->extent - loop->start;
        if (left <= 0) {
            loop->start = 0;
            left = loop->tile;
        }
        loop->size = left < loop->tile ? left : loop->tile;
        moved.loops++;
        moved.reads |= loop->reads;
        moved.results |= loop->results;
        move_dims(words, loop, (tg_dim *)(void *)(words + loop->dims), loop->read_count);
        if (loop->start > 0)
            return moved;
    }
}

static int are_at_end(tg_nest *nest, uint32_t mask, int is_first)
{
    for (const tg_loop *loop = loops_of(nest); mask; loop++, mask >>= 1)
        if ((mask & 1) && (is_first ? loop->start != 0 : loop->start + loop->size != loop->extent))
            return 0;
    return 1;
}

static void fill_fields(tg_nest *nest, uint32_t *words, const tg_loop *loop)
{
    const tg_field *field = (const tg_field *)(const void *)(words + loop->fields);
    int32_t before = 0, value = 0;
    for (int i = loop->field_count; i > 0; i--, field++) {
        int32_t of = (int32_t)words[field->of], by = field->by;
        switch (field->kind) {
        case TG_COPY:
            before = 0, value = of;
            break;
        case TG_ORIGIN: {
            const tg_dim *dim = (const tg_dim *)(const void *)(words + field->of);
            before = 0, value = dim->coefficient * loop->start + by - dim->divisor * dim->start;
            break;
        }
        case TG_SET:
            before = 0, value = by;
            break;
        case TG_SCALE:
            before = 0, value = by * of;
            break;
        case TG_ADD:
            before = (int32_t)words[field->word], value = by * of;
            break;
        case TG_TIMES:
            value *= of;
            break;
        default:
            before = 0, value = are_at_end(nest, (uint32_t)by, field->kind == TG_FIRST);
            break;
        }
        words[field->word] = (uint32_t)(before + value);
    }
}

/* Addresses, boxes of results and arguments for the next tile. */
static void turn(tg_tiles *t, tg_nest *nest, const tg_call *call, moved_t moved)
{
    tg_operand *operand = operands_of(nest);
    void **at = t->at;
    for (uint32_t mask = moved.reads | moved.results; mask; mask >>= 1, operand++, at++)
        if (mask & 1)
            *at = t->scratch + call->slots + operand->scratch;
    tg_loop *loop = loops_of(nest);
    for (int i = 0; i < moved.loops; i++, loop++)
        if (loop->write_count)
            move_dims(t->words, loop, (tg_dim *)(void *)(t->words + loop->dims) + loop->read_count, loop->write_count);
    loop = loops_of(nest);
    for (int i = 0; i < moved.loops; i++, loop++)
        if (loop->field_count)
            fill_fields(nest, t->words, loop);
}

static void add_words(int request, uint32_t *to, const uint32_t *from, uint32_t count)
{
    unsigned char *far = (unsigned char *)(uintptr_t)from;
    if (count * 4 <= TG_DMA_LONGEST)
        tg_dma_add(request, to, far, count * 4, 1, 0);
    else
        add_pieces(request, (unsigned char *)to, far, count * 4, 1, 0);
}

static void fetch(tg_tiles *t, const tg_call *call)
{
    uint32_t *to = (uint32_t *)(void *)(t->scratch + call->next_scratch);
    t->fetching = tg_dma_open(1);
    add_words(t->fetching, to, t->program + t->position, call->next_words);
    add_words(t->fetching, to + call->next_words, t->program + call->next_table, call->next_table_words);
    t->position += call->next_words;
}

/* The next call and its table: waits for them. */
static uint32_t *fetched(tg_tiles *t, const tg_call *call)
{
    uint32_t *next = (uint32_t *)(void *)(t->scratch + call->next_scratch);
    settle(&t->fetching);
    tg_table(next, (call->next_words + call->next_table_words) * 4);
    return next;
}

/* One tile of which only the innermost loop moves on, and simply: the general way in `run_tiles`, in one go. */
static void run_simple_tile(tg_tiles *t, const tg_call *call, tg_nest *nest, tg_loop *loop, tg_kernel_call *kernel,
                            const tg_job *job)
{
    uint32_t *words = t->words;
    const uint32_t *homes = homes_of(call);
    unsigned char *slots = t->scratch + call->slots;
    tg_dim *first = (tg_dim *)(void *)(words + loop->dims), *dim = first, *results = first + loop->read_count;
    int32_t left = loop->extent - loop->start;
    loop->size = left < loop->tile ? left : loop->tile;
    int request = NONE;
    for (; dim < results; dim++) {
        tg_operand *operand = (tg_operand *)(void *)(words + dim->operand);
        if (request == NONE)
            request = tg_dma_open(1);
        operand->scratch = operand->turn - operand->scratch;
        step(words, loop, dim, operand);
        tg_dma_add(request, slots + operand->scratch, home_of(t, homes[dim->index]) + operand->far, operand->row_bytes,
                   operand->rows, operand->stride);
    }
    t->loading = request;
    tg_run_on_cores(kernel, job);
    settle(&t->storing);
    for (dim = first; dim < results; dim++)
        t->at[dim->index] = slots + ((tg_operand *)(void *)(words + dim->operand))->scratch;
    request = NONE;
    for (int i = loop->write_count; i > 0; i--, dim++) {
        tg_operand *operand = (tg_operand *)(void *)(words + dim->operand);
        if (request == NONE)
            request = tg_dma_open(0);
        tg_dma_add(request, slots + operand->scratch, home_of(t, homes[dim->index]) + operand->far, operand->row_bytes,
                   operand->rows, operand->stride);
        operand->scratch = operand->turn - operand->scratch;
        t->at[dim->index] = slots + operand->scratch;
        step(words, loop, dim, operand);
    }
    t->storing = request;
    if (loop->field_count)
        fill_fields(nest, words, loop);
}

/* The next moves between L2 and L3. */
static void make_moves(tg_tiles *t, uint32_t count)
{
    const uint32_t *move = t->move;
    for (; count > 0; count--) {
        int *request = &t->m->l3_requests[move[0] >> 2];
        if (move[0] & TG_MOVE_WAIT) {
            tg_l3_wait(*request);
            move++;
        } else {
            *request = tg_l3_start(t->arena + move[1], move[2], move[3], (int)(move[0] & TG_MOVE_IN));
            move += 4;
        }
    }
    t->move = move;
}

static uint32_t *run_tiles(tg_tiles *t, const tg_call *call, const char *who)
{
    tg_nest *nest = nest_of(t);
    tg_job job = {who, 0, t->at, t->words + nest->args, t->program + t->table};
    tg_kernel_call *kernel = t->kernels[nest->kernel];
    tg_loop *innermost = loops_of(nest);
    for (int left = nest->tiles - 1; left > 0; left--, job.tile++) {
        settle(&t->loading);
        if (innermost->is_simple && innermost->start + innermost->tile < innermost->extent) {
            innermost->start += innermost->tile;
            run_simple_tile(t, call, nest, innermost, kernel, &job);
            continue;
        }
        moved_t moved = advance(nest, t->words);
        if (nest->is_double)
            t->loading = add_boxes(t, call, t->words, moved.reads, NEXT_TILE, NONE);
        tg_run_on_cores(kernel, &job);
        settle(&t->storing);
        t->storing = add_boxes(t, call, t->words, moved.results, RESULTS, NONE);
        if (!nest->is_double) {
            settle(&t->storing);
            t->loading = add_boxes(t, call, t->words, moved.reads, NEXT_TILE, NONE);
        }
        turn(t, nest, call, moved);
    }
    uint32_t *next = 0;
    settle(&t->loading);
    if (t->fetching != NONE) {
        next = fetched(t, call);
        load_first(t, next, next + call->next_words, ((const tg_call *)(const void *)next)->early);
    }
    tg_run_on_cores(kernel, &job);
    settle(&t->storing);
    t->storing = add_boxes(t, call, t->words, call->results, RESULTS, NONE);
    return next;
}

static void run_nest(tg_tiles *t, const char *who)
{
    const tg_call *call = (const tg_call *)(const void *)t->call;
    tg_nest *nest = nest_of(t);
    tg_operand *operand = operands_of(nest);
    const uint32_t *home = homes_of(call);
    unsigned char *slots = t->scratch + call->slots;
    if (call->moves)
        make_moves(t, call->moves);
    tg_enter(who);
    if (call->flags & TG_DRAIN)
        settle(&t->storing);
    load_first(t, t->call, t->words, call->late);
    if (call->next_words && !(call->flags & TG_NEXT_LATE))
        fetch(t, call);
    for (int i = 0; i < nest->operand_count; i++, operand++, home++)
        t->at[i] = *home == TG_ABSENT ? 0 : slots + operand->scratch;
    uint32_t *next = run_tiles(t, call, who);
    if (!(call->flags & TG_LEAVE))
        settle(&t->storing);
    uint32_t words = call->next_words, table = call->next_table;
    if (!next && words) { /* the next may come to lie where this one is */
        tg_call kept = *call;
        tg_table(0, 0);
        fetch(t, &kept);
        next = fetched(t, &kept);
    }
    t->table = table;
    t->call = next;
    t->words = next + words;
}

void tg_run_nests(tg_tiles *t, int count, const char *who)
{
    for (; count > 0; count--)
        run_nest(t, who);
}

void tg_run_whole(tg_tiles *t, int count, const char *who)
{
    for (; count > 0; count--) {
        const tg_call *call = (const tg_call *)(const void *)(t->program + t->position);
        const uint32_t *words = t->program + t->table;
        const tg_nest *nest = (const tg_nest *)(const void *)words;
        const tg_operand *operand = (const tg_operand *)(const void *)(nest + 1);
        for (int i = 0; i < nest->operand_count; i++, operand++)
            t->at[i] = homes_of(call)[i] == TG_ABSENT ? 0 : home_of(t, homes_of(call)[i]) + operand->far;
        tg_job job = {who, 0, t->at, words + nest->args, words};
        make_moves(t, call->moves);
        tg_enter(who);
        tg_run_on_cores(t->kernels[nest->kernel], &job);
        t->position += (uint32_t)(sizeof *call / 4) + (uint32_t)nest->operand_count;
        t->table = call->next_table;
    }
}

void tg_start(tg_tiles *t, tg_model *m, const tg_program *program, const tg_entry *entry)
{
    tg_call first = {entry->call_words, entry->table, entry->table_words, entry->scratch, 0, 0, 0, 0, 0, 0};
    *t = (tg_tiles){.m = m, .scratch = m->scratch, .state = m->state, .arena = m->arena, .program = program->words, .kernels = program->kernels,
                    .position = entry->position, .table = entry->table, .move = program->words + entry->moves,
                    .loading = NONE, .storing = NONE,
                    .fetching = NONE};
    tg_begin(entry->name, program->words, program->bytes);
    if (entry->call_words) {
        fetch(t, &first);
        t->call = fetched(t, &first);
        t->words = t->call + first.next_words;
    }
}

void tg_stop(tg_tiles *t, const tg_entry *entry)
{
    make_moves(t, entry->last_moves);
    settle(&t->storing);
    tg_end(entry->name);
}
