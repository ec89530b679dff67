/* libacl_op_compiler: options are accepted and read back as "0". */
#include "emulated.h"
#include <string.h>

Status aclSetCompileopt(int option, const char *value) { return OK; }
Status aclGetCompileopt(int option, char *value, size_t size) { strncpy(value, "0", size); return OK; }
size_t aclGetCompileoptSize(int option) { return 2; }
Status aclGenGraphAndDumpForOp(void) { return OK; }
Status aclopSetCompileFlag(int flag) { return OK; }
Status aclopStartDumpArgs(uint32_t kind, const char *path) { return OK; }
Status aclopStopDumpArgs(uint32_t kind) { return OK; }
Status aclrtGetSysParamOpt(int option, int64_t *value) { *value = 0; return OK; }
Status aclrtSetSysParamOpt(int option, int64_t value) { return OK; }
Status aclrtCtxGetSysParamOpt(int option, int64_t *value) { *value = 0; return OK; }
Status aclrtCtxSetSysParamOpt(int option, int64_t value) { return OK; }
