// A simulated accelerator: host memory, real results, and time that passes as on a device of its own.
//
// The host computes every operator at once, but nothing of it can be seen before the device's time has come: a
// stream is busy until the simulated end of its last operator, an event completes when its stream gets there, and
// a copy to the host that was not waited for arrives then, with rubbish in its place until then.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace simulation {

constexpr int kDevices = 2;

// Work of the device.
struct Kernel {
  std::string name;
  int device;
  int64_t stream;
  int64_t start_ns;
  int64_t end_ns;
  int32_t call;  // the number of the call that launched it
};

// A call of the host: a launch, or waiting.
struct Call {
  std::string name;
  int64_t start_ns;
  int64_t end_ns;
  int32_t number;
  uint64_t operation;  // torch's number of the operator it was made in
};

struct Trace {
  std::vector<Kernel> kernels;
  std::vector<Call> calls;
};

// The host's clock: real, or (for tests) one that only launching and waiting move.
int64_t host_now_ns();

int current_device();
void set_current_device(int device);
int64_t current_stream(int device);
int64_t exchange_current_stream(int device, int64_t stream);
int64_t new_stream(int device);

// Put work on the current stream of a device.
void launch(const std::string& name, int device);
// Let a copy to the host arrive when the current stream of the device gets there.
void copy_to_host_later(int device, const at::Tensor& source, const at::Tensor& target);
// When everything that is on a stream (on all streams of a device) now is done.
int64_t stream_end_ns(int device, int64_t stream);
int64_t device_end_ns(int device);
void delay_stream(int device, int64_t stream, int64_t until_ns);
void wait_until(int64_t moment_ns, const char* call);

// What was asked of the device, in order, one line each: for tests.
void note(const std::string& line);

// What happened since tracing began, for the profiler.
void trace(bool enabled);
void push_correlation(uint64_t id);
void pop_correlation();
Trace traced();

}  // namespace simulation
