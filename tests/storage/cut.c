/* A QEMU plugin: power fails at an instruction. at=N ends the emulator at once when N instructions were executed;
 * count=FILE writes how many there were in all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "qemu_plugin.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = 1;
static uint64_t executed, cut_at;
static const char *count_file;

static void on_instruction(unsigned core, void *data)
{
    (void)core;
    (void)data;
    if (++executed == cut_at)
        _exit(99);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++)
        qemu_plugin_register_vcpu_insn_exec_cb(qemu_plugin_tb_get_insn(block, i), on_instruction,
                                               QEMU_PLUGIN_NO_REGISTERS, NULL);
}

static void on_exit_of_qemu(qemu_plugin_id_t id, void *data)
{
    (void)id;
    (void)data;
    FILE *file = count_file == NULL ? NULL : fopen(count_file, "w");
    if (file != NULL) {
        fprintf(file, "%llu\n", (unsigned long long)executed);
        fclose(file);
    }
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "at=", 3) == 0)
            cut_at = strtoull(argv[i] + 3, NULL, 10);
        if (strncmp(argv[i], "count=", 6) == 0)
            count_file = strdup(argv[i] + 6);
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, on_exit_of_qemu, NULL);
    return 0;
}
