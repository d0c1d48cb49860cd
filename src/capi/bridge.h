#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "capi/trimtab_experts.h"
#include "policy/experts/plan/planner.h"
#include "policy/experts/types.h"

/// What the C functions share: no exception gets out, errors become codes and text.
namespace trimtab::capi {

inline tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "capi");
}

/// Writes at most `bytes`, with a final zero, and never half a character.
void write_error(std::string_view message, char* error, std::size_t bytes);
std::int32_t code_of(base::Code code);

/// Runs `work`, which returns a Status, for a C caller.
template <class Work>
std::int32_t guarded(char* error, std::size_t error_bytes, Work&& work) {
  try {
    if (base::Status status = work(); !status) {
      write_error(status.error().message, error, error_bytes);
      return code_of(status.error().code);
    }
    return TRIMTAB_OK;
  } catch (const std::bad_alloc&) {
    write_error("out of memory", error, error_bytes);
    return TRIMTAB_RESOURCE_EXHAUSTED;
  } catch (...) {
    write_error("an unexpected exception", error, error_bytes);
    return TRIMTAB_INTERNAL;
  }
}

base::Status need(const void* pointer, const char* what);

experts::Shape shape_of(const trimtab_shape& shape);
trimtab_shape shape_of(const experts::Shape& shape);
/// The shape behind the pointer, checked.
base::Result<experts::Shape> checked_shape(const trimtab_shape* shape, const char* what = "shape");

/// Options of a caller who may have been compiled against an older header: what he does not know keeps its
/// default.
template <class T>
base::Result<T> options_of(const T* given, const T& defaults, const char* default_function) {
  T out = defaults;
  if (given == nullptr) return out;
  if (given->struct_bytes < sizeof(given->struct_bytes) || given->struct_bytes > sizeof(T)) {
    return bad(fmt::format(
        "struct_bytes is {}, this library's is {}: fill the struct with {} first, and use a library "
        "that is as new as the header",
        given->struct_bytes, sizeof(T), default_function));
  }
  std::memcpy(static_cast<void*>(&out), given, given->struct_bytes);
  out.struct_bytes = static_cast<std::uint32_t>(sizeof(T));
  return out;
}

base::Result<experts::PlanOptions> plan_options_of(const trimtab_plan_options& given);
trimtab_plan_options default_plan_options();
void write_reason(const experts::PlanReason& reason, trimtab_plan_reason* out);

/// Calls work(typed pointer) with the array's type.
template <class Work>
base::Status with_loads(const void* loads, std::int32_t load_type, Work&& work) {
  TRIMTAB_TRY(need(loads, "loads"));
  switch (load_type) {
    case TRIMTAB_INT32:
      return work(static_cast<const std::int32_t*>(loads));
    case TRIMTAB_INT64:
      return work(static_cast<const std::int64_t*>(loads));
    case TRIMTAB_FLOAT:
      return work(static_cast<const float*>(loads));
    case TRIMTAB_DOUBLE:
      return work(static_cast<const double*>(loads));
    default:
      return bad(fmt::format("load_type {} is none of TRIMTAB_INT32 (0), INT64 (1), FLOAT (2), DOUBLE (3)",
                             load_type));
  }
}

/// logical_to_physical [layers, experts, copies_max] and logical_count [layers, experts] of maps.
base::Status write_tables(const experts::Shape& shape, std::span<const std::int32_t> maps,
                          std::int32_t copies_max, std::int32_t* logical_to_physical,
                          std::int32_t* logical_count);

}  // namespace trimtab::capi
