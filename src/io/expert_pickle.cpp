#include "io/expert_pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "io/expert_pickle_bytes.h"
#include "io/expert_pickle_names.h"

namespace trimtab::io {

namespace {

using Kind = PickledValues::Kind;

constexpr std::size_t kDimensionsMax = 8;
constexpr std::size_t kKeysMax = 4'096;  // of one dict; a dump's have a dozen

}  // namespace

/// The stack machine. One opcode a call; `failed()` keeps the first error.
class PickleMachine : private PickleBytes {
 public:
  explicit PickleMachine(std::span<const std::byte> bytes) : PickleBytes(bytes) {}

  base::Result<PickledValues> run() {
    while (!stopped_ && !failed()) {
      const std::size_t start = at();
      const int code = static_cast<int>(number(1));
      if (failed()) break;
      step(code, start);
    }
    if (failed()) return tl::unexpected(*failure());
    return std::move(values_);
  }

 private:
  using Node = PickledValues::Node;

  Node make(Kind kind, std::int64_t value) {
    values_.nodes_.push_back({kind, value});
    return static_cast<Node>(values_.nodes_.size() - 1);
  }
  void push(Node node) { stack_.push_back(node); }
  void push(Kind kind, std::int64_t value) { push(make(kind, value)); }
  void push_text(std::string value) {
    values_.texts_.push_back(std::move(value));
    push(Kind::kText, static_cast<std::int64_t>(values_.texts_.size() - 1));
  }
  void push_list(Kind kind, std::vector<Node> items) {
    values_.lists_.push_back(std::move(items));
    push(kind, static_cast<std::int64_t>(values_.lists_.size() - 1));
  }

  Node pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      fail(fmt::format("the pickle's stack runs empty at byte {}", at()));
      return 0;
    }
    const Node out = stack_.back();
    stack_.pop_back();
    return out;
  }

  std::vector<Node> pop_mark() {
    if (marks_.empty()) {
      fail(fmt::format("the pickle's mark is missing at byte {}", at()));
      return {};
    }
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Node> out(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return out;
  }

  std::vector<Node> pop_some(std::size_t n) {
    std::vector<Node> out(n);
    for (std::size_t i = n; i-- > 0 && !failed();) out[i] = pop();
    return out;
  }

  bool is(Node node, Kind kind) const {
    return node < values_.nodes_.size() && values_.nodes_[node].kind == kind;
  }

  /// Adds to the list or dict on top.
  void extend(const std::vector<Node>& added, Kind kind) {
    const Node node = pop();
    if (failed()) return;
    if (!is(node, kind) || (kind == Kind::kDict && added.size() % 2 != 0)) {
      return fail(
          fmt::format("items for what is no {} at byte {}", kind == Kind::kDict ? "dict" : "list", at()));
    }
    auto& items = values_.lists_[values_.index(node)];
    items.insert(items.end(), added.begin(), added.end());
    if (kind == Kind::kDict && items.size() > 2 * kKeysMax) {
      return fail(fmt::format("a dict of more than {} keys; no dump of counts has one", kKeysMax));
    }
    push(node);
  }

  void global(const std::string& module, const std::string& name) {
    const std::string full = module + " " + name;
    const auto known = global_of(full);
    if (!known) {
      return fail(
          fmt::format("the file wants to call {}.{}, and nothing but tensors and plain values is read "
                      "here; save counts as a dict of tensors",
                      printable(module), printable(name)),
          base::Code::kUnsupported);
    }
    globals_.push_back(*known);
    push(Kind::kOther, static_cast<std::int64_t>(globals_.size() - 1));
  }

  const Global* global_at(Node node) const {
    return is(node, Kind::kOther) ? &globals_[values_.index(node)] : nullptr;
  }

  /// ('storage', type, key, device, elements) becomes a tensor of one dimension.
  void persistent(Node id) {
    if (!is(id, Kind::kTuple)) return fail("a storage that is no tuple", base::Code::kUnsupported);
    const std::vector<Node>& parts = values_.lists_[values_.index(id)];
    const Global* type = parts.size() == 5 ? global_at(parts[1]) : nullptr;
    if (type == nullptr || (type->name != Name::kTyped && type->name != Name::kUntyped) ||
        !is(parts[2], Kind::kText) || !is(parts[4], Kind::kInt) ||
        values_.text(parts[2]).size() > kPickleNameBytesMax || values_.integer(parts[4]) < 0) {
      return fail("a storage of a form that torch.save does not write", base::Code::kUnsupported);
    }
    PickledTensor tensor;
    tensor.type = type->type;
    tensor.storage = values_.text(parts[2]);
    tensor.storage_elements = values_.integer(parts[4]);
    tensor.shape = {tensor.storage_elements};
    tensor.stride = {1};
    values_.tensors_.push_back(std::move(tensor));
    push(Kind::kTensor, static_cast<std::int64_t>(values_.tensors_.size() - 1));
  }

  std::optional<std::vector<std::int64_t>> integers(Node node) const {
    if (!is(node, Kind::kTuple) && !is(node, Kind::kList)) return std::nullopt;
    const auto& items = values_.lists_[values_.index(node)];
    if (items.size() > kDimensionsMax) return std::nullopt;
    std::vector<std::int64_t> out;
    for (const Node item : items) {
      if (!is(item, Kind::kInt) || values_.integer(item) < 0) return std::nullopt;
      out.push_back(values_.integer(item));
    }
    return out;
  }

  /// _rebuild_tensor_v2(storage, offset, size, stride, ...), and v3 with the type in the seventh place.
  void rebuild(const std::vector<Node>& parts, bool typed) {
    const auto bad = [&] {
      fail("a tensor of a form that torch.save does not write", base::Code::kUnsupported);
    };
    if (parts.size() < (typed ? 7U : 4U) || !is(parts[0], Kind::kTensor) || !is(parts[1], Kind::kInt)) {
      return bad();
    }
    PickledTensor tensor = values_.tensor(parts[0]);
    const auto shape = integers(parts[2]);
    const auto stride = integers(parts[3]);
    if (!shape || !stride || shape->size() != stride->size()) return bad();
    if (typed) {
      const Global* type = global_at(parts[6]);
      if (type == nullptr || type->name != Name::kTyped) return bad();
      tensor.storage_elements = tensor.storage_elements * static_cast<std::int64_t>(bytes_of(tensor.type)) /
                                static_cast<std::int64_t>(bytes_of(type->type));
      tensor.type = type->type;
    }
    tensor.offset = values_.integer(parts[1]);
    tensor.shape = *shape;
    tensor.stride = *stride;
    values_.tensors_.push_back(std::move(tensor));
    push(Kind::kTensor, static_cast<std::int64_t>(values_.tensors_.size() - 1));
  }

  void reduce() {
    const Node arguments = pop();
    const Node callee = pop();
    if (failed()) return;
    const Global* what = global_at(callee);
    if (what == nullptr || !is(arguments, Kind::kTuple)) {
      return fail("a call of what is no function", base::Code::kUnsupported);
    }
    const std::vector<Node> parts = values_.lists_[values_.index(arguments)].size() <= 16
                                        ? values_.lists_[values_.index(arguments)]
                                        : std::vector<Node>{};
    switch (what->name) {
      case Name::kOrderedDict:
        if (parts.empty()) return push_list(Kind::kDict, {});
        break;
      case Name::kSize:
        if (parts.size() == 1) return push(parts[0]);
        break;
      case Name::kRebuild:
        return rebuild(parts, false);
      case Name::kRebuildTyped:
        return rebuild(parts, true);
      case Name::kUntyped:
      case Name::kTyped:
        break;
    }
    fail("a call of a form that torch.save does not write", base::Code::kUnsupported);
  }

  void memoize(std::uint64_t key) {
    const Node top = pop();
    if (failed()) return;
    push(top);
    memo_[key] = top;
  }

  void recall(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) return fail(fmt::format("memo {} was never written", key));
    push(found->second);
  }

  void long_integer(std::size_t n) {
    const auto raw = take(n);
    if (n > 8) {
      return fail(fmt::format("an integer of {} bytes; counts fit 8", n), base::Code::kUnsupported);
    }
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < raw.size(); ++i) out |= std::to_integer<std::uint64_t>(raw[i]) << (8 * i);
    const bool negative = !raw.empty() && (raw.back() & std::byte{0x80}) != std::byte{0};
    if (negative && n < 8) out |= ~std::uint64_t{0} << (8 * n);
    push(Kind::kInt, static_cast<std::int64_t>(out));
  }

  void step(int code, std::size_t start);
  bool step_scalar(int code);
  bool step_container(int code);
  bool step_call(int code);

  PickledValues values_;
  std::vector<Node> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Global> globals_;
  std::unordered_map<std::uint64_t, Node> memo_;
  bool stopped_ = false;
};

bool PickleMachine::step_scalar(int code) {
  switch (code) {
    case 'N':
      push(Kind::kNone, 0);
      return true;
    case 0x88:
    case 0x89:
      push(Kind::kBool, code == 0x88 ? 1 : 0);
      return true;
    case 'K':
    case 'M':
      push(Kind::kInt, static_cast<std::int64_t>(number(code == 'K' ? 1 : 2)));
      return true;
    case 'J':
      push(Kind::kInt, static_cast<std::int32_t>(static_cast<std::uint32_t>(number(4))));
      return true;
    case 0x8A:
      long_integer(number(1));
      return true;
    case 'G':  // a float; none of the values that are used here is one
      (void)take(8);
      push(Kind::kFloat, 0);
      return true;
    case 'X':
      push_text(text(number(4)));
      return true;
    case 0x8C:
      push_text(text(number(1)));
      return true;
    case 0x8D:
      push_text(text(number(8)));
      return true;
    default:
      return false;
  }
}

bool PickleMachine::step_container(int code) {
  switch (code) {
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case ')':
      push_list(Kind::kTuple, {});
      return true;
    case ']':
      push_list(Kind::kList, {});
      return true;
    case '}':
      push_list(Kind::kDict, {});
      return true;
    case 't':
      push_list(Kind::kTuple, pop_mark());
      return true;
    case 'l':
      push_list(Kind::kList, pop_mark());
      return true;
    case 0x85:
    case 0x86:
    case 0x87:
      push_list(Kind::kTuple, pop_some(static_cast<std::size_t>(code - 0x84)));
      return true;
    case 'a':
      extend(pop_some(1), Kind::kList);
      return true;
    case 'e':
      extend(pop_mark(), Kind::kList);
      return true;
    case 's':
      extend(pop_some(2), Kind::kDict);
      return true;
    case 'u':
      extend(pop_mark(), Kind::kDict);
      return true;
    default:
      return false;
  }
}

bool PickleMachine::step_call(int code) {
  switch (code) {
    case 'c': {
      const std::string module = line();
      const std::string name = line();
      if (!failed()) global(module, name);
      return true;
    }
    case 0x93: {
      const std::vector<Node> names = pop_some(2);
      if (failed()) return true;
      if (!is(names[0], Kind::kText) || !is(names[1], Kind::kText)) {
        fail("a global whose name is no text", base::Code::kUnsupported);
        return true;
      }
      global(values_.text(names[0]).substr(0, kPickleNameBytesMax),
             values_.text(names[1]).substr(0, kPickleNameBytesMax));
      return true;
    }
    case 'R':
      reduce();
      return true;
    case 'Q': {
      const Node id = pop();
      if (!failed()) persistent(id);
      return true;
    }
    case 'q':
      memoize(number(1));
      return true;
    case 'r':
      memoize(number(4));
      return true;
    case 0x94:
      memoize(memo_.size());
      return true;
    case 'h':
      recall(number(1));
      return true;
    case 'j':
      recall(number(4));
      return true;
    default:
      return false;
  }
}

void PickleMachine::step(int code, std::size_t start) {
  if (code == 0x80) {
    const std::uint64_t protocol = number(1);
    if (protocol < 2 || protocol > 5) fail(fmt::format("pickle protocol {}; 2 to 5 are read", protocol));
  } else if (code == 0x95) {
    (void)take(8);  // a frame's length, of no use to a reader that has all the bytes
  } else if (code == '.') {
    values_.root_ = pop();
    stopped_ = true;
  } else if (!step_scalar(code) && !step_container(code) && !step_call(code)) {
    fail(fmt::format("pickle opcode 0x{:02x} at byte {} is not read: torch.save writes none for tensors and "
                     "plain values",
                     code, start),
         base::Code::kUnsupported);
  }
}

base::Result<PickledValues> read_pickle(std::span<const std::byte> bytes) {
  if (bytes.size() > std::size_t{1} << 31) {
    return base::fail(base::Code::kTooLarge,
                      fmt::format("a pickle of {} bytes; split the dump", bytes.size()), "pickle");
  }
  return PickleMachine(bytes).run();
}

}  // namespace trimtab::io
