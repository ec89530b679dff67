/* Symbols that torch_npu binds at load and that a test of ours never reaches in earnest: they answer "fine". */
#define INERT(name) long name(void) { return 0; }

INERT(MsprofGetHashId) INERT(MsprofRegisterCallback) INERT(MsprofReportAdditionalInfo) INERT(MsprofReportApi)
INERT(MsprofReportCompactInfo) INERT(MsprofSysCycleTime) INERT(aclAppLog) INERT(aclGetDeviceCapability)
INERT(aclSetTensorDescName) INERT(aclSetTensorFormat) INERT(aclSetTensorPlaceMent) INERT(aclSetTensorShape)
INERT(aclSetCompileopt) INERT(aclGetCompileopt) INERT(aclGetCompileoptSize)
INERT(aclmdlFinalizeDump) INERT(aclmdlInitDump) INERT(aclmdlSetDump)
INERT(aclopSetAttrBool) INERT(aclopSetAttrDataType) INERT(aclopSetAttrFloat) INERT(aclopSetAttrInt)
INERT(aclopSetAttrListBool) INERT(aclopSetAttrListFloat) INERT(aclopSetAttrListInt) INERT(aclopSetAttrListListInt)
INERT(aclopSetAttrString) INERT(aclrtBinaryGetFunction) INERT(aclrtBinaryLoadFromData) INERT(aclrtGetFunctionAddr)
INERT(aclrtMemExportToShareableHandle) INERT(aclrtMemImportFromShareableHandle)
INERT(aclrtMemSetPidToShareableHandle) INERT(rtDevBinaryRegister) INERT(rtFunctionRegister) INERT(rtGetC2cCtrlAddr)
INERT(rtKernelLaunch)
