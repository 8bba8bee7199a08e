/* The innermost loops that a chip has instructions of its own for. Here there are none: a chip's own header of this name
 * defines some of
 *
 *   TG_INNER_GEMM   tg_inner_gemm_{nn,nt,tn,tt}(): a 4x4 block of a matrix product (tg_gemm.h)
 *   TG_INNER_ROW    tg_inner_row{,_across}(): four outputs of a matrix-vector product (tg_gemm.h)
 *   TG_INNER_CONV   tg_inner_conv_{right,left}(): a 4x4 block of a convolution with three taps (tg_convolution.h)
 *   TG_INNER_GATHER tg_inner_gather(): a 4x4 block of the gradient of one with stride 2 (tg_convolution.h)
 *   TG_INNER_WEIGHT tg_inner_weight_{1,2}(): its weight gradient, by stride (ops/conv.c)
 *   TG_INNER_PLANE  tg_inner_plane_{right_1,right_2,left_1}(): a plane of one with a channel on either side, of three
 *                   columns or more; its input gradient runs to the left (tg_depthwise.h)
 *   TG_INNER_OUTER  tg_inner_outer(): blocks of an outer product of SGD (ops/outer_sgd.c)
 *   TG_INNER_DENSE  tg_inner_dense(): the same with the sums of the gradient of x (ops/dense_grad_sgd.c)
 *
 * and each gives the bits of the loop that it takes the place of. */
#ifndef TG_INNER_H
#define TG_INNER_H
#endif
