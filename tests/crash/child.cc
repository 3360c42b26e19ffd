#include "crash/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

extern char** environ;  // NOLINT: of POSIX

namespace inferscale::testing {
namespace {

/// A new program rather than a fork: this process has threads.
pid_t spawn(const std::vector<std::string>& arguments, int output, int other_end) {
  std::vector<std::string> words = {INFERSCALE_CRASH_CHILD};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_addclose(&actions, other_end);
  pid_t child = -1;
  if (::posix_spawn(&child, argv.front(), &actions, nullptr, argv.data(), environ) != 0) {
    child = -1;
  }
  ::posix_spawn_file_actions_destroy(&actions);
  return child;
}

/// Appends what comes until there are `lines` lines, or the writer is gone.
void read_lines(int pipe, std::ptrdiff_t lines, std::string* text) {
  char buffer[4096];
  while (std::count(text->begin(), text->end(), '\n') < lines) {
    const ssize_t n = ::read(pipe, buffer, sizeof(buffer));
    if (n <= 0) {
      return;
    }
    text->append(buffer, static_cast<std::size_t>(n));
  }
}

void follow(const std::string& told, Oracle& oracle, ChildEnd* end) {
  std::istringstream lines(told);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    const std::string word = line.substr(0, space);
    const std::string what = line.substr(space + 1);
    if (word == "begin") {
      oracle.begin(parse_operation(what));
    } else if (word == "done") {
      oracle.acknowledge(nlohmann::json::parse(what).get<std::vector<std::string>>());
      ++end->acknowledged;
    } else if (word == "failed") {
      end->failure = what;
    } else if (word == "steps") {
      end->steps = std::stoull(what);
    }
  }
}

}  // namespace

ChildEnd run_child(const std::vector<std::string>& arguments, std::optional<KillTime> kill,
                   Oracle& oracle) {
  ChildEnd end;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    end.failure = "no pipe";
    return end;
  }
  const pid_t child = spawn(arguments, ends[1], ends[0]);
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    end.failure = "cannot start " INFERSCALE_CRASH_CHILD;
    return end;
  }
  std::string told;
  if (kill) {
    read_lines(ends[0], kill->lines, &told);
    std::this_thread::sleep_for(kill->later);
    ::kill(child, SIGKILL);
  }
  read_lines(ends[0], PTRDIFF_MAX, &told);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  end.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  follow(told, oracle, &end);
  if (!end.killed && end.failure.empty() && status != 0) {
    end.failure = "ended with status " + std::to_string(status);
  }
  return end;
}

}  // namespace inferscale::testing
