/* Relu: y = x <= 0 ? 0 : x (a NaN stays). ReluGrad from the forward output: dx = y > 0 ? dy : 0. */
#include "tg_elementwise.h"
#include "tg_relu.h"

TG_KERNEL void tg_relu(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MEM const tg_b4 *from = (TG_MEM const tg_b4 *)x;
    TG_MEM tg_b4 *out = (TG_MEM tg_b4 *)y;
    TG_STREAM1(tg_b4, out, from, tg_relu_bits(v))
}

TG_KERNEL void tg_relu_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                            TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MEM const tg_b4 *gradient = (TG_MEM const tg_b4 *)dy, *output = (TG_MEM const tg_b4 *)y;
    TG_MEM tg_b4 *out = (TG_MEM tg_b4 *)dx;
    TG_STREAM2(tg_b4, out, gradient, output, tg_relu_grad_bits(u, v))
}
