#include "io/servegen.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "io/trace_reader.h"

namespace trimtab::io {
namespace {

using testing::HasSubstr;

ServegenWindow window(double begin, double end, double rate, GapShape shape, double k) {
  return {begin, end, rate, shape, k};
}

ServegenClient client(std::vector<ServegenWindow> windows) {
  ServegenLengths lengths;
  lengths.text = LengthTable({{100, 0.25}, {500, 0.75}});
  lengths.output = LengthTable({{10, 0.5}, {30, 0.5}});
  return {"chunk-0", std::move(windows), {lengths}, {}};
}

model::Trace drawn(const std::vector<ServegenClient>& clients, ServegenOptions options = {}) {
  auto trace = generate_servegen(clients, options, "models");
  EXPECT_TRUE(trace) << (trace ? "" : trace.error().message);
  return trace ? std::move(*trace) : model::Trace{};
}

double mean_prompt(const model::Trace& trace) {
  double sum = 0;
  for (const auto& request : trace.requests) sum += static_cast<double>(request.prompt_tokens);
  return sum / static_cast<double>(trace.requests.size());
}

struct ShapeCase {
  GapShape shape;
  double k;
  double variation;  // of its gaps
};

class ServegenGaps : public testing::TestWithParam<ShapeCase> {};

/// Counts and gaps of many windows against the closed forms: the mean count is rate x length exactly (the
/// process is stationary from a window's first moment), gaps have the mean 1/rate and the shape's variation.
TEST_P(ServegenGaps, HaveTheRateAndTheVariation) {
  const ShapeCase& shape = GetParam();
  constexpr double kRate = 2, kWindowS = 50;
  constexpr int kWindows = 4'000;
  std::vector<ServegenWindow> windows;
  for (int i = 0; i < kWindows; ++i)
    windows.push_back(window(i * kWindowS, (i + 1) * kWindowS, kRate, shape.shape, shape.k));
  const auto trace = drawn({client(windows)});
  const double expected = kRate * kWindowS * kWindows;
  // A renewal count varies by variation^2 x mean; five deviations.
  EXPECT_NEAR(static_cast<double>(trace.requests.size()), expected,
              5 * (shape.variation + 0.1) * std::sqrt(expected));
  const auto whole = drawn({client({window(0, 100'000, kRate, shape.shape, shape.k)})});
  double sum = 0, squares = 0;
  const auto count = static_cast<double>(whole.requests.size() - 1);
  for (std::size_t i = 1; i < whole.requests.size(); ++i) {
    const double gap = base::to_seconds(whole.requests[i].arrival - whole.requests[i - 1].arrival);
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / count;
  EXPECT_NEAR(mean, 1 / kRate, 5 * shape.variation / kRate / std::sqrt(count) + 1e-3);
  EXPECT_NEAR(std::sqrt(squares / count - mean * mean) / mean, shape.variation, 0.05 * shape.variation);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ServegenGaps,
                         testing::Values(ShapeCase{GapShape::kExponential, 1, 1},
                                         ShapeCase{GapShape::kGamma, 4, 0.5},
                                         ShapeCase{GapShape::kGamma, 1.0 / 9, 3},
                                         ShapeCase{GapShape::kWeibull, 2, 0.5227},
                                         ShapeCase{GapShape::kWeibull, 0.6, 1.7581}));

TEST(Servegen, LengthsComeFromTheTablesInForce) {
  ServegenClient one = client({window(0, 10'000, 1, GapShape::kExponential, 1),
                               window(10'000, 20'000, 1, GapShape::kExponential, 1)});
  one.lengths.push_back(one.lengths[0]);
  one.lengths[1].begin_s = 10'000;
  one.lengths[1].text = LengthTable({{7, 1.0}});
  one.lengths[1].image = LengthTable({{1'000, 1.0}});
  one.lengths[1].images = LengthTable({{0, 0.5}, {2, 0.5}});
  const auto trace = drawn({one});
  double early = 0, early_prompt = 0, late = 0, images = 0;
  for (const auto& request : trace.requests) {
    if (request.arrival.value < 10'000'000'000'000) {
      early += 1;
      early_prompt += static_cast<double>(request.prompt_tokens);
      EXPECT_EQ(request.images_count, 0U);
      EXPECT_TRUE(request.prompt_tokens == 100 || request.prompt_tokens == 500);
    } else {
      late += 1;
      images += request.images_count;
      EXPECT_EQ(request.prompt_tokens, 7 + 1'000 * static_cast<std::int64_t>(request.images_count));
      for (const auto& image : trace.images_of(request)) EXPECT_EQ(image.tokens, 1'000U);
    }
    EXPECT_TRUE(request.output_tokens == 10 || request.output_tokens == 30);
  }
  EXPECT_NEAR(early_prompt / early, 400, 5 * 173 / std::sqrt(early));
  EXPECT_NEAR(images / late, 1, 5 / std::sqrt(late));
}

TEST(Servegen, ASliceAndFewerClientsAreTheSameRequests) {
  std::vector<ServegenClient> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(client({window(0, 600, 0.5 + i, GapShape::kGamma, 0.2),
                              window(600, 1'200, 0.1, GapShape::kWeibull, 0.8),
                              window(1'200, 1'800, 1 + i, GapShape::kExponential, 1)}));
  }
  const auto whole = drawn(clients);
  const auto part = drawn(clients, {700, 800, 0, 1, INT64_MAX});
  std::vector<std::pair<std::int64_t, std::int64_t>> expected, found;
  for (const auto& request : whole.requests) {
    const std::int64_t at = request.arrival.value - 700'000'000'000;
    if (at >= 0 && at < 800'000'000'000) expected.emplace_back(at, request.prompt_tokens);
  }
  for (const auto& request : part.requests) found.emplace_back(request.arrival.value, request.prompt_tokens);
  ASSERT_GT(found.size(), 100U);
  EXPECT_EQ(found, expected);
  // The busiest of the slice alone: its requests are among those of all.
  const auto busiest = drawn(clients, {700, 800, 1, 1, INT64_MAX});
  ASSERT_GT(busiest.requests.size(), 100U);
  ASSERT_LT(busiest.requests.size(), found.size());
  for (const auto& request : busiest.requests)
    EXPECT_THAT(found, testing::Contains(std::pair(request.arrival.value, request.prompt_tokens)));
  EXPECT_NE(drawn(clients, {0, 0, 0, 2, INT64_MAX}).requests[0].arrival, whole.requests[0].arrival);
}

TEST(Servegen, AClientWithoutLengthsBorrows) {
  std::vector<ServegenClient> clients = {client({window(0, 600, 1, GapShape::kExponential, 1)}),
                                         client({window(0, 600, 1, GapShape::kExponential, 1)})};
  clients[1].lengths.clear();
  const auto trace = drawn(clients);
  EXPECT_NEAR(mean_prompt(trace), 400, 5 * 173 / std::sqrt(static_cast<double>(trace.requests.size())));
  ASSERT_EQ(trace.notes.size(), 1U);
  EXPECT_THAT(trace.notes[0], HasSubstr("1 clients have no lengths"));
  clients[0].lengths.clear();
  EXPECT_THAT(generate_servegen(clients, {}, "m").error().message, HasSubstr("no client has lengths"));
}

TEST(Servegen, PlaceholdersAreNoLengths) {
  ServegenClient one = client({window(0, 600, 1, GapShape::kExponential, 1)});
  ServegenLengths silent;
  silent.text = silent.output = silent.image = silent.images = LengthTable({{0, 1.0}});
  EXPECT_FALSE(silent.known());
  one.lengths[0].begin_s = 300;
  one.lengths.insert(one.lengths.begin(), silent);
  for (const auto& request : drawn({one}).requests) EXPECT_GE(request.prompt_tokens, 100);
}

TEST(Servegen, SlicesOutsideAndTooManyRequestsAreErrors) {
  const std::vector<ServegenClient> clients = {client({window(0, 600, 1, GapShape::kExponential, 1)})};
  for (const ServegenOptions& options :
       {ServegenOptions{600, 10, 0, 1, INT64_MAX}, ServegenOptions{-1, 10, 0, 1, INT64_MAX},
        ServegenOptions{NAN, 10, 0, 1, INT64_MAX}, ServegenOptions{0, -5, 0, 1, INT64_MAX},
        ServegenOptions{0, INFINITY, 0, 1, INT64_MAX}}) {
    const auto trace = generate_servegen(clients, options, "m");
    ASSERT_FALSE(trace);
    EXPECT_THAT(trace.error().message, HasSubstr("the models cover 0 to 600 s"));
  }
  const auto many = generate_servegen({client({window(0, 600, 1e6, GapShape::kExponential, 1)})}, {}, "m");
  ASSERT_FALSE(many);
  EXPECT_THAT(many.error().message, HasSubstr("6e+08 requests"));
  EXPECT_EQ(drawn(clients, {0, 0, 0, 1, 5}).requests.size(), 5U);
}

std::string refused_windows(std::string_view text) {
  std::vector<std::string> notes;
  const auto windows = parse_servegen_windows(text, "c-trace.csv", notes);
  return windows ? "" : windows.error().message;
}

TEST(Servegen, WindowErrorsNameTheLineAndTheValue) {
  EXPECT_THAT(refused_windows("0,1,1,Gamma,1,1\n600,nan,1,Gamma,1,1\n"),
              HasSubstr("c-trace.csv:2: the rate in 1/s is 'nan'"));
  EXPECT_THAT(refused_windows("0,inf,1,Gamma,1,1\n"), HasSubstr("'inf'"));
  EXPECT_THAT(refused_windows("0,-1,1,Gamma,1,1\n"), HasSubstr("'-1'"));
  EXPECT_THAT(refused_windows("0,1,0,Gamma,1,1\n"), HasSubstr("do not vary"));
  EXPECT_THAT(refused_windows("0,1,1,Weibull,0,1\n"), HasSubstr("shape of Weibull is 0"));
  EXPECT_THAT(refused_windows("0,1,1,Pareto,1,1\n"), HasSubstr("'Pareto' is no distribution"));
  EXPECT_THAT(refused_windows("0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n"), HasSubstr("begins at 0 s, not after"));
  EXPECT_THAT(refused_windows("0,1,1\n0,1,1,Gamma,1,1\n"), HasSubstr("3 fields"));
  std::vector<std::string> notes;
  const auto cut = parse_servegen_windows("0,1,1,Gamma,1,1\r\n600,1,1,Gam", "c", notes).value();
  EXPECT_EQ(cut.size(), 1U);
  EXPECT_EQ(cut[0].end_s, 600);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], HasSubstr("c:2: the last line is cut short"));
}

TEST(Servegen, LengthErrorsNameTheWindowAndTheMember) {
  const auto refused = [](const std::string& output) {
    const auto all = parse_servegen_lengths(
        fmt::format(R"({{"0": {{"input_tokens": "{{1: 1.0}}", "output_tokens": "{}"}}}})", output), "c.json");
    return all ? "" : all.error().message;
  };
  EXPECT_EQ(refused("{5: 0.5, 6: 0.5}"), "");
  EXPECT_THAT(refused("{-5: 1.0}"), HasSubstr("c.json: window 0, \"output_tokens\": a length of -5"));
  EXPECT_THAT(refused("{5: nan}"), HasSubstr("a probability of nan"));
  EXPECT_THAT(refused("{5: -0.1}"), HasSubstr("a probability of -0.1"));
  EXPECT_THAT(refused("{5: 0.0}"), HasSubstr("all probabilities are 0"));
  EXPECT_THAT(refused("{5}"), HasSubstr("'5' is no entry"));
  EXPECT_THAT(refused("5: 1.0"), HasSubstr("no braces"));
  EXPECT_THAT(refused("{1e30: 1.0}"), HasSubstr("a length of 1e+30"));
  EXPECT_FALSE(parse_servegen_lengths("[]", "c.json"));
  EXPECT_FALSE(parse_servegen_lengths(R"({"x": {}})", "c.json"));
  EXPECT_THAT(parse_servegen_lengths(R"({"0": {"input_tokens": "{1: 1.0}"}})", "c").error().message,
              HasSubstr("\"output_tokens\" is missing"));
}

/// Published models, where they are: what is drawn has their rates and means.
TEST(Servegen, Published) {
  const char* data = std::getenv("TRIMTAB_DATA");
  if (data == nullptr) GTEST_SKIP() << "TRIMTAB_DATA is not set: no client models";
  const std::string folder = std::string(data) + "/servegen/";
  const auto clients = read_servegen(folder + "mm-image").value();
  EXPECT_EQ(clients.size(), 35U);
  double expected = 0, spread = 0;
  for (const auto& one : clients) {
    for (const auto& w : one.windows) {
      const double count =
          std::clamp(w.end_s - 7'200, 0.0, 600.0) / 600 * (w.begin_s < 10'800 ? 600 * w.rate : 0);
      const double variation = w.shape == GapShape::kGamma ? 1 / std::sqrt(w.k) : 1.5;
      expected += count;
      spread += count * variation * variation;
    }
  }
  TraceOptions options;
  options.from_s = 7'200;
  options.for_s = 3'600;
  const auto trace = read_trace(folder + "mm-image", options).value();
  EXPECT_NEAR(static_cast<double>(trace.requests.size()), expected, 5 * std::sqrt(spread));
  EXPECT_GT(trace.images.size(), trace.requests.size() / 2);
  const auto text = read_trace(folder + "deepseek-r1", options).value();
  const double rate = static_cast<double>(text.requests.size()) / 3'600;
  EXPECT_TRUE(rate > 4 && rate < 42) << rate << " a second: the day has 4 to 42";
  EXPECT_TRUE(text.images.empty());
}

}  // namespace
}  // namespace trimtab::io
