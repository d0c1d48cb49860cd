#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/prng.h"

/// Client models as ServeGen publishes them (alibaba/ServeGen, "ServeGen: Workload Characterization and
/// Generation of Large Language Model Serving in Production", 2025): per client how often it asks, window by
/// window, and how long what it asks and gets is.
namespace trimtab::io {

/// A discrete distribution of lengths.
class LengthTable {
 public:
  LengthTable() = default;
  /// `entries`: (value, weight). Weights are relative; those of 0 never come.
  explicit LengthTable(const std::vector<std::pair<std::uint32_t, double>>& entries);
  bool empty() const { return values_.empty(); }
  std::uint32_t draw(base::Prng& prng) const;
  double mean() const { return mean_; }

 private:
  std::vector<std::uint32_t> values_;
  std::vector<double> cumulated_;  // weights up to and with each value
  double mean_ = 0;
};

/// The shape of the gaps between one client's arrivals.
enum class GapShape : std::uint8_t { kExponential, kGamma, kWeibull };

struct ServegenWindow {
  double begin_s = 0, end_s = 0;
  double rate = 0;  // arrivals per second; 0: silent
  GapShape shape = GapShape::kExponential;
  double k = 1;  // shape parameter of Gamma or Weibull: 1 is exponential, smaller is burstier
};

struct ServegenLengths {
  double begin_s = 0;
  LengthTable text, image, images, output;  // tokens, tokens of one image, images of a request, tokens
  /// Silent windows are published with placeholders in which every length is 0.
  bool known() const { return output.mean() > 0 && text.mean() + image.mean() * images.mean() > 0; }
};

struct ServegenClient {
  std::string name;                      // "chunk-12"
  std::vector<ServegenWindow> windows;   // in order of time
  std::vector<ServegenLengths> lengths;  // in order of time; empty: none published
  std::vector<std::string> notes;        // what the reader left out
};

/// `*-trace.csv`: begin s, rate /s, coefficient of variation, "Gamma" or "Weibull" (or nothing: exponential),
/// its two parameters. The rate and the variation decide; the published scale describes only the gaps inside
/// a window, not the silence before the first and after the last. Errors name file, line, value.
base::Result<std::vector<ServegenWindow>> parse_servegen_windows(std::string_view text,
                                                                 const std::string& name,
                                                                 std::vector<std::string>& notes);
/// `*-dataset.json`: {"begin s": {"text_tokens" or "input_tokens": "{length: probability, ...}",
/// "output_tokens": ..., "image_tokens", "image_count": ...}}; other members are passed over. Errors name
/// file, window and member.
base::Result<std::vector<ServegenLengths>> parse_servegen_lengths(std::string_view text,
                                                                  const std::string& name);
/// All clients of a directory, by number in the name. Errors: no `*-trace.csv` there, a file that is wrong.
base::Result<std::vector<ServegenClient>> read_servegen(const std::string& directory);

}  // namespace trimtab::io
