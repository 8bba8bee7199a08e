/* The training that the image is for. Everything comes from the seed: initial weights, samples and labels are made here
 * with the bits that tilegrad/random.py and tilegrad/data/batches.py make. What cannot be drawn is stored in the image. */
#include <string.h>
#include "image.h"
#include "kernels/tg_random.h"
#include "mailbox.h"
#include "program.h"
#include "siracusa.h"
#include "tg_cluster.h"

mailbox_t mailbox;
unsigned char bounce[4096] __attribute__((aligned(64)));
extern unsigned char _state[], _arena[], _scratch[];

static void report(uint32_t kind, uint32_t number, uint32_t value, uint32_t cycles)
{
    while (mailbox.written - mailbox.read == MAILBOX_RECORDS) {
    }
    volatile record *next = &mailbox.records[mailbox.written % MAILBOX_RECORDS];
    next->kind = kind;
    next->number = number;
    next->value = value;
    next->cycles = cycles;
    mailbox.written++;
}

static float float_of(uint32_t bits)
{
    union {
        uint32_t bits;
        float value;
    } word = {bits};
    return word.value;
}

static uint32_t bits_of(float value)
{
    union {
        float value;
        uint32_t bits;
    } word = {value};
    return word.bits;
}

/* Words `first` and following of a tensor. */
static void draw(const image_tensor *tensor, uint32_t first, uint32_t count, uint32_t *words)
{
    for (uint32_t i = 0; i < count; i++) {
        if (tensor->fill == FILL_WORD)
            words[i] = tensor->word;
        else if (tensor->fill == FILL_SIGNED)
            words[i] = bits_of(tg_initial_weight(IMAGE_SEED, tensor->stream, first + i, float_of(tensor->word)));
        else
            words[i] = bits_of(float_of(tensor->word) +
                               tg_random_unit(tg_random_u32(IMAGE_SEED, TG_RANDOM_WEIGHTS, tensor->stream, first + i)));
    }
}

/* Gives a tensor its value, unless that is in the state from the start. */
static void fill(tg_model *m, const image_tensor *tensor)
{
    const tg_tensor *place = &tg_tensors[tensor->index];
    if (tensor->fill == FILL_STORED) {
        tg_status status = tg_write_tensor(m, (int)tensor->index, _arena + tensor->word, place->bytes);
        if (status != TG_OK)
            report(RECORD_FAILURE, tensor->index, (uint32_t)status, 0);
    } else if (!place->in_l3) {
        draw(tensor, 0, (place->bytes + 3) / 4, (uint32_t *)(void *)(m->state + place->offset));
    } else {
        for (uint32_t done = 0, piece; done < place->bytes; done += piece) {
            piece = place->bytes - done < sizeof bounce ? place->bytes - done : sizeof bounce;
            draw(tensor, done / 4, (piece + 3) / 4, (uint32_t *)(void *)bounce);
            tg_l3_write(place->offset + done, bounce, piece);
        }
    }
}

#ifdef IMAGE_PORTS
/* Element `k` of a sample of labels or tokens, or 0 or 1. */
static uint32_t whole_number(const image_port *port, uint32_t sample, uint32_t k)
{
    uint32_t purpose = port->drawn == PORT_LABELS   ? TG_RANDOM_LABELS
                       : port->drawn == PORT_BINARY ? TG_RANDOM_TARGETS
                                                    : TG_RANDOM_DATA;
    uint32_t drawn = tg_random_u32(IMAGE_SEED, tg_random_family(purpose, port->ordinal), sample, k);
    return tg_random_bounded(drawn, port->bound);
}

/* Half noise, half the pattern of the sample's label; or a target. */
static float real_number(const image_port *port, uint32_t sample, uint32_t pattern, uint32_t k)
{
    if (port->drawn == PORT_BINARY)
        return (float)whole_number(port, sample, k);
    uint32_t purpose = port->drawn == PORT_NOISE ? TG_RANDOM_DATA : TG_RANDOM_TARGETS;
    float noise = tg_random_signed(tg_random_u32(IMAGE_SEED, tg_random_family(purpose, port->ordinal), sample, k));
    if (port->drawn != PORT_NOISE)
        return noise;
    uint32_t family = tg_random_family(TG_RANDOM_PATTERN, port->ordinal);
    return 0.5f * noise + 0.5f * tg_random_signed(tg_random_u32(IMAGE_SEED, family, pattern, k));
}

static void make_sample(const image_port *port, uint32_t sample, unsigned char *at)
{
    uint32_t pattern = (uint32_t)tg_synthetic_label(IMAGE_SEED, sample, 0, IMAGE_PATTERNS);
    for (uint32_t k = 0; k < port->size; k++, at += port->element_bytes) {
        if (port->is_float)
            *(float *)(void *)at = real_number(port, sample, pattern, k);
        else if (port->element_bytes == 8)
            *(int64_t *)(void *)at = (int64_t)whole_number(port, sample, k);
        else if (port->element_bytes == 4)
            *(int32_t *)(void *)at = (int32_t)whole_number(port, sample, k);
        else
            *at = (unsigned char)whole_number(port, sample, k);
    }
}

/* The tensors of mini-batch `number`, each at its place; what an entry does not take has none. */
static void make_ports(unsigned char *const *places, uint32_t number)
{
    for (uint32_t i = 0; i < IMAGE_PORTS; i++) {
        const image_port *port = &image_ports[i];
        uint32_t bytes = port->samples * port->size * port->element_bytes;
        if (places[i] == NULL)
            continue;
        if (port->stored != NULL) {
            memcpy(places[i], port->stored + number % IMAGE_STORED * bytes, bytes);
            continue;
        }
        for (uint32_t k = 0; k < port->samples; k++)
            make_sample(port, port->is_batched ? number * IMAGE_BATCH + k : 0,
                        places[i] + k * port->size * port->element_bytes);
    }
}

static void make_step(tg_model *m, uint32_t number)
{
    unsigned char *const places[] = {IMAGE_STEP_PLACES(m)};
    make_ports(places, number);
}

static void make_infer(tg_model *m)
{
    unsigned char *const places[] = {IMAGE_INFER_PLACES(m)};
    make_ports(places, 0);
}
#else
/* Elements `first` and following of a sample. */
static void make_elements(IMAGE_INPUT_TYPE *x, uint32_t sample, uint32_t first, uint32_t count)
{
#if IMAGE_VOCABULARY
    for (uint32_t k = 0; k < count; k++)
        x[k] = (IMAGE_INPUT_TYPE)tg_random_bounded(tg_random_u32(IMAGE_SEED, TG_RANDOM_DATA, sample, first + k),
                                                   IMAGE_VOCABULARY);
#else
    uint32_t label = (uint32_t)tg_synthetic_label(IMAGE_SEED, sample, 0, IMAGE_PATTERNS);
    for (uint32_t k = 0; k < count; k++) /* tg_synthetic_sample, from an element on */
        x[k] = 0.5f * tg_random_signed(tg_random_u32(IMAGE_SEED, TG_RANDOM_DATA, sample, first + k)) +
               0.5f * tg_random_signed(tg_random_u32(IMAGE_SEED, TG_RANDOM_PATTERN, label, first + k));
#endif
}

/* The inputs of mini-batch `number`, in L2 or piece by piece in L3. */
static void make_inputs(image_place to, uint32_t number)
{
    IMAGE_INPUT_TYPE *x = to.near, *piece = (IMAGE_INPUT_TYPE *)(void *)bounce;
    for (uint32_t i = 0; i < IMAGE_BATCH; i++) {
        uint32_t sample = number * IMAGE_BATCH + i, begin = i * IMAGE_INPUT_SIZE;
        if (x != NULL) {
            make_elements(x + begin, sample, 0, IMAGE_INPUT_SIZE);
            continue;
        }
        for (uint32_t done = 0, count; done < IMAGE_INPUT_SIZE; done += count) {
            count = IMAGE_INPUT_SIZE - done < sizeof bounce / sizeof *x ? IMAGE_INPUT_SIZE - done
                                                                        : sizeof bounce / sizeof *x;
            make_elements(piece, sample, done, count);
            tg_l3_write(to.far + (uint32_t)sizeof *x * (begin + done), piece, (uint32_t)sizeof *x * count);
        }
    }
}

/* Its labels or targets. */
static void make_targets(tg_model *m, uint32_t number)
{
#if IMAGE_TARGETS == TARGETS_INPUT
    make_inputs(IMAGE_TARGET(m), number);
#else
    IMAGE_TARGET_TYPE *y = IMAGE_TARGET(m).near;
    for (uint32_t i = 0; i < IMAGE_BATCH; i++, y += IMAGE_TARGET_SIZE) {
        uint32_t sample = number * IMAGE_BATCH + i;
#if IMAGE_TARGETS == TARGETS_LABEL
        for (uint32_t k = 0; k < IMAGE_TARGET_SIZE; k++)
            y[k] = tg_synthetic_label(IMAGE_SEED, sample, k, IMAGE_PATTERNS);
#elif IMAGE_TARGETS == TARGETS_BINARY
        tg_synthetic_binary_target(IMAGE_SEED, sample, y, IMAGE_TARGET_SIZE);
#else
        tg_synthetic_target(IMAGE_SEED, sample, y, IMAGE_TARGET_SIZE);
#endif
    }
#endif
}

static void make_step(tg_model *m, uint32_t number)
{
    make_inputs(IMAGE_INPUT(m), number);
    make_targets(m, number);
}

static void make_infer(tg_model *m) { make_inputs(IMAGE_INFER_INPUT(m), 0); }
#endif

static uint32_t hash(uint32_t so_far, const uint32_t *words, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        so_far = (so_far ^ words[i]) * 16777619u;
    return so_far;
}

/* FNV-1a over the words of the trained parameters, in initializer order. */
static uint32_t hash_of_weights(const tg_model *m)
{
    uint32_t so_far = 2166136261u;
    for (uint32_t i = 0; i < image_trained_count; i++) {
        const tg_tensor *place = &tg_tensors[image_trained[i]];
        if (!place->in_l3) {
            so_far = hash(so_far, (const uint32_t *)(const void *)(m->state + place->offset), place->bytes / 4);
            continue;
        }
        for (uint32_t done = 0, piece; done < place->bytes; done += piece) {
            piece = place->bytes - done < sizeof bounce ? place->bytes - done : sizeof bounce;
            tg_l3_read(place->offset + done, bounce, piece);
            so_far = hash(so_far, (const uint32_t *)(const void *)bounce, piece / 4);
        }
    }
    return so_far;
}

void run_program(void)
{
    static tg_model m;
    uint32_t start, cycles;
    tg_status bound = tg_bind(&m, _state, _arena, _scratch);
    if (bound != TG_OK)
        report(RECORD_FAILURE, 0, (uint32_t)bound, 0);
    for (uint32_t i = 0; i < image_tensor_count; i++)
        fill(&m, &image_tensors[i]);
    for (uint32_t update = 0, number = 0; update < IMAGE_UPDATES; update++) {
        for (uint32_t i = 0; i < IMAGE_ACCUMULATE; i++, number++) {
            float loss = 0.0f;
            make_step(&m, number);
            start = cycle_count();
            tg_status status = image_step(&m, &loss);
            cycles = cycle_count() - start;
            if (status != TG_OK)
                report(RECORD_FAILURE, number, (uint32_t)status, 0);
            report(RECORD_STEP, number, bits_of(loss), cycles);
        }
        start = cycle_count();
        tg_update(&m);
        report(RECORD_UPDATE, update, 0, cycle_count() - start);
    }
    make_infer(&m);
    start = cycle_count();
    image_infer(&m);
    report(RECORD_INFER, 0, 0, cycle_count() - start);
    report(RECORD_WEIGHTS, 0, hash_of_weights(&m), 0);
    for (int core = 0; core < TG_CORES + TG_CONTROLLER; core++) {
        int number = core < TG_CORES ? core : CONTROLLER;
        stack_use stack = stack_of(number);
        report(stack.is_intact ? RECORD_STACK : RECORD_OVERFLOW, (uint32_t)number, stack.used, stack.bytes);
    }
    report(RECORD_END, 0, 0, 0);
}
