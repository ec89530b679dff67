/* Devices, contexts, streams and events of libascendcl: nothing is asynchronous, so streams and events are tokens. */
#define _GNU_SOURCE
#include "emulated.h"
#include <stdlib.h>
#include <time.h>

#define MOST_DEVICES 64

static _Thread_local int current = -1; /* -1: the thread has chosen no device, and torch_npu asks for that */
static int contexts[MOST_DEVICES];

static int devices(void) {
    const char *count = getenv("EMULATED_NPUS");
    return count ? atoi(count) : 1;
}

Status aclInit(const char *path) { return OK; }
Status aclFinalize(void) { return OK; }
Status aclrtGetDeviceCount(uint32_t *count) { *count = devices(); return OK; }

Status aclrtSetDevice(int32_t device) {
    if (device < 0 || device >= devices()) return BAD_DEVICE;
    current = device;
    return OK;
}
Status aclrtSetDeviceWithoutTsdVXX(int32_t device) { return aclrtSetDevice(device); }

Status aclrtGetDevice(int32_t *device) {
    if (current < 0) return NO_CONTEXT;
    *device = current;
    return OK;
}
Status aclrtResetDevice(int32_t device) { return OK; }
Status aclrtResetDeviceForce(int32_t device) { return OK; }
Status aclrtSynchronizeDevice(void) { return OK; }
Status aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds) { return OK; }

Status aclrtCreateContext(Handle *context, int32_t device) { *context = &contexts[device]; return OK; }
Status aclrtGetCurrentContext(Handle *context) {
    *context = current < 0 ? NULL : (Handle)&contexts[current];
    return current < 0 ? NO_CONTEXT : OK;
}
Status aclrtSetCurrentContext(Handle context) {
    current = (int)((int *)context - contexts);
    return OK;
}
Status aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
    if (flags) *flags = 0;
    *active = 1;
    return OK;
}

const char *aclrtGetSocName(void) {
    const char *name = getenv("EMULATED_SOC");
    return name ? name : "Ascend910B1";
}
const char *aclGetRecentErrMsg(void) { return ""; }
Status aclrtGetVersion(int *major, int *minor, int *patch) { *major = *minor = *patch = 1; return OK; }
Status aclsysGetCANNVersion(int package, Handle version) { return 1; }
Status aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value) { *value = 24; return OK; }
Status aclrtGetDeviceResLimit(int32_t device, int kind, uint32_t *value) { *value = 24; return OK; }
Status aclrtGetStreamResLimit(Handle stream, int kind, uint32_t *value) { *value = 24; return OK; }
Status aclrtGetDeviceUtilizationRate(int32_t device, Handle rate) { return OK; }
Status aclrtGetDevicesTopo(uint32_t one, uint32_t other, uint64_t *value) { *value = 0; return OK; }
Status aclrtGetLogicDevIdByUserDevId(int32_t user, int32_t *logic) { *logic = user; return OK; }
Status aclrtGetUserDevIdByLogicDevId(int32_t logic, int32_t *user) { *user = logic; return OK; }
Status aclrtGetPhyDevIdByLogicDevId(int32_t logic, int32_t *physical) { *physical = logic; return OK; }
Status aclrtDeviceGetBareTgid(int32_t *group) { *group = 0; return OK; }
Status aclrtDeviceCanAccessPeer(int32_t *can, int32_t one, int32_t other) { *can = 1; return OK; }
Status aclrtDeviceEnablePeerAccess(int32_t device, uint32_t flags) { return OK; }
Status aclrtDeviceTaskAbort(int32_t device, uint32_t milliseconds) { return OK; }
Status aclrtSetDeviceSatMode(int mode) { return OK; }
Status aclrtSetOpExecuteTimeOut(uint32_t seconds) { return OK; }
Status aclrtSetOpExecuteTimeOutWithMs(uint32_t milliseconds) { return OK; }
Status aclrtSetOpWaitTimeout(uint32_t seconds) { return OK; }
Status aclrtSetExceptionInfoCallback(Handle callback) { return OK; }
Status aclrtProcessReport(int32_t milliseconds) { return OK; }
Status aclrtSubscribeReport(uint64_t thread, Handle stream) { return OK; }
Status aclrtUnSubscribeReport(uint64_t thread, Handle stream) { return OK; }
Status aclrtGetSysParamOpt(int option, int64_t *value) { *value = 0; return OK; }
Status aclrtSetSysParamOpt(int option, int64_t value) { return OK; }
Status aclrtCtxSetSysParamOpt(int option, int64_t value) { return OK; }

/* streams ---------------------------------------------------------------------------------------------------------- */
Status aclrtCreateStream(Handle *stream) { *stream = malloc(8); return OK; }
Status aclrtCreateStreamWithConfig(Handle *stream, uint32_t priority, uint32_t flags) { return aclrtCreateStream(stream); }
Status aclrtDestroyStream(Handle stream) { return OK; }
Status aclrtDestroyStreamForce(Handle stream) { return OK; }
Status aclrtSynchronizeStream(Handle stream) { return OK; }
Status aclrtSynchronizeStreamWithTimeout(Handle stream, int32_t milliseconds) { return OK; }
Status aclrtStreamQuery(Handle stream, int *state) { *state = 0; return OK; }
Status aclrtStreamGetId(Handle stream, int32_t *id) { *id = 0; return OK; }
Status aclrtSetStreamFailureMode(Handle stream, uint64_t mode) { return OK; }
Status aclrtSetStreamAttribute(Handle stream, int attribute, Handle value) { return OK; }
Status aclrtUseStreamResInCurrentThread(Handle stream) { return OK; }
Status aclrtUnuseStreamResInCurrentThread(Handle stream) { return OK; }
Status aclrtGetStreamAvailableNum(uint32_t *count) { *count = 1000; return OK; }
Status aclrtLaunchCallback(void (*call)(Handle), Handle argument, int block, Handle stream) { call(argument); return OK; }

/* events: the time at which they were recorded ---------------------------------------------------------------------- */
Status aclrtCreateEvent(Handle *event) { *event = calloc(1, sizeof(struct timespec)); return OK; }
Status aclrtCreateEventWithFlag(Handle *event, uint32_t flag) { return aclrtCreateEvent(event); }
Status aclrtCreateEventExWithFlag(Handle *event, uint32_t flag) { return aclrtCreateEvent(event); }
Status aclrtDestroyEvent(Handle event) { free(event); return OK; }
Status aclrtRecordEvent(Handle event, Handle stream) { clock_gettime(CLOCK_MONOTONIC, event); return OK; }
Status aclrtResetEvent(Handle event, Handle stream) { return OK; }
Status aclrtSynchronizeEvent(Handle event) { return OK; }
Status aclrtSynchronizeEventWithTimeout(Handle event, int32_t milliseconds) { return OK; }
Status aclrtStreamWaitEvent(Handle stream, Handle event) { return OK; }
Status aclrtQueryEvent(Handle event, int *state) { *state = 0; return OK; }
Status aclrtQueryEventStatus(Handle event, int *state) { *state = 1; return OK; }
Status aclrtQueryEventWaitStatus(Handle event, int *state) { *state = 0; return OK; }
Status aclrtEventElapsedTime(float *milliseconds, Handle start, Handle end) {
    struct timespec *from = start, *to = end;
    *milliseconds = (to->tv_sec - from->tv_sec) * 1e3f + (to->tv_nsec - from->tv_nsec) / 1e6f;
    return OK;
}
