// A made model whose text and whose drafts are known beforehand: writes its folder, and says what
// an engine must answer. For tests only; it shows acceptance and counts, not arithmetic (attention
// and experts add zero).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/api.h"
#include "model/test_folder.h"

namespace tandem {

struct MadeModelOptions {
  // The logit of a token's successor; all others have 0. Greedy text follows Successor().
  float sharpness = 16.0f;
  int64_t context = 256;
  bool fp32 = false;  // of the tensors, else BF16
  bool experts_first =
      false;  // layers take turns, experts first (moe_layer_freq 2); else layer 0 is dense
  // Damages of the MTP module alone. Rows of its head that are negated: greedily it never proposes
  // these.
  std::vector<int32_t> muted = {};
  // Rows of its embedding that hold the next token's: it takes token t for t + 1.
  std::vector<int32_t> misread = {};
};

// What a request must be answered with.
struct Expectation {
  std::vector<int32_t> tokens;
  std::vector<int32_t> accepted_per_step;  // of verify steps
  int64_t drafted = 0;
  int64_t steps = 0;  // windows and the final chunk
};

class MadeModel {
 public:
  static constexpr int32_t kVocab = 64;

  explicit MadeModel(const MadeModelOptions& options = {});

  const std::string& folder() const { return folder_.path(); }

  // One cycle through all tokens.
  static int32_t Successor(int32_t token) { return (5 * token + 3) % kVocab; }

  // The text and the acceptance of `request` with k drafts, by the rules of DESIGN 3 to 6 written
  // down again.
  Expectation Expect(const GenerationRequest& request, int k) const;

 private:
  void WriteConfig() const;
  void WriteTensors() const;
  int32_t Sample(int32_t after, int32_t position, const SamplingParams& sampling, bool draft) const;

  const MadeModelOptions options_;
  TestFolder folder_;
};

}  // namespace tandem
