/* AddRelu: y = the Relu of a + b. AddReluGrad from the Relu's output: dx = y > 0 ? a + b : 0. The sum is rounded once, as
 * Add's is, and a NaN stays where Relu and ReluGrad keep one. */
#include "tg_elementwise.h"
#include "tg_relu.h"

TG_KERNEL void tg_add_relu(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, TG_ARG const tg_map_args *p,
                           int core_id, int core_count)
{
    TG_STREAM2(float, y, a, b, tg_float(tg_relu_bits(tg_bits(u + v))))
}

#if defined(__riscv) && !defined(__riscv_vector)
/* All loads first, as in TG_STREAM2: dx may lie exactly over an input. */
TG_INLINE void tg_add_relu_grad_four(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const tg_b4 *y,
                                     TG_MEM tg_b4 *dx)
{
    const float a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
    const float b0 = b[0], b1 = b[1], b2 = b[2], b3 = b[3];
    const uint32_t y0 = y[0], y1 = y[1], y2 = y[2], y3 = y[3];
    dx[0] = tg_relu_grad_bits(tg_bits(a0 + b0), y0);
    dx[1] = tg_relu_grad_bits(tg_bits(a1 + b1), y1);
    dx[2] = tg_relu_grad_bits(tg_bits(a2 + b2), y2);
    dx[3] = tg_relu_grad_bits(tg_bits(a3 + b3), y3);
}
#endif

TG_KERNEL void tg_add_relu_grad(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *y, TG_MEM float *dx,
                                TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MEM const tg_b4 *output = (TG_MEM const tg_b4 *)y;
    TG_MEM tg_b4 *out = (TG_MEM tg_b4 *)dx;
    int i, stop;
    tg_share(p->n_i, core_id, core_count, &i, &stop);
#if defined(__riscv) && !defined(__riscv_vector)
    for (; stop - i >= 8; i += 8) {
        tg_add_relu_grad_four(a + i, b + i, output + i, out + i);
        tg_add_relu_grad_four(a + i + 4, b + i + 4, output + i + 4, out + i + 4);
    }
#endif
    TG_INDEPENDENT for (; i < stop; i++) { out[i] = tg_relu_grad_bits(tg_bits(a[i] + b[i]), output[i]); }
}
