#include "io/explain.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "base/duration_text.h"
#include "cluster/journey.h"
#include "io/record_json.h"

namespace trimtab::io {

using nlohmann::json;

namespace {

/// The entries of a request sorted by kind.
struct Parts {
  cluster::Journey journey;
  std::vector<const cluster::Record*> records;
  std::vector<const TokenEntry*> tokens;
  std::vector<const ImageEntry*> images;
  std::uint32_t stored_blocks = 0, handed_blocks = 0;
  std::vector<const HitEntry*> hits;
  std::vector<const SwapInEntry*> swaps;
  const DriftEntry* drift = nullptr;
  std::int64_t submitted_unix_ns = 0;
  std::optional<Nanos> start;

  explicit Parts(const LoggedRequest& request) {
    journey.id = request.id;
    for (const Entry& entry : request.entries) {
      if (!start) start = entry.at();
      std::visit([this](const auto& e) { take(e); }, entry.body);
    }
  }
  Nanos since_start(Nanos at) const { return at - start.value_or(at); }

 private:
  void take(const cluster::Record& record) {
    cluster::observe(journey, record);
    records.push_back(&record);
  }
  void take(const NameEntry& name) { submitted_unix_ns = name.unix_ns; }
  void take(const TokenEntry& token) { tokens.push_back(&token); }
  void take(const ImageEntry& image) { images.push_back(&image); }
  void take(const HitEntry& hit) { hits.push_back(&hit); }
  void take(const SwapInEntry& swap) { swaps.push_back(&swap); }
  void take(const DriftEntry& measured) { drift = &measured; }
  void take(const BlocksEntry& blocks) {
    stored_blocks += blocks.stored;
    handed_blocks += blocks.handed;
  }
};

/// Mean time from the first token to the last, per token after the first.
std::optional<Nanos> time_per_token(const Parts& parts) {
  if (parts.tokens.size() < 2) return std::nullopt;
  return (parts.tokens.back()->at - parts.tokens.front()->at) /
         static_cast<std::int64_t>(parts.tokens.size() - 1);
}

const char* state_name(const cluster::Journey& journey) {
  if (journey.finished) return "finished";
  if (journey.failed) return "failed";
  return journey.cancelled ? "cancelled" : "running";
}

json summary_of(const Parts& parts) {
  const cluster::Journey& journey = parts.journey;
  json summary;
  std::int64_t computed = 0;
  std::uint32_t redos = 0;
  json tier;
  for (const cluster::JourneyPass& pass : journey.passes) {
    if (pass.prefill) computed += pass.prefill->computed.value;
    if (pass.requeue) redos = pass.requeue->redos;
    if (pass.queue) tier = pass.queue->tier.value;
  }
  summary["prompt_tokens"] = journey.submitted ? json(journey.submitted->prompt.value) : json();
  summary["hit_tokens"] = journey.passes.empty() ? json() : json(journey.passes.front().match.hit.value);
  summary["computed_tokens"] = computed;
  summary["output_tokens"] = parts.tokens.size();
  summary["tier"] = tier;
  summary["queue_ms"] = millis_json(journey.queue_time());
  summary["quota_predicted_ms"] = millis_json(journey.quota_predicted());
  summary["quota_spent_ms"] = millis_json(journey.quota_spent());
  summary["ttft_ms"] =
      parts.tokens.empty() ? json() : millis_json(parts.since_start(parts.tokens.front()->at));
  const auto per_token = time_per_token(parts);
  summary["tpot_ms"] = per_token ? millis_json(*per_token) : json();
  summary["total_ms"] = journey.ended() ? millis_json(parts.since_start(journey.ended_at)) : json();
  summary["passes"] = journey.passes.size();
  summary["redos"] = redos;
  summary["stored_blocks"] = parts.stored_blocks;
  summary["handed_blocks"] = parts.handed_blocks;
  return summary;
}

/// The first reading is the one that is counted; a request that is redone reads again.
json hit_json(const Parts& parts) {
  if (parts.hits.empty()) return nullptr;
  const HitEntry& hit = *parts.hits.front();
  return {{"outcome", hit.outcome},
          {"promised_tokens", hit.promised_tokens},
          {"read_tokens", hit.read_tokens},
          {"state_tokens", hit.state_tokens},
          {"window_tokens", hit.window_tokens},
          {"approximate", hit.approximate != 0},
          {"readings", parts.hits.size()}};
}

std::string hit_text(const HitEntry& hit) {
  std::string text = fmt::format("  hit: {} tokens promised by the pool, {} read ({})", hit.promised_tokens,
                                 hit.read_tokens, hit.outcome);
  if (hit.outcome == "stale") text += ": a block was gone by the time it was read; the rest was computed";
  if (hit.outcome == "fallback") text += ": a block could not be read; the rest was computed";
  if (hit.outcome == "skipped") text += ": too short for a whole block before its last token";
  if (hit.state_tokens > 0)
    text += fmt::format("; began from the window state after {} tokens", hit.state_tokens);
  if (hit.window_tokens > 0)
    text += fmt::format("; {} tokens computed again for their window{}", hit.window_tokens,
                        hit.approximate != 0 ? " (approximate)" : "");
  return text + "\n";
}

json swap_in_json(const Parts& parts) {
  if (parts.swaps.empty()) return nullptr;
  std::int64_t step = 0, stalled = 0;
  std::uint64_t thrown = 0;
  for (const SwapInEntry* swap : parts.swaps)
    step += swap->step_ns, stalled += swap->stalled_ns, thrown += swap->thrown_tokens;
  return {{"step_ms", millis_json(Nanos{step})},
          {"stalled_ms", millis_json(Nanos{stalled})},
          {"thrown_tokens", thrown}};
}

std::string swap_in_text(const SwapInEntry& swap) {
  std::string text =
      fmt::format("  swap-in: computing began before all of the hit had come; it waited for layers {} of {}",
                  base::duration_text(Nanos{swap.stalled_ns}), base::duration_text(Nanos{swap.step_ns}));
  if (swap.thrown_tokens > 0)
    text += fmt::format("; a layer did not come: {} tokens were computed in vain, and then again",
                        swap.thrown_tokens);
  return text + "\n";
}

json drift_json(const DriftEntry* drift) {
  if (drift == nullptr) return nullptr;
  return {{"relative", drift->relative},
          {"largest", drift->largest},
          {"same_token", drift->same_token != 0},
          {"computed_tokens", drift->computed_tokens}};
}

std::string drift_text(const DriftEntry& drift) {
  return fmt::format(
      "  drift: computed a second time without approximation ({} tokens): the first token's logits were off "
      "by "
      "{:.3g} of their spread (the furthest by {:.3g}); the most likely token was {}\n",
      drift.computed_tokens, drift.relative, drift.largest,
      drift.same_token != 0 ? "the same" : "another one");
}

json image_json(const ImageEntry& image) {
  return {{"image", image.image},
          {"rows", image.rows},
          {"text_tokens", image.text_tokens},
          {"truncated_tokens", image.truncated_tokens},
          {"token_ids", image.token_ids}};
}

std::string hexadecimal(std::uint64_t value) { return fmt::format("{:016x}", value); }

void write_tokens(std::string& text, const Parts& parts) {
  auto out = std::back_inserter(text);
  for (const ImageEntry* image : parts.images) {
    fmt::format_to(out, "  image {}: {} rows, {} tokens of text found, {} cut off\n", image->image,
                   image->rows, image->text_tokens, image->truncated_tokens);
  }
  for (const HitEntry* hit : parts.hits) text += hit_text(*hit);
  for (const SwapInEntry* swap : parts.swaps) text += swap_in_text(*swap);
  if (parts.drift != nullptr) text += drift_text(*parts.drift);
  fmt::format_to(out, "  blocks: {} stored in the pool by prefill, {} handed over to decode\n",
                 parts.stored_blocks, parts.handed_blocks);
  fmt::format_to(out, "  {} tokens", parts.tokens.size());
  if (const auto per_token = time_per_token(parts))
    fmt::format_to(out, ", {} each after the first", base::duration_text(*per_token));
  for (std::size_t first = 0; first < parts.tokens.size();) {
    // Tokens in a row of one rank are one phrase.
    const TokenEntry& begin = *parts.tokens[first];
    std::size_t last = first;
    while (last + 1 < parts.tokens.size() && parts.tokens[last + 1]->from == begin.from) ++last;
    const bool decode = begin.from.role == model::Role::kDecode;
    fmt::format_to(out, "; {} by {} {} rank {}", last - first + 1, decode ? "decode group" : "prefill engine",
                   begin.from.engine.value, begin.from.rank);
    if (decode) fmt::format_to(out, " in steps {} to {}", begin.step, parts.tokens[last]->step);
    first = last + 1;
  }
  text += parts.tokens.empty() ? "\n" : " (ids, times and checksums: --json)\n";
}

}  // namespace

std::string explain_text(const LoggedRequest& request) {
  const Parts parts(request);
  std::string text = request.name.empty() ? std::string() : request.name + ", ";
  text += cluster::explain(parts.journey);
  write_tokens(text, parts);
  if (request.scan.bytes_torn > 0) {
    fmt::format_to(std::back_inserter(text),
                   "  note: the log ends in {} torn bytes (a writer died, or is writing now)\n",
                   request.scan.bytes_torn);
  }
  if (request.scan.undecodable > 0) {
    fmt::format_to(std::back_inserter(text),
                   "  note: {} records of the log were written by another version\n",
                   request.scan.undecodable);
  }
  return text;
}

std::string explain_json(const LoggedRequest& request) {
  const Parts parts(request);
  json root;
  root["id"] = request.id.value;
  root["name"] = request.name;
  root["submitted_unix_ns"] = parts.submitted_unix_ns;
  root["state"] = state_name(parts.journey);
  root["summary"] = summary_of(parts);
  root["events"] = json::array();
  for (const cluster::Record* record : parts.records) {
    json event = fields_of(*record);
    event["at_ms"] = millis_json(parts.since_start(record->at));
    event["kind"] = cluster::kind(*record);
    event["text"] = cluster::describe(*record);
    root["events"].push_back(std::move(event));
  }
  root["hit"] = hit_json(parts);
  root["swap_in"] = swap_in_json(parts);
  root["drift"] = drift_json(parts.drift);
  root["tokens"] = json::array();
  root["checksums"] = json::array();
  root["token_at_ms"] = json::array();
  for (const TokenEntry* token : parts.tokens) {
    root["tokens"].push_back(token->token);
    root["checksums"].push_back(hexadecimal(token->logits_checksum));
    root["token_at_ms"].push_back(millis_json(parts.since_start(token->at)));
  }
  root["images"] = json::array();
  for (const ImageEntry* image : parts.images) root["images"].push_back(image_json(*image));
  // Reasons may quote what a client sent: never fail on its bytes.
  return root.dump(-1, ' ', false, json::error_handler_t::replace);
}

void wait_for_the_log() { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }

int explain_command(const std::string& directory, const std::string& name_or_id, bool as_json,
                    std::ostream& out, std::ostream& errors, const std::function<void()>& wait) {
  auto found = find_request(directory, name_or_id);
  if (found && !(*found && Parts(**found).journey.ended())) {
    wait();
    found = find_request(directory, name_or_id);
  }
  if (!found) {
    errors << found.error().message << '\n';
    return 1;
  }
  if (!*found) {
    errors << fmt::format(
        "no request {} in the decision log of {}: it is older than the log keeps, was not sampled, or never "
        "came; ids look like msg_..., chatcmpl-... or a number\n",
        name_or_id, directory);
    return 1;
  }
  out << (as_json ? explain_json(**found) + "\n" : explain_text(**found));
  return 0;
}

}  // namespace trimtab::io
