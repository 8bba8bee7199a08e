/* In the place of the chip's compiler: the builtin that the matrix product asks for, four multiply-adds with one
 * rounding each, first and second factor before what is added. */
typedef float kvx_four __attribute__((vector_size(16)));
static inline kvx_four kvx_stand_in(kvx_four a, kvx_four b, kvx_four c, const char *modifier)
{
    (void)modifier;
    for (int i = 0; i < 4; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
#define __builtin_kvx_ffmawq kvx_stand_in
