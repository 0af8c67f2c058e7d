#include "simulation.h"

#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

namespace simulation {
namespace {

struct Arrival {
  int64_t moment_ns;
  at::Tensor source;
  at::Tensor target;
};

struct DeviceState {
  std::vector<int64_t> busy_until_ns{0};  // one per stream; the first is the default stream
  int64_t current = 0;
};

struct State {
  std::recursive_mutex mutex;
  std::array<DeviceState, kDevices> devices;
  std::vector<Arrival> arrivals;
  std::vector<std::string> notes;
  Trace trace;
  std::vector<uint64_t> correlations;
  bool tracing = false;
  bool noting = false;
  bool virtual_time = false;
  int64_t virtual_now_ns = 1'000'000'000;
  int64_t launch_ns = 1'000;
  int64_t kernel_ns = 20'000;
};

State& state() {
  static auto* value = new State();  // never destroyed: tensors may outlive every order of destruction
  return *value;
}

thread_local int device_now = 0;

void settle() {
  auto& s = state();
  const auto now = host_now_ns();
  std::vector<Arrival> due;
  auto later = std::stable_partition(
      s.arrivals.begin(), s.arrivals.end(), [now](const Arrival& one) { return one.moment_ns > now; });
  std::move(later, s.arrivals.end(), std::back_inserter(due));
  s.arrivals.erase(later, s.arrivals.end());
  for (auto& one : due) {
    std::memcpy(one.target.data_ptr(), one.source.data_ptr(), one.source.nbytes());
  }
}

// Keep a call for the profiler; the caller holds the lock.
int32_t add_call(const std::string& name, int64_t start_ns) {
  auto& s = state();
  const auto number = static_cast<int32_t>(s.trace.calls.size()) + 1;
  s.trace.calls.push_back(
      {name, start_ns, host_now_ns(), number, s.correlations.empty() ? 0 : s.correlations.back()});
  return number;
}

}  // namespace

int64_t host_now_ns() {
  return state().virtual_time ? state().virtual_now_ns : static_cast<int64_t>(c10::getTime());
}

int current_device() { return device_now; }
void set_current_device(int device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "there is no simulated device ", device);
  device_now = device;
}

int64_t current_stream(int device) { return state().devices.at(device).current; }

int64_t exchange_current_stream(int device, int64_t stream) {
  std::swap(state().devices.at(device).current, stream);
  return stream;
}

int64_t new_stream(int device) {
  std::lock_guard lock(state().mutex);
  auto& streams = state().devices.at(device).busy_until_ns;
  streams.push_back(0);
  return static_cast<int64_t>(streams.size()) - 1;
}

void launch(const std::string& name, int device) {
  std::lock_guard lock(state().mutex);
  auto& s = state();
  const auto called = host_now_ns();
  if (s.virtual_time) {
    s.virtual_now_ns += s.launch_ns;
  }
  const auto stream = current_stream(device);
  auto& busy_until = s.devices.at(device).busy_until_ns.at(stream);
  const auto start = std::max(busy_until, host_now_ns());
  busy_until = start + s.kernel_ns;
  note("launch " + std::to_string(device) + " " + std::to_string(stream) + " " + name);
  if (s.tracing) {
    s.trace.kernels.push_back({name, device, stream, start, busy_until, add_call("simLaunchKernel", called)});
  }
  settle();
}

void copy_to_host_later(int device, const at::Tensor& source, const at::Tensor& target) {
  std::lock_guard lock(state().mutex);
  std::memset(target.data_ptr(), 1, target.nbytes());
  state().arrivals.push_back({stream_end_ns(device, current_stream(device)), source, target});
}

int64_t stream_end_ns(int device, int64_t stream) {
  return std::max(state().devices.at(device).busy_until_ns.at(stream), host_now_ns());
}

int64_t device_end_ns(int device) {
  const auto& streams = state().devices.at(device).busy_until_ns;
  return std::max(*std::max_element(streams.begin(), streams.end()), host_now_ns());
}

void delay_stream(int device, int64_t stream, int64_t until_ns) {
  auto& busy_until = state().devices.at(device).busy_until_ns.at(stream);
  busy_until = std::max(busy_until, until_ns);
}

void wait_until(int64_t moment_ns, const char* call) {
  std::lock_guard lock(state().mutex);
  auto& s = state();
  const auto called = host_now_ns();
  if (s.virtual_time) {
    s.virtual_now_ns = std::max(s.virtual_now_ns, moment_ns);
  } else {
    while (host_now_ns() < moment_ns) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<int64_t>(moment_ns - host_now_ns(), 50'000)));
    }
  }
  settle();
  if (s.tracing) {
    add_call(call, called);
  }
}

void note(const std::string& line) {
  std::lock_guard lock(state().mutex);
  if (state().noting) {
    state().notes.push_back(line);
  }
}

void trace(bool enabled) {
  std::lock_guard lock(state().mutex);
  state().tracing = enabled;
  if (enabled) {
    state().trace = {};
  }
}

void push_correlation(uint64_t id) {
  std::lock_guard lock(state().mutex);
  state().correlations.push_back(id);
}

void pop_correlation() {
  std::lock_guard lock(state().mutex);
  if (!state().correlations.empty()) {
    state().correlations.pop_back();
  }
}

Trace traced() {
  std::lock_guard lock(state().mutex);
  return state().trace;
}

}  // namespace simulation

// What tests set and read, through ctypes.
extern "C" {
void simulated_virtual_time(int enabled) {
  auto& s = simulation::state();
  for (int device = 0; device < simulation::kDevices; ++device) {
    simulation::wait_until(simulation::device_end_ns(device), "simDeviceSynchronize");
    auto& streams = s.devices.at(device).busy_until_ns;
    std::fill(streams.begin(), streams.end(), 0);  // the two clocks have nothing in common
  }
  s.virtual_time = enabled != 0;
  s.virtual_now_ns = 1'000'000'000;
}
int64_t simulated_host_now_ns() { return simulation::host_now_ns(); }
void simulated_costs(int64_t launch_ns, int64_t kernel_ns) {
  simulation::state().launch_ns = launch_ns;
  simulation::state().kernel_ns = kernel_ns;
}
void simulated_note(int enabled) {
  simulation::state().noting = enabled != 0;
  simulation::state().notes.clear();
}
int64_t simulated_note_count() { return static_cast<int64_t>(simulation::state().notes.size()); }
const char* simulated_note_at(int64_t place) { return simulation::state().notes.at(place).c_str(); }
}
