#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "base/prng.h"
#include "kv/window_ring.h"

namespace trimtab::kv::testing {

/// Stacked sliding-window attention layers with feed-forwards on random weights: enough of a model for the
/// question what a missing window state does to the logits. Its keys and values lie in a ring of the shape
/// that engines use, and every sum runs in order of position, so that equal states give equal bits.
class WindowModel {
 public:
  static constexpr std::int64_t kWindow = 128, kRing = 134;
  static constexpr std::size_t kHidden = 32, kHeads = 2, kHead = kHidden / kHeads, kInner = 64,
                               kVocabulary = 64;

  /// One request: its state slot, where it stands, and the first position whose rows mean anything.
  struct Request {
    std::vector<std::byte> ring;
    std::int64_t position = 0, valid_from = 0;
  };

  WindowModel(std::int64_t layers, std::uint64_t seed) : layers_(static_cast<std::size_t>(layers)) {
    base::Prng prng(seed);
    const auto matrix = [&prng](std::size_t rows, std::size_t columns, double gain) {
      std::vector<float> out(rows * columns);
      const double scale = gain / std::sqrt(static_cast<double>(columns));
      for (float& w : out) w = static_cast<float>(prng.normal() * scale);
      return out;
    };
    for (Layer& layer : layers_) {
      layer.query = matrix(kHidden, kHidden, 1.5);  // scores far enough apart that attention chooses
      layer.key = matrix(kHidden, kHidden, 1.5);
      layer.value = matrix(kHidden, kHidden, 1);
      layer.out = matrix(kHidden, kHidden, 1);
      layer.up = matrix(kInner, kHidden, 1);
      layer.down = matrix(kHidden, kInner, 1);
    }
    embedding_ = matrix(kVocabulary, kHidden, std::sqrt(kHidden));
    head_ = matrix(kVocabulary, kHidden, 3);
  }

  RingShape shape() const {
    return {static_cast<std::int64_t>(layers_.size()), kRing, kWindow, 2 * kHidden * sizeof(float)};
  }
  /// A request that starts at `position` without a state.
  Request start_at(std::int64_t position) const {
    return {std::vector<std::byte>(static_cast<std::size_t>(ring_bytes(shape()).value)), position, position};
  }

  /// Computes the next token; the logits of the one after it.
  std::vector<float> forward(Request& request, std::int32_t token) const {
    const auto row = static_cast<std::size_t>(token) * kHidden;
    std::vector<float> x(embedding_.begin() + static_cast<std::ptrdiff_t>(row),
                         embedding_.begin() + static_cast<std::ptrdiff_t>(row + kHidden));
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const auto normed = norm(x);
      add(x, multiply(layer.out, attend(request, l, normed)));
      auto inner = multiply(layer.up, norm(x));
      for (float& v : inner) v = v / (1.0F + std::exp(-v));
      add(x, multiply(layer.down, inner));
    }
    ++request.position;
    return multiply(head_, norm(x));
  }

 private:
  struct Layer {
    std::vector<float> query, key, value, out, up, down;
  };

  static std::vector<float> multiply(const std::vector<float>& matrix, const std::vector<float>& x) {
    std::vector<float> out(matrix.size() / x.size(), 0.0F);
    for (std::size_t r = 0; r < out.size(); ++r)
      for (std::size_t c = 0; c < x.size(); ++c) out[r] += matrix[r * x.size() + c] * x[c];
    return out;
  }
  static void add(std::vector<float>& x, const std::vector<float>& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  static std::vector<float> norm(const std::vector<float>& x) {
    float square = 0;
    for (const float v : x) square += v * v;
    const float scale = 1.0F / std::sqrt(square / static_cast<float>(x.size()) + 1e-6F);
    std::vector<float> out(x);
    for (float& v : out) v *= scale;
    return out;
  }
  std::byte* row_at(Request& request, std::size_t layer, std::int64_t position) const {
    const auto slot = static_cast<std::size_t>(position % kRing);
    return request.ring.data() + (layer * kRing + slot) * 2 * kHidden * sizeof(float);
  }

  std::vector<float> attend(Request& request, std::size_t l, const std::vector<float>& x) const {
    const Layer& layer = layers_[l];
    const auto query = multiply(layer.query, x);
    const auto key = multiply(layer.key, x), value = multiply(layer.value, x);
    std::byte* own = row_at(request, l, request.position);
    std::memcpy(own, key.data(), kHidden * sizeof(float));
    std::memcpy(own + kHidden * sizeof(float), value.data(), kHidden * sizeof(float));

    const std::int64_t from = std::max(request.valid_from, request.position - kWindow + 1);
    std::vector<float> out(kHidden, 0.0F);
    std::vector<float> row(2 * kHidden);
    for (std::size_t head = 0; head < kHeads; ++head) {
      float weights = 0;
      for (std::int64_t p = from; p <= request.position; ++p) {
        std::memcpy(row.data(), row_at(request, l, p), row.size() * sizeof(float));
        float score = 0;
        for (std::size_t i = head * kHead; i < (head + 1) * kHead; ++i) score += query[i] * row[i];
        const float weight = std::exp(std::min(score / std::sqrt(static_cast<float>(kHead)), 60.0F));
        weights += weight;
        for (std::size_t i = head * kHead; i < (head + 1) * kHead; ++i) out[i] += weight * row[kHidden + i];
      }
      for (std::size_t i = head * kHead; i < (head + 1) * kHead; ++i) out[i] /= weights;
    }
    return out;
  }

  std::vector<Layer> layers_;
  std::vector<float> embedding_, head_;
};

/// How far two computations of the same tokens are apart.
struct DriftMeasure {
  double largest = 0;          // difference of a logit
  double relative = 0;         // root of the mean square, over that of the logits about their mean
  double divergence_nats = 0;  // KL, mean over tokens
  double same_first = 0;       // share of tokens with the same most likely next one
};

/// Logits of `tokens` tokens each, [token][vocabulary].
inline DriftMeasure measure_drift(const std::vector<std::vector<float>>& truth,
                                  const std::vector<std::vector<float>>& other) {
  DriftMeasure out;
  double error = 0, spread = 0;
  for (std::size_t t = 0; t < truth.size(); ++t) {
    const auto& a = truth[t];
    const auto& b = other[t];
    const double mean = std::accumulate(a.begin(), a.end(), 0.0) / static_cast<double>(a.size());
    double sum_a = 0, sum_b = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      out.largest = std::max(out.largest, std::abs(difference));
      error += difference * difference;
      spread += (static_cast<double>(a[i]) - mean) * (static_cast<double>(a[i]) - mean);
      sum_a += std::exp(static_cast<double>(a[i]));
      sum_b += std::exp(static_cast<double>(b[i]));
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double log_a = static_cast<double>(a[i]) - std::log(sum_a);
      out.divergence_nats += std::exp(log_a) * (log_a - (static_cast<double>(b[i]) - std::log(sum_b)));
    }
    out.same_first += std::ranges::max_element(a) - a.begin() == std::ranges::max_element(b) - b.begin();
  }
  const auto tokens = static_cast<double>(truth.size());
  out.relative = std::sqrt(error / spread);
  out.divergence_nats /= tokens;
  out.same_first /= tokens;
  return out;
}

/// A prompt of `blocks` blocks and `after` tokens, computed once in full; then again from wherever a hit
/// says.
class WindowStudy {
 public:
  WindowStudy(std::int64_t layers, std::int64_t blocks, std::int64_t after, std::uint64_t seed)
      : model_(layers, seed), blocks_(blocks), after_(after) {
    base::Prng prng(seed, 1);
    for (std::int64_t i = 0; i < end() + after; ++i)
      tokens_.push_back(static_cast<std::int32_t>(prng.below(WindowModel::kVocabulary)));
    WindowModel::Request whole = model_.start_at(0);
    compute_to(whole, end());
    snapshot_.resize(static_cast<std::size_t>(snapshot_bytes(model_.shape(), end()).value));
    copied_ = copy_window_out(model_.shape(), whole.ring, whole.position, end(), snapshot_).has_value();
    truth_ = rest(whole);
  }

  std::int64_t end() const { return blocks_ * 128; }
  bool copied() const { return copied_; }
  const std::vector<std::vector<float>>& truth() const { return truth_; }
  /// Logits after `end()` when the computation starts at `from` without a state.
  std::vector<std::vector<float>> recomputed_from(std::int64_t from) const {
    WindowModel::Request request = model_.start_at(from);
    compute_to(request, end());
    return rest(request);
  }
  /// With the snapshot at `end()`, in a slot that another request has used.
  std::vector<std::vector<float>> restored() const {
    WindowModel::Request request = model_.start_at(0);
    std::ranges::fill(request.ring, std::byte{0x5a});
    copy_window_in(model_.shape(), snapshot_, end(), request.ring);
    request.position = end();
    request.valid_from = end() - WindowModel::kWindow;
    return rest(request);
  }

 private:
  void compute_to(WindowModel::Request& request, std::int64_t position) const {
    while (request.position < position) model_.forward(request, token(request.position));
  }
  std::vector<std::vector<float>> rest(WindowModel::Request& request) const {
    std::vector<std::vector<float>> logits;
    while (request.position < end() + after_)
      logits.push_back(model_.forward(request, token(request.position)));
    return logits;
  }
  std::int32_t token(std::int64_t position) const { return tokens_[static_cast<std::size_t>(position)]; }

  WindowModel model_;
  std::int64_t blocks_, after_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::byte> snapshot_;
  bool copied_ = false;
  std::vector<std::vector<float>> truth_;
};

}  // namespace trimtab::kv::testing
