#include "engine/engine.h"

#include <fmt/format.h>
#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>
#include <unordered_map>

#include "engine/engine_plan.h"
#include "engine/rank_loop.h"
#include "model/config.h"

namespace tandem {
namespace {

// Steps are counted, and run, while a request is still to arrive: a million empty ones take about a
// minute.
constexpr int64_t kLatestArrival = 1 << 20;

int NumCores() {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

class EngineImpl : public Engine {
 public:
  static Result<std::unique_ptr<Engine>> Make(const std::string& folder,
                                              const EngineOptions& options,
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

  explicit EngineImpl(EnginePlan plan)
      : options_(plan.options),
        layout_(plan.layout),
        limits_(plan.limits),
        budget_(std::move(plan.budget)),
        mailboxes_(layout_.dp_size()),
        outstanding_tokens_(layout_.dp_size()) {}
  void StartRanks();
  void DescribeStart(const std::vector<std::string>& notes);
  Status CheckRequest(const GenerationRequest& request) const;
  int ChooseReplica(const GenerationRequest& request) const;
  void Ring();
  void Deliver(const EventSink& sink, TokenEvent event);
  void Fail(const Status& status);

  const EngineOptions options_;
  const Layout layout_;
  const RowLimits limits_;
  const MemoryBudget budget_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<World> world_;
  // One per memory: of a replica, or of a rank if everything travels.
  std::vector<std::unique_ptr<KvStorage>> kv_;
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

Result<std::unique_ptr<Engine>> EngineImpl::Make(const std::string& folder,
                                                 const EngineOptions& options,
                                                 const Progress& progress) {
  ASSIGN_OR_RETURN(EnginePlan plan, PlanEngine(folder, options));
  if (!plan.budget.fits()) return ResourceExhausted(plan.budget.WhyNot());
  plan.load.progress = progress;
  ASSIGN_OR_RETURN(std::unique_ptr<ModelWeights> weights,
                   ModelWeights::Load(*plan.weights, plan.config, plan.layout, plan.load));
  const std::vector<std::string> notes = std::move(plan.notes);
  std::unique_ptr<EngineImpl> engine(new EngineImpl(std::move(plan)));
  engine->weights_ = std::move(weights);
  engine->StartRanks();
  engine->DescribeStart(notes);
  return std::unique_ptr<Engine>(std::move(engine));
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
  const MemoryBudget& budget = budget_;
  for (int p = 0; p < budget.num_pools; ++p) {
    kv_.push_back(std::make_unique<KvStorage>(budget.token_bytes / budget.slot_bytes,
                                              budget.num_blocks, budget.block_size,
                                              budget.slot_bytes));
  }
  world_ = World::Make(ranks, layout_.attn_tp_size(), world_options);
  std::latch ready(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    RankSetup setup;
    setup.rank = rank;
    setup.weights = weights_.get();
    setup.options = options_;
    setup.limits = limits_;
    setup.num_blocks = static_cast<int32_t>(budget_.num_blocks);
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
}

void EngineImpl::DescribeStart(const std::vector<std::string>& notes) {
  info_.vocab_size = static_cast<int32_t>(weights_->config().vocab_size);
  info_.context_length = options_.context_length;
  info_.tp_size = layout_.tp_size();
  info_.dp_size = layout_.dp_size();
  info_.attn_tp_size = layout_.attn_tp_size();
  info_.num_draft_tokens = options_.num_draft_tokens;
  info_.max_step_rows = options_.max_step_rows;
  info_.kv_tokens_per_replica = budget_.kv_tokens();
  info_.num_threads = options_.num_threads;
  info_.shared_weight_bytes = weights_->SharedBytes();
  for (int r = 0; r < layout_.tp_size(); ++r) {
    info_.rank_weight_bytes.push_back(weights_->RankBytes(r));
  }
  info_.start_block = fmt::format(
      "layout       tp {} = {} DP replicas x {} attention ranks, experts and vocabulary over {} "
      "ranks, {} threads\n"
      "instructions {}\n"
      "speculation  {}\n"
      "limits       context {} tokens, {} sequences per replica ({} in all), prefill chunks of {} "
      "rows, at most {} prompt rows in a step beside decoding (--max-step-rows)\n",
      layout_.tp_size(), layout_.dp_size(), layout_.attn_tp_size(), layout_.tp_size(),
      options_.num_threads, IsaName(*options_.isa),
      options_.num_draft_tokens > 0
          ? fmt::format("MTP, up to {} drafts per step", options_.num_draft_tokens)
          : std::string("off"),
      options_.context_length, options_.max_num_seqs, options_.max_num_seqs * layout_.dp_size(),
      options_.chunked_prefill_size, options_.max_step_rows);
  for (const std::string& note : notes) info_.start_block += "note         " + note + "\n";
  info_.start_block += budget_.Text(layout_);
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
  if (CeilDiv(limit, options_.block_size) > budget_.num_blocks) {
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
