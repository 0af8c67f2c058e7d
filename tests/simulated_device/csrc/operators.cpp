// Operators: views share memory, copies cross the border, everything else is computed by the CPU's kernel.
#include "simulation.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace simulation {
namespace {

using at::Tensor;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// The CPU fallback moves arguments and results through copies of its own: they cost no device time.
thread_local int inside_fallback = 0;
struct InsideFallback {
  InsideFallback() { ++inside_fallback; }
  ~InsideFallback() { --inside_fallback; }
};

// The tensor's memory as the host sees it.
Tensor on_host(const Tensor& tensor) {
  return tensor.is_cpu() ? tensor
                         : at::from_blob(
                               tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                               tensor.options().device(at::kCPU).requires_grad(false));
}

Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(
      size, c10::GetAllocator(at::kPrivateUse1), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(
      size, stride, c10::GetAllocator(at::kPrivateUse1), kKeys, c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  if (inside_fallback) {
    on_host(target).copy_(on_host(source));
    return target;
  }
  if (source.is_cpu()) {
    launch("copy_to_device", target.device().index());
    on_host(target).copy_(source);
    if (!non_blocking) {
      wait_until(stream_end_ns(target.device().index(), current_stream(target.device().index())), "simMemcpy");
    }
    return target;
  }
  const int device = source.device().index();
  if (!target.is_cpu()) {
    launch("copy_on_device", device);
    on_host(target).copy_(on_host(source));
    if (target.device().index() != device) {
      const int other = target.device().index();
      delay_stream(other, current_stream(other), stream_end_ns(device, current_stream(device)));
    }
    return target;
  }
  launch("copy_to_host", device);
  if (non_blocking && target.is_contiguous()) {
    // A snapshot: what runs on the stream after the copy cannot change what it brings.
    copy_to_host_later(device, on_host(source).to(target.scalar_type()).clone().contiguous(), target);
    return target;
  }
  wait_until(stream_end_ns(device, current_stream(device)), "simMemcpy");
  on_host(target).copy_(on_host(source));
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  at::native::resize_(target, source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  if (!inside_fallback) {
    const int device = self.device().index();
    launch("copy_to_host", device);
    wait_until(stream_end_ns(device, current_stream(device)), "simMemcpy");
  }
  return at::native::_local_scalar_dense_cpu(on_host(self));
}

Tensor as_strided(
    const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
Tensor view(const Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }
Tensor reshape_alias(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
const Tensor& resize(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}
Tensor& set_tensor(Tensor& self, const Tensor& source) { return at::native::set_tensor_(self, source); }
Tensor& set_storage(Tensor& self, at::Storage source) { return at::native::set_(self, std::move(source)); }
Tensor& set_storage_offset(
    Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

int device_of(const torch::jit::Stack& stack, size_t arguments) {
  for (size_t place = stack.size() - arguments; place < stack.size(); ++place) {
    const auto& value = stack[place];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_privateuseone()) {
      return value.toTensor().device().index();
    }
    if (value.isTensorList()) {
      for (const Tensor& one : value.toTensorList()) {
        if (one.defined() && one.is_privateuseone()) {
          return one.device().index();
        }
      }
    }
    if (value.isDevice() && value.toDevice().is_privateuseone() && value.toDevice().has_index()) {
      return value.toDevice().index();
    }
  }
  return current_device();
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const int device = device_of(*stack, op.schema().arguments().size());
  const c10::DeviceGuard guard(at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(device)));
  launch(op.schema().name(), device);
  const InsideFallback inside;
  // The host's operators that stand in for the kernel are none of the program's.
  const at::DisableRecordFunctionGuard unseen;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("resize_", resize);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

}  // namespace
}  // namespace simulation
