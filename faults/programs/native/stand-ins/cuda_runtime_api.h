/* In place of CUDA's. */
#ifndef CXLEMU_CUDA_RUNTIME_API_H
#define CXLEMU_CUDA_RUNTIME_API_H
#pragma GCC system_header
#include "device_runtime.h"
CXLEMU_DEVICE_RUNTIME(cuda)
#endif
