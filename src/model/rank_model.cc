#include "model/rank_model.h"

#include <algorithm>
#include <cstring>

namespace tandem {
namespace {

int64_t WidestMlp(const ModelWeights& weights, int rank) {
  int64_t widest = 0;
  for (int64_t layer = 0; layer < weights.num_layers(); ++layer) {
    widest = std::max(widest, weights.ffn(layer, rank).mlp.gate.columns());
  }
  return widest;
}

std::vector<size_t> Times(std::vector<size_t> bytes, int64_t rows) {
  for (size_t& b : bytes) b *= rows;
  return bytes;
}

}  // namespace

std::vector<const float*> RankModel::PiecesOf(const PieceBuffer& buffer, int size) {
  std::vector<const float*> pieces(size);
  for (int r = 0; r < size; ++r) pieces[r] = reinterpret_cast<const float*>(buffer.From(r));
  return pieces;
}

template <typename T>
T* RankModel::Allocate(int64_t count) {
  workspace_.emplace_back(static_cast<size_t>(count) * sizeof(T));
  workspace_.back().Touch();
  own_bytes_ += static_cast<int64_t>(workspace_.back().bytes());
  return reinterpret_cast<T*>(workspace_.back().data());
}

RankModel::RankModel(const ModelWeights& weights, const Kernels& kernels, int rank,
                     const RowLimits& limits, LatentFormat format,
                     std::vector<LatentCache> layer_caches, Communicator& world,
                     Communicator& group)
    : weights_(weights),
      config_(weights.config()),
      kernels_(kernels),
      rank_(rank),
      attn_rank_(weights.layout().attn_rank(rank)),
      format_(format),
      caches_(std::move(layer_caches)),
      world_(world),
      group_(group),
      num_heads_(weights.attention(0, rank).heads.size()),
      latent_size_(config_.kv_lora_rank + config_.qk_rope_head_dim),
      query_input_(config_.q_lora_rank > 0 ? config_.q_lora_rank : config_.hidden_size),
      group_stride_(query_input_ +
                    CeilDiv(SlotBytes(format, config_.kv_lora_rank, config_.qk_rope_head_dim), 4)),
      world_stride_(config_.hidden_size + 2 * config_.num_experts_per_tok +
                    static_cast<int64_t>(sizeof(RowIdentity) / sizeof(float))) {
  const int64_t hidden = config_.hidden_size, heads = num_heads_;
  const int64_t own = CeilDiv(limits.rows, group.size());
  const int64_t replica = limits.rows;
  const int64_t replicas = world.size() / group.size();
  const int64_t all = replica * replicas;
  const auto rows = [this](int64_t count, int64_t stride) {
    return OutputRows{Allocate<float>(count * stride), stride};
  };
  x_ = rows(own, hidden);
  hidden_ = rows(own, hidden);
  states_ = rows(own, hidden);
  draft_states_ = rows(weights.has_mtp() ? limits.draft_rows : 0, hidden);
  mtp_input_ = rows(weights.has_mtp() ? own : 0, 2 * hidden);
  latents_ = rows(own, latent_size_);
  router_logits_ = rows(own, config_.n_routed_experts);
  query_ = rows(replica, heads * config_.qk_head_dim());
  query_latent_ = rows(replica, heads * config_.kv_lora_rank);
  attended_ = rows(replica, heads * config_.kv_lora_rank);
  values_ = rows(replica, heads * config_.v_head_dim);
  mlp_activations_ = rows(all, WidestMlp(weights, rank));
  const int64_t local_experts =
      UnitsOfSegments(config_.n_routed_experts, SegmentsOf(rank, weights.layout().tp_size()))
          .size();
  const int64_t pairs = all * std::min(config_.num_experts_per_tok, local_experts);
  expert_activations_ = rows(pairs, config_.moe_intermediate_size);
  groups_.Reserve(local_experts, pairs);
  own_bytes_ += (local_experts + 1) * static_cast<int64_t>(sizeof(int32_t)) +
                pairs * static_cast<int64_t>(sizeof(int32_t) + sizeof(float));

  group_rows_ = group.AllocateGathered(replica * group_stride_ * sizeof(float));
  world_rows_ = world.AllocateGathered(all * world_stride_ * sizeof(float));
  head_rows_ = world.AllocateGathered(limits.head_rows * replicas * hidden * sizeof(float));
  group_piece_bytes_.assign(group.size(), hidden * sizeof(float));
  world_piece_bytes_.assign(world.size(), 2 * hidden * sizeof(float));
  for (int r = 0; r < world.size(); ++r) {
    logit_piece_bytes_.push_back(weights.VocabOf(r).size() * sizeof(float));
  }
  const auto pieces = [&](Communicator& ranks, const std::vector<size_t>& row_bytes,
                          int64_t max_rows, int64_t max_own_rows) {
    own_bytes_ += max_rows * static_cast<int64_t>(row_bytes[ranks.rank()]);
    return ranks.AllocatePieces(Times(row_bytes, max_rows), max_own_rows, row_bytes);
  };
  group_pieces_ = pieces(group, group_piece_bytes_, replica, own);
  world_pieces_ = pieces(world, world_piece_bytes_, all, own);
  logit_pieces_ = pieces(world, logit_piece_bytes_, limits.head_rows * replicas, limits.head_rows);
  group_rows_data_ = reinterpret_cast<float*>(group_rows_->local());
  world_rows_data_ = reinterpret_cast<float*>(world_rows_->local());
}

Program::Trace RankModel::TraceOwn(
    const RowBatch& batch, size_t bytes,
    std::function<const void*(int64_t own_row, int64_t replica_row)> place) const {
  return [this, batch, bytes, place = std::move(place)](RowTracer& tracer, const OpTag& op) {
    const Range own = OwnRows(batch);
    for (int64_t row = own.begin; row < own.end; ++row) {
      if (!batch.rows[row].active) continue;
      const RowIdentity& id = batch.identity[row];
      tracer.Row(op, id.request_id, id.position, 0, place(row - own.begin, row), bytes);
    }
  };
}

Program::Trace RankModel::TraceOwn(const RowBatch& batch, const void* data, size_t stride,
                                   size_t bytes) const {
  return TraceOwn(batch, bytes, [data, stride](int64_t own_row, int64_t) {
    return static_cast<const std::byte*>(data) + own_row * stride;
  });
}

Program::Trace RankModel::TraceHeads(const RowBatch& batch, OutputRows rows, int64_t head_size,
                                     Range heads) const {
  return [this, batch, rows, head_size, heads](RowTracer& tracer, const OpTag& op) {
    for (int64_t row = 0; row < ReplicaRows(batch); ++row) {
      if (!batch.rows[row].active) continue;
      for (int64_t h = heads.begin; h < heads.end; ++h) {
        tracer.Row(op, batch.identity[row].request_id, batch.identity[row].position,
                   static_cast<int>(h), rows.row(row) + (h - heads.begin) * head_size,
                   head_size * sizeof(float));
      }
    }
  };
}

void RankModel::RecordNorm(Program& program, OpTag tag, const RowBatch& batch,
                           const Buffer<float>& weight, OutputRows out) {
  program.Add(
      tag,
      [this, batch, norm = weight.data(), out](const Worker& worker) {
        const Range rows = RowsOfWorker(OwnRows(batch).size(), worker);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          kernels_.rms_norm(x_.row(i), norm, config_.hidden_size,
                            static_cast<float>(config_.rms_norm_eps), out.row(i));
        }
      },
      TraceOwn(batch, out.data, out.stride * sizeof(float), config_.hidden_size * sizeof(float)));
}

void RankModel::RecordTarget(Program& program, const RowBatch& batch, const int32_t* tokens) {
  program.Add(
      {"embed", -1, 0},
      [this, batch, tokens](const Worker& worker) {
        const Range own = OwnRows(batch);
        const Range rows = RowsOfWorker(own.size(), worker);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          weights_.embedding().Read(tokens[own.begin + i], x_.row(i));
        }
      },
      TraceOwn(batch, x_.data, x_.stride * sizeof(float), config_.hidden_size * sizeof(float)));
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    RecordLayer(program, layer, 0, batch);
  }
  RecordNorm(program, {"final_norm", -1, 0}, batch, weights_.final_norm(), states_);
}

void RankModel::RecordLayer(Program& program, int64_t layer, int pass, const RowBatch& batch) {
  // The fill has written the latents of draft pass 1 already, from the same inputs.
  const bool write = pass != 1;
  RecordLatents(program, layer, pass, batch, write);
  RecordQueries(program, layer, pass, batch);
  RecordGatherLatents(program, layer, pass, batch, write);
  RecordAttention(program, layer, pass, batch);
  RecordFfn(program, layer, pass, batch);
}

void RankModel::RecordHead(Program& program, int pass, const RowBatch& batch,
                           const HeadBatch& head) {
  const OutputRows states = pass == 0 ? states_ : draft_states_;
  float* gathered = reinterpret_cast<float*>(head_rows_->local());
  const int64_t hidden = config_.hidden_size;
  program.Add({"head_states", -1, pass}, [=, this](const Worker& worker) {
    const int32_t first = head.group_begin[attn_rank_];
    const Range rows = RowsOfWorker(head.group_begin[attn_rank_ + 1] - first, worker);
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const int64_t row = head.rows != nullptr ? head.rows[first + i] : first + i;
      std::memcpy(gathered + (head.world_begin[rank_] + i) * hidden,
                  states.row(row - OwnRows(batch).begin), hidden * sizeof(float));
    }
  });
  program.AddCollective({"gather_head", -1, pass}, [=, this] {
    return world_.GatherRows({"head", pass}, *head_rows_, hidden * sizeof(float), head.world_begin);
  });
  const PackedMatrix& matrix = pass == 0 ? weights_.head(rank_) : weights_.mtp_head(rank_);
  float* logits = reinterpret_cast<float*>(logit_pieces_->local());
  program.Add({"head", -1, pass}, [=, this, &matrix](const Worker& worker) {
    kernels_.matmul(matrix, {gathered, hidden}, head.world_begin[world_.size()],
                    {logits, matrix.columns()}, worker);
  });
  program.AddCollective({"collect_logits", -1, pass}, [=, this] {
    return world_.CollectRows({"logits", pass}, *logit_pieces_, logit_piece_bytes_,
                              head.world_begin);
  });
}

void RankModel::ReadLogits(int64_t i, float* row) const {
  for (int r = 0; r < world_.size(); ++r) {
    const Range vocab = weights_.VocabOf(r);
    std::memcpy(row + vocab.begin, logit_pieces_->From(r) + i * logit_piece_bytes_[r],
                logit_piece_bytes_[r]);
  }
}

void RankModel::RecordMtpInput(Program& program, int pass, const RowBatch& batch,
                               const int32_t* tokens,
                               std::function<const float*(int64_t, int64_t)> state) {
  const MtpWeights& mtp = weights_.mtp();
  const int layer = static_cast<int>(config_.num_hidden_layers);
  program.Add(
      {"mtp_norms", layer, pass},
      [=, this, &mtp](const Worker& worker) {
        const int64_t hidden = config_.hidden_size;
        const float eps = static_cast<float>(config_.rms_norm_eps);
        const Range own = OwnRows(batch);
        const Range rows = RowsOfWorker(own.size(), worker);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          float* out = mtp_input_.row(i);
          if (!batch.rows[own.begin + i].active) {
            std::fill_n(out, 2 * hidden, 0.0f);
            continue;
          }
          weights_.mtp_embedding().Read(tokens[own.begin + i], out);
          kernels_.rms_norm(out, mtp.enorm.data(), hidden, eps, out);
          kernels_.rms_norm(state(i, own.begin + i), mtp.hnorm.data(), hidden, eps, out + hidden);
        }
      },
      TraceOwn(batch, mtp_input_.data, mtp_input_.stride * sizeof(float),
               mtp_input_.stride * sizeof(float)));
  program.Add(
      {"eh_proj", layer, pass},
      [=, this, &mtp](const Worker& worker) {
        kernels_.matmul(mtp.eh_proj, {mtp_input_.data, mtp_input_.stride}, OwnRows(batch).size(),
                        x_, worker);
      },
      TraceOwn(batch, x_.data, x_.stride * sizeof(float), config_.hidden_size * sizeof(float)));
}

void RankModel::RecordFill(Program& program, const RowBatch& batch, const int32_t* next_tokens) {
  RecordMtpInput(program, 0, batch, next_tokens,
                 [this](int64_t own_row, int64_t) { return states_.row(own_row); });
  RecordLatents(program, config_.num_hidden_layers, 0, batch, true);
  if (!group_.shares_memory()) {
    RecordGatherLatents(program, config_.num_hidden_layers, 0, batch, true);
  }
}

void RankModel::RecordDraft(Program& program, int pass, const RowBatch& batch,
                            const int32_t* tokens, const int32_t* state_rows) {
  const float* gathered = reinterpret_cast<const float*>(head_rows_->local());
  RecordMtpInput(program, pass, batch, tokens,
                 [=, this](int64_t own_row, int64_t row) -> const float* {
                   if (pass == 1) return gathered + int64_t{state_rows[row]} * config_.hidden_size;
                   return draft_states_.row(own_row);
                 });
  RecordLayer(program, config_.num_hidden_layers, pass, batch);
  RecordNorm(program, {"draft_norm", static_cast<int>(config_.num_hidden_layers), pass}, batch,
             weights_.mtp().head_norm, draft_states_);
}

}  // namespace tandem
