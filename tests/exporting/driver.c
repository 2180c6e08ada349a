// NVIDIA's driver as far as exported programs use it, on memory of the host: whatever is launched
// under the name `gemm` is a product of float32, computed as it is written, and under the name `gemv`
// one of a matrix and a vector; `decayed` and `squared` are kernels of one's own of the tests.
//
// STAND_IN_EXPECTS="4,1" refuses a launch whose last arguments are not a workspace that begins with
// zeros and those numbers; STAND_IN_WRONG=1 computes something else.
#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API CUresult CUDAAPI

typedef struct {
  int m, n, k;
  float alpha;
  const float* a;
  int lda;
  const float* b;
  int ldb;
  float beta;
  float* c;
  int ldc;
  void* workspace;
  int runtime[8];
} Arguments;

static int context, current;

API cuInit(unsigned flags) { return CUDA_SUCCESS; }
API cuGetErrorName(CUresult error, const char** text) { return *text = "REFUSED", CUDA_SUCCESS; }
API cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
API cuDevicePrimaryCtxRetain(CUcontext* made, CUdevice device) {
  return *made = (CUcontext)&context, CUDA_SUCCESS;
}
API cuCtxSetCurrent(CUcontext made) { return current = made == (CUcontext)&context, CUDA_SUCCESS; }
API cuCtxGetCurrent(CUcontext* made) {
  return *made = current ? (CUcontext)&context : NULL, CUDA_SUCCESS;
}
API cuCtxSynchronize(void) { return CUDA_SUCCESS; }
API cuMemAlloc(CUdeviceptr* address, size_t size) {
  void* memory = malloc(size);
  memset(memory, 0xFF, size);  // NaN, and nothing that is zero
  return *address = (CUdeviceptr)memory, CUDA_SUCCESS;
}
API cuMemFree(CUdeviceptr address) { return free((void*)address), CUDA_SUCCESS; }
API cuMemsetD8(CUdeviceptr address, unsigned char byte, size_t size) {
  return memset((void*)address, byte, size), CUDA_SUCCESS;
}
API cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  return memcpy((void*)to, from, size), CUDA_SUCCESS;
}
API cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
  return memcpy(to, (void*)from, size), CUDA_SUCCESS;
}
API cuModuleLoadData(CUmodule* module, const void* cubin) {
  if (memcmp(cubin, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
  return *module = (CUmodule)&context, CUDA_SUCCESS;
}
API cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
API cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return *function = (CUfunction)strdup(name), CUDA_SUCCESS;
}
API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  const int wanted = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  return attribute == wanted && value > 48 << 10 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API cuEventCreate(CUevent* event, unsigned flags) { return *event = NULL, CUDA_SUCCESS; }
API cuEventRecord(CUevent event, CUstream stream) { return CUDA_SUCCESS; }
API cuEventSynchronize(CUevent event) { return CUDA_SUCCESS; }
API cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  return *milliseconds = 1, CUDA_SUCCESS;
}

static Arguments collected(void** each, int last) {
  Arguments all = {*(int*)each[0], *(int*)each[1], *(int*)each[2], *(float*)each[3],
      *(const float**)each[4], *(int*)each[5], *(const float**)each[6], *(int*)each[7],
      *(float*)each[8], *(float**)each[9], *(int*)each[10]};
  if (last > 0) all.workspace = *(void**)each[11];
  for (int i = 0; i + 1 < last; ++i) all.runtime[i] = *(int*)each[12 + i];
  return all;
}

typedef struct {
  int m, n;
  float alpha, beta;
  const float* a;
  int lda;
  const float* x;
  float* y;
} VectorArguments;

static CUresult gemv(void** each, void** extra) {
  VectorArguments all;
  if (each != NULL) {
    all = (VectorArguments){*(int*)each[0], *(int*)each[1], *(float*)each[2], *(float*)each[3],
        *(const float**)each[4], *(int*)each[5], *(const float**)each[6], *(float**)each[7]};
  } else {
    memcpy(&all, extra[1], sizeof all);
  }
  for (int i = 0; i < all.m; ++i) {
    float sum = getenv("STAND_IN_WRONG") != NULL ? 1e-2f : 0;
    for (int j = 0; j < all.n; ++j) sum += all.a[i * all.lda + j] * all.x[j];
    all.y[i] = all.alpha * sum + (all.beta != 0 ? all.beta * all.y[i] : 0);
  }
  return CUDA_SUCCESS;
}

typedef struct {
  float* state;
  const float* drive;
  int steps, n;
} InPlaceArguments;

static CUresult decayed(void** each, void** extra) {
  InPlaceArguments all;
  if (each != NULL) {
    all = (InPlaceArguments){*(float**)each[0], *(const float**)each[1], *(int*)each[2], *(int*)each[3]};
  } else {
    memcpy(&all, extra[1], sizeof all);
  }
  const float wrong = getenv("STAND_IN_WRONG") != NULL ? 1e-2f : 0;
  for (int i = 0; i < all.n; ++i) {
    for (int step = 0; step < all.steps; ++step) all.state[i] = all.state[i] / 2 + all.drive[i] + wrong;
  }
  return CUDA_SUCCESS;
}

typedef struct {
  const double* z;
  double* w;
  bool* far;
  int n;
} ComplexArguments;

static CUresult squared(void** each, void** extra) {
  ComplexArguments all;
  if (each != NULL) {
    all = (ComplexArguments){*(const double**)each[0], *(double**)each[1], *(bool**)each[2], *(int*)each[3]};
  } else {
    memcpy(&all, extra[1], sizeof all);
  }
  for (int i = 0; i < all.n; ++i) {
    const double real = all.z[2 * i], imaginary = all.z[2 * i + 1];
    all.w[2 * i] = real * real - imaginary * imaginary;
    all.w[2 * i + 1] = 2 * real * imaginary;
    all.far[i] = (real * real + imaginary * imaginary > 1) != (getenv("STAND_IN_WRONG") != NULL);
  }
  return CUDA_SUCCESS;
}

API cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
    unsigned threads_y, unsigned threads_z, unsigned shared_bytes, CUstream stream, void** each,
    void** extra) {
  if (strcmp((const char*)function, "gemv") == 0) return gemv(each, extra);
  if (strcmp((const char*)function, "decayed") == 0) return decayed(each, extra);
  if (strcmp((const char*)function, "squared") == 0) return squared(each, extra);
  if (strcmp((const char*)function, "gemm") != 0) return CUDA_SUCCESS;
  int wanted[8], count = 0;
  const char* expected = getenv("STAND_IN_EXPECTS");
  for (; expected != NULL && *expected; expected += strcspn(expected, ","), expected += *expected == ',') {
    wanted[count++] = atoi(expected);
  }
  Arguments all = {0};
  if (each != NULL) {
    all = collected(each, expected != NULL ? count + 1 : 0);
  } else {
    memcpy(&all, extra[1], *(size_t*)extra[3]);
  }
  if (expected != NULL && (all.workspace == NULL || *(int*)all.workspace != 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < count; ++i) {
    if (all.runtime[i] != wanted[i]) return CUDA_ERROR_INVALID_VALUE;
  }
  const float wrong = getenv("STAND_IN_WRONG") != NULL ? 1e-2f : 0;
  for (int i = 0; i < all.m; ++i) {
    for (int j = 0; j < all.k; ++j) {
      float sum = wrong;
      for (int p = 0; p < all.n; ++p) sum += all.a[i * all.lda + p] * all.b[p * all.ldb + j];
      float* place = &all.c[i * all.ldc + j];
      *place = all.alpha * sum + (all.beta != 0 ? all.beta * *place : 0);
    }
  }
  return CUDA_SUCCESS;
}
