/* Runtime of an OpenCL device: a launch is one nest, and a work item is a core, which takes its share of the outputs.
 * So any number of work items, in any groups, gives the same bits. */
#ifndef TG_RT_H
#define TG_RT_H

/* An operand: `name_at` bytes into buffer `name`. An absent one is a null buffer and zero. */
#define TG_OPERAND(type, name) ((__global type *)((name) + (name##_at)))
#define TG_WORK_ITEM (int)get_global_id(0), (int)get_global_size(0)

#endif
