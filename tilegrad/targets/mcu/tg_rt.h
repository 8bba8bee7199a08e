/* Runtime of a microcontroller: one core, one memory. A nest is a plain call and a barrier is nothing. */
#ifndef TG_RT_H
#define TG_RT_H

#define TG_PARALLEL(model, nest) nest((model), 0, 1)

#endif
