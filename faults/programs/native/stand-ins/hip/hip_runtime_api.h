/* In place of HIP's, which has further names for memory of the host. */
#ifndef CXLEMU_HIP_RUNTIME_API_H
#define CXLEMU_HIP_RUNTIME_API_H
#pragma GCC system_header
#include "../device_runtime.h"
CXLEMU_DEVICE_RUNTIME(hip)
#define hipHostMalloc hipHostAlloc
#define hipHostFree hipFreeHost
#define hipErrorOutOfMemory hipErrorMemoryAllocation
#endif
