/* MaxPool and its gradient, sixteen windows at a time. */
#include "tg_vector.h"
#include "tg_window.h"

/* A row of taps of sixteen windows: `at` is where the first tap of the first window lies in a row of `width`. Which of
 * the windows have a tap inside is kept for the first taps, which are mostly all. */
#define TG_POOL_TAPS 16
typedef struct {
    int at, stride, dilation, windows, width;
    uint32_t kept[TG_POOL_TAPS];
} tg_pool_taps;

TG_INLINE uint32_t tg_pool_find(const tg_pool_taps *p, int tap)
{
    int start, stop;
    tg_window_taps(p->at + tap * p->dilation, p->stride, tg_min(p->windows, 16), 0, p->width, &start, &stop);
    return stop > start ? tg_v_first(stop) & ~tg_v_first(start) : 0u;
}

TG_INLINE uint32_t tg_pool_inside(const tg_pool_taps *p, int tap)
{
    return tap < TG_POOL_TAPS ? p->kept[tap] : tg_pool_find(p, tap);
}

TG_INLINE tg_pool_taps tg_pool_row(int at, int stride, int dilation, int taps, int windows, int width)
{
    tg_pool_taps result = {at, stride, dilation, windows, width, {0}};
    for (int tap = 0; tap < tg_min(taps, TG_POOL_TAPS); tap++)
        result.kept[tap] = tg_pool_find(&result, tap);
    return result;
}

/* Sixteen windows at a time, without indices. */
TG_TEMPLATE void tg_max_pool_rows(const float *x, float *y, const tg_max_pool_args *p, int start, int stop, int stride)
{
    for (int ow = 0; ow < p->n_ow; ow += 16) {
        const int at = ow * p->stride_w + p->x_o2;
        const tg_pool_taps taps = tg_pool_row(at, p->stride_w, p->dilation_w, p->n_kw, p->n_ow - ow, p->x_n2);
        for (int unit = start; unit < stop; unit++) {
            const int c = unit / p->n_oh, oh = unit - c * p->n_oh, top = oh * p->stride_h + p->x_o1;
            uint32_t empty = 0xFFFFu; /* windows without a tap so far */
            tg_v16 best = tg_v_set(0.0f);
            for (int kh = 0; kh < p->n_kh; kh++) {
                const int h = top + kh * p->dilation_h;
                for (int kw = 0; kw < p->n_kw && h >= 0 && h < p->x_n1; kw++) {
                    const uint32_t inside = tg_pool_inside(&taps, kw);
                    const float *row = x + c * p->x_s0 + h * p->x_s1 + at + kw * p->dilation_w;
                    const tg_v16 value = tg_v_load_apart(row, stride, inside);
                    best = tg_v_select((tg_v_above(value, best) | empty) & inside, value, best);
                    empty &= ~inside;
                }
            }
            tg_v_store_some(y + c * p->y_s0 + oh * p->y_s1 + ow, tg_v_first(p->n_ow - ow), best);
        }
    }
}

TG_KERNEL void tg_max_pool(TG_MEM const float *x, TG_MEM float *y, TG_MEM int64_t *indices,
                           TG_ARG const tg_max_pool_args *p, int core_id, int core_count)
{
    if (indices == TG_NULL) {
        int from, to;
        tg_share(p->n_c * p->n_oh, core_id, core_count, &from, &to);
        if (p->stride_w == 2)
            tg_max_pool_rows(x, y, p, from, to, 2);
        else
            tg_max_pool_rows(x, y, p, from, to, p->stride_w);
        return;
    }
    TG_MAX_POOL(float, TG_GREATER_OR_NAN)
}

/* Sixteen windows from (oh, ow) on, whose first taps lie at (ih, iw) of the image: each gives its gradient to its first
 * maximum, if that is among rows [ih_start, ih_stop). The last window comes first. `below` and `x_o2` lead from the image
 * to x; `from` and `to` are the windows' taps in x and in dx. */
TG_INLINE void tg_max_pool_give(const float *dy, const float *plane, const float *y, float *dx,
                                const tg_max_pool_grad_args *p, int ih, int iw, int below, int ih_start, int ih_stop,
                                const tg_pool_taps *from, const tg_pool_taps *to)
{
    const uint32_t exist = tg_v_first(from->windows);
    const tg_v16 maximum = tg_v_load_some(y, exist);
    tg_v16 at = tg_v_set(0.0f); /* where in dx, as a whole number, from the window's first tap */
    uint32_t open = exist, given = 0;
    TG_ALIGNED float places[16];
    for (int kh = 0; kh < p->n_kh && open; kh++) {
        const int h = ih + kh * p->dilation_h;
        for (int kw = 0; kw < p->n_kw && h + below >= 0 && h < ih_stop; kw++) {
            const uint32_t inside = tg_pool_inside(from, kw) & open;
            const float *row = plane + (h + below) * p->x_s1 + iw + p->x_o2 + kw * p->dilation_w;
            const tg_v16 value = tg_v_load_apart(row, p->stride_w, inside);
            const uint32_t hit = tg_v_equal(value, maximum) & inside;
            at = tg_v_select(hit, tg_v_set((float)(kh * p->dilation_h * p->dx_s1 + kw * p->dilation_w)), at);
            open &= ~hit;
            given |= h >= ih_start ? hit & tg_pool_inside(to, kw) : 0u;
        }
    }
    tg_v_store(places, at);
    for (int l = 15; given; l--, given = given << 1 & 0xFFFFu)
        if (given & 0x8000u)
            dx[ih * p->dx_s1 + iw + l * p->stride_w + (int)places[l]] += dy[l];
}

/* Each image element adds, in order of (kh, kw), the gradients of the windows whose first maximum it is: windows are
 * visited last to first. */
TG_KERNEL void tg_max_pool_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *y, TG_MEM float *dx,
                                TG_ARG const tg_max_pool_grad_args *p, int core_id, int core_count)
{
    const int reach = (p->n_kh - 1) * p->dilation_h, below = reach + p->x_o1;
    tg_pool_taps from = {0, 1, 1, 0, 0, {0}}, to = from;
    int start, stop, known = -1;
    tg_share(p->n_c * p->n_ih, core_id, core_count, &start, &stop); /* of the rows (c, ih) */
    for (int unit = start; unit < stop; unit++)
        for (int iw = 0, c = unit / p->n_ih, ih = unit - c * p->n_ih; iw < p->n_iw; iw++)
            dx[c * p->dx_s0 + ih * p->dx_s1 + iw] = 0.0f;
    for (int c = start / tg_max(p->n_ih, 1); c * p->n_ih < stop; c++) {
        const int ih_start = tg_max(start - c * p->n_ih, 0), ih_stop = tg_min(stop - c * p->n_ih, p->n_ih);
        for (int oh = p->dy_n1 - 1; oh >= 0; oh--) {
            const int ih = oh * p->stride_h - p->dy_o1; /* of the window's first tap */
            if (ih >= ih_stop || ih + reach < ih_start)
                continue;
            for (int ow = tg_max(p->dy_n2 - 1, 0) / 16 * 16; ow >= 0; ow -= 16) {
                const int iw = ow * p->stride_w - p->dy_o2, windows = p->dy_n2 - ow;
                if (ow != known) { /* rows of up to sixteen windows find them once */
                    from = tg_pool_row(iw + p->x_o2, p->stride_w, p->dilation_w, p->n_kw, windows, p->x_n2);
                    to = tg_pool_row(iw, p->stride_w, p->dilation_w, p->n_kw, windows, p->n_iw);
                    known = ow;
                }
                tg_max_pool_give(dy + c * p->dy_s0 + oh * p->dy_s1 + ow, x + c * p->x_s0,
                                 y + c * p->y_s0 + oh * p->y_s1 + ow, dx + c * p->dx_s0, p, ih, iw, below, ih_start, ih_stop,
                                 &from, &to);
            }
        }
    }
}
