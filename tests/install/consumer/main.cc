// Uses the installed headers and library as another project would: each public header once, and a
// record's round trip.
#include <inferscale/kv_kernels.h>
#include <inferscale/kv_record.h>
#include <inferscale/kv_store.h>
#include <inferscale/model_spec.h>
#include <inferscale/status.h>
#include <inferscale/types.h>
#include <inferscale/version.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

using namespace inferscale;

namespace {

bool scope_works() {
  const Result<Scope> scope = parse_scope("user=alice");
  return scope.ok() && scope->user == "alice" && !parse_scope("user=").ok();
}

bool rope_works() {
  RopeSpec spec;
  spec.rotary_dim = 8;
  const auto table = RopeTable::build(spec, 16);
  return table.ok() && (*table)->cos_row(0)[0] == 1.0f;
}

bool record_works() {
  RecordMeta meta;
  meta.shape = KvShape{.n_layers = 2, .n_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8};
  const std::vector<TokenId> tokens = {1, 2, 3};
  Result<RecordBuilder> builder = RecordBuilder::create(meta, tokens);
  if (!builder.ok()) {
    return false;
  }
  for (std::uint32_t layer = 0; layer < meta.shape.n_layers; ++layer) {
    std::memset(builder->layer_k(layer), 1, 3 * 8 * 2);
    std::memset(builder->layer_v(layer), 2, 3 * 8 * 2);
  }
  const auto record = std::move(builder).value().seal();
  const auto parsed = Record::parse(record->bytes());
  return parsed.ok() && (*parsed)->n_tokens() == 3 && (*parsed)->verify().ok();
}

bool store_works() {
  const auto store = KvStore::open(KvStoreOptions{.disk_budget_bytes = 0});
  return store.ok() && (*store)->stats().leases_active == 0;
}

bool scan_works() {
  const std::vector<float> vectors = {1, 0, 0, 1};
  const std::vector<float> query = {0, 1};
  const auto hits = vector_scan(vectors, 2, query, 1);
  return hits.size() == 1 && hits[0].index == 1;
}

}  // namespace

int main() {
  if (!scope_works() || !rope_works() || !record_works() || !store_works() || !scan_works()) {
    std::fputs("a call into the installed library did not do what its header says\n", stderr);
    return 1;
  }
  std::printf("inferscale %s\n", INFERSCALE_VERSION);
  return 0;
}
