// Status and Result<T>: how everything that a client or a file can cause is reported. Our own bugs
// are CHECKs (base/check.h), never statuses.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace tandem {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's request can never work
  kNotFound,           // a file, model or id that is not there
  kResourceExhausted,  // memory, blocks, queue
  kUnavailable,        // not now: loading, shutting down
  kDeadlineExceeded,   // a rank or a client took too long
  kInternal,           // ranks disagree, a collective failed
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}
inline Status NotFound(std::string message) {
  return Status(StatusCode::kNotFound, std::move(message));
}
inline Status ResourceExhausted(std::string message) {
  return Status(StatusCode::kResourceExhausted, std::move(message));
}
inline Status Unavailable(std::string message) {
  return Status(StatusCode::kUnavailable, std::move(message));
}
inline Status DeadlineExceeded(std::string message) {
  return Status(StatusCode::kDeadlineExceeded, std::move(message));
}
inline Status Internal(std::string message) {
  return Status(StatusCode::kInternal, std::move(message));
}

// A value, or the Status that says why there is none. REQUIRES ok() before value().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : state_(std::move(status)) { CHECK(!std::get<Status>(state_).ok()); }

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }
  T& value() & {
    CHECK(ok());
    return std::get<T>(state_);
  }
  const T& value() const& {
    CHECK(ok());
    return std::get<T>(state_);
  }
  T&& value() && {
    CHECK(ok());
    return std::get<T>(std::move(state_));
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::variant<T, Status> state_;
};

#define TANDEM_CONCAT_INNER(a, b) a##b
#define TANDEM_CONCAT(a, b) TANDEM_CONCAT_INNER(a, b)

// Returns the status of `expression` from the current function if it is an error.
#define RETURN_IF_ERROR(expression)                                             \
  do {                                                                          \
    if (::tandem::Status status_ = (expression); !status_.ok()) return status_; \
  } while (0)

// ASSIGN_OR_RETURN(auto x, F()): x = F()'s value, or returns F()'s status.
#define ASSIGN_OR_RETURN(lhs, expression) \
  ASSIGN_OR_RETURN_INNER(TANDEM_CONCAT(result_, __LINE__), lhs, expression)
#define ASSIGN_OR_RETURN_INNER(result, lhs, expression) \
  auto result = (expression);                           \
  if (!result.ok()) return result.status();             \
  lhs = std::move(result).value()

}  // namespace tandem
