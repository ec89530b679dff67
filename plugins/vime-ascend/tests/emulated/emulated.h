/* What the files of the emulated CANN share.
 *
 * A device's memory is host memory, every call is done when it returns, and there is one kind of error for each thing
 * that can be wrong. The emulation proves which calls are made, in which order, with which sizes. It does not model:
 * asynchronous execution (a missing wait goes unnoticed), numerics of kernels, speed, limits of HCCL's resources,
 * links between machines, permissions of IPC, graphs, profiling, the NZ layout.
 */
#ifndef VIME_EMULATED_H
#define VIME_EMULATED_H
#include <stddef.h>
#include <stdint.h>

typedef int Status;
typedef void *Handle;

enum {
    OK = 0,
    BAD_ARGUMENT = 107000,
    BAD_DEVICE = 107001,
    NO_CONTEXT = 107002,
    NO_MEMORY = 207001,
    UNSUPPORTED = 500002,
};

/* memory of one emulated device */
#define DEVICE_BYTES ((size_t)4 << 30)
#endif
