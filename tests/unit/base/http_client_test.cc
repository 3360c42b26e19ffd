#include "base/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "support/test_http_server.h"

namespace inferscale {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// /pieces streams three, /endless streams until the client goes, /broken breaks off, /silent
/// answers nothing until the test ends, /no refuses; all else is echoed.
class Streaming : public ::testing::Test {
 protected:
  ~Streaming() override { over_ = true; }

  void answer(const TestHttpServer::Request& request, TestHttpServer::Responder& responder) {
    if (request.target == "/no") {
      responder.reply(503, "not now");
    } else if (request.target == "/silent") {
      while (!over_) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    } else if (request.target == "/pieces" || request.target == "/broken" ||
               request.target == "/endless") {
      responder.begin("text/plain");
      bool there = responder.piece("one") && responder.piece("two") && responder.piece("three");
      while (there && request.target == "/endless") {
        there = responder.piece(std::string(4096, 'x'));
      }
      if (request.target == "/pieces") {
        responder.end();
      }
    } else {
      responder.reply(200, request.body);
    }
  }

  HttpRequest to(const std::string& path) {
    HttpRequest request;
    request.url = server_.url() + path;
    request.body = "hello";
    return request;
  }

  std::atomic<bool> over_{false};
  TestHttpServer server_{
      [this](const auto& request, auto& responder) { answer(request, responder); }};
  std::unique_ptr<HttpClient> keeping_ = make_http_client({.ca_file = {}, .kept_connections = 2});
};

TEST_F(Streaming, ConnectionsAreKept) {
  for (int i = 0; i < 3; ++i) {
    const auto reply = keeping_->send(to("/echo"));
    ASSERT_TRUE(reply.ok()) << reply.status().to_string();
    EXPECT_EQ(reply->body, "hello");
  }
  EXPECT_EQ(server_.connections(), 1);
  const auto once = make_http_client();
  ASSERT_TRUE(once->send(to("/echo")).ok());
  ASSERT_TRUE(once->send(to("/echo")).ok());
  EXPECT_EQ(server_.connections(), 3);
}

TEST_F(Streaming, AKeptConnectionThatWasClosedIsReplaced) {
  ASSERT_TRUE(keeping_->send(to("/echo")).ok());
  server_.close_connections();
  const auto reply = keeping_->send(to("/echo"));
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(server_.connections(), 2);
}

TEST_F(Streaming, PiecesComeAsTheyAre) {
  std::string all;
  const HttpSink sink{[&](std::string_view piece) {
                        all += piece;
                        return true;
                      },
                      {}};
  const auto reply = keeping_->stream(to("/pieces"), sink);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_EQ(all, "onetwothree");
  EXPECT_EQ(reply->body, "");
  ASSERT_TRUE(keeping_->send(to("/echo")).ok());
  EXPECT_EQ(server_.connections(), 1) << "the stream was read to its end";
}

TEST_F(Streaming, TheSinkMayHaveEnough) {
  std::size_t bytes = 0;
  const HttpSink sink{[&](std::string_view piece) { return (bytes += piece.size()) < 100'000; },
                      {}};
  const auto reply = keeping_->stream(to("/endless"), sink);
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  EXPECT_GE(bytes, 100'000U);
  ASSERT_TRUE(keeping_->send(to("/echo")).ok());
  EXPECT_EQ(server_.connections(), 2) << "the rest of the stream is not another reply";
}

TEST_F(Streaming, RefusalsDoNotReachTheSink) {
  const HttpSink sink{[](std::string_view) {
                        ADD_FAILURE();
                        return true;
                      },
                      {}};
  const auto reply = keeping_->stream(to("/no"), sink);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 503);
  EXPECT_EQ(reply->body, "not now");
}

TEST_F(Streaming, BrokenEndlessAndSilentRepliesAreErrors) {
  const HttpSink all{[](std::string_view) { return true; }, {}};
  EXPECT_EQ(keeping_->stream(to("/broken"), all).status().code(), StatusCode::kUnavailable);
  HttpRequest small = to("/endless");
  small.max_reply_bytes = 100'000;
  EXPECT_EQ(keeping_->stream(small, all).status().code(), StatusCode::kResourceExhausted);
  HttpRequest silent = to("/silent");
  silent.idle_timeout = milliseconds(30);
  const auto idle = keeping_->stream(silent, all);
  EXPECT_EQ(idle.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(idle.status().message(), HasSubstr("nothing more within 30 ms"));
}

TEST_F(Streaming, WaitingCanBeCancelled) {
  int asked = 0;
  const HttpSink sink{[](std::string_view) { return true; }, [&] { return ++asked < 2; }};
  const auto reply = keeping_->stream(to("/silent"), sink);
  EXPECT_EQ(reply.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(reply.status().message(), "cancelled");
}

}  // namespace
}  // namespace inferscale
