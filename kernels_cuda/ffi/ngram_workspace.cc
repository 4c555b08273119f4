// Exports the sizes of n-gram indices for backends/cuda.
#include "../ops/ngram_workspace.h"

#include <tvm/ffi/function.h>

#include <algorithm>

#include "specdec/ngram_compact.h"

namespace specdec::cuda {
namespace {

// Fewer rows do not take less time: up to kMaxCluster blocks share one, and the GPU has room for these.
constexpr int64_t kMinRows = 32;

// Bytes of one of `rows` rows for histories of up to `row_width` tokens. Fewer than `index_from` tokens in all are
// searched instead.
int64_t ngram_index_bytes(int64_t rows, int64_t row_width, int64_t min_ngram_size, int64_t max_ngram_size,
                          int64_t index_from) {
  if (row_width * std::max(rows, kMinRows) < index_from) return kNoIndexBytes;
  return CompactLayout(row_width, static_cast<int>(min_ngram_size), static_cast<int>(max_ngram_size)).row_bytes();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ngram_index_bytes, ngram_index_bytes)

int64_t ngram_index_alignment() { return kIndexAlignment; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(ngram_index_alignment, ngram_index_alignment)

}  // namespace
}  // namespace specdec::cuda
