/* Nests that pipes join, run at once. A part of tg_tile.c: only that includes it. */
#ifndef TG_PIPE_H
#define TG_PIPE_H

static int is_piped(uint32_t home) { return (home & TG_IN_PIPE) == TG_IN_PIPE && home != TG_ABSENT; }

/* Where box number `count` of a ring lies: in this block's slices of the workspace, or in scratchpad. */
static unsigned char *slot_at(const tg_tiles *t, const tg_pipe *pipe, uint32_t ring, uint32_t count)
{
    uint64_t slice = ((uint64_t)t->block * pipe->lanes + ring) * pipe->slice_bytes;
    unsigned char *first = t->arena + pipe->workspace;
    if (pipe->near) {
        int member = (int)(pipe->near - 1 + ring % pipe->near_lanes);
        slice = (uint64_t)(ring / pipe->near_lanes) * pipe->slice_bytes;
        first = t->scratch + pipe->workspace + (ptrdiff_t)(member - t->member) * TG_L1_BYTES;
    }
    return first + (size_t)(slice + (uint64_t)(count % pipe->depth) * pipe->slot_bytes);
}

/* Notes which of a nest's operands pass through pipes. */
static void find_piped(tg_tiles *t, tg_nest *nest, const tg_word *home)
{
    const tg_operand *operand = (const tg_operand *)(const void *)(nest + 1);
    for (int i = 0; i < nest->operand_count; i++, operand++, home++)
        if (is_piped(*home))
            t->piped[t->pipe_count++] =
                (tg_piped){&t->pipes[*home & ~TG_IN_PIPE], operand->access == TG_WRITE, i, 0, 0};
}

/* Of this lane's boxes, number `moved` of all that pass: its ring, and the how manieth of that it is. */
static uint32_t ring_of_box(const tg_tiles *t, const tg_pipe *pipe, uint32_t moved, uint32_t *count)
{
    uint32_t box = moved * (uint32_t)t->lanes + (uint32_t)t->lane;
    *count = box / pipe->lanes;
    return box % pipe->lanes;
}

static unsigned char *next_slot(const tg_tiles *t, const tg_piped *own)
{
    uint32_t count, ring = ring_of_box(t, own->pipe, own->moved, &count);
    return slot_at(t, own->pipe, ring, count);
}

/* The slot of the next box is free, or what is in it ready. */
static void await_slot(const tg_tiles *t, const tg_piped *own)
{
    uint32_t count, ring = ring_of_box(t, own->pipe, own->moved, &count);
    if (!own->is_result)
        tg_pipe_await(own->pipe, t->block, ring, 1, count + 1);
    else
        tg_pipe_await(own->pipe, t->block, ring, 0, count < own->pipe->depth ? 0 : count + 1 - own->pipe->depth);
}

/* A box goes into a slot that is free, or comes out of one that is ready: dense, and as long as it is. */
static int add_piped(tg_tiles *t, const tg_word *words, const tg_operand *operand, uint32_t home, unsigned char *scratch,
                     int is_result, int request)
{
    tg_piped *own = t->piped;
    uint32_t bytes = operand->row_bytes * operand->rows;
    for (uint32_t i = 0; operand->levels && i < words[operand->levels]; i++)
        bytes *= words[(uint32_t)operand->levels + 1 + 2 * i];
    while (own->pipe != &t->pipes[home & ~TG_IN_PIPE])
        own++;
    await_slot(t, own);
    if (request == NONE)
        request = tg_dma_open(!is_result);
    tg_dma_add(request, scratch, next_slot(t, own), bytes, 1, 0);
    own->moved++;
    return request;
}

/* What was moved has arrived: the other side may know. */
static void tell(const tg_tiles *t, tg_piped *own, int ready, int is_near)
{
    for (int i = 0; i < t->pipe_count; i++, own++)
        if (own->is_result == ready && !own->pipe->near == !is_near && own->told < own->moved) {
            uint32_t count, ring = ring_of_box(t, own->pipe, own->told, &count);
            own->told = own->moved;
            tg_pipe_tell(own->pipe, t->block, ring, ready, count + 1);
        }
}

/* Boxes in L1 are used where they are: by the tiles that move along with them. */
static void await_near(tg_tiles *t)
{
    for (int i = 0; i < t->pipe_count; i++)
        if (t->piped[i].pipe->near) {
            await_slot(t, &t->piped[i]);
            t->at[t->turn][t->piped[i].operand] = next_slot(t, &t->piped[i]);
        }
}

static void tell_near(tg_tiles *t, uint32_t reads, uint32_t results)
{
    for (int i = 0; i < t->pipe_count; i++) {
        tg_piped *own = &t->piped[i];
        if (own->pipe->near && (own->is_result ? results : reads) >> own->operand & 1)
            own->moved++;
    }
    tell(t, t->piped, 0, 1);
    tell(t, t->piped, 1, 1);
}
#endif
