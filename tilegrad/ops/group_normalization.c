/* GroupNormalization and InstanceNormalization: x [o, g, d, s] with statistics per (o, g). The loops are in
 * tg_normalize.h. */
#include "tg_normalize.h"

TG_KERNEL void tg_group_norm(TG_MEM const float *x, TG_MEM const float *scale, TG_MEM const float *bias,
                             TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *y,
                             TG_ARG const tg_normalize_args *p, int core_id, int core_count)
{
    tg_normalize(x, scale, bias, mean, spread, y, p, core_id, core_count);
}

TG_KERNEL void tg_group_norm_partial(TG_MEM const float *x, TG_MEM const float *mean, TG_MEM float *total,
                                     TG_ARG const tg_row_statistics_args *p, int core_id, int core_count)
{
    tg_row_statistics(x, mean, total, p, core_id, core_count);
}

TG_KERNEL void tg_group_norm_dots(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *mean,
                                  TG_MEM const float *spread, TG_MEM float *sum, TG_MEM float *dot,
                                  TG_ARG const tg_normalize_dots_args *p, int core_id, int core_count)
{
    tg_normalize_dots(dy, x, mean, spread, sum, dot, p, core_id, core_count);
}

TG_KERNEL void tg_group_norm_parameters(TG_MEM const float *sum, TG_MEM const float *dot, TG_MEM float *dscale,
                                        TG_MEM float *dbias, TG_ARG const tg_normalize_parameters_args *p, int core_id,
                                        int core_count)
{
    tg_normalize_parameters(sum, dot, dscale, dbias, p, core_id, core_count);
}

TG_KERNEL void tg_group_norm_moments(TG_MEM const float *sum, TG_MEM const float *dot, TG_MEM const float *scale,
                                     TG_MEM float *shift, TG_MEM float *tilt,
                                     TG_ARG const tg_normalize_moments_args *p, int core_id, int core_count)
{
    tg_normalize_moments(sum, dot, scale, shift, tilt, p, core_id, core_count);
}

TG_KERNEL void tg_group_norm_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *scale,
                                  TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM const float *shift,
                                  TG_MEM const float *tilt, TG_MEM float *dx, TG_ARG const tg_normalize_grad_args *p,
                                  int core_id, int core_count)
{
    tg_normalize_grad(dy, x, scale, mean, spread, shift, tilt, dx, p, core_id, core_count);
}
