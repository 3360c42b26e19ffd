#include "cli/delete_receipt.h"

#include <fmt/format.h>

#include <string>

#include "cli/json_views.h"
#include "cli/shell.h"

namespace inferscale::cli {

void print_receipt(const Shell& shell, const DeleteReceipt& receipt) {
  if (shell.json()) {
    shell.print_json(json_text(receipt));
    return;
  }
  std::string text = fmt::format(
      "{}: {} facts, {} versions, {} history rows, {} vectors, {} keyword entries, {} turns\n",
      receipt.dry_run ? "would erase" : "erased", receipt.facts, receipt.versions, receipt.history,
      receipt.vectors, receipt.keywords, receipt.turns);
  if (receipt.dry_run) {
    shell.print(text + fmt::format("records: {}; {} facts saw them and would be encoded anew\n",
                                   receipt.record_entries, receipt.dependants));
    return;
  }
  text +=
      fmt::format("records: {} in memory, {} on disk; {} facts had seen them, {} encoded anew\n",
                  receipt.records_host + receipt.records_gpu, receipt.records_disk,
                  receipt.dependants, receipt.dependants_reencoded);
  if (receipt.answers_running + receipt.chats_open > 0) {
    text += fmt::format("still in use: by {} answers under way, {} open conversations\n",
                        receipt.answers_running, receipt.chats_open);
  }
  text += fmt::format("read again and found nothing left: {}\n",
                      receipt.verified ? "yes" : "NO: " + receipt.note);
  shell.print(text);
}

int receipt_exit_code(const DeleteReceipt& receipt) {
  if (receipt.verified || receipt.dry_run) {
    return 0;
  }
  return error_row(receipt.engine_away ? StatusCode::kUnavailable : StatusCode::kInternal)
      .exit_code;
}

}  // namespace inferscale::cli
