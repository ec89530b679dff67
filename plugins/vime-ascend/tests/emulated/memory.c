/* Memory of libascendcl: each allocation is an anonymous file, so that another process can map it by its key. */
#define _GNU_SOURCE
#include "emulated.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)

typedef struct Block {
    char *start;
    size_t size;
    int file;
    struct Block *next;
} Block;

static Block *blocks;
static size_t used;

static int make_file(size_t size) {
    int file = memfd_create("emulated-npu", 0);
    if (file >= 0 && ftruncate(file, size)) {
        close(file);
        return -1;
    }
    return file;
}

static Block *block_of(const char *place) {
    for (Block *block = blocks; block; block = block->next)
        if (place >= block->start && place < block->start + block->size) return block;
    return NULL;
}

/* plain allocations -------------------------------------------------------------------------------------------------- */
Status aclrtMalloc(Handle *place, size_t size, int policy) {
    size_t whole = (size + PAGE - 1) & ~(PAGE - 1);
    if (used + whole > DEVICE_BYTES) return NO_MEMORY;
    int file = make_file(whole);
    if (file < 0) return NO_MEMORY;
    void *start = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (start == MAP_FAILED) return NO_MEMORY;
    Block *block = malloc(sizeof *block);
    *block = (Block){start, whole, file, blocks};
    blocks = block;
    used += whole;
    *place = start;
    return OK;
}
Status aclrtMallocAlign32(Handle *place, size_t size, int policy) { return aclrtMalloc(place, size, policy); }
Status aclrtMallocWithCfg(Handle *place, size_t size, int policy, Handle config) { return aclrtMalloc(place, size, policy); }

Status aclrtFree(Handle place) {
    for (Block **link = &blocks; *link; link = &(*link)->next) {
        Block *block = *link;
        if (block->start != (char *)place) continue;
        *link = block->next;
        munmap(block->start, block->size);
        close(block->file);
        used -= block->size;
        free(block);
        return OK;
    }
    return BAD_ARGUMENT;
}

Status aclrtMallocHost(Handle *place, size_t size) { return posix_memalign(place, 64, size ? size : 64) ? NO_MEMORY : OK; }
Status aclrtMallocHostWithCfg(Handle *place, uint64_t size, Handle config) { return aclrtMallocHost(place, size); }
Status aclrtFreeHost(Handle place) { free(place); return OK; }
Status aclrtHostRegister(Handle place, uint64_t size, int kind, Handle *device) { *device = place; return OK; }
Status aclrtHostUnregister(Handle place) { return OK; }
Status aclrtMemP2PMap(Handle place, size_t size, int32_t device, uint64_t flags) { return OK; }

Status aclrtGetMemInfo(int kind, size_t *available, size_t *total) {
    *available = DEVICE_BYTES - used;
    *total = DEVICE_BYTES;
    return OK;
}
Status aclrtGetMemUsageInfo(Handle a, Handle b, uint32_t count, Handle d) { return 1; }
Status aclrtCheckMemType(Handle *list, uint32_t size, uint32_t kind, uint32_t *result, uint32_t reserved) { *result = 0; return OK; }
Status aclrtPointerGetAttributes(const void *place, Handle attributes) { return 1; }

/* copies --------------------------------------------------------------------------------------------------------------- */
Status aclrtMemcpy(Handle to, size_t room, const void *from, size_t size, int kind) {
    if (size > room) return BAD_ARGUMENT;
    memmove(to, from, size);
    return OK;
}
Status aclrtMemcpyAsync(Handle to, size_t room, const void *from, size_t size, int kind, Handle stream) {
    return aclrtMemcpy(to, room, from, size, kind);
}
Status aclrtMemcpyAsyncWithCondition(Handle to, size_t room, const void *from, size_t size, int kind, Handle stream) {
    return aclrtMemcpy(to, room, from, size, kind);
}
Status aclrtMemset(Handle to, size_t room, int32_t value, size_t size) {
    if (size > room) return BAD_ARGUMENT;
    memset(to, value, size);
    return OK;
}
Status aclrtMemsetAsync(Handle to, size_t room, int32_t value, size_t size, Handle stream) {
    return aclrtMemset(to, room, value, size);
}

/* one process's memory in another --------------------------------------------------------------------------------------- */
Status aclrtIpcMemGetExportKey(Handle place, size_t size, char *key, size_t length, uint64_t flags) {
    Block *block = block_of(place);
    if (!block) return BAD_ARGUMENT;
    snprintf(key, length, "%d:%d:%zu:%zu", getpid(), block->file, (size_t)((char *)place - block->start), block->size);
    return OK;
}
Status aclrtIpcMemImportByKey(Handle *place, const char *key, uint64_t flags) {
    int process, number;
    size_t offset, size;
    char path[64];
    if (sscanf(key, "%d:%d:%zu:%zu", &process, &number, &offset, &size) != 4) return BAD_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, number);
    int file = open(path, O_RDWR);
    if (file < 0) return BAD_ARGUMENT;
    char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (start == MAP_FAILED) return BAD_ARGUMENT;
    *place = start + offset;
    return OK;
}
Status aclrtIpcMemClose(const char *key) { return OK; }
Status aclrtIpcMemSetImportPid(const char *key, int32_t *processes, size_t count) { return OK; }

/* virtual memory: reserved addresses, and pages that come and go behind them (sleeping engines) ---------------------------- */
typedef struct Reserved {
    char *start;
    size_t size;
    struct Reserved *next;
} Reserved;
typedef struct {
    int file;
    size_t size;
} Physical;

static Reserved *reservations;

static void *fenced(void *where, size_t size, int flags) {
    /* no access: touching an unmapped page faults, as it should */
    return mmap(where, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

Status aclrtReserveMemAddress(Handle *place, size_t size, size_t alignment, Handle expected, uint64_t flags) {
    void *start = fenced(NULL, size, 0);
    if (start == MAP_FAILED) return NO_MEMORY;
    Reserved *reserved = malloc(sizeof *reserved);
    *reserved = (Reserved){start, size, reservations};
    reservations = reserved;
    *place = start;
    return OK;
}
Status aclrtReleaseMemAddress(Handle place) {
    for (Reserved **link = &reservations; *link; link = &(*link)->next) {
        Reserved *reserved = *link;
        if (reserved->start != (char *)place) continue;
        *link = reserved->next;
        munmap(reserved->start, reserved->size);
        free(reserved);
        return OK;
    }
    return BAD_ARGUMENT;
}
Status aclrtMallocPhysical(Handle *handle, size_t size, Handle properties, uint64_t flags) {
    if (used + size > DEVICE_BYTES) return NO_MEMORY;
    int file = make_file(size);
    if (file < 0) return NO_MEMORY;
    Physical *physical = malloc(sizeof *physical);
    *physical = (Physical){file, size};
    used += size;
    *handle = physical;
    return OK;
}
Status aclrtFreePhysical(Handle handle) {
    Physical *physical = handle;
    used -= physical->size;
    close(physical->file);
    free(physical);
    return OK;
}
Status aclrtMapMem(Handle place, size_t size, size_t offset, Handle handle, uint64_t flags) {
    void *start = mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ((Physical *)handle)->file, offset);
    return start == MAP_FAILED ? BAD_ARGUMENT : OK;
}
Status aclrtUnmapMem(Handle place) {
    char *start = place;
    for (Reserved *one = reservations; one; one = one->next)
        if (start >= one->start && start < one->start + one->size)
            return fenced(start, one->size - (start - one->start), MAP_FIXED) == MAP_FAILED ? BAD_ARGUMENT : OK;
    return BAD_ARGUMENT;
}
Status aclrtMemGetAllocationGranularity(Handle properties, int option, size_t *granularity) { *granularity = 2 << 20; return OK; }
