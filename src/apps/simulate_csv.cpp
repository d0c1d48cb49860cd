// What a run was, as CSV: for spreadsheets and notebooks. Times in seconds.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "apps/simulate_output.h"

namespace trimtab::apps {
namespace {

/// Quoted when it must be (RFC 4180).
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::string key(const Run& run) {
  return fmt::format("{},{},{},{},{:g}", field(run.decode_policy), field(run.prefill), run.experts,
                     run.verify, run.rate);
}

constexpr const char* kKey = "decode_policy,prefill,expert_policy,verify,rate";

template <class... A>
void line(std::string& out, fmt::format_string<A...> format, A&&... values) {
  fmt::format_to(std::back_inserter(out), format, std::forward<A>(values)...);
  out += '\n';
}

std::string percentile_fields(const sim::Distribution& of) {
  return fmt::format("{:.6f},{:.6f},{:.6f},{:.6f},{:.6f}", of.mean_s(), of.quantile_s(0.5),
                     of.quantile_s(0.9), of.quantile_s(0.99), of.largest_s());
}

std::string runs_csv(const std::vector<Run>& runs) {
  std::string out = kKey;
  out +=
      ",submitted,finished,failed,unfinished,simulated_s,prompt_tokens,matched_tokens,hit_tokens,output_"
      "tokens,prefill_busy,"
      "decode_busy,preemptions";
  for (const char* of : {"ttft", "tpot", "end_to_end"}) {
    for (const char* what : {"mean", "p50", "p90", "p99", "largest"})
      out += fmt::format(",{}_{}_s", of, what);
  }
  for (const char* side : {"prefill", "decode"}) {
    for (const auto& [name, member] : kTimeParts) {
      std::string column = fmt::format(",{}_{}_share", side, name);
      std::ranges::replace(column, ' ', '_');
      out += column;
    }
  }
  out += '\n';
  for (const Run& run : runs) {
    const sim::Result& r = run.result;
    std::string parts;
    for (const sim::StepTimes* times : {&r.prefill_times, &r.decode_times}) {
      const double whole = std::max(times->sum(), 1e-9);
      for (const auto& [name, member] : kTimeParts) parts += fmt::format(",{:.6f}", times->*member / whole);
    }
    line(out, "{},{},{},{},{},{:.3f},{},{},{},{},{:.6f},{:.6f},{},{},{},{}{}", key(run), r.submitted,
         r.finished, r.failed, r.unfinished, base::to_seconds(r.span), r.prompt_tokens, r.matched_tokens,
         r.hit_tokens, r.output_tokens, r.prefill_busy, r.decode_busy, r.preemptions,
         percentile_fields(r.all.ttft), percentile_fields(r.all.tpot), percentile_fields(r.all.end_to_end),
         parts);
  }
  return out;
}

std::string tiers_csv(const std::vector<Run>& runs, const std::vector<std::string>& names) {
  std::string out = kKey;
  out += ",context,requests,served_well_share";
  for (const char* of : {"ttft", "tpot", "end_to_end"}) {
    for (const char* what : {"mean", "p50", "p90", "p99", "largest"})
      out += fmt::format(",{}_{}_s", of, what);
  }
  out += '\n';
  for (const Run& run : runs) {
    for (std::size_t t = 0; t < run.result.tiers.size() && t < names.size(); ++t) {
      const sim::Latencies& of = run.result.tiers[t];
      line(out, "{},{},{},{:.6f},{},{},{}", key(run), field(names[t]), of.ttft.count(),
           of.share_served_well(), percentile_fields(of.ttft), percentile_fields(of.tpot),
           percentile_fields(of.end_to_end));
    }
  }
  return out;
}

/// One row a bucket of time.
std::string series_csv(const std::vector<Run>& runs) {
  std::string out = kKey;
  out +=
      ",from_s,width_s,arrivals,finished,failed,retried,queued,prefill_rank_work,decode_running,decode_kv_"
      "tokens,"
      "decode_kv_busiest_tokens,decode_running_busiest,prompt_tokens,hit_tokens,prefill_share_of_ideal,"
      "decode_share_of_ideal\n";
  const auto sum = [](const std::vector<sim::Series>& of, std::size_t i) {
    double all = 0;
    for (const sim::Series& one : of) all += one[i];
    return all;
  };
  const auto most = [](const std::vector<sim::Series>& of, std::size_t i) {
    double top = 0;
    for (const sim::Series& one : of) top = std::max(top, one[i]);
    return top;
  };
  for (const Run& run : runs) {
    if (!run.recording) continue;
    const sim::Recording& r = *run.recording;
    const auto ranks = static_cast<double>(std::max<std::size_t>(r.prefill_busy.size(), 1));
    for (std::size_t i = 0; i < r.buckets; ++i) {
      line(out,
           "{},{:.6f},{:.6f},{:.0f},{:.0f},{:.0f},{:.0f},{:.2f},{:.4f},{:.2f},{:.0f},{:.0f},{:.2f},{:.0f},{:."
           "0f},{:."
           "4f},{:.4f}",
           key(run), r.seconds() * static_cast<double>(i), r.seconds(), r.arrivals[i], r.finished[i],
           r.failed[i], r.retried[i], sum(r.queued, i), sum(r.prefill_busy, i) / ranks,
           sum(r.decode_running, i), sum(r.decode_kv, i), most(r.decode_kv, i), most(r.decode_running, i),
           r.prompt_tokens[i], r.hit_tokens[i], r.prefill_times[i].share(), r.decode_times[i].share());
    }
  }
  return out;
}

/// Percentiles of one tier of context in one bucket of time; empty buckets have no row.
std::string tier_series_csv(const std::vector<Run>& runs, const std::vector<std::string>& names) {
  std::string out = kKey;
  out += ",context,from_s,width_s,of,count,p50_s,p90_s,p99_s\n";
  for (const Run& run : runs) {
    if (!run.recording) continue;
    const sim::Recording& r = *run.recording;
    for (std::size_t t = 0; t < r.tiers.size() && t < names.size(); ++t) {
      for (const auto& [of, values] :
           {std::pair{"queue", &r.tiers[t].queue}, std::pair{"ttft", &r.tiers[t].ttft},
            std::pair{"tpot", &r.tiers[t].tpot}}) {
        for (std::size_t i = 0; i < values->size(); ++i) {
          const sim::Percentiles& one = (*values)[i];
          if (one.count == 0) continue;
          line(out, "{},{},{:.6f},{:.6f},{},{},{:.6f},{:.6f},{:.6f}", key(run), field(names[t]),
               r.seconds() * static_cast<double>(i), r.seconds(), of, one.count, one.p50, one.p90, one.p99);
        }
      }
    }
  }
  return out;
}

std::string ranks_csv(const std::vector<Run>& runs) {
  std::string out = kKey;
  out += ",from_s,width_s,role,engine,rank,busy,running,kv_tokens\n";
  for (const Run& run : runs) {
    if (!run.recording) continue;
    const sim::Recording& r = *run.recording;
    for (std::size_t i = 0; i < r.buckets; ++i) {
      const double from = r.seconds() * static_cast<double>(i);
      for (std::size_t k = 0; k < r.prefill_busy.size(); ++k) {
        line(out, "{},{:.6f},{:.6f},prefill,{},{},{:.4f},,", key(run), from, r.seconds(), k / r.prefill_ranks,
             k % r.prefill_ranks, r.prefill_busy[k][i]);
      }
      for (std::size_t k = 0; k < r.decode_kv.size(); ++k) {
        line(out, "{},{:.6f},{:.6f},decode,{},{},,{:.2f},{:.0f}", key(run), from, r.seconds(),
             k / r.decode_ranks, k % r.decode_ranks, r.decode_running[k][i], r.decode_kv[k][i]);
      }
    }
  }
  return out;
}

}  // namespace

std::vector<CsvFile> simulation_csv(const std::vector<Run>& runs, const model::Scenario& scenario) {
  const std::vector<std::string> names = tier_names(scenario.report_bounds_tokens);
  std::vector<CsvFile> files = {{"runs.csv", runs_csv(runs)},
                                {"tiers.csv", tiers_csv(runs, names)},
                                {"series.csv", series_csv(runs)},
                                {"tier_series.csv", tier_series_csv(runs, names)},
                                {"ranks.csv", ranks_csv(runs)}};
  for (CsvFile& file : parts_csv(runs, key, kKey)) files.push_back(std::move(file));
  return files;
}

std::string requests_csv(const std::vector<Run>& runs) {
  std::string out = kKey;
  out += ",request,repeat,submitted_s,first_token_s,ended_s,ttft_s,prompt_tokens,hit_tokens,output_tokens\n";
  for (const Run& run : runs) {
    const std::string of = key(run);
    for (const sim::RequestTimes& one : run.result.requests) {
      line(out, "{},{},{},{:.6f},{:.6f},{:.6f},{:.6f},{},{},{}", of, one.request, one.repeat,
           base::to_seconds(one.submitted), base::to_seconds(one.first_token), base::to_seconds(one.ended),
           base::to_seconds(one.first_token - one.submitted), one.prompt, one.hit, one.output);
    }
  }
  return out;
}

}  // namespace trimtab::apps
