// NVIDIA's driver as far as the engine uses it, on memory of the host, for computers without one.
//
// Everything is done at once, by the one kernel `add`. What a real driver refuses is refused: work
// without a context, binaries that are none, and while a stream is being captured whatever might
// wait for the device, in every thread whose mode is not relaxed; such a call spoils the capture.
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API CUresult CUDAAPI
#define NEEDS_CONTEXT \
  if (!depth) return CUDA_ERROR_INVALID_CONTEXT
#define UNSAFE                                     \
  NEEDS_CONTEXT;                                   \
  if (capturing && mode != CU_STREAM_CAPTURE_MODE_RELAXED) \
  return spoilt = 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

typedef struct {
  unsigned flags;
} Thing;

static const size_t total = 1ul << 40;
static size_t used;
static CUstream capturing;
static int spoilt, context, captures;
static void* last_owned;
static CUhostFn last_destroy;
int graph_nodes;  // that clear memory, of the last capture
static __thread int depth;
static __thread CUstreamCaptureMode mode;
static char *locked_from, *locked_to;

API cuInit(unsigned flags) { return CUDA_SUCCESS; }
API cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
API cuGetErrorName(CUresult error, const char** text) { return *text = "error", CUDA_SUCCESS; }
API cuGetErrorString(CUresult error, const char** text) { return *text = "error", CUDA_SUCCESS; }
API cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
API cuDevicePrimaryCtxRetain(CUcontext* made, CUdevice device) {
  return *made = (CUcontext)&context, CUDA_SUCCESS;
}
API cuCtxPushCurrent(CUcontext pushed) { return depth++, CUDA_SUCCESS; }
API cuCtxPopCurrent(CUcontext* popped) {
  NEEDS_CONTEXT;
  if (popped) *popped = (CUcontext)&context;
  return depth--, CUDA_SUCCESS;
}
API cuCtxGetCurrent(CUcontext* current) {
  return *current = depth ? (CUcontext)&context : NULL, CUDA_SUCCESS;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, CUDA_SUCCESS;
}
API cuCtxSynchronize(void) { UNSAFE; return CUDA_SUCCESS; }
API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* exchanged) {
  CUstreamCaptureMode before = mode;
  return mode = *exchanged, *exchanged = before, CUDA_SUCCESS;
}

API cuMemGetInfo(size_t* free, size_t* all) {
  NEEDS_CONTEXT;
  return *free = total - used, *all = total, CUDA_SUCCESS;
}
static CUresult allocate(void** address, size_t size) {
  if (used + size > total) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t* block = malloc(size > 1ul << 30 ? 64 : size + 64);  // what is so large is not touched
  *block = size;
  used += size;
  return *address = (char*)block + 64, CUDA_SUCCESS;
}
static CUresult give_back(void* address) {
  size_t* block = (size_t*)((char*)address - 64);
  used -= *block;
  return free(block), CUDA_SUCCESS;
}
API cuMemAlloc(CUdeviceptr* address, size_t size) { UNSAFE; return allocate((void**)address, size); }
API cuMemFree(CUdeviceptr address) { UNSAFE; return give_back((void*)address); }
API cuMemHostAlloc(void** address, size_t size, unsigned flags) {
  UNSAFE;
  CUresult status = allocate(address, size);
  locked_from = *address, locked_to = locked_from + size;
  return status;
}
API cuMemFreeHost(void* address) { UNSAFE; return give_back(address); }
API cuMemHostRegister(void* address, size_t size, unsigned flags) {
  if (locked_from == address) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  return locked_from = address, locked_to = locked_from + size, CUDA_SUCCESS;
}
API cuMemHostUnregister(void* address) { return locked_from = locked_to = NULL, CUDA_SUCCESS; }
API cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if ((char*)address < locked_from || (char*)address >= locked_to) return CUDA_ERROR_INVALID_VALUE;
  return *(unsigned*)value = CU_MEMORYTYPE_HOST, CUDA_SUCCESS;
}
static CUresult copy(void* to, const void* from, size_t size) {
  return memmove(to, from, size), CUDA_SUCCESS;
}
static CUresult rows(char* to, size_t step, const char* from, size_t stride, size_t width, size_t n) {
  for (size_t i = 0; i < n; i++) memmove(to + i * step, from + i * stride, width);
  return CUDA_SUCCESS;
}
API cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t n) { UNSAFE; return copy((void*)to, from, n); }
API cuMemcpyDtoH(void* to, CUdeviceptr from, size_t n) { UNSAFE; return copy(to, (void*)from, n); }
API cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n) {
  UNSAFE;
  return copy((void*)to, (void*)from, n);
}
API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
  return copy((void*)to, (void*)from, n);
}
API cuMemcpyPeerAsync(
    CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t n, CUstream stream) {
  return copy((void*)to, (void*)from, n);
}
API cuMemcpy2DAsync(const CUDA_MEMCPY2D* c, CUstream stream) {
  return rows((char*)c->dstDevice, c->dstPitch, (char*)c->srcDevice, c->srcPitch, c->WidthInBytes,
              c->Height);
}
API cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* c, CUstream stream) {
  if (c->srcContext != (CUcontext)&context || c->dstContext != c->srcContext)
    return CUDA_ERROR_INVALID_CONTEXT;
  return rows((char*)c->dstDevice, c->dstPitch, (char*)c->srcDevice, c->srcPitch, c->WidthInBytes,
              c->Height);
}
API cuMemsetD32(CUdeviceptr to, unsigned value, size_t words) {
  UNSAFE;
  for (size_t i = 0; i < words; i++) ((unsigned*)to)[i] = value;
  return CUDA_SUCCESS;
}
API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t words, CUstream stream) {
  NEEDS_CONTEXT;
  graph_nodes += stream && stream == capturing;
  for (size_t i = 0; i < words; i++) ((unsigned*)to)[i] = value;
  return CUDA_SUCCESS;
}

int modules;  // that are loaded

API cuModuleLoadData(CUmodule* module, const void* image) {
  UNSAFE;
  if (memcmp(image, "\177ELF", 4)) return CUDA_ERROR_INVALID_IMAGE;
  return modules++, *module = malloc(1), CUDA_SUCCESS;
}
API cuModuleUnload(CUmodule module) { UNSAFE; return modules--, free(module), CUDA_SUCCESS; }
API cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  UNSAFE;
  if (!strstr("add gemm realign_operands sum_splits copy_rows copy_rows_of_two transpose_apart "
              "split_operands put_together", name))
    return CUDA_ERROR_NOT_FOUND;
  return *function = (CUfunction)module, CUDA_SUCCESS;
}
API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return value > 227 << 10 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
enum { KEPT = 8 };
int launches;
char launched[KEPT][4096];  // arguments of the last ones
API cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, CUstream stream, void** parameters,
                   void** extra) {
  struct {
    unsigned* x;
    unsigned by;
    int count;
  } arguments;
  NEEDS_CONTEXT;
  if (capturing && spoilt) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  char* told = launched[launches++ % KEPT];
  if (parameters) return memcpy(told, parameters[0], sizeof *launched), CUDA_SUCCESS;  // side by side
  memcpy(told, extra[1], *(size_t*)extra[3]);
  if (*(size_t*)extra[3] != sizeof arguments) return CUDA_SUCCESS;  // of a kernel with more of them
  memcpy(&arguments, extra[1], sizeof arguments);
  for (int i = 0; i < arguments.count; i++) arguments.x[i] += arguments.by;
  return CUDA_SUCCESS;
}
int dependent_launches, cooperative_launches;
API cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** parameters, void** extra) {
  dependent_launches += c->numAttrs == 1 && c->attrs[0].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                        c->attrs[0].value.programmaticStreamSerializationAllowed == 1;
  if (c->numAttrs == 1 && c->attrs[0].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && c->attrs[0].value.cooperative) {
    if (!parameters || extra) return CUDA_ERROR_INVALID_VALUE;  // as cuLaunchCooperativeKernel
    if (c->gridDimX > 4) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    cooperative_launches++;
  }
  return cuLaunchKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                        c->blockDimZ, c->sharedMemBytes, c->hStream, parameters, extra);
}

typedef struct {  // what the stand-in's maps tell, in their 128 bytes
  unsigned long long address, columns, rows, stride;
  unsigned box_columns, box_rows, type, swizzle;
} Map;
int encoded;
API cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                           void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                           const cuuint32_t* box, const cuuint32_t* steps,
                           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  static const int bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};  // of an element, by type
  static const int spans[] = {1 << 30, 32, 64, 128};
  encoded++;
  if ((size_t)map % 64 || (size_t)address % 16 || rank != 2 || interleave || fill || swizzle > 3)
    return CUDA_ERROR_INVALID_VALUE;
  if (strides[0] % 16 || strides[0] >= 1ull << 40) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 2; i++)
    if (!sizes[i] || sizes[i] > 1ull << 32 || !box[i] || box[i] > 256 || steps[i] != 1)
      return CUDA_ERROR_INVALID_VALUE;
  int row = box[0] * bytes[type];
  if (row % 16 || row > spans[swizzle]) return CUDA_ERROR_INVALID_VALUE;
  Map told = {(size_t)address, sizes[0], sizes[1], strides[0], box[0], box[1], type, swizzle};
  memset(map, 0, sizeof *map);
  return memcpy(map, &told, sizeof told), CUDA_SUCCESS;
}

API cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  if ((size_t)map % 64 || (size_t)address % 16) return CUDA_ERROR_INVALID_VALUE;
  ((Map*)map)->address = (size_t)address;
  return CUDA_SUCCESS;
}

static void* thing(unsigned flags) {
  Thing* made = calloc(1, sizeof *made);
  made->flags = flags;
  return made;
}
API cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  NEEDS_CONTEXT;
  return *stream = thing(flags), CUDA_SUCCESS;
}
API cuStreamDestroy(CUstream stream) { return free(stream), CUDA_SUCCESS; }
int finished;
API cuStreamSynchronize(CUstream stream) { UNSAFE; return finished++, CUDA_SUCCESS; }
int waits, records;
API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) { return waits++, CUDA_SUCCESS; }
API cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return *status = stream && stream == capturing, CUDA_SUCCESS;
}
API cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                              CUgraph* graph, const CUgraphNode** nodes, size_t* count) {
  if (graph) *graph = (CUgraph)&context;
  return *status = stream && stream == capturing, *id = captures, CUDA_SUCCESS;
}
API cuUserObjectCreate(CUuserObject* made, void* object, CUhostFn destroy, unsigned count,
                       unsigned flags) {
  last_owned = object, last_destroy = destroy;
  return *made = (CUuserObject)object, CUDA_SUCCESS;
}
API cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  return CUDA_SUCCESS;
}
void destroy_graph(void) { last_destroy(last_owned); }  // what the last one owned
API cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode requested) {
  return capturing = stream, spoilt = graph_nodes = 0, captures++, CUDA_SUCCESS;
}
API cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  capturing = NULL;
  *graph = (CUgraph)&context;
  return spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
API cuEventCreate(CUevent* event, unsigned flags) {
  NEEDS_CONTEXT;
  return *event = thing(flags), CUDA_SUCCESS;
}
API cuEventDestroy(CUevent event) { return free(event), CUDA_SUCCESS; }
API cuEventRecord(CUevent event, CUstream stream) { return records++, CUDA_SUCCESS; }
API cuEventQuery(CUevent event) { UNSAFE; return CUDA_SUCCESS; }
API cuEventSynchronize(CUevent event) { UNSAFE; return CUDA_SUCCESS; }
API cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  unsigned flags = ((Thing*)start)->flags | ((Thing*)end)->flags;
  return *ms = 0, flags & CU_EVENT_DISABLE_TIMING ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

API cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult* result) {
  const char* suffixes[] = {"_v4", "_v3", "_v2", ""};
  char symbol[128];
  for (int i = 0; i < 4; i++) {
    snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
    if ((*function = dlsym(RTLD_DEFAULT, symbol))) break;
  }
  if (result) *result = *function ? 0 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
