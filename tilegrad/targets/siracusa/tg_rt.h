/* Runtime of a PULP cluster: nests run in tiles, see tg_tile.h. */
#ifndef TG_RT_H
#define TG_RT_H
#include "tg_tile.h"
#endif
