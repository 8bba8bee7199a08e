/* MaxPool and its gradient, sixteen windows at a time. */
#include "tg_vector.h"
#include "tg_window.h"

/* A row of taps of sixteen windows: `at` is where the first tap of the first window lies in a row of `width`. Which of
 * the windows have a tap inside is kept for the first taps, which are mostly all. */
#define TG_POOL_TAPS 16
typedef struct {
    int at, stride, dilation, width;
    tg_v_apart kept[TG_POOL_TAPS];
} tg_pool_taps;

TG_TEMPLATE tg_v_apart tg_pool_find(const tg_pool_taps *t, int tap)
{
    int start, stop;
    tg_window_taps(t->at + tap * t->dilation, t->stride, 16, 0, t->width, &start, &stop);
    return tg_v_apart_of(t->stride, tg_v_first(stop) & ~tg_v_first(start));
}

TG_TEMPLATE tg_v_apart tg_pool_inside(const tg_pool_taps *t, int tap)
{
    return tap < TG_POOL_TAPS ? t->kept[tap] : tg_pool_find(t, tap);
}

TG_TEMPLATE tg_pool_taps tg_pool_row(int at, int stride, int dilation, int taps, int width)
{
    tg_pool_taps result = {.at = at, .stride = stride, .dilation = dilation, .width = width};
    for (int tap = 0; tap < tg_min(taps, TG_POOL_TAPS); tap++)
        result.kept[tap] = tg_pool_find(&result, tap);
    return result;
}

/* Without indices. What is outside the image is less than anything. */
TG_TEMPLATE void tg_max_pool_rows(const float *x, float *y, const tg_max_pool_args *p, int start, int stop)
{
    const tg_v16 least = tg_v_set(-TG_INFINITY);
    for (int ow = 0; ow < p->n_ow; ow += 16) {
        const tg_pool_taps taps = tg_pool_row(ow * p->stride_w + p->x_o2, p->stride_w, p->dilation_w, p->n_kw, p->x_n2);
        for (int unit = start; unit < stop; unit++) {
            const int c = unit / p->n_oh, oh = unit - c * p->n_oh, top = oh * p->stride_h + p->x_o1;
            tg_v16 best = least;
            for (int kh = 0; kh < p->n_kh; kh++) {
                const int h = top + kh * p->dilation_h;
                if (h < 0 || h >= p->x_n1)
                    continue;
                const float *row = x + c * p->x_s0 + h * p->x_s1 + taps.at;
                for (int kw = 0; kw < p->n_kw; kw++, row += p->dilation_w)
                    best = tg_v_greater(tg_v_load_apart(row, p->stride_w, tg_pool_inside(&taps, kw), least), best);
            }
            tg_v_store_some(y + c * p->y_s0 + oh * p->y_s1 + ow, tg_v_first(p->n_ow - ow), best);
        }
    }
}

/* The usual windows, of three or two by as many and two apart, are worth code of their own: the statement is run with
 * `q`, a copy of the arguments *p in which the compiler knows them. */
#define TG_POOL_USUAL(TYPE, STATEMENT)                                                                                 \
    {                                                                                                                  \
        TYPE own = *p;                                                                                                 \
        const TYPE *q = &own;                                                                                          \
        const int is_usual = p->n_kh == p->n_kw && p->stride_h == 2 && p->stride_w == 2 && p->dilation_h == 1 &&       \
                             p->dilation_w == 1;                                                                       \
        if (is_usual && p->n_kh == 3) {                                                                                \
            own.n_kh = own.n_kw = 3, own.stride_h = own.stride_w = 2, own.dilation_h = own.dilation_w = 1;             \
            STATEMENT                                                                                                  \
        } else if (is_usual && p->n_kh == 2) {                                                                         \
            own.n_kh = own.n_kw = 2, own.stride_h = own.stride_w = 2, own.dilation_h = own.dilation_w = 1;             \
            STATEMENT                                                                                                  \
        } else {                                                                                                       \
            STATEMENT                                                                                                  \
        }                                                                                                              \
    }

TG_KERNEL void tg_max_pool(TG_MEM const float *x, TG_MEM float *y, TG_MEM int64_t *indices,
                           TG_ARG const tg_max_pool_args *p, int core_id, int core_count)
{
    if (indices == TG_NULL) {
        int from, to;
        tg_share(p->n_c * p->n_oh, core_id, core_count, &from, &to);
        TG_POOL_USUAL(tg_max_pool_args, tg_max_pool_rows(x, y, q, from, to);)
        return;
    }
    TG_MAX_POOL(float, TG_GREATER_OR_NAN)
}

/* The gradient takes two steps. Each window is tagged with the tap of its first maximum; then each image element adds, in
 * order of (kh, kw), the gradients of the windows that see it through the tap they are tagged with. Tags of as many window
 * rows as fit are kept; where not even those of one image row do, they are found again whenever they are needed. */
#define TG_POOL_TAGS 4096
typedef struct {
    const float *dy, *x, *y; /* at a channel */
    const tg_max_pool_grad_args *p;
    float *tags;
    int top, by; /* the window row that the tags begin with, and from row to row */
} tg_pool_plane;

/* The lanes of those windows from ow on that exist. */
TG_INLINE uint32_t tg_pool_exist(int ow, int windows) { return tg_v_first(windows - ow) & ~tg_v_first(-ow); }

TG_TEMPLATE tg_pool_taps tg_pool_windows(const tg_max_pool_grad_args *p, int ow)
{
    return tg_pool_row(ow * p->stride_w - p->dy_o2 + p->x_o2, p->stride_w, p->dilation_w, p->n_kw, p->x_n2);
}

/* Tags of sixteen windows from (oh, ow) on; -1 where the maximum is below the image rows of this tile. */
TG_TEMPLATE tg_v16 tg_pool_tag(const tg_pool_plane *q, const tg_pool_taps *taps, int oh, int ow)
{
    const tg_max_pool_grad_args *p = q->p;
    const int below = (p->n_kh - 1) * p->dilation_h + p->x_o1, top = oh * p->stride_h - p->dy_o1;
    const tg_v16 maximum = tg_v_load_some(q->y + oh * p->y_s1 + ow, tg_pool_exist(ow, p->dy_n2)), one = tg_v_set(1.0f);
    const uint32_t nan = tg_v_nan(maximum, 0xFFFFu);
    tg_v16 tags = tg_v_set(-1.0f);
    for (int kh = p->n_kh - 1; kh >= 0; kh--) { /* backwards: the first maximum comes last */
        const int h = top + kh * p->dilation_h;
        if (h + below < 0 || h >= p->n_ih)
            continue;
        const float *row = q->x + (h + below) * p->x_s1 + taps->at;
        tg_v16 number = tg_v_set((float)((kh + 1) * p->n_kw));
        for (int kw = p->n_kw - 1; kw >= 0; kw--) {
            const tg_v_apart inside = tg_pool_inside(taps, kw);
            const tg_v16 value = tg_v_load_apart(row + kw * p->dilation_w, p->stride_w, inside, maximum);
            uint32_t hit = tg_v_equal(value, maximum, inside.lanes);
            if (nan)
                hit |= tg_v_nan(value, inside.lanes & nan);
            number = tg_v_sub(number, one);
            tags = tg_v_select(hit, number, tags);
        }
    }
    return tags;
}

/* Keeps the tags of the windows that see image rows [start, stop). */
TG_TEMPLATE void tg_pool_tag_rows(tg_pool_plane *q, int start, int stop)
{
    const tg_max_pool_grad_args *p = q->p;
    const int highest = start + p->dy_o1 - (p->n_kh - 1) * p->dilation_h, lowest = stop - 1 + p->dy_o1;
    q->top = highest > 0 ? (highest + p->stride_h - 1) / p->stride_h : 0;
    const int rows_stop = lowest < 0 ? 0 : tg_min(lowest / p->stride_h + 1, p->dy_n1);
    for (int ow = 0; ow < p->dy_n2; ow += 16) {
        const tg_pool_taps taps = tg_pool_windows(p, ow);
        for (int oh = q->top; oh < rows_stop; oh++)
            tg_v_store(q->tags + (oh - q->top) * q->by + ow, tg_pool_tag(q, &taps, oh, ow));
    }
}

/* The taps through which windows see an image position: `tap` and every `step` further one, the first of them that of
 * window `window` (which may not exist), the next ones those of windows `back` before. */
typedef struct {
    int tap, step, window, back;
} tg_sighting;

TG_INLINE tg_sighting tg_sightings(int position, int stride, int dilation)
{
    tg_sighting s = {0, 1, 0, 0};
    while (s.step * dilation % stride != 0)
        s.step++;
    s.back = s.step * dilation / stride;
    for (; s.tap < s.step; s.tap++) {
        int top = position - s.tap * dilation;
        s.window = top / stride - (top % stride < 0);
        if (s.window * stride == top)
            return s;
    }
    s.window = -1; /* none at all */
    return s;
}

/* The columns of windows that see sixteen columns of the image: `w` those of the first; lane l's are l further. Which of
 * them exist is kept as above. */
typedef struct {
    tg_sighting w;
    uint16_t kept[TG_POOL_TAPS];
} tg_pool_seen;

TG_TEMPLATE tg_pool_seen tg_pool_see(const tg_max_pool_grad_args *p, int iw)
{
    tg_pool_seen result = {.w = tg_sightings(iw + p->dy_o2, p->stride_w, p->dilation_w)};
    if (result.w.tap == result.w.step) /* no window at all */
        result.w.tap = p->n_kw;
    for (int i = 0; i < TG_POOL_TAPS && result.w.tap + i * result.w.step < p->n_kw; i++)
        result.kept[i] = (uint16_t)tg_pool_exist(result.w.window - i * result.w.back, p->dy_n2);
    return result;
}

/* Sixteen elements of a row of dx, seen by window rows `h`. */
TG_TEMPLATE tg_v16 tg_pool_gather(const tg_pool_plane *q, tg_sighting h, const tg_pool_seen *seen, int is_kept)
{
    const tg_max_pool_grad_args *p = q->p;
    const tg_sighting w = seen->w;
    tg_v16 sum = tg_v_set(0.0f);
    for (int kh = h.tap, oh = h.window; kh < p->n_kh; kh += h.step, oh -= h.back) {
        if (oh < 0 || oh >= p->dy_n1)
            continue;
        const float *gradient = q->dy + oh * p->dy_s1, *tags = q->tags + (oh - q->top) * q->by;
        for (int i = 0, kw = w.tap, ow = w.window; kw < p->n_kw; i++, kw += w.step, ow -= w.back) {
            const uint32_t exist = i < TG_POOL_TAPS ? seen->kept[i] : tg_pool_exist(ow, p->dy_n2);
            tg_v16 tag;
            if (is_kept)
                tag = tg_v_load_some(tags + ow, exist);
            else {
                const tg_pool_taps taps = tg_pool_windows(p, ow);
                tag = tg_pool_tag(q, &taps, oh, ow);
            }
            const uint32_t hit = tg_v_equal(tag, tg_v_set((float)(kh * p->n_kw + kw)), exist);
            sum = tg_v_add_some(sum, tg_v_load_some(gradient + ow, hit), hit);
        }
    }
    return sum;
}

/* Rows [start, stop) of one channel of dx. Rows and columns that see the same taps follow each other by a stride. */
TG_TEMPLATE void tg_pool_give(const tg_pool_plane *q, float *dx, int start, int stop, int is_kept)
{
    const tg_max_pool_grad_args *p = q->p;
    const int is_pair = p->stride_w == 2, across = p->stride_w;
    for (int first = 0; first < p->n_iw; first += 16 * across)
        for (int iw = first; iw < tg_min(first + across, p->n_iw); iw += is_pair ? 2 : 1) {
            const tg_pool_seen seen = tg_pool_see(p, iw), next = tg_pool_see(p, iw + 1);
            for (int phase = start; phase < tg_min(start + p->stride_h, stop); phase++) {
                tg_sighting h = tg_sightings(phase + p->dy_o1, p->stride_h, p->dilation_h);
                h.tap = h.tap == h.step ? p->n_kh : h.tap;
                for (int ih = phase; ih < stop; ih += p->stride_h, h.window++) {
                    const tg_v16 sum = tg_pool_gather(q, h, &seen, is_kept);
                    float *out = dx + ih * p->dx_s1 + iw;
                    if (is_pair)
                        tg_v_store_pairs(out, p->n_iw - iw, sum, tg_pool_gather(q, h, &next, is_kept));
                    else
                        tg_v_store_apart(out, across, tg_v_first((p->n_iw - iw + across - 1) / across), sum);
                }
            }
        }
}

TG_TEMPLATE void tg_max_pool_grad_rows(const float *dy, const float *x, const float *y, float *dx,
                                       const tg_max_pool_grad_args *p, int start, int stop)
{
    TG_ALIGNED float tags[TG_POOL_TAGS];
    const int by = (p->dy_n2 + 15) / 16 * 16, kept = by > 0 ? TG_POOL_TAGS / by : 0;
    const int rows = (kept - 2) * p->stride_h - (p->n_kh - 1) * p->dilation_h + 1; /* of the image, seen by kept ones */
    for (int c = start / tg_max(p->n_ih, 1); c * p->n_ih < stop; c++) {
        const int ih_start = tg_max(start - c * p->n_ih, 0), ih_stop = tg_min(stop - c * p->n_ih, p->n_ih);
        tg_pool_plane q = {dy + c * p->dy_s0, x + c * p->x_s0, y + c * p->y_s0, p, tags, 0, by};
        for (int ih = ih_start, next; ih < ih_stop; ih = next) {
            next = rows > 0 ? tg_min(ih + rows, ih_stop) : ih_stop;
            if (rows > 0) {
                tg_pool_tag_rows(&q, ih, next);
                tg_pool_give(&q, dx + c * p->dx_s0, ih, next, 1);
            } else
                tg_pool_give(&q, dx + c * p->dx_s0, ih, next, 0);
        }
    }
}

TG_KERNEL void tg_max_pool_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *y, TG_MEM float *dx,
                                TG_ARG const tg_max_pool_grad_args *p, int core_id, int core_count)
{
    int from, to;
    tg_share(p->n_c * p->n_ih, core_id, core_count, &from, &to); /* of the rows (c, ih) */
    TG_POOL_USUAL(tg_max_pool_grad_args, tg_max_pool_grad_rows(dy, x, y, dx, q, from, to);)
}
