#include "engine/engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>
#include <unordered_map>

#include "engine/cost_model.h"
#include "engine/rank_loop.h"
#include "model/config.h"

namespace tandem {
namespace {

// The share of the machine's memory that the KV pools may take when --max-total-tokens does not
// say; weights and workspace are checked beside it.
constexpr double kKvMemoryShare = 0.5;

// Steps are counted, and run, while a request is still to arrive: a million empty ones take about a
// minute.
constexpr int64_t kLatestArrival = 1 << 20;

int64_t PhysicalMemory() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGE_SIZE)};
}

int NumCores() {
  return std::max(1u, std::thread::hardware_concurrency());
}

double MiB(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return InvalidArgument(
      fmt::format("{} is {}, must be between {} and {}", name, value, low, high));
}

// Fills in defaults and refuses what cannot work.
Status ResolveOptions(const ModelConfig& config, EngineOptions& options) {
  RETURN_IF_ERROR(
      CheckRange("the number of draft tokens", options.num_draft_tokens, 0, kMaxDraftTokens));
  if (options.num_draft_tokens > 0 && config.num_nextn_predict_layers == 0) {
    return InvalidArgument(
        "speculation was asked for, but the model has no MTP module "
        "(num_nextn_predict_layers is 0)");
  }
  const int64_t longest = config.max_position_embeddings;
  if (options.context_length == 0) options.context_length = static_cast<int>(longest);
  RETURN_IF_ERROR(CheckRange("the context length", options.context_length, 2, longest));
  RETURN_IF_ERROR(CheckRange("the block size", options.block_size, 1, 1 << 24));
  options.block_size = std::min(options.block_size, options.context_length);
  RETURN_IF_ERROR(CheckRange("the number of running sequences", options.max_num_seqs, 1, 4096));
  RETURN_IF_ERROR(CheckRange("the chunked prefill size", options.chunked_prefill_size, 1, 1 << 20));
  options.chunked_prefill_size = static_cast<int>(std::min<int64_t>(
      options.chunked_prefill_size, int64_t{options.context_length} * options.max_num_seqs));
  RETURN_IF_ERROR(CheckRange("the number of threads", options.num_threads, 0, 4096));
  if (options.num_threads == 0) options.num_threads = NumCores();
  options.num_threads = std::max(options.num_threads, options.tp_size);
  if (options.max_step_rows == 0) {
    options.max_step_rows =
        DefaultMaxStepRows(config, options, std::min(options.num_threads, NumCores()));
  }
  return CheckRange("the number of prompt rows in a mixed step", options.max_step_rows,
                    options.dp_size, 1 << 24);
}

RowLimits LimitsOf(const EngineOptions& options) {
  RowLimits limits;
  limits.draft_rows = options.max_num_seqs;
  limits.head_rows = options.max_num_seqs * (options.num_draft_tokens + 1) + kMaxPromptLogprobRows;
  limits.rows =
      options.max_num_seqs * (options.num_draft_tokens + 1) + options.chunked_prefill_size;
  return limits;
}

class EngineImpl : public Engine {
 public:
  static Result<std::unique_ptr<Engine>> Make(const std::string& folder, EngineOptions options,
                                              const Progress& progress);
  ~EngineImpl() override;

  const EngineInfo& info() const override { return info_; }
  void Start() override;
  Status Submit(GenerationRequest request, EventSink sink) override;
  void Cancel(uint64_t request_id) override;
  EngineStatus status() const override;

 private:
  struct Outstanding {
    int replica;
    int64_t tokens;
  };

  EngineImpl(const EngineOptions& options, const Layout& layout)
      : options_(options), layout_(layout), mailboxes_(layout.dp_size()) {}
  Status SizeCache();
  void StartRanks();
  void DescribeStart();
  Status CheckRequest(const GenerationRequest& request) const;
  int ChooseReplica(const GenerationRequest& request) const;
  void Ring();
  void Deliver(const EventSink& sink, TokenEvent event);
  void Fail(const Status& status);

  EngineOptions options_;
  const Layout layout_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<World> world_;
  // One per memory: of a replica, or of a rank if everything travels.
  std::vector<std::unique_ptr<KvStorage>> kv_;
  int64_t slot_bytes_ = 0;
  int64_t workspace_bytes_ = 0;  // of all ranks
  int32_t num_blocks_ = 0;       // per replica
  EngineInfo info_;
  EngineShared shared_;
  std::vector<ReplicaMailbox> mailboxes_;
  std::atomic<uint32_t> started_ = 0;
  std::vector<std::thread> threads_;

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<uint64_t, Outstanding> outstanding_;
  std::vector<int64_t> outstanding_tokens_;  // [replica]
  Status failure_;
};

Result<std::unique_ptr<Engine>> EngineImpl::Make(const std::string& folder, EngineOptions options,
                                                 const Progress& progress) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(folder));
  ASSIGN_OR_RETURN(const Layout layout, Layout::Make(options.tp_size, options.dp_size));
  RETURN_IF_ERROR(ResolveOptions(config, options));
  std::unique_ptr<EngineImpl> engine(new EngineImpl(options, layout));
  LoadOptions load;
  load.mtp = options.num_draft_tokens > 0 ? MtpUse::kRequire : MtpUse::kLeaveOut;
  load.positions = options.context_length;
  load.num_threads = options.num_threads;
  load.progress = progress;
  ASSIGN_OR_RETURN(engine->weights_, ModelWeights::Load(folder, config, layout, load));
  engine->outstanding_tokens_.resize(layout.dp_size());
  RETURN_IF_ERROR(engine->SizeCache());
  engine->StartRanks();
  return std::unique_ptr<Engine>(std::move(engine));
}

Status EngineImpl::SizeCache() {
  const ModelConfig& config = weights_->config();
  slot_bytes_ = SlotBytes(options_.kv_format, config.kv_lora_rank, config.qk_rope_head_dim);
  const int64_t token_bytes = slot_bytes_ * weights_->num_layers();
  const int pools = options_.copying_communicator ? layout_.tp_size() : layout_.dp_size();
  const int64_t needed = int64_t{options_.max_num_seqs} *
                         CeilDiv(options_.context_length, options_.block_size) *
                         options_.block_size;
  int64_t tokens = options_.max_total_tokens;
  if (tokens == 0) {
    tokens = static_cast<int64_t>(PhysicalMemory() * kKvMemoryShare) / pools / token_bytes;
  }
  tokens = std::min(tokens, needed);  // never more than sequences x context
  num_blocks_ = static_cast<int32_t>(
      std::min<int64_t>(tokens / options_.block_size, std::numeric_limits<int32_t>::max()));
  if (num_blocks_ < 1) {
    return ResourceExhausted(
        fmt::format("a KV pool of {} tokens does not hold one block of {} tokens", tokens,
                    options_.block_size));
  }
  const int64_t total = pools * int64_t{num_blocks_} * options_.block_size * token_bytes;
  int64_t weight_bytes = weights_->SharedBytes();
  for (int r = 0; r < layout_.tp_size(); ++r) weight_bytes += weights_->RankBytes(r);
  workspace_bytes_ =
      layout_.tp_size() * RankModel::WorkspaceBytes(config, layout_, LimitsOf(options_));
  const int64_t sum = weight_bytes + total + workspace_bytes_;
  if (sum > PhysicalMemory()) {
    return ResourceExhausted(fmt::format(
        "weights {:.0f} MiB + KV cache {:.0f} MiB ({} pools x {} tokens x {} bytes) + workspace "
        "{:.0f} MiB = {:.0f} MiB, the machine has {:.0f} MiB; lower --max-total-tokens, "
        "--max-num-seqs, --chunked-prefill-size or --context-length",
        MiB(weight_bytes), MiB(total), pools, int64_t{num_blocks_} * options_.block_size,
        token_bytes, MiB(workspace_bytes_), MiB(sum), MiB(PhysicalMemory())));
  }
  for (int p = 0; p < pools; ++p) {
    kv_.push_back(std::make_unique<KvStorage>(weights_->num_layers(), num_blocks_,
                                              options_.block_size, slot_bytes_));
  }
  return Status();
}

// Starts one thread per rank; returns when all have allocated what they need and wait for Start().
void EngineImpl::StartRanks() {
  const int ranks = layout_.tp_size();
  const bool spin = options_.num_threads <= NumCores();
  WorldOptions world_options;
  world_options.copying = options_.copying_communicator;
  world_options.spin = spin;
  world_options.deadline_seconds = options_.collective_deadline_seconds;
  world_options.trace = options_.hooks.trace_collectives;
  world_ = World::Make(ranks, layout_.attn_tp_size(), world_options);
  std::latch ready(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    RankSetup setup;
    setup.rank = rank;
    setup.weights = weights_.get();
    setup.options = options_;
    setup.limits = LimitsOf(options_);
    setup.num_blocks = num_blocks_;
    setup.num_threads = static_cast<int>(Share(options_.num_threads, rank, ranks).size());
    setup.spin = spin;
    setup.world = world_.get();
    setup.kv = kv_[options_.copying_communicator ? rank : layout_.replica(rank)].get();
    setup.shared = &shared_;
    setup.mailbox = &mailboxes_[layout_.replica(rank)];
    setup.on_failure = [this](const Status& status) { Fail(status); };
    threads_.emplace_back([this, setup, &ready] {
      RankLoop loop(setup);
      ready.count_down();
      started_.wait(0);
      (void)loop.Run();  // a failure has been reported by on_failure
    });
  }
  ready.wait();
  DescribeStart();
}

void EngineImpl::DescribeStart() {
  info_.vocab_size = static_cast<int32_t>(weights_->config().vocab_size);
  info_.context_length = options_.context_length;
  info_.tp_size = layout_.tp_size();
  info_.dp_size = layout_.dp_size();
  info_.attn_tp_size = layout_.attn_tp_size();
  info_.num_draft_tokens = options_.num_draft_tokens;
  info_.max_step_rows = options_.max_step_rows;
  info_.kv_tokens_per_replica = int64_t{num_blocks_} * options_.block_size;
  info_.num_threads = options_.num_threads;
  info_.shared_weight_bytes = weights_->SharedBytes();
  int64_t rank_bytes = 0, kv_bytes = 0;
  for (int r = 0; r < layout_.tp_size(); ++r) {
    info_.rank_weight_bytes.push_back(weights_->RankBytes(r));
    rank_bytes += info_.rank_weight_bytes.back();
  }
  for (const auto& kv : kv_) kv_bytes += kv->bytes();
  info_.start_block = fmt::format(
      "layout       tp {} = {} DP replicas x {} attention ranks, experts and vocabulary over {} "
      "ranks, {} threads\n"
      "speculation  {}\n"
      "limits       context {} tokens, {} sequences per replica ({} in all), prefill chunks of {} "
      "rows, at most {} "
      "prompt rows in a step beside decoding (--max-step-rows)\n"
      "KV cache     {} tokens per replica in blocks of {}, {} bytes per token, {}\n"
      "memory       weights {:.1f} MiB shared + {:.1f} MiB over ranks, KV {:.1f} MiB, workspace "
      "{:.1f} MiB of "
      "{:.0f} MiB",
      layout_.tp_size(), layout_.dp_size(), layout_.attn_tp_size(), layout_.tp_size(),
      info_.num_threads,
      options_.num_draft_tokens > 0
          ? fmt::format("MTP, up to {} drafts per step", options_.num_draft_tokens)
          : std::string("off"),
      options_.context_length, options_.max_num_seqs, options_.max_num_seqs * layout_.dp_size(),
      options_.chunked_prefill_size, options_.max_step_rows, info_.kv_tokens_per_replica,
      options_.block_size, slot_bytes_ * weights_->num_layers(),
      options_.kv_format == LatentFormat::kFp32 ? "fp32" : "bf16", MiB(info_.shared_weight_bytes),
      MiB(rank_bytes), MiB(kv_bytes), MiB(workspace_bytes_), MiB(PhysicalMemory()));
}

EngineImpl::~EngineImpl() {
  shared_.stop = true;
  Ring();
  Start();
  for (std::thread& thread : threads_) thread.join();
}

void EngineImpl::Start() {
  started_ = 1;
  started_.notify_all();
}

void EngineImpl::Ring() {
  shared_.doorbell.fetch_add(1);
  shared_.doorbell.notify_all();
}

Status EngineImpl::CheckRequest(const GenerationRequest& request) const {
  if (request.prompt.empty()) return InvalidArgument("the prompt is empty");
  const int64_t size = static_cast<int64_t>(request.prompt.size());
  if (size >= options_.context_length) {
    return InvalidArgument(fmt::format(
        "the prompt has {} tokens, which leaves no room for an answer in a context of {} tokens",
        size, options_.context_length));
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= info_.vocab_size) {
      return InvalidArgument(
          fmt::format("prompt token {} is outside the vocabulary of {}", token, info_.vocab_size));
    }
  }
  if (request.max_tokens < 1) {
    return InvalidArgument(fmt::format("max_tokens is {}, must be at least 1", request.max_tokens));
  }
  RETURN_IF_ERROR(CheckRange("min_tokens", request.min_tokens, 0, request.max_tokens));
  if (!(request.timeout_seconds >= 0 && request.timeout_seconds <= kLongestTimeout)) {
    return InvalidArgument(fmt::format("the time-out is {} seconds, must be between 0 and {}",
                                       request.timeout_seconds, kLongestTimeout));
  }
  for (const int32_t token : request.stop_token_ids) {
    if (token < 0 || token >= info_.vocab_size) {
      return InvalidArgument(
          fmt::format("stop token {} is outside the vocabulary of {}", token, info_.vocab_size));
    }
  }
  RETURN_IF_ERROR(ValidateSampling(request.sampling));
  RETURN_IF_ERROR(CheckRange("logprobs", request.logprobs, -1, kMaxTopLogprobs));
  RETURN_IF_ERROR(CheckRange("prompt_logprobs", request.prompt_logprobs, -1, kMaxTopLogprobs));
  RETURN_IF_ERROR(CheckRange("arrival_step", request.arrival_step, 0, kLatestArrival));
  if (request.data_parallel_rank) {
    RETURN_IF_ERROR(
        CheckRange("data_parallel_rank", *request.data_parallel_rank, 0, layout_.dp_size() - 1));
  }
  const int64_t limit = std::min<int64_t>(options_.context_length, size + request.max_tokens);
  if (CeilDiv(limit, options_.block_size) > num_blocks_) {
    return InvalidArgument(
        fmt::format("prompt and max_tokens need {} KV tokens, a replica's pool holds {}", limit,
                    info_.kv_tokens_per_replica));
  }
  return Status();
}

int EngineImpl::ChooseReplica(const GenerationRequest& request) const {
  if (request.data_parallel_rank) return *request.data_parallel_rank;
  return static_cast<int>(std::min_element(outstanding_tokens_.begin(), outstanding_tokens_.end()) -
                          outstanding_tokens_.begin());
}

Status EngineImpl::Submit(GenerationRequest request, EventSink sink) {
  if (request.timeout_seconds == 0) request.timeout_seconds = options_.request_timeout_seconds;
  RETURN_IF_ERROR(CheckRequest(request));
  // The engine's lock is held until the request is in the mailbox, so that a failing leader's last
  // look at the mailbox cannot miss a request that was let in.
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return Unavailable("the engine has failed: " + failure_.message());
  const int replica = ChooseReplica(request);
  const int64_t tokens = std::min<int64_t>(
      options_.context_length, static_cast<int64_t>(request.prompt.size()) + request.max_tokens);
  if (!outstanding_.emplace(request.id, Outstanding{replica, tokens}).second) {
    return InvalidArgument(fmt::format("request id {} is already in use", request.id));
  }
  outstanding_tokens_[replica] += tokens;
  EventSink deliver = [this, sink = std::move(sink)](TokenEvent event) {
    Deliver(sink, std::move(event));
  };
  {
    ReplicaMailbox& mailbox = mailboxes_[replica];
    const std::lock_guard mailbox_lock(mailbox.mutex);
    mailbox.messages.push_back({std::move(request), std::move(deliver)});
  }
  Ring();
  return Status();
}

// Runs on a leader's thread.
void EngineImpl::Deliver(const EventSink& sink, TokenEvent event) {
  if (event.finish_reason != FinishReason::kNone) {
    const std::lock_guard lock(mutex_);
    const auto it = outstanding_.find(event.request_id);
    CHECK(it != outstanding_.end());
    outstanding_tokens_[it->second.replica] -= it->second.tokens;
    outstanding_.erase(it);
  }
  sink(std::move(event));
}

void EngineImpl::Cancel(uint64_t request_id) {
  int replica = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto it = outstanding_.find(request_id);
    if (it == outstanding_.end()) return;
    replica = it->second.replica;
  }
  {
    const std::lock_guard lock(mailboxes_[replica].mutex);
    GenerationRequest request;
    request.id = request_id;
    mailboxes_[replica].messages.push_back({std::move(request), nullptr});
  }
  Ring();
}

void EngineImpl::Fail(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = status;
}

EngineStatus EngineImpl::status() const {
  EngineStatus status;
  {
    const std::lock_guard lock(mutex_);
    status.failed = !failure_.ok();
    status.failure = failure_.message();
  }
  for (const ReplicaMailbox& mailbox : mailboxes_) {
    const std::lock_guard lock(mailbox.mutex);
    status.replicas.push_back(mailbox.status);
    status.steps = std::max(status.steps, mailbox.steps);
  }
  return status;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Load(const std::string& model_folder,
                                             const EngineOptions& options,
                                             const Progress& progress) {
  return EngineImpl::Make(model_folder, options, progress);
}

}  // namespace tandem
