/* What the cluster tells the fabric controller, which prints it: a ring in L2, written by one and read by the other. */
#ifndef TG_CHIP_MAILBOX_H
#define TG_CHIP_MAILBOX_H
#include <stdint.h>

enum {
    RECORD_STEP,
    RECORD_UPDATE,
    RECORD_INFER,
    RECORD_WEIGHTS,
    RECORD_STACK,
    RECORD_OVERFLOW, /* a stack that reached into its guard zone */
    RECORD_FAILURE,
    RECORD_END
};
typedef struct {
    uint32_t kind, number, value, cycles;
} record;

enum { MAILBOX_RECORDS = 32 };
typedef struct {
    volatile uint32_t written, read; /* how many so far */
    volatile record records[MAILBOX_RECORDS];
} mailbox_t;
extern mailbox_t mailbox;

#endif
