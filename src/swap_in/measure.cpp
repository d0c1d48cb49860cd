#include "swap_in/measure.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "ipc/steady_clock.h"

namespace trimtab::swap_in {
namespace {

struct Shape {
  std::uint32_t calls = 0, copies = 0;
  std::uint64_t bytes = 0;
};

base::Result<policy::SwapSample> sample(Backend& backend, const Shape& shape,
                                        std::span<const std::byte> source, std::span<std::byte> destination,
                                        base::Prng& prng) {
  std::vector<Copy> copies(std::size_t{shape.calls} * shape.copies);
  const std::uint64_t places = source.size() / shape.bytes;
  for (Copy& copy : copies)
    copy = {source.data() + prng.next() % places * shape.bytes,
            destination.data() + prng.next() % places * shape.bytes, shape.bytes};
  const ipc::SteadyClock clock;
  const base::Nanos start = clock.now();
  for (std::uint32_t call = 0; call < shape.calls; ++call)
    TRIMTAB_TRY(backend.start(std::span{copies}.subspan(std::size_t{call} * shape.copies, shape.copies)));
  const base::Nanos submitted = clock.now();
  const auto marker = backend.mark();
  if (!marker) return tl::unexpected<base::Error>(marker.error());
  TRIMTAB_TRY(backend.wait(*marker));
  policy::SwapSample taken{shape.calls, shape.copies, shape.bytes, 0, 0};
  taken.submit_ns = static_cast<double>((submitted - start).value);
  taken.total_ns = static_cast<double>((clock.now() - start).value);
  return taken;
}

}  // namespace

base::Result<policy::SwapBackendCost> measure(Backend& backend, std::span<const std::byte> source,
                                              std::span<std::byte> destination) {
  TRIMTAB_CHECK(source.size() == destination.size() && source.size() >= (1U << 20), "room to measure in");
  const std::uint32_t many = std::min(backend.batch_max(), 512U);
  const std::uint64_t large = std::min<std::uint64_t>(source.size() / 8, 114'048);
  const Shape shapes[] = {{32, 1, 4'096},    {32, 1, large},   {8, many, 4'096},
                          {8, many, 22'784}, {2, many, large}, {16, std::max(1U, many / 8), 22'784}};
  std::vector<policy::SwapSample> samples;
  base::Prng prng(5, 12);
  for (const Shape& shape : shapes) {
    policy::SwapSample best;
    for (int round = 0; round < 5; ++round) {
      const auto taken = sample(backend, shape, source, destination, prng);
      if (!taken) return tl::unexpected<base::Error>(taken.error());
      if (round == 0 || taken->total_ns < best.total_ns) best = *taken;
    }
    samples.push_back(best);
  }
  return policy::fit_swap_cost(std::string{backend.name()}, samples, backend.batch_max(),
                               backend.compute_share());
}

}  // namespace trimtab::swap_in
