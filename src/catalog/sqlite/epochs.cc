#include "catalog/sqlite/epochs.h"

#include "catalog/sqlite/row_checksum.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

/// An owner's epoch outlives everything else that is known of it, and its name must not: the row is
/// found by a hash.
Hash128 owner_hash(std::string_view tenant, std::string_view user) {
  return scope_hash(Scope{std::string(tenant), std::string(user), "", ""});
}

Result<std::uint64_t> read_epoch(Connection& connection, const Hash128& owner) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare("SELECT epoch, checksum IS inferscale_checksum(owner, epoch) FROM epochs"
                         " WHERE owner = ?1"));
  INFERSCALE_ASSIGN_OR_RETURN(const bool found, statement.with(owner).step());
  if (!found) {
    return std::uint64_t{0};
  }
  if (statement.integer(1) == 0) {
    return unsound_row("an owner's epoch");
  }
  return static_cast<std::uint64_t>(statement.integer(0));
}

}  // namespace

Result<std::vector<OwnerEpoch>> owners_in(Connection& connection, std::string_view sql) {
  std::vector<OwnerEpoch> owners;
  INFERSCALE_ASSIGN_OR_RETURN(Statement statement, connection.prepare(sql));
  INFERSCALE_RETURN_IF_ERROR(statement.for_each([&](const Statement& row) {
    owners.push_back({row.text(0), row.text(1), 0});
  }));
  return owners;
}

// A damaged row is raised as it is: an erase must not fail for it, and a higher epoch is safe.
Status raise_epochs(Connection& connection, std::vector<OwnerEpoch>& owners) {
  for (OwnerEpoch& owner : owners) {
    const Hash128 hash = owner_hash(owner.tenant, owner.user);
    INFERSCALE_RETURN_IF_ERROR(
        connection.run("INSERT INTO epochs(owner, epoch, checksum)"
                       " VALUES(?1, 1, inferscale_checksum(?1, 1)) ON CONFLICT(owner) DO UPDATE SET"
                       " epoch = epoch + 1, checksum = inferscale_checksum(owner, epoch + 1)",
                       hash));
    INFERSCALE_ASSIGN_OR_RETURN(owner.epoch, read_epoch(connection, hash));
  }
  return Status();
}

Result<std::uint64_t> SqliteCatalog::epoch(std::string_view tenant, std::string_view user) {
  INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
  return read_epoch(reader.connection(), owner_hash(tenant, user));
}

Result<std::uint64_t> SqliteCatalog::raise_epoch(std::string_view tenant, std::string_view user) {
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  std::vector<OwnerEpoch> owner = {{std::string(tenant), std::string(user), 0}};
  INFERSCALE_RETURN_IF_ERROR(raise_epochs(write.connection, owner));
  INFERSCALE_RETURN_IF_ERROR(write.transaction.commit());
  return owner.front().epoch;
}

}  // namespace inferscale::sqlite
