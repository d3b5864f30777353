// The engine: ranks, their schedulers and programs behind plain-value messages. Knows no text and
// no HTTP.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/api.h"
#include "engine/hooks.h"
#include "ops/attention.h"
#include "ops/isa.h"

namespace tandem {

struct EngineOptions {
  int tp_size = 1;           // world of ranks: 1, 2, 4, 8 or 16
  int dp_size = 1;           // replicas; divides tp_size
  int num_draft_tokens = 0;  // k, 0..8; 0 = no speculation
  int num_threads = 0;       // of all ranks together; 0 = one per core, at least one per rank
  int block_size = 16;       // KV tokens per block; larger than the context is legal
  LatentFormat kv_format = LatentFormat::kBf16;
  int max_num_seqs = 16;           // running sequences per replica
  int chunked_prefill_size = 512;  // prompt rows per step and replica
  int max_step_rows = 0;  // prompt rows of a step over all replicas while any decodes; 0 = derived
  int64_t max_total_tokens = 0;  // KV tokens per replica; 0 = what memory_fraction leaves
  // Of the machine's memory, for process, weights, workspace and KV pools. The rest is the
  // system's, and the page cache's while weights are read.
  double memory_fraction = 0.8;
  int context_length = 0;          // 0 = the model's
  std::optional<Isa> isa;          // instruction set of the kernels; absent = the best there is
  std::string draft_model_folder;  // a separate NextN export; empty: the model's own MTP module
  bool dummy_weights = false;      // made from names and dummy_seed; only config.json is read
  uint64_t dummy_seed = 0;
  std::optional<double> dummy_acceptance;  // of each draft, 0 to 1, with dummy weights
  bool copying_communicator = false;       // private buffers per rank, everything travels
  double collective_deadline_seconds = 60;
  double request_timeout_seconds = 0;  // of requests that bring none of their own; 0 = none
  EngineHooks hooks;
};

// Facts about the loaded model and the layout that callers need.
struct EngineInfo {
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // prompt + generated tokens of a request never exceed it
  int tp_size = 0, dp_size = 0, attn_tp_size = 0;
  int num_draft_tokens = 0;
  int max_step_rows = 0;
  int64_t kv_tokens_per_replica = 0;
  int num_threads = 0;
  std::vector<int64_t> rank_weight_bytes;  // held by each rank alone
  int64_t shared_weight_bytes = 0;         // held once for all ranks
  std::string start_block;  // several lines for people: layout, speculation, KV, memory
};

// Called on an engine thread, in order for each request; must not block. Copy what is needed.
using EventSink = std::function<void(TokenEvent)>;

// Thread-safe but for Load. Destruction ends all requests with kCancelled and joins the threads.
class Engine {
 public:
  using Progress = std::function<void(double fraction)>;

  // Loads the model folder and prepares all ranks; no thread computes before Start().
  // Errors: what the files or the options have wrong, in one message.
  static Result<std::unique_ptr<Engine>> Load(const std::string& model_folder,
                                              const EngineOptions& options,
                                              const Progress& progress = nullptr);
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;

  // Starts stepping. Requests submitted before are all there at the first step, in order.
  virtual void Start() = 0;

  // Takes over the request, or says why it can never be served (empty or too long prompt, bad
  // token, bad replica, bad parameters). Nothing is sent to `sink` when an error is returned.
  virtual Status Submit(GenerationRequest request, EventSink sink) = 0;

  // The request ends with kCancelled in one of the next steps; unknown ids are ignored.
  virtual void Cancel(uint64_t request_id) = 0;

  virtual EngineStatus status() const = 0;
};

}  // namespace tandem
