#pragma once

#include "io/expert_array.h"
#include "io/expert_pickle.h"
#include "io/npz.h"

namespace trimtab::io {

/// A `torch.save` file in the zip format (PyTorch 1.6 and later): plain values and tensors.
class TorchFile {
 public:
  /// `archive` must outlive the file. Errors: no data.pkl, big-endian bytes, those of read_pickle.
  static base::Result<TorchFile> open(const ZipArchive& archive);

  const PickledValues& values() const { return values_; }
  /// The elements of a tensor node, strides resolved. Errors: a storage that is missing or shorter than the
  /// tensor says, more than `elements_max` elements.
  base::Result<ExpertArray> tensor(PickledValues::Node node, std::int64_t elements_max) const;

 private:
  TorchFile(const ZipArchive& archive, std::string prefix, PickledValues values)
      : archive_(&archive), prefix_(std::move(prefix)), values_(std::move(values)) {}
  const ZipArchive* archive_;
  std::string prefix_;
  PickledValues values_;
};

}  // namespace trimtab::io
