/* Relu: y = x <= 0 ? 0 : x (a NaN stays). ReluGrad from the forward output: dx = y > 0 ? dy : 0. Both on the bits, which
 * order positive floats as integers: no comparison in the FPU, no branch. */
#include "tg_elementwise.h"

TG_KERNEL void tg_relu(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MEM const tg_b4 *from = (TG_MEM const tg_b4 *)x;
    TG_MEM tg_b4 *out = (TG_MEM tg_b4 *)y;
    TG_STREAM1(tg_b4, out, from, v & -(tg_b4)(v + 0x80000000u > 0x7F800000u)) /* zero from -infinity to -0 */
}

TG_KERNEL void tg_relu_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                            TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MEM const tg_b4 *gradient = (TG_MEM const tg_b4 *)dy, *output = (TG_MEM const tg_b4 *)y;
    TG_MEM tg_b4 *out = (TG_MEM tg_b4 *)dx;
    TG_STREAM2(tg_b4, out, gradient, output, u & -(tg_b4)(v - 1u < 0x7F800000u)) /* kept from the least to infinity */
}
