/* libhccl over shared memory between the processes of one machine.
 *
 * Stricter than HCCL: all ranks of a collective must agree on the operation, the count, the type and the root; where
 * HCCL would hang or tear tensors, every rank gets an error. Data goes through one slot a rank, a piece at a time.
 */
#define _GNU_SOURCE
#include "emulated.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MOST_RANKS 16
#define PIECE ((size_t)4 << 20)
#define ROOT_INFO 4108 /* bytes of the handle that rank 0 makes and hands round */

enum { DISAGREE = 1, FAILED = 2 };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM };
enum { BROADCAST = 1, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, SCATTER, ALL_TO_ALL };

typedef struct {
    volatile int ready;
    int ranks;
    pthread_barrier_t barrier;
    uint64_t signature[MOST_RANKS][4];
    char data[];
} Shared;
typedef struct {
    Shared *shared;
    int rank, ranks;
    size_t size;
} Comm;

/* bytes of an element by HCCL's number of the type */
static const int WIDTHS[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2, 16};

const char *HcclGetErrorString(int error) {
    if (error == OK) return "ok";
    return error == DISAGREE ? "HCCL_E_PARA: ranks disagree on the collective" : "HCCL_E_INTERNAL";
}

/* meeting -------------------------------------------------------------------------------------------------------------- */
int HcclGetRootInfo(char *root) {
    static int number;
    memset(root, 0, ROOT_INFO);
    snprintf(root, 64, "/emulated_hccl_%d_%d_%ld", getpid(), number++, (long)time(NULL));
    return OK;
}

static Shared *map_shared(int file, size_t size) {
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return start == MAP_FAILED ? NULL : start;
}

static Shared *create(const char *name, size_t size, int ranks) {
    int file = shm_open(name, O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, size)) return NULL;
    Shared *shared = map_shared(file, size);
    if (!shared) return NULL;
    pthread_barrierattr_t between;
    pthread_barrierattr_init(&between);
    pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &between, ranks);
    shared->ranks = ranks;
    __sync_synchronize();
    shared->ready = 1;
    return shared;
}

static Shared *join(const char *name, size_t size) {
    int file, tries = 0;
    while ((file = shm_open(name, O_RDWR, 0600)) < 0) {
        if (tries++ > 3000) return NULL;
        usleep(10000);
    }
    while (lseek(file, 0, SEEK_END) < (off_t)size) usleep(1000);
    Shared *shared = map_shared(file, size);
    while (shared && !shared->ready) usleep(1000);
    return shared;
}

int HcclCommInitRootInfo(uint32_t ranks, const char *root, uint32_t rank, Comm **out) {
    size_t size = sizeof(Shared) + PIECE * ranks;
    if (ranks > MOST_RANKS) return FAILED;
    Shared *shared = rank == 0 ? create(root, size, ranks) : join(root, size);
    if (!shared) return FAILED;
    if (shared->ranks != (int)ranks) return DISAGREE;
    Comm *comm = malloc(sizeof *comm);
    *comm = (Comm){shared, rank, ranks, size};
    pthread_barrier_wait(&shared->barrier);
    if (rank == 0) shm_unlink(root);
    *out = comm;
    return OK;
}
int HcclCommInitRootInfoConfig(uint32_t ranks, const char *root, uint32_t rank, const void *config, Comm **out) {
    return HcclCommInitRootInfo(ranks, root, rank, out);
}
int HcclCommDestroy(Comm *comm) {
    munmap(comm->shared, comm->size);
    free(comm);
    return OK;
}
int HcclGetCommName(Comm *comm, char *name) { strcpy(name, "emulated"); return OK; }
int HcclGetCommAsyncError(Comm *comm, int *error) { *error = 0; return OK; }
int HcclCommResume(Comm *comm) { return OK; }

/* pieces --------------------------------------------------------------------------------------------------------------- */
static char *slot(Comm *comm, int rank) { return comm->shared->data + PIECE * rank; }
static void wait_for_all(Comm *comm) { pthread_barrier_wait(&comm->shared->barrier); }
static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* nonzero where the ranks are not doing the same */
static int disagree(Comm *comm, uint64_t what, uint64_t count, uint64_t type, uint64_t more) {
    uint64_t mine[4] = {what, count, type, more};
    int different = 0;
    memcpy(comm->shared->signature[comm->rank], mine, sizeof mine);
    wait_for_all(comm);
    for (int rank = 0; rank < comm->ranks; rank++)
        different |= memcmp(comm->shared->signature[rank], comm->shared->signature[0], sizeof mine) != 0;
    wait_for_all(comm);
    return different;
}

#define REDUCE(Type)                                                                                                   \
    {                                                                                                                  \
        Type *a = to;                                                                                                  \
        const Type *b = from;                                                                                          \
        for (uint64_t i = 0; i < count; i++)                                                                           \
            a[i] = how == SUM ? a[i] + b[i] : how == PRODUCT ? a[i] * b[i] : (how == MAXIMUM) == (a[i] > b[i]) ? a[i] : b[i]; \
    }

static int can_reduce(int type) { return type == 0 || type == 2 || type == 4 || type == 5; }
static void reduce(void *to, const void *from, uint64_t count, int type, int how) {
    if (type == 4) REDUCE(float)
    else if (type == 2) REDUCE(int32_t)
    else if (type == 5) REDUCE(int64_t)
    else REDUCE(int8_t)
}

/* collectives ---------------------------------------------------------------------------------------------------------- */
int HcclBroadcast(char *data, uint64_t count, int type, uint32_t root, Comm *comm, Handle stream) {
    if (disagree(comm, BROADCAST, count, type, root)) return DISAGREE;
    for (uint64_t start = 0, end = count * WIDTHS[type]; start < end; start += PIECE) {
        uint64_t size = smaller(end - start, PIECE);
        if (comm->rank == (int)root) memcpy(slot(comm, 0), data + start, size);
        wait_for_all(comm);
        if (comm->rank != (int)root) memcpy(data + start, slot(comm, 0), size);
        wait_for_all(comm);
    }
    return OK;
}

int HcclAllReduce(const char *in, char *out, uint64_t count, int type, int how, Comm *comm, Handle stream) {
    if (disagree(comm, ALL_REDUCE, count, type, how)) return DISAGREE;
    if (!can_reduce(type)) return FAILED;
    int width = WIDTHS[type];
    for (uint64_t start = 0; start < count; start += PIECE / width) {
        uint64_t some = smaller(count - start, PIECE / width);
        memcpy(slot(comm, comm->rank), in + start * width, some * width);
        wait_for_all(comm);
        memcpy(out + start * width, slot(comm, 0), some * width);
        for (int rank = 1; rank < comm->ranks; rank++) reduce(out + start * width, slot(comm, rank), some, type, how);
        wait_for_all(comm);
    }
    return OK;
}

int HcclAllGather(const char *in, char *out, uint64_t count, int type, Comm *comm, Handle stream) {
    if (disagree(comm, ALL_GATHER, count, type, 0)) return DISAGREE;
    uint64_t end = count * WIDTHS[type];
    for (uint64_t start = 0; start < end; start += PIECE) {
        uint64_t size = smaller(end - start, PIECE);
        memcpy(slot(comm, comm->rank), in + start, size);
        wait_for_all(comm);
        for (int rank = 0; rank < comm->ranks; rank++) memcpy(out + rank * end + start, slot(comm, rank), size);
        wait_for_all(comm);
    }
    return OK;
}

int HcclReduceScatter(const char *in, char *out, uint64_t count, int type, int how, Comm *comm, Handle stream) {
    if (disagree(comm, REDUCE_SCATTER, count, type, how)) return DISAGREE;
    if (!can_reduce(type)) return FAILED;
    int width = WIDTHS[type];
    for (int part = 0; part < comm->ranks; part++)
        for (uint64_t start = 0; start < count; start += PIECE / width) {
            uint64_t some = smaller(count - start, PIECE / width);
            memcpy(slot(comm, comm->rank), in + (part * count + start) * width, some * width);
            wait_for_all(comm);
            if (comm->rank == part) {
                memcpy(out + start * width, slot(comm, 0), some * width);
                for (int rank = 1; rank < comm->ranks; rank++) reduce(out + start * width, slot(comm, rank), some, type, how);
            }
            wait_for_all(comm);
        }
    return OK;
}

int HcclScatter(const char *in, char *out, uint64_t count, int type, uint32_t root, Comm *comm, Handle stream) {
    if (disagree(comm, SCATTER, count, type, root)) return DISAGREE;
    uint64_t end = count * WIDTHS[type];
    for (uint64_t start = 0; start < end; start += PIECE) {
        uint64_t size = smaller(end - start, PIECE);
        if (comm->rank == (int)root)
            for (int rank = 0; rank < comm->ranks; rank++) memcpy(slot(comm, rank), in + rank * end + start, size);
        wait_for_all(comm);
        memcpy(out + start, slot(comm, comm->rank), size);
        wait_for_all(comm);
    }
    return OK;
}

int HcclAlltoAll(const char *in, uint64_t sent, int type, char *out, uint64_t received, int other, Comm *comm, Handle stream) {
    if (disagree(comm, ALL_TO_ALL, sent, type, received) || sent != received || type != other) return DISAGREE;
    uint64_t end = sent * WIDTHS[type];
    for (int part = 0; part < comm->ranks; part++)
        for (uint64_t start = 0; start < end; start += PIECE) {
            uint64_t size = smaller(end - start, PIECE);
            memcpy(slot(comm, comm->rank), in + part * end + start, size);
            wait_for_all(comm);
            if (comm->rank == part)
                for (int rank = 0; rank < comm->ranks; rank++) memcpy(out + rank * end + start, slot(comm, rank), size);
            wait_for_all(comm);
        }
    return OK;
}

int HcclBarrier(Comm *comm, Handle stream) { wait_for_all(comm); return OK; }

/* from one rank to another: only in groups of two, where both take part in every step ---------------------------------- */
int HcclSend(const char *data, uint64_t count, int type, uint32_t to, Comm *comm, Handle stream) {
    if (comm->ranks != 2) return FAILED;
    for (uint64_t start = 0, end = count * WIDTHS[type]; start < end; start += PIECE) {
        memcpy(slot(comm, comm->rank), data + start, smaller(end - start, PIECE));
        wait_for_all(comm);
        wait_for_all(comm);
    }
    return OK;
}
int HcclRecv(char *data, uint64_t count, int type, uint32_t from, Comm *comm, Handle stream) {
    if (comm->ranks != 2) return FAILED;
    for (uint64_t start = 0, end = count * WIDTHS[type]; start < end; start += PIECE) {
        wait_for_all(comm);
        memcpy(data + start, slot(comm, from), smaller(end - start, PIECE));
        wait_for_all(comm);
    }
    return OK;
}
