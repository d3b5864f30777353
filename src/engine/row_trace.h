// Keeps a hash of every output row of every operation, to find the first place where two runs part.
// A tool of tests and of
// --trace-rows; costs a look-up per row.
#pragma once

#include <compare>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/program.h"

namespace tandem {

// A row that is computed again (a rejected draft's position, a replayed request) keeps its last
// hash, which is that of the true row once the request is done. Partial sums, whose extent depends
// on the layout, are no rows of their own: a fault there shows in the residual that follows.
// Thread-safe.
class RowTrace : public RowTracer {
 public:
  void Row(const OpTag& op, uint64_t request_id, int64_t position, int unit, const void* data,
           size_t bytes) override;

  // The first difference in rows that both runs computed: lowest position of the lowest request,
  // then the operation that runs first in `reference`. A sentence naming operation, layer, pass,
  // request, position and unit.
  static std::optional<std::string> FirstDifference(const RowTrace& reference,
                                                    const RowTrace& other);

  // One line per row: request position operation layer pass unit hash; ordered.
  std::string Text() const;

  size_t size() const { return hashes_.size(); }

 private:
  struct Key {
    uint64_t request_id;
    int64_t position;
    int operation;  // index into operations_
    int unit;
    auto operator<=>(const Key&) const = default;
  };
  struct Operation {
    std::string name;
    int layer;
    int pass;
    auto operator<=>(const Operation&) const = default;
  };

  mutable std::mutex mutex_;
  std::vector<Operation> operations_;  // in order of first use, which is program order
  std::map<Operation, int> index_;
  std::map<Key, uint64_t> hashes_;
};

}  // namespace tandem
