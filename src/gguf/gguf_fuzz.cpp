#include <vector>

#include "gguf/directory.h"

/// Any bytes: parsing ends with a value or an error, and every accessor of a parsed file stays inside it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab::gguf;
  const auto directory = Directory::parse(std::as_bytes(std::span{data, size}));
  if (!directory) return 0;
  for (const auto& [key, value] : directory->values()) {
    (void)directory->string(key);
    (void)directory->u32(key);
    (void)directory->f32(key);
    (void)directory->boolean(key);
    (void)directory->strings(key);
    (void)directory->i32s(key);
    (void)directory->f32s(key);
  }
  for (const Tensor& tensor : directory->tensors()) {
    if (tensor.row_values() > (1U << 20)) continue;
    std::vector<float> row(tensor.row_values());
    (void)dequantize_row(tensor, 0, row);
    (void)dequantize_row(tensor, tensor.rows() - 1, row);
  }
  return 0;
}
