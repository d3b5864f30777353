// The forward passes of one rank: records the operations of decoder layers, head and MTP module
// into a program. Sees its slice of rows and two communicators; never counts of replicas, idle
// ranks, or whether a program will be used again.
//
// Invariants:
// 1. Row counts, tokens and positions are read from the batch's arrays when the program runs.
// 2. The number and order of recorded operations depend on the model and the communicators only,
// never on rows.
// 3. Residual streams are FP32 and belong to the row's owner, rank i of the group for rows
// [group_begin[i],
//    group_begin[i+1]).
#pragma once

#include <memory>
#include <vector>

#include "device/program.h"
#include "model/weights.h"
#include "ops/kernels.h"
#include "parallel/communicator.h"

namespace tandem {

// Most rows that one step can bring, per replica (group); the same on all ranks. Sizes every
// buffer.
struct RowLimits {
  int32_t rows = 0;        // prefill rows and windows
  int32_t head_rows = 0;   // rows that get logits
  int32_t draft_rows = 0;  // sequences
};

// Names a row in traces, whatever the layout.
struct RowIdentity {
  uint64_t request_id = 0;
  int64_t position = 0;
};

// The rows of one pass; all pointers stay valid as long as the program.
struct RowBatch {
  const int32_t* group_begin = nullptr;  // [group size + 1]: this replica's rows by owner
  const int32_t* world_begin =
      nullptr;  // [world size + 1]: all replicas' rows by owner, replica after replica
  const AttentionRow* rows = nullptr;     // [replica rows]: table, slot, active
  const RowIdentity* identity = nullptr;  // [replica rows]
};

// Rows that get logits, split like rows.
struct HeadBatch {
  const int32_t* group_begin = nullptr;
  const int32_t* world_begin = nullptr;
  const int32_t* rows =
      nullptr;  // [replica head rows]: their places in the RowBatch, ascending; null: the same
};

class RankModel {
 public:
  // `layer_caches[layer]` = where the latents of a layer live for this rank; `kernels` = those of
  // the instruction set to run, which changes no bit. Collective: allocates shared buffers.
  RankModel(const ModelWeights& weights, const Kernels& kernels, int rank, const RowLimits& limits,
            LatentFormat format, std::vector<LatentCache> layer_caches, Communicator& world,
            Communicator& group);

  // Target: embedding, layers 0..num_hidden_layers-1, final norm into states.
  void RecordTarget(Program& program, const RowBatch& batch, const int32_t* tokens);

  // Logits of head rows. After it, ReadLogits gives this rank's own head rows. Pass 0 reads the
  // target's states, others the draft's.
  void RecordHead(Program& program, int pass, const RowBatch& batch, const HeadBatch& head);

  // The MTP module's latents for rows (next_tokens[row], the target's state of the row), written to
  // slot batch.rows[row].position where active. No attention, no experts.
  void RecordFill(Program& program, const RowBatch& batch, const int32_t* next_tokens);

  // Draft pass `pass` >= 1: one module row per drafting sequence from tokens[row] and, in pass 1,
  // the target's state at state_rows[row] of all gathered head rows, later this rank's own draft
  // states. Pass 1's latents are those that the fill has written.
  void RecordDraft(Program& program, int pass, const RowBatch& batch, const int32_t* tokens,
                   const int32_t* state_rows);

  // The whole logits row [vocab_size] of own head row i (counted from the rank's first).
  void ReadLogits(int64_t i, float* row) const;

  // Bytes that the constructor has allocated for this rank alone: without the gathered rows, which
  // ranks may share.
  int64_t own_bytes() const { return own_bytes_; }

 private:
  void RecordLayer(Program& program, int64_t layer, int pass, const RowBatch& batch);
  void RecordLatents(Program& program, int64_t layer, int pass, const RowBatch& batch, bool write);
  void RecordGatherLatents(Program& program, int64_t layer, int pass, const RowBatch& batch,
                           bool write);
  void RecordQueries(Program& program, int64_t layer, int pass, const RowBatch& batch);
  void RecordAttention(Program& program, int64_t layer, int pass, const RowBatch& batch);
  void RecordRouter(Program& program, int64_t layer, int pass, const RowBatch& batch);
  void RecordExperts(Program& program, int64_t layer, int pass, const RowBatch& batch);
  void RecordFfn(Program& program, int64_t layer, int pass, const RowBatch& batch);
  void RecordMtpInput(Program& program, int pass, const RowBatch& batch, const int32_t* tokens,
                      std::function<const float*(int64_t own_row, int64_t row)> state);
  void RecordNorm(Program& program, OpTag tag, const RowBatch& batch, const Buffer<float>& weight,
                  OutputRows out);
  // Traces of own rows: `bytes` at data + own row * stride, or where `place` says.
  Program::Trace TraceOwn(const RowBatch& batch, const void* data, size_t stride,
                          size_t bytes) const;
  Program::Trace TraceOwn(
      const RowBatch& batch, size_t bytes,
      std::function<const void*(int64_t own_row, int64_t replica_row)> place) const;
  Program::Trace TraceHeads(const RowBatch& batch, OutputRows rows, int64_t head_size,
                            Range heads) const;

  // Rows of all replicas: each expert's activations, and each unit of columns of the MLP's.
  Program::Trace TraceExperts(const FfnShard& shard) const;
  Program::Trace TraceMlp(const RowBatch& batch, const MlpShard& shard) const;

  Range OwnRows(const RowBatch& batch) const {
    return {batch.group_begin[attn_rank_], batch.group_begin[attn_rank_ + 1]};
  }
  int64_t ReplicaRows(const RowBatch& batch) const { return batch.group_begin[group_.size()]; }
  int64_t AllRows(const RowBatch& batch) const { return batch.world_begin[world_.size()]; }
  // Own row i of the batch as it lies in the gathered buffers.
  float* GroupRow(int64_t replica_row) const {
    return group_rows_data_ + replica_row * group_stride_;
  }
  float* WorldRow(int64_t world_row) const { return world_rows_data_ + world_row * world_stride_; }
  std::byte* LatentOf(int64_t replica_row) const {
    return reinterpret_cast<std::byte*>(GroupRow(replica_row) + query_input_);
  }
  void WriteLatent(int64_t layer, const AttentionRow& row, int64_t replica_row) const;
  int32_t* ExpertIds(int64_t world_row) const {
    return reinterpret_cast<int32_t*>(WorldRow(world_row) + config_.hidden_size);
  }
  float* ExpertWeightsOf(int64_t world_row) const {
    return WorldRow(world_row) + config_.hidden_size + config_.num_experts_per_tok;
  }
  // Whose row it is, for traces of operations over all replicas' rows; position -1 if masked.
  std::byte* IdentityOf(int64_t world_row) const {
    return reinterpret_cast<std::byte*>(ExpertWeightsOf(world_row) + config_.num_experts_per_tok);
  }
  // Where each rank's pieces of this rank's own rows begin.
  static std::vector<const float*> PiecesOf(const PieceBuffer& buffer, int size);
  template <typename T>
  T* Allocate(int64_t count);

  const ModelWeights& weights_;
  const ModelConfig& config_;
  const Kernels& kernels_;
  const int rank_, attn_rank_;
  const LatentFormat format_;
  const std::vector<LatentCache> caches_;
  Communicator& world_;
  Communicator& group_;
  const int64_t num_heads_;    // of this rank
  const int64_t latent_size_;  // values per slot
  const int64_t
      query_input_;  // floats of a gathered row before its latent: q_lora_rank or hidden_size
  const int64_t group_stride_, world_stride_;  // floats per gathered row
  std::vector<Buffer<std::byte>> workspace_;
  int64_t own_bytes_ = 0;

  // Own rows.
  OutputRows x_, hidden_, states_, draft_states_, latents_, router_logits_, mtp_input_;
  // Rows of the replica.
  OutputRows query_, query_latent_, attended_, values_;
  // Rows of all replicas.
  OutputRows mlp_activations_, expert_activations_;
  ExpertGroups groups_;

  std::unique_ptr<SymmetricBuffer> group_rows_, world_rows_, head_rows_;
  std::unique_ptr<PieceBuffer> group_pieces_, world_pieces_, logit_pieces_;
  float* group_rows_data_ = nullptr;
  float* world_rows_data_ = nullptr;
  std::vector<size_t> group_piece_bytes_, world_piece_bytes_, logit_piece_bytes_;  // [rank]
};

}  // namespace tandem
