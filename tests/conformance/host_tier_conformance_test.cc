#include "conformance/tier_suite.h"
#include "kv/host_tier.h"

namespace inferscale::testing {
namespace {

struct HostHarness {
  static std::uint64_t stored_bytes(const Record& record) { return record.bytes().size(); }
  static constexpr bool kKeepsHeld = true;
  static std::uint64_t budget(std::uint64_t count, std::uint64_t size) { return count * size; }
  std::unique_ptr<Tier> open(std::uint64_t budget_bytes) {
    auto tier = std::make_unique<HostTier>(budget_bytes);
    opened = tier.get();
    return tier;
  }
  void corrupt(const RecordKey& key) {
    const auto record = opened->get(key);
    *const_cast<std::byte*>((*record)->layer_k(0)) ^= std::byte{1};
  }
  Tier* opened = nullptr;
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Host, TierSuite, HostHarness);

}  // namespace inferscale::testing
