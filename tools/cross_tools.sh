#!/bin/sh
# The compilers and emulators of the boards, and the tools that read C, for the tests: cross_tools.sh FILE. What cannot
# be had is left out by name and counted in FILE, and the tests that need it are skipped by name.
set -eu
. "$(dirname "$0")/apt.sh"

wants() { # program, what is skipped without it, Debian package...
    program=$1 costs=$2
    shift 2
    command -v "$program" >/dev/null 2>&1 || system_package "$@" ||
        leave_out "$program" "$costs (Debian: apt-get install $*)"
}

wants riscv64-unknown-elf-gcc "RISC-V boards, the Siracusa image and the counting of kernels" gcc-riscv64-unknown-elf \
    picolibc-riscv64-unknown-elf
wants qemu-system-riscv32 "RISC-V boards" qemu-system-misc
wants qemu-riscv32 "the counting of kernels" qemu-user
wants arm-none-eabi-gcc "Cortex-M boards" gcc-arm-none-eabi picolibc-arm-none-eabi
wants qemu-system-arm "Cortex-M boards" qemu-system-arm
wants clang-format "the layout of generated C" clang-format
wants clang-tidy "clang-tidy's checks of generated C" clang-tidy
wants zsh "completion in zsh" zsh
wants fish "completion in fish" fish
wants chromium "the report page in a browser" chromium
report_left_out "$1"
