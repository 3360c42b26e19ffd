#include <utility>

#include "conformance/tier_suite.h"
#include "kv/page_tier.h"
#include "support/fake_device.h"

namespace inferscale::testing {
namespace {

PageLayout sample_layout() { return {SampleOptions().shape, SampleOptions().codec, 4}; }

/// Pages as a Tier: what is got is a copy of what they hold.
class PagesAsTier final : public Tier {
 public:
  PagesAsTier(std::shared_ptr<PageMemory> memory, std::shared_ptr<DeviceClock> clock)
      : pages_(PageTier::create(std::move(memory), std::move(clock))) {}

  std::string_view name() const override { return pages_->name(); }
  Status put(const RecordKey& key, std::shared_ptr<const Record> record,
             std::vector<RecordKey>* evicted) override {
    return pages_->put(key, *record, PageTier::Room::kEvict, evicted);
  }
  Result<std::shared_ptr<const Record>> get(const RecordKey& key) override {
    INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const Record> record, pages_->inspect(key));
    if (record != nullptr) {
      const RecordMeta& meta = record->meta();
      const PageLease use = pages_->acquire({key, meta.model_fingerprint, meta.shape, meta.scope,
                                             record->token_ids(), meta.context_id});
      (void)use;
    }
    return record;
  }
  Result<std::shared_ptr<const Record>> inspect(const RecordKey& key) override {
    return pages_->inspect(key);
  }
  bool contains(const RecordKey& key) const override { return pages_->contains(key); }
  Status erase(std::span<const RecordKey> keys, std::uint64_t* removed) override {
    PageTier::Erasing erasing = pages_->begin_erase(keys);
    *removed += erasing.removed;
    return pages_->finish_erase(std::move(erasing));
  }
  std::vector<RecordKey> keys(std::optional<Hash128> scope) const override {
    return pages_->keys(scope);
  }
  TierStats stats() const override { return pages_->stats(); }
  PageTier& pages() { return *pages_; }

 private:
  const std::shared_ptr<PageTier> pages_;
};

struct PageHarness {
  static constexpr bool kKeepsHeld = false;  // what `get` gives is a copy
  static std::uint64_t stored_bytes(const Record& record) {
    return sample_layout().pages_for(record.n_tokens()) * sample_layout().page_bytes();
  }
  static std::uint64_t budget(std::uint64_t count, std::uint64_t size) { return count * size; }
  std::unique_ptr<Tier> open(std::uint64_t budget_bytes) {
    auto clock = std::make_shared<FakeClock>();
    auto tier = std::make_unique<PagesAsTier>(
        make_fake_memory("gpu", sample_layout(), budget_bytes / sample_layout().page_bytes(),
                         clock),
        clock);
    opened = tier.get();
    return tier;
  }
  void corrupt(const RecordKey& key) {
    const auto record = *opened->get(key);
    const RecordMeta& meta = record->meta();
    const PageLease lease =
        opened->pages().acquire({key, meta.model_fingerprint, meta.shape, meta.scope,
                                 record->token_ids(), meta.context_id});
    *const_cast<std::byte*>(lease.addresses()[0]) ^= std::byte{1};
  }
  PagesAsTier* opened = nullptr;
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Pages, TierSuite, PageHarness);

}  // namespace inferscale::testing
