#ifndef TG_PORTS_H
#define TG_PORTS_H

/* How the harness packs inputs and outputs of each entry. */
#define TG_PORT_INFER_IN 64
#define TG_PORT_INFER_OUT 64
#define TG_PORT_STEP_IN 128
#define TG_PORT_STEP_OUT 64
#define TG_PORT_UPDATE_IN 0
#define TG_PORT_UPDATE_OUT 0
#define TG_PORT_INPUT_BYTES 128
#define TG_PORT_OUTPUT_BYTES 64

static int tg_port_infer(tg_model *m, const unsigned char *in, unsigned char *out)
{
    return tg_infer(m, (const float *)(const void *)(in + 0), (float *)(void *)(out + 0));
}

static int tg_port_step(tg_model *m, const unsigned char *in, unsigned char *out)
{
    return tg_step(m, (const float *)(const void *)(in + 0), (const int64_t *)(const void *)(in + 64),
                   (float *)(void *)(out + 0));
}

static int tg_port_update(tg_model *m, const unsigned char *in, unsigned char *out)
{
    (void)in;
    (void)out;
    return tg_update(m);
}

#endif
