// Looking for what is damaged; mending it: repair.cc.
#include <fmt/format.h>

#include "catalog/sqlite/fact_check.h"
#include "catalog/sqlite/row_checksum.h"
#include "catalog/sqlite/row_rules.h"
#include "catalog/sqlite/schema.h"
#include "catalog/sqlite/sqlite_catalog_impl.h"

namespace inferscale::sqlite {
namespace {

constexpr const char* kRestore =
    "repair rebuilds indexes; if that does not help, restore a backup, or `export` what can still "
    "be read into a new data directory";

/// Collects the findings of one check.
class CheckLog {
 public:
  CheckLog(CatalogReport& report, const char* name) : report_(report) {
    report_.checks.push_back({name, 0, 0});
  }
  void looked_at(std::uint64_t rows) { report_.checks.back().checked += rows; }
  void problem(std::string kind, std::string what, std::string repair) {
    if (++report_.checks.back().problems <= kMaxListedProblems) {
      report_.problems.push_back({std::move(kind), std::move(what), std::move(repair)});
    }
  }

 private:
  CatalogReport& report_;
};

/// Damage is what a check looks for; only what keeps it from looking is an error.
Status as_problem(CheckLog& log, const Status& status) {
  if (status.code() != StatusCode::kDataLoss) {
    return status;
  }
  log.problem("database_damaged", status.message(), kRestore);
  return Status();
}

Status count_rows(Connection& connection, CheckLog& log, std::string_view sql) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t rows, connection.integer(sql));
  log.looked_at(static_cast<std::uint64_t>(rows));
  return Status();
}

Status check_pages(Connection& connection, bool full, CheckLog& log) {
  INFERSCALE_RETURN_IF_ERROR(count_rows(connection, log, "PRAGMA page_count"));
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare_once(full ? "PRAGMA integrity_check(100)" : "PRAGMA quick_check(100)"));
  return statement.for_each([&](const Statement& row) {
    if (const std::string found = row.text(0); found != "ok") {
      log.problem("database_damaged", found, kRestore);
    }
  });
}

Status check_identity(Connection& connection, CheckLog& log) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t version,
                              connection.integer("PRAGMA user_version"));
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t application,
                              connection.integer("PRAGMA application_id"));
  if (application != kApplicationId || version != migrations().back().version) {
    log.problem("database_identity",
                fmt::format("application id {:#x}, schema version {}; expected {:#x}, {}",
                            application, version, kApplicationId, migrations().back().version),
                "restore a backup");
  }
  return Status();
}

/// Everything that the schema says, a line for each object; without the tables that FTS5 makes for
/// itself, whose text is its own.
Result<std::vector<std::string>> schema_lines(Connection& connection) {
  INFERSCALE_ASSIGN_OR_RETURN(
      Statement statement,
      connection.prepare_once("SELECT type || ' ' || name || ' on ' || tbl_name || ': ' ||"
                              " coalesce(sql, '') FROM sqlite_schema"
                              " WHERE name NOT LIKE 'keywords\\_%' ESCAPE '\\' ORDER BY 1"));
  std::vector<std::string> lines;
  INFERSCALE_RETURN_IF_ERROR(
      statement.for_each([&](const Statement& row) { lines.push_back(row.text(0)); }));
  return lines;
}

/// Against that of a new catalog: a trigger that adds where it should take away is valid SQL.
Status check_schema(Connection& connection, CheckLog& log) {
  INFERSCALE_ASSIGN_OR_RETURN(const Session fresh,
                              Session::open(":memory:", Connection::Mode::kReadWrite));
  INFERSCALE_RETURN_IF_ERROR(migrate(*fresh.connection, migrations()));
  INFERSCALE_ASSIGN_OR_RETURN(const auto expected, schema_lines(*fresh.connection));
  INFERSCALE_ASSIGN_OR_RETURN(const auto found, schema_lines(connection));
  if (found != expected) {
    log.problem("database_schema", "its tables, indexes and triggers are not those of a catalog",
                "restore a backup, or `export` what can still be read into a new data directory");
  }
  return Status();
}

Status check_references(Connection& connection, CheckLog& log) {
  INFERSCALE_ASSIGN_OR_RETURN(Statement statement,
                              connection.prepare_once("PRAGMA foreign_key_check"));
  return statement.for_each([&](const Statement& row) {
    log.problem("dangling_reference",
                fmt::format("{} row {}: what it refers to in {} is not there", row.text(0),
                            row.integer(1), row.text(2)),
                "repair drops it where it is derived (vectors, record entries, citations); a fact, "
                "turn or history row is not touched: restore a backup");
  });
}

Status check_rules(Connection& connection, std::string_view check, CheckLog& log) {
  for (const RowRule& rule : row_rules()) {
    if (rule.check != check) {
      continue;
    }
    INFERSCALE_ASSIGN_OR_RETURN(Statement statement, connection.prepare(rule.find));
    INFERSCALE_RETURN_IF_ERROR(statement.for_each([&](const Statement& row) {
      log.problem(rule.kind, fmt::format("{} row {}: {}", rule.table, row.integer(0), rule.why),
                  rule.repair);
    }));
  }
  return Status();
}

Status check_facts(Session& session, CheckLog& log) {
  return for_each_bad_fact(session, [&](const BadFact& bad) {
    log.problem(bad.kind, fmt::format("fact {}: {}", bad.id, bad.why), bad.repair);
  });
}

Status check_checksums(Connection& connection, CheckLog& log) {
  for (const ChecksummedTable& table : checksummed_tables()) {
    INFERSCALE_ASSIGN_OR_RETURN(Statement count, connection.prepare_once(fmt::format(
                                                     "SELECT count(*) FROM {}", table.table)));
    INFERSCALE_RETURN_IF_ERROR(count.step().status());
    log.looked_at(static_cast<std::uint64_t>(count.integer(0)));
  }
  return for_each_unsound_row(
      connection, [&](const ChecksummedTable& table, const std::string& key) {
        log.problem(
            "row_checksum",
            fmt::format("{}: {} does not match its checksum, its content was damaged", table.table,
                        key),
            "restore a backup or erase it (`delete`); repair accepts what is there and names it");
      });
}

Status check_vector_values(Connection& connection, CheckLog& log) {
  return for_each_bad_vector(connection, [&](std::int64_t row) {
    log.problem("vector_value",
                fmt::format("vectors row {}: a value is not finite, or a norm is not 1", row),
                "repair drops the vectors; they are made again");
  });
}

/// Interrupts the connection's statements when `go_on` says so.
class Interrupter {
 public:
  Interrupter(Connection& connection, const GoOn& go_on) : connection_(connection) {
    if (go_on) {
      sqlite3_progress_handler(
          connection.raw(), 10'000,
          [](void* context) { return (*static_cast<const GoOn*>(context))() ? 0 : 1; },
          const_cast<GoOn*>(&go_on));
    }
  }
  ~Interrupter() { sqlite3_progress_handler(connection_.raw(), 0, nullptr, nullptr); }
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;

 private:
  Connection& connection_;
};

using Part = Status (*)(Session& session, bool full, CheckLog& log);
struct NamedCheck {
  const char* name;
  Part run;
};

constexpr NamedCheck kChecks[] = {
    {"database",
     [](Session& session, bool full, CheckLog& log) {
       INFERSCALE_RETURN_IF_ERROR(check_identity(*session.connection, log));
       INFERSCALE_RETURN_IF_ERROR(check_schema(*session.connection, log));
       return check_pages(*session.connection, full, log);
     }},
    {"references",
     [](Session& session, bool, CheckLog& log) {
       INFERSCALE_RETURN_IF_ERROR(check_references(*session.connection, log));
       return check_rules(*session.connection, "references", log);
     }},
    {"facts",
     [](Session& session, bool full, CheckLog& log) {
       INFERSCALE_RETURN_IF_ERROR(
           count_rows(*session.connection, log, "SELECT count(*) FROM facts"));
       return full ? check_facts(session, log) : Status();
     }},
    {"checksums",
     [](Session& session, bool full, CheckLog& log) {
       return full ? check_checksums(*session.connection, log) : Status();
     }},
    {"history",
     [](Session& session, bool, CheckLog& log) {
       INFERSCALE_RETURN_IF_ERROR(
           count_rows(*session.connection, log, "SELECT count(*) FROM fact_history"));
       return check_rules(*session.connection, "history", log);
     }},
    {"vectors",
     [](Session& session, bool full, CheckLog& log) {
       INFERSCALE_RETURN_IF_ERROR(
           count_rows(*session.connection, log, "SELECT count(*) FROM vectors"));
       INFERSCALE_RETURN_IF_ERROR(check_rules(*session.connection, "vectors", log));
       return full ? check_vector_values(*session.connection, log) : Status();
     }},
    {"records",
     [](Session& session, bool, CheckLog& log) {
       INFERSCALE_RETURN_IF_ERROR(
           count_rows(*session.connection, log, "SELECT count(*) FROM records"));
       return check_rules(*session.connection, "records", log);
     }},
    {"keywords",
     [](Session& session, bool, CheckLog& log) {
       INFERSCALE_RETURN_IF_ERROR(
           count_rows(*session.connection, log, "SELECT count(*) FROM facts"));
       return check_rules(*session.connection, "keywords", log);
     }},
};

Status stopped() { return unavailable("stopped before everything was looked at"); }

}  // namespace

Status SqliteCatalog::check_keyword_index() {
  // A statement of its own kind: it goes through the writing session, but writes nothing.
  INFERSCALE_ASSIGN_OR_RETURN(Write write, begin_write());
  return write.connection.run("INSERT INTO keywords(keywords, rank) VALUES('integrity-check', 1)");
}

Result<CatalogReport> SqliteCatalog::check(bool full, const GoOn& go_on) {
  CatalogReport report;
  for (const NamedCheck& check : kChecks) {
    if (go_on && !go_on()) {
      return stopped();
    }
    CheckLog log(report, check.name);
    INFERSCALE_ASSIGN_OR_RETURN(ReaderPool::Lease reader, readers_.acquire());
    const Interrupter interrupter(reader.connection(), go_on);
    INFERSCALE_RETURN_IF_ERROR(as_problem(log, check.run(reader.session(), full, log)));
  }
  CheckLog log(report, "keyword_index");
  if (const Status index = check_keyword_index(); index.code() == StatusCode::kDataLoss) {
    log.problem("keyword_index", "it does not say what the facts say",
                "repair builds it again from the facts");
  } else if (!index.ok()) {
    return index;
  }
  return report;
}

}  // namespace inferscale::sqlite
