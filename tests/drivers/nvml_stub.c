/* A driver library: the functions of libnvidia-ml.so.1 that this project asks, answering for a GPU we do not have.
 *
 * -DMIG          one H100 with a 1g.10gb slice: what a slice does not tell is NOT_SUPPORTED, as on the real thing
 * -DOLD_DRIVER   without the functions that newer drivers brought; the Python binding then finds no such symbol
 * -DBUSY         another program computes on the device
 */
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6 };

#ifdef MIG
#define WHOLE_ONLY(gpu) if ((gpu) == &slice) return NOT_SUPPORTED
#else
#define WHOLE_ONLY(gpu) (void)(gpu)
#endif
static int whole, slice;
#define GPU_UUID "GPU-2d1c0c6b-8f0a-4b58-9c5e-3a3f6c1f0e11"
#define MIG_UUID "MIG-5a0e7d52-4a35-5c31-9a8e-0f1f6c1d2b01"

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : code == NOT_FOUND ? "Not Found" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = &whole; return index ? NOT_FOUND : SUCCESS; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {
  if (!strcmp(uuid, GPU_UUID)) { *gpu = &whole; return SUCCESS; }
#ifdef MIG
  if (!strcmp(uuid, MIG_UUID)) { *gpu = &slice; return SUCCESS; }
#endif
  return NOT_FOUND;
}
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) { snprintf(text, size, "%s", gpu == &slice ? MIG_UUID : GPU_UUID); return SUCCESS; }
int nvmlDeviceGetName(void *gpu, char *text, unsigned size) {
  snprintf(text, size, "NVIDIA H100 80GB HBM3%s", gpu == &slice ? " MIG 1g.20gb" : "");
  return SUCCESS;
}
int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *mhz) { (void)kind; WHOLE_ONLY(gpu); *mhz = 1755; return SUCCESS; }
int nvmlDeviceGetMaxClockInfo(void *gpu, int kind, unsigned *mhz) { (void)kind; WHOLE_ONLY(gpu); *mhz = 1980; return SUCCESS; }
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *mw) { WHOLE_ONLY(gpu); *mw = 412700; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *mw) { WHOLE_ONLY(gpu); *mw = 500000; return SUCCESS; }
int nvmlDeviceGetTemperature(void *gpu, int kind, unsigned *celsius) { (void)kind; WHOLE_ONLY(gpu); *celsius = 51; return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long *total_free_used) {
  total_free_used[0] = 80ull << 30; total_free_used[1] = 64ull << 30; total_free_used[2] = 16ull << 30;
  (void)gpu;
  return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *bits) { WHOLE_ONLY(gpu); *bits = 0x04; return SUCCESS; }
int nvmlDeviceGetUtilizationRates(void *gpu, unsigned *gpu_memory) {
  WHOLE_ONLY(gpu);
#ifdef MIG
  return NOT_SUPPORTED; /* of the whole GPU too, while it is cut */
#elif defined(BUSY)
  gpu_memory[0] = 83; gpu_memory[1] = 40;
#else
  gpu_memory[0] = gpu_memory[1] = 0;
#endif
  return SUCCESS;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *mj) { WHOLE_ONLY(gpu); *mj = 9216000000ull; return SUCCESS; }
int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, unsigned long long *bits) { WHOLE_ONLY(gpu); *bits = 0x04; return SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) { (void)gpu; *major = 9; *minor = 0; return SUCCESS; }
int nvmlDeviceGetNumGpuCores(void *gpu, unsigned *cores) { WHOLE_ONLY(gpu); *cores = 132 * 128; return SUCCESS; }
struct process { unsigned pid; unsigned long long used; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *list) {
  (void)gpu;
#ifdef BUSY
  unsigned room = *count;
  *count = 1;
  if (room < 1) return 7; /* INSUFFICIENT_SIZE: asked again with room */
  list[0].pid = 1;
  list[0].used = 1 << 30;
#else
  (void)list;
  *count = 0;
#endif
  return SUCCESS;
}
struct attributes { unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, instances, computes; unsigned long long mebibytes; };
int nvmlDeviceGetAttributes_v2(void *gpu, struct attributes *sizes) {
  if (gpu != &slice) return NOT_SUPPORTED;
  memset(sizes, 0, sizeof *sizes);
  sizes->multiprocessors = 26;
  sizes->mebibytes = 20096;
  return SUCCESS;
}
#endif
