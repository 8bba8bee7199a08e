/* Complete search for offsets of buffers with lifetimes within a capacity.
 *
 * The ideas are those of M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
 * Learning" (ASPLOS 2023); the code is ours.
 *
 * If there is a solution, there is one in which no buffer can be moved to a lower free place (any solution of least sum
 * of offsets is like that). Only such *settled* solutions are looked for, and each is built in one way: in ascending
 * order of (offset, index). So the next buffer always sits on top of what lies below it, every buffer still to come
 * lies at or above the last offset (the monotonic floor), and a buffer that could be moved down into a hole for good
 * proves that nothing below this node is settled.
 *
 * Time is cut into sections, the maximal sets of buffers alive together; a buffer covers a range of them. When no
 * remaining buffer crosses from one section to the next, both sides are solved separately.
 *
 * Work is counted in nodes, so that the answer does not depend on the machine's speed.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TG_FOUND = 1, TG_IMPOSSIBLE = 0, TG_OUT_OF_WORK = -1, TG_NO_MEMORY = -2 };

enum { MEMO_BITS = 18, INFERENCE_ROUNDS = 4 };

/* A failed subproblem: nothing at or above (floor, last) solves it. */
struct memo {
    uint64_t key, check;
    int64_t floor;
    int32_t last;
};

struct change {
    int32_t buffer;
    int64_t old;
};

struct search {
    int32_t count, sections;
    const int32_t *low, *high; /* buffer b covers the sections low[b] <= s < high[b] */
    const int64_t *size;
    int64_t capacity;
    int32_t *neighbour_start, *neighbours; /* buffers alive together with b */
    int32_t *twin;                         /* previous buffer of the same size and lifetime, or -1 */
    int64_t *rest;                         /* lowest offset above everything placed below */
    int64_t *offset;
    uint8_t *is_placed;
    struct change *trail;
    int32_t trail_length, trail_capacity;
    struct memo *memo;
    int64_t nodes, budget;
    int64_t *failures; /* per section */
    int32_t *section_start, *by_start, *by_top; /* members of each section, in two orders */
    int32_t is_out_of_memory;
    /* scratch of one node, dead before it branches */
    int64_t *earliest;
    int64_t *top;
    int64_t *above;
    int64_t *section_sum;
    uint8_t *is_waiting;
    int32_t *crossing;
};

static uint64_t mix(uint64_t x) {
    x ^= x >> 31;
    x *= UINT64_C(0x7fb5d329728ea185);
    x ^= x >> 27;
    x *= UINT64_C(0x81dadef4bc2dd44d);
    return x ^ (x >> 33);
}

static int raise_rest(struct search *s, int32_t buffer, int64_t value) {
    if (s->trail_length == s->trail_capacity) {
        int32_t capacity = 2 * s->trail_capacity;
        struct change *grown = realloc(s->trail, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            s->is_out_of_memory = 1;
            return 0;
        }
        s->trail = grown;
        s->trail_capacity = capacity;
    }
    s->trail[s->trail_length].buffer = buffer;
    s->trail[s->trail_length].old = s->rest[buffer];
    s->trail_length++;
    s->rest[buffer] = value;
    return 1;
}

static void undo(struct search *s, int32_t length) {
    while (s->trail_length > length) {
        s->trail_length--;
        s->rest[s->trail[s->trail_length].buffer] = s->trail[s->trail_length].old;
    }
}

static int place(struct search *s, int32_t buffer) {
    int64_t top = s->rest[buffer] + s->size[buffer];
    s->offset[buffer] = s->rest[buffer];
    s->is_placed[buffer] = 1;
    for (int32_t k = s->neighbour_start[buffer]; k < s->neighbour_start[buffer + 1]; k++) {
        int32_t other = s->neighbours[k];
        if (!s->is_placed[other] && s->rest[other] < top && !raise_rest(s, other, top)) {
            return 0;
        }
    }
    return 1;
}

/* Lowest place each buffer can take, for `earliest`; 0 when one of them proves that there is no settled solution. */
static int infer_earliest(struct search *s, const int32_t *part, int32_t count, int64_t floor, int32_t last) {
    for (int32_t k = 0; k < count; k++) {
        int32_t b = part[k];
        s->is_waiting[b] = s->rest[b] < floor || (s->rest[b] == floor && b < last);
        s->earliest[b] = s->rest[b] < floor ? floor : s->rest[b];
    }
    for (int32_t k = 0; k < count; k++) {
        int32_t b = part[k];
        if (!s->is_waiting[b]) {
            continue;
        }
        /* Something still to come must carry it; and it must not fit where it rests now. */
        int64_t support = INT64_MAX, roof = INT64_MAX;
        for (int32_t j = s->neighbour_start[b]; j < s->neighbour_start[b + 1]; j++) {
            int32_t other = s->neighbours[j];
            if (s->is_placed[other]) {
                continue;
            }
            int64_t base = s->rest[other] < floor ? floor : s->rest[other];
            roof = base < roof ? base : roof;
            support = base + s->size[other] < support ? base + s->size[other] : support;
        }
        if (support == INT64_MAX || roof >= s->rest[b] + s->size[b]) {
            return 0;
        }
        s->earliest[b] = support > s->earliest[b] ? support : s->earliest[b];
    }
    return 1;
}

/* Insertion: the lists are short, or nearly sorted since the last node. Ties go by index: the order is total. */
static void sort_by(int32_t *items, int32_t count, const int64_t *key) {
    for (int32_t i = 1; i < count; i++) {
        int32_t item = items[i], j = i;
        int64_t value = key[item];
        while (j > 0 && (key[items[j - 1]] > value || (key[items[j - 1]] == value && items[j - 1] > item))) {
            items[j] = items[j - 1];
            j--;
        }
        items[j] = item;
    }
}

/* Moves the section's buffers that are not placed yet to the front, sorted. Returns how many. */
static int32_t gather(const struct search *s, int32_t *members, int32_t count, const int64_t *key) {
    int32_t length = 0;
    for (int32_t k = 0; k < count; k++) {
        int32_t b = members[k];
        if (!s->is_placed[b]) {
            members[k] = members[length];
            members[length++] = b;
        }
    }
    sort_by(members, length, key);
    return length;
}

/* What can only start at or above some height must fit between it and the capacity. */
static int section_fits(const struct search *s, int32_t section) {
    int32_t *alive = s->by_start + s->section_start[section];
    int32_t count = gather(s, alive, s->section_start[section + 1] - s->section_start[section], s->earliest);
    int64_t sum = 0;
    for (int32_t k = count - 1; k >= 0; k--) {
        sum += s->size[alive[k]];
        if (s->earliest[alive[k]] + sum > s->capacity) {
            return 0;
        }
    }
    return 1;
}

/* Raises `earliest` of the buffers that cannot be below all of the others in a section for want of room above them:
 * one of those that do not fit above must be below, so the lowest top among these is a bound. */
static int infer_not_below(struct search *s, int32_t section, int64_t sum) {
    int32_t *alive = s->by_top + s->section_start[section];
    int32_t count = gather(s, alive, s->section_start[section + 1] - s->section_start[section], s->top);
    int is_changed = 0;
    s->above[count] = 0;
    for (int32_t k = count - 1; k >= 0; k--) {
        s->above[k] = s->above[k + 1] + s->size[alive[k]];
    }
    for (int32_t k = 0; k < count; k++) {
        int32_t b = alive[k];
        int64_t room = s->capacity - s->earliest[b] - s->size[b];
        if (sum - s->size[b] <= room) {
            continue;
        }
        /* the last j such that what has the tops j and above, without b, does not fit */
        int32_t yes = 0, no = count;
        while (no - yes > 1) {
            int32_t j = (yes + no) / 2;
            if (s->above[j] - (k >= j ? s->size[b] : 0) > room) {
                yes = j;
            } else {
                no = j;
            }
        }
        if (s->top[alive[yes]] > s->earliest[b]) {
            s->earliest[b] = s->top[alive[yes]];
            is_changed = 1;
        }
    }
    for (int32_t k = 0; k < count; k++) {
        s->top[alive[k]] = s->earliest[alive[k]] + s->size[alive[k]];
    }
    return is_changed;
}

/* Draws conclusions section by section until nothing changes; 0 when some section cannot hold what remains. */
static int infer_sections(struct search *s, const int32_t *part, int32_t count) {
    int32_t low = s->sections, high = 0;
    for (int32_t k = 0; k < count; k++) {
        int32_t b = part[k];
        low = s->low[b] < low ? s->low[b] : low;
        high = s->high[b] > high ? s->high[b] : high;
        s->top[b] = s->earliest[b] + s->size[b];
    }
    int is_changed = 1;
    for (int round = 0; round < INFERENCE_ROUNDS && is_changed; round++) {
        is_changed = 0;
        for (int32_t t = low; t < high; t++) {
            int64_t sum = 0, highest = 0;
            for (int32_t k = s->section_start[t]; k < s->section_start[t + 1]; k++) {
                int32_t b = s->by_top[k];
                if (!s->is_placed[b]) {
                    sum += s->size[b];
                    highest = s->earliest[b] > highest ? s->earliest[b] : highest;
                }
            }
            if (highest + sum <= s->capacity) {
                continue;
            }
            if (!section_fits(s, t)) {
                s->failures[t]++;
                return 0;
            }
            is_changed |= infer_not_below(s, t, sum);
        }
    }
    return 1;
}

/* Nothing still to come can get below it: in a settled solution it lies where it rests. */
static int is_free(const struct search *s, int32_t buffer) {
    int64_t top = s->rest[buffer] + s->size[buffer];
    for (int32_t k = s->neighbour_start[buffer]; k < s->neighbour_start[buffer + 1]; k++) {
        int32_t other = s->neighbours[k];
        if (!s->is_placed[other] && s->earliest[other] < top) {
            return 0;
        }
    }
    return 1;
}

static int solve(struct search *s, const int32_t *part, int32_t count, int64_t floor, int32_t last);

/* Solves what remains of `part` after a placement, in as many parts as it falls into. */
static int solve_rest(struct search *s, const int32_t *part, int32_t count, int64_t floor, int32_t last) {
    int32_t *remaining = malloc((size_t)(2 * count + 1) * sizeof *remaining);
    if (remaining == NULL) {
        s->is_out_of_memory = 1;
        return TG_NO_MEMORY;
    }
    int32_t *group = remaining + count;
    int32_t length = 0, low = s->sections, high = 0;
    for (int32_t k = 0; k < count; k++) {
        if (!s->is_placed[part[k]]) {
            remaining[length++] = part[k];
            low = s->low[part[k]] < low ? s->low[part[k]] : low;
            high = s->high[part[k]] > high ? s->high[part[k]] : high;
        }
    }
    int result = TG_FOUND;
    if (length > 0) {
        /* crossing[t] counts the buffers alive in both section t - 1 and t */
        memset(s->crossing + low, 0, (size_t)(high - low + 1) * sizeof *s->crossing);
        for (int32_t k = 0; k < length; k++) {
            s->crossing[s->low[remaining[k]] + 1]++;
            s->crossing[s->high[remaining[k]]]--;
        }
        int32_t parts = 0, alive = 0;
        for (int32_t t = low; t < high; t++) {
            alive += t > low ? s->crossing[t] : 0;
            parts += t == low || alive == 0;
            s->section_sum[t] = parts - 1;
        }
        for (int32_t k = 0; k < length; k++) {
            group[k] = (int32_t)s->section_sum[s->low[remaining[k]]];
        }
        int32_t *own = parts > 1 ? malloc((size_t)length * sizeof *own) : remaining;
        if (own == NULL) {
            s->is_out_of_memory = 1;
            result = TG_NO_MEMORY;
        }
        for (int32_t p = 0; p < parts && result == TG_FOUND; p++) {
            int32_t own_length = 0;
            for (int32_t k = 0; k < length; k++) {
                if (group[k] == p) {
                    own[own_length++] = remaining[k];
                }
            }
            if (own_length > 0) {
                result = solve(s, own, own_length, floor, last);
            }
        }
        if (own != remaining) {
            free(own);
        }
    }
    free(remaining);
    return result;
}

static struct memo *look_up(struct search *s, const int32_t *part, int32_t count, uint64_t *key, uint64_t *check) {
    uint64_t a = 0, b = 0;
    for (int32_t k = 0; k < count; k++) {
        uint64_t h = mix(((uint64_t)(uint32_t)part[k] << 44) + (uint64_t)s->rest[part[k]] + 1);
        a += h;
        b += mix(h ^ UINT64_C(0x9e3779b97f4a7c15));
    }
    *key = a;
    *check = b;
    return &s->memo[mix(a) >> (64 - MEMO_BITS)];
}

static int solve(struct search *s, const int32_t *part, int32_t count, int64_t floor, int32_t last) {
    if (s->nodes >= s->budget) {
        return TG_OUT_OF_WORK;
    }
    s->nodes++;
    uint64_t key, check;
    struct memo *known = look_up(s, part, count, &key, &check);
    if (known->key == key && known->check == check &&
        (known->floor < floor || (known->floor == floor && known->last <= last))) {
        return TG_IMPOSSIBLE;
    }
    int result = TG_IMPOSSIBLE;
    if (infer_earliest(s, part, count, floor, last) && infer_sections(s, part, count)) {
        int32_t *candidates = malloc((size_t)count * sizeof *candidates);
        if (candidates == NULL) {
            s->is_out_of_memory = 1;
            return TG_NO_MEMORY;
        }
        int64_t lowest_top = INT64_MAX;
        for (int32_t k = 0; k < count; k++) {
            int64_t top = s->rest[part[k]] + s->size[part[k]];
            lowest_top = top < lowest_top ? top : lowest_top;
        }
        int32_t length = 0, free_buffer = -1;
        for (int32_t k = 0; k < count && free_buffer < 0; k++) {
            int32_t b = part[k];
            if (s->is_waiting[b] || s->earliest[b] > s->rest[b]) {
                continue;
            }
            if (is_free(s, b)) {
                free_buffer = b;
            } else if (s->rest[b] < lowest_top && (s->twin[b] < 0 || s->is_placed[s->twin[b]])) {
                candidates[length++] = b;
            }
        }
        sort_by(candidates, length, s->rest);
        int32_t mark = s->trail_length;
        if (free_buffer >= 0) {
            result = place(s, free_buffer) ? solve_rest(s, part, count, floor, last) : TG_NO_MEMORY;
            if (result != TG_FOUND) {
                undo(s, mark);
            }
        } else {
            for (int32_t k = 0; k < length && result == TG_IMPOSSIBLE; k++) {
                int32_t b = candidates[k];
                int64_t level = s->rest[b];
                result = place(s, b) ? solve_rest(s, part, count, level, b) : TG_NO_MEMORY;
                if (result != TG_FOUND) {
                    undo(s, mark);
                    for (int32_t j = 0; j < count; j++) {
                        s->is_placed[part[j]] = 0;
                    }
                }
            }
        }
        if (result != TG_FOUND) {
            for (int32_t j = 0; j < count; j++) {
                s->is_placed[part[j]] = 0;
            }
        }
        free(candidates);
    }
    if (result == TG_IMPOSSIBLE) {
        known->key = key;
        known->check = check;
        known->floor = floor;
        known->last = last;
    }
    return result;
}

static int find_neighbours(struct search *s) {
    int32_t total = 0;
    for (int pass = 0; pass < 2; pass++) {
        total = 0;
        for (int32_t a = 0; a < s->count; a++) {
            s->neighbour_start[a] = total;
            for (int32_t b = 0; b < s->count; b++) {
                if (a != b && s->low[a] < s->high[b] && s->low[b] < s->high[a]) {
                    if (pass == 1) {
                        s->neighbours[total] = b;
                    }
                    total++;
                }
            }
        }
        s->neighbour_start[s->count] = total;
        if (pass == 0) {
            s->neighbours = malloc((size_t)(total + 1) * sizeof *s->neighbours);
            if (s->neighbours == NULL) {
                return 0;
            }
        }
    }
    total = 0;
    for (int32_t t = 0; t < s->sections; t++) {
        s->section_start[t] = total;
        for (int32_t b = 0; b < s->count; b++) {
            if (s->low[b] <= t && t < s->high[b]) {
                s->by_start[total] = s->by_top[total] = b;
                total++;
            }
        }
    }
    s->section_start[s->sections] = total;
    for (int32_t a = 0; a < s->count; a++) {
        s->twin[a] = -1;
        for (int32_t b = 0; b < a; b++) {
            if (s->low[a] == s->low[b] && s->high[a] == s->high[b] && s->size[a] == s->size[b]) {
                s->twin[a] = b;
            }
        }
    }
    return 1;
}

/* Looks for offsets below `capacity`. The index of a buffer is its rank: of two that could be next at the same height,
 * the lower index is tried first. `offset` is written only when the result is 1 (found); 0 is a proof that there is
 * none; -1: `budget` nodes were not enough; -2: no memory. `nodes` receives the nodes visited. */
int tg_search(int32_t count, int32_t sections, const int32_t *low, const int32_t *high, const int64_t *size,
              int64_t capacity, int64_t budget, int64_t *offset, int64_t *nodes,
              int64_t *failures) {
    struct search s;
    memset(&s, 0, sizeof s);
    s.count = count;
    s.sections = sections;
    s.low = low;
    s.high = high;
    s.size = size;
    s.capacity = capacity;
    s.budget = budget;
    s.failures = failures;
    size_t n = (size_t)count + 1, m = (size_t)sections + 2;
    s.trail_capacity = 1024;
    s.neighbour_start = calloc(n, sizeof *s.neighbour_start);
    s.twin = calloc(n, sizeof *s.twin);
    s.rest = calloc(n, sizeof *s.rest);
    s.offset = calloc(n, sizeof *s.offset);
    s.is_placed = calloc(n, sizeof *s.is_placed);
    s.trail = calloc((size_t)s.trail_capacity, sizeof *s.trail);
    s.memo = calloc((size_t)1 << MEMO_BITS, sizeof *s.memo);
    s.earliest = calloc(n, sizeof *s.earliest);
    s.top = calloc(n, sizeof *s.top);
    s.section_start = calloc(m, sizeof *s.section_start);
    s.section_sum = calloc(m, sizeof *s.section_sum);
    s.is_waiting = calloc(n, sizeof *s.is_waiting);
    s.crossing = calloc(m, sizeof *s.crossing);
    int32_t *all = calloc(n, sizeof *all);
    size_t spans = 1;
    for (int32_t b = 0; b < count; b++) {
        spans += (size_t)(high[b] - low[b]);
    }
    s.by_start = calloc(spans, sizeof *s.by_start);
    s.by_top = calloc(spans, sizeof *s.by_top);
    s.above = calloc(n + 1, sizeof *s.above);
    int result = TG_NO_MEMORY;
    if (s.top && s.section_start && s.by_start && s.by_top && s.above && s.neighbour_start && s.twin && s.rest && s.offset && s.is_placed && s.trail && s.memo && s.earliest &&
        s.section_sum && s.is_waiting && s.crossing && all && find_neighbours(&s)) {
        for (int32_t b = 0; b < count; b++) {
            all[b] = b;
        }
        result = solve_rest(&s, all, count, 0, -1);
        if (s.is_out_of_memory) {
            result = TG_NO_MEMORY;
        }
        if (result == TG_FOUND) {
            memcpy(offset, s.offset, (size_t)count * sizeof *offset);
        }
    }
    *nodes = s.nodes;
    free(s.neighbour_start);
    free(s.neighbours);
    free(s.twin);
    free(s.rest);
    free(s.offset);
    free(s.is_placed);
    free(s.trail);
    free(s.memo);
    free(s.earliest);
    free(s.top);
    free(s.section_start);
    free(s.by_start);
    free(s.by_top);
    free(s.above);
    free(s.section_sum);
    free(s.is_waiting);
    free(s.crossing);
    free(all);
    return result;
}
