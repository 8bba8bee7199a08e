# Reset entry of every core. mhartid: bits 5 and up are the cluster (31 is the fabric controller), bits 4:0 the core.
    .section .vectors,"ax"
    .globl _start
_start:
    csrr a0, 0xF14
    andi a1, a0, 0x1f
    srli a0, a0, 5
    li   t0, 31
    beq  a0, t0, fabric_controller
    .option push
    .option norelax                 # by nothing else: it is what others are relative to
    la   gp, __global_pointer$
    .option pop
    la   sp, _cluster_stacks        # downwards: the conductor's stack, then the workers'
    la   t1, _conductor_stack_bytes
    la   t0, _conductor
    beq  a1, t0, 1f
    sub  sp, sp, t1
    la   t1, _worker_stack_bytes
    mul  t0, a1, t1
    sub  sp, sp, t0
1:  call paint
    mv   a0, a1
    la   t0, cluster_main
    jalr t0
1:  j 1b

# A stack of t1 bytes below sp, so that its deepest use shows afterwards (stacks.h).
paint:
    sub  t2, sp, t1
    li   t0, 0x57ac57ac
1:  sw   t0, 0(t2)
    addi t2, t2, 4
    bltu t2, sp, 1b
    ret

fabric_controller:
    la   t0, _bss_start
    la   t1, _bss_end
1:  bgeu t0, t1, 2f
    sw   zero, 0(t0)
    addi t0, t0, 4
    j 1b
2:  la   sp, _fabric_stack
    la   t1, _fabric_stack_bytes
    call paint
    la   t0, fabric_main
    jalr t0
    li   t0, 0x80000000             # exit: the status with bit 31 set
    or   a0, a0, t0
    li   t0, 0x1A1040A0
    sw   a0, 0(t0)
1:  j 1b
