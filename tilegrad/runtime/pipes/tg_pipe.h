/* Nests that pipes join, run at once. A part of tg_tile.c: only that includes it. */
#ifndef TG_PIPE_H
#define TG_PIPE_H

static int is_piped(uint32_t home) { return (home & TG_IN_PIPE) == TG_IN_PIPE && home != TG_ABSENT; }

/* Where box number `count` lies in this block's slice of the workspace. */
static unsigned char *slot_at(const tg_tiles *t, const tg_pipe *pipe, uint32_t count)
{
    uint64_t slice = (uint64_t)t->block * pipe->slice_bytes;
    return t->arena + pipe->workspace + (size_t)(slice + (uint64_t)(count % pipe->depth) * pipe->slot_bytes);
}

static tg_piped *piped_of(tg_tiles *t, const tg_pipe *pipe, int is_result)
{
    for (int i = 0; i < t->pipe_count; i++)
        if (t->piped[i].pipe == pipe)
            return &t->piped[i];
    t->piped[t->pipe_count] = (tg_piped){pipe, is_result, 0, 0};
    return &t->piped[t->pipe_count++];
}

/* A box goes into a slot that is free, or comes out of one that is ready: dense, and as long as it is. */
static int add_piped(tg_tiles *t, const tg_word *words, const tg_operand *operand, uint32_t home, unsigned char *scratch,
                     int is_result, int request)
{
    const tg_pipe *pipe = &t->pipes[home & ~TG_IN_PIPE];
    tg_piped *own = piped_of(t, pipe, is_result);
    uint32_t bytes = operand->row_bytes * operand->rows, count = own->moved++;
    for (uint32_t i = 0; operand->levels && i < words[operand->levels]; i++)
        bytes *= words[(uint32_t)operand->levels + 1 + 2 * i];
    if (is_result)
        tg_pipe_await(pipe, t->block, 0, count < pipe->depth ? 0 : count + 1 - pipe->depth);
    else
        tg_pipe_await(pipe, t->block, 1, count + 1);
    if (request == NONE)
        request = tg_dma_open(!is_result);
    tg_dma_add(request, scratch, slot_at(t, pipe, count), bytes, 1, 0);
    return request;
}

/* What was moved has arrived: the other side may know. */
static void tell(const tg_tiles *t, tg_piped *own, int ready)
{
    for (int i = 0; i < t->pipe_count; i++, own++)
        if (own->is_result == ready && own->told < own->moved) {
            own->told = own->moved;
            tg_pipe_tell(own->pipe, t->block, ready, own->told);
        }
}
#endif
