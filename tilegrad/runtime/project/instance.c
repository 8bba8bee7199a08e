/* Until an instance has its memories, nothing runs on it. */
#ifdef HAS_SCRATCH
static tg_status check_memory(tg_model *m, const void *state, const void *arena, const void *scratch)
#else
static tg_status check_memory(tg_model *m, const void *state, const void *arena)
#endif
{
    if (m == NULL)
        return TG_NULL_POINTER;
    m->state = NULL;
    m->arena = NULL;
#ifdef HAS_SCRATCH
    m->scratch = NULL;
    if (state == NULL || arena == NULL || scratch == NULL)
        return TG_NULL_POINTER;
    if (((uintptr_t)state | (uintptr_t)arena | (uintptr_t)scratch) % TG_ALIGNMENT != 0)
        return TG_MISALIGNED;
#else
    if (state == NULL || arena == NULL)
        return TG_NULL_POINTER;
    if (((uintptr_t)state | (uintptr_t)arena) % TG_ALIGNMENT != 0)
        return TG_MISALIGNED;
#endif
    if ((uintptr_t)state < (uintptr_t)arena + TG_ARENA_BYTES && (uintptr_t)arena < (uintptr_t)state + TG_STATE_BYTES)
        return TG_OVERLAPPING;
    return TG_OK;
}

#ifdef HAS_SCRATCH
static void attach(tg_model *m, void *state, void *arena, void *scratch)
#else
static void attach(tg_model *m, void *state, void *arena)
#endif
{
    m->state = (unsigned char *)state;
    m->arena = (unsigned char *)arena;
#ifdef HAS_SCRATCH
    m->scratch = (unsigned char *)scratch;
#endif
#ifdef HAS_STORAGE
    m->minibatches = 0;
    m->updates = 0;
#endif
#ifdef HAS_GUARD
    m->is_kept = 0;
    m->is_changed = 0;
#ifdef HAS_STORAGE
    m->kept_updates = 0;
#endif
#endif
#ifdef TG_MOST_BLOCKS
    m->blocks = TG_MOST_BLOCKS;
#endif
#ifdef HAS_SCRATCH
    tg_attach(m->scratch, m->state, m->arena);
#endif
}

#ifdef HAS_SCRATCH
tg_status tg_init(tg_model *m, void *state, void *arena, void *scratch, const void *image, size_t image_bytes)
{
    tg_status status = check_memory(m, state, arena, scratch);
#else
tg_status tg_init(tg_model *m, void *state, void *arena, const void *image, size_t image_bytes)
{
    tg_status status = check_memory(m, state, arena);
#endif
    if (status == TG_OK)
        status = tg_check_image(image, image_bytes, NULL);
    if (status != TG_OK)
        return status;
#ifdef HAS_SCRATCH
    attach(m, state, arena, scratch);
    tg_l3_clear(TG_L3_BYTES);
    tg_l3_write(0, (const unsigned char *)image + TG_HEADER_BYTES + TG_IMAGE_BYTES, TG_L3_IMAGE_BYTES);
#else
    attach(m, state, arena);
#endif
#ifdef HAS_IMAGE
    memcpy(m->state, (const unsigned char *)image + TG_HEADER_BYTES, TG_IMAGE_BYTES);
#endif
#ifdef HAS_ZEROS
    memset(m->state + TG_IMAGE_BYTES, 0, TG_STATE_BYTES - TG_IMAGE_BYTES);
#endif
    return TG_OK;
}

#ifdef HAS_SCRATCH
tg_status tg_bind(tg_model *m, void *state, void *arena, void *scratch)
{
    tg_status status = check_memory(m, state, arena, scratch);
    if (status != TG_OK)
        return status;
    attach(m, state, arena, scratch);
    return TG_OK;
}
#else
tg_status tg_init_in_place(tg_model *m, void *state, void *arena, const void *header, size_t image_bytes)
{
    tg_status status = check_memory(m, state, arena);
    if (status == TG_OK)
        status = tg_check_image(header, image_bytes, state);
    if (status != TG_OK)
        return status;
    attach(m, state, arena);
#ifdef HAS_ZEROS
    memset(m->state + TG_IMAGE_BYTES, 0, TG_STATE_BYTES - TG_IMAGE_BYTES);
#endif
    return TG_OK;
}
#endif

static tg_status check_tensor(const tg_model *m, int index, const void *data, size_t bytes)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (index < 0 || index >= TG_TENSOR_COUNT)
        return TG_BAD_INDEX;
    if (data == NULL)
        return TG_NULL_POINTER;
    return bytes == tg_tensors[index].bytes ? TG_OK : TG_BAD_SIZE;
}

tg_status tg_read_tensor(const tg_model *m, int index, void *data, size_t bytes)
{
    tg_status status = check_tensor(m, index, data, bytes);
    if (status != TG_OK)
        return status;
#ifdef HAS_SCRATCH
    if (tg_tensors[index].in_l3)
        tg_l3_read(tg_tensors[index].offset, data, tg_tensors[index].bytes);
    else
        memcpy(data, m->state + tg_tensors[index].offset, bytes);
#else
#ifdef HAS_FLASH
    if (tg_tensors[index].in_flash)
        memcpy(data, (const unsigned char *)tg_flash + tg_tensors[index].offset, bytes);
    else
        memcpy(data, m->state + tg_tensors[index].offset, bytes);
#else
    memcpy(data, m->state + tg_tensors[index].offset, bytes);
#endif
#endif
    return TG_OK;
}

tg_status tg_write_tensor(tg_model *m, int index, const void *data, size_t bytes)
{
    tg_status status = check_tensor(m, index, data, bytes);
    if (status != TG_OK)
        return status;
#ifdef HAS_SCRATCH
    if (tg_tensors[index].in_l3)
        tg_l3_write(tg_tensors[index].offset, data, tg_tensors[index].bytes);
    else
        memcpy(m->state + tg_tensors[index].offset, data, bytes);
#else
#ifdef HAS_FLASH
    if (tg_tensors[index].in_flash)
        return TG_READ_ONLY;
#endif
    memcpy(m->state + tg_tensors[index].offset, data, bytes);
#endif
#ifdef HAS_GUARD
    m->is_kept = 0;
#endif
    return TG_OK;
}

#ifdef HAS_RATE
tg_status tg_get_learning_rate(const tg_model *m, float *rate) { return tg_read_tensor(m, @rate@, rate, sizeof *rate); }

tg_status tg_set_learning_rate(tg_model *m, float rate)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (!(rate >= 0.0f && rate <= 3.40282347e+38f))
        return TG_BAD_NUMBER;
    return tg_write_tensor(m, @rate@, &rate, sizeof rate);
}

#endif
#ifdef HAS_UPDATE_COUNT
tg_status tg_get_update_count(const tg_model *m, int64_t *updates)
{
    return tg_read_tensor(m, @update_count@, updates, sizeof *updates);
}

tg_status tg_set_update_count(tg_model *m, int64_t updates)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (updates < 0)
        return TG_BAD_NUMBER;
    return tg_write_tensor(m, @update_count@, &updates, sizeof updates);
}

#endif
#ifdef TG_MOST_BLOCKS
tg_status tg_set_blocks(tg_model *m, int blocks)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (blocks < TG_LEAST_BLOCKS || blocks > TG_MOST_BLOCKS)
        return TG_BAD_BLOCKS;
    m->blocks = blocks;
    return TG_OK;
}

#endif
#ifdef TG_STATIC_INSTANCE
tg_status tg_static_instance(tg_model **m, const void *image, size_t image_bytes)
{
    static unsigned char state[TG_STATE_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
    static unsigned char arena[TG_ARENA_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
#ifdef HAS_SCRATCH
    static unsigned char scratch[TG_SCRATCH_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
#endif
    static tg_model instance;
    if (m == NULL)
        return TG_NULL_POINTER;
    *m = &instance;
#ifdef HAS_SCRATCH
    return tg_init(&instance, state, arena, scratch, image, image_bytes);
#else
    return tg_init(&instance, state, arena, image, image_bytes);
#endif
}
#endif
