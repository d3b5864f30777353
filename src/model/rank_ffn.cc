// The feed-forward half of a decoder layer (MODEL.md 2.4, DESIGN 4 and 7): residual, norm and
// router on the row's owner; dense columns and whole experts of every rank on all replicas' rows.
#include <algorithm>
#include <cstring>

#include "model/rank_model.h"

namespace tandem {

namespace {

RouterChoice ChoiceOf(const ModelConfig& config, const Buffer<float>& bias) {
  RouterChoice choice;
  choice.num_experts = static_cast<int>(config.n_routed_experts);
  choice.top_k = static_cast<int>(config.num_experts_per_tok);
  choice.normalize = config.norm_topk_prob;
  choice.scale = static_cast<float>(config.routed_scaling_factor);
  if (config.router != RouterKind::kGreedy) {
    choice.num_groups = static_cast<int>(config.n_group);
    choice.top_groups = static_cast<int>(config.topk_group);
  }
  if (config.router == RouterKind::kNoauxTc) {
    if (bias.size() > 0) choice.bias = bias.data();
  } else {
    choice.scoring = RouterScoring::kSoftmax;
    choice.group_score = GroupScore::kBest;
    choice.normalize = config.norm_topk_prob && choice.top_k > 1;
    choice.scale_after_normalize = false;
  }
  return choice;
}

}  // namespace

Program::Trace RankModel::TraceExperts(const FfnShard& shard) const {
  return [this, &shard](RowTracer& tracer, const OpTag& op) {
    for (size_t e = 0; e < shard.experts.size(); ++e) {
      for (int32_t pair = groups_.begin[e]; pair < groups_.begin[e + 1]; ++pair) {
        RowIdentity id;
        std::memcpy(&id, IdentityOf(groups_.rows[pair]), sizeof id);
        tracer.Row(op, id.request_id, id.position, static_cast<int>(shard.expert_range.begin + e),
                   expert_activations_.row(pair), config_.moe_intermediate_size * sizeof(float));
      }
    }
  };
}

Program::Trace RankModel::TraceMlp(const RowBatch& batch, const MlpShard& shard) const {
  return [this, batch, &shard](RowTracer& tracer, const OpTag& op) {
    for (int64_t row = 0; row < AllRows(batch); ++row) {
      RowIdentity id;
      std::memcpy(&id, IdentityOf(row), sizeof id);
      if (id.position < 0) continue;
      for (int64_t column = 0; column < shard.gate.columns(); column += shard.unit) {
        const int64_t size = std::min(shard.unit, shard.gate.columns() - column);
        tracer.Row(op, id.request_id, id.position,
                   static_cast<int>(shard.first_unit + column / shard.unit),
                   mlp_activations_.row(row) + column, size * sizeof(float));
      }
    }
  };
}

// x_ += attention; the normed rows and their choice of experts into the gathered buffer.
void RankModel::RecordRouter(Program& program, int64_t layer, int pass, const RowBatch& batch) {
  const LayerCommon& common = weights_.common(layer);
  const int l = static_cast<int>(layer);
  const int64_t hidden = config_.hidden_size;
  program.Add(
      {"attn_residual", l, pass},
      [=, this, &common](const Worker& worker) {
        const std::vector<const float*> pieces = PiecesOf(*group_pieces_, group_.size());
        const int64_t first = batch.world_begin[rank_];
        const Range rows = RowsOfWorker(OwnRows(batch).size(), worker);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          kernels_.add_pieces(pieces, hidden, hidden, /*two_sums=*/false, i, x_.row(i));
          kernels_.rms_norm(x_.row(i), common.post_attention_norm.data(), hidden,
                            static_cast<float>(config_.rms_norm_eps), WorldRow(first + i));
          const int64_t row = OwnRows(batch).begin + i;
          RowIdentity identity = batch.identity[row];
          if (!batch.rows[row].active) identity.position = -1;
          std::memcpy(IdentityOf(first + i), &identity, sizeof identity);
        }
      },
      TraceOwn(batch, x_.data, x_.stride * sizeof(float), hidden * sizeof(float)));
  if (!config_.IsMoeLayer(layer)) return;
  program.Add(
      {"router", l, pass},
      [=, this, &common](const Worker& worker) {
        kernels_.matmul(common.router, {WorldRow(batch.world_begin[rank_]), world_stride_},
                        OwnRows(batch).size(), router_logits_, worker);
      },
      TraceOwn(batch, router_logits_.data, router_logits_.stride * sizeof(float),
               config_.n_routed_experts * sizeof(float)));
  const RouterChoice choice = ChoiceOf(config_, common.router_bias);
  program.Add(
      {"choose_experts", l, pass},
      [=, this](const Worker& worker) {
        const Range own = OwnRows(batch);
        const Range rows = RowsOfWorker(own.size(), worker);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          const int64_t row = batch.world_begin[rank_] + i;
          if (batch.rows[own.begin + i].active) {
            ChooseExperts(choice, router_logits_.row(i), ExpertIds(row), ExpertWeightsOf(row));
          } else {
            std::fill_n(ExpertIds(row), choice.top_k, -1);
          }
        }
      },
      TraceOwn(batch, 2 * choice.top_k * sizeof(float), [=, this](int64_t own_row, int64_t) {
        return ExpertIds(batch.world_begin[rank_] + own_row);
      }));
}

// The rank's experts over all gathered rows, into the first half of its pieces.
void RankModel::RecordExperts(Program& program, int64_t layer, int pass, const RowBatch& batch) {
  const FfnShard& shard = weights_.ffn(layer, rank_);
  const int l = static_cast<int>(layer);
  const OutputRows pieces{reinterpret_cast<float*>(world_pieces_->local()),
                          2 * config_.hidden_size};
  program.Add({"group_experts", l, pass}, [=, this, &shard](const Worker& worker) {
    if (worker.thread != 0) return;
    GroupByExpert(ExpertIds(0), ExpertWeightsOf(0), world_stride_, AllRows(batch),
                  static_cast<int>(config_.num_experts_per_tok), shard.expert_range, groups_);
  });
  program.Add(
      {"experts_up", l, pass},
      [=, this, &shard](const Worker& worker) {
        kernels_.experts_gate_up(shard.experts, groups_, {world_rows_data_, world_stride_},
                                 expert_activations_, worker);
      },
      TraceExperts(shard));
  program.Add({"experts_down", l, pass}, [=, this, &shard](const Worker& worker) {
    kernels_.experts_down(shard.experts, shard.expert_bounds, groups_, expert_activations_,
                          AllRows(batch), config_.hidden_size, pieces, worker);
  });
}

void RankModel::RecordFfn(Program& program, int64_t layer, int pass, const RowBatch& batch) {
  const FfnShard& shard = weights_.ffn(layer, rank_);
  const int l = static_cast<int>(layer);
  const int64_t hidden = config_.hidden_size;
  const bool moe = config_.IsMoeLayer(layer);
  const bool mlp = !moe || config_.n_shared_experts > 0;
  const bool two_sums = moe && mlp;
  RecordRouter(program, layer, pass, batch);
  program.AddCollective({"gather_ffn", l, pass}, [=, this] {
    return world_.GatherRows({"ffn", l * 16 + pass}, *world_rows_, world_stride_ * sizeof(float),
                             batch.world_begin);
  });
  if (moe) RecordExperts(program, layer, pass, batch);
  if (mlp) {
    float* pieces = reinterpret_cast<float*>(world_pieces_->local()) + (moe ? hidden : 0);
    program.Add(
        {"mlp_up", l, pass},
        [=, this, &shard](const Worker& worker) {
          kernels_.gate_up(shard.mlp.gate, shard.mlp.up, {world_rows_data_, world_stride_},
                           AllRows(batch), mlp_activations_, worker);
        },
        TraceMlp(batch, shard.mlp));
    program.Add({"mlp_down", l, pass}, [=, this, &shard](const Worker& worker) {
      kernels_.matmul_segments(shard.mlp.down, shard.mlp.down_bounds,
                               {mlp_activations_.data, mlp_activations_.stride}, AllRows(batch),
                               {pieces, 2 * hidden}, worker);
    });
  }
  program.AddCollective({"collect_ffn", l, pass}, [=, this] {
    return world_.CollectRows({"experts", l * 16 + pass}, *world_pieces_, world_piece_bytes_,
                              batch.world_begin);
  });
  program.Add(
      {"ffn_residual", l, pass},
      [=, this](const Worker& worker) {
        const std::vector<const float*> pieces = PiecesOf(*world_pieces_, world_.size());
        const Range rows = RowsOfWorker(OwnRows(batch).size(), worker);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          kernels_.add_pieces(pieces, 2 * hidden, hidden, two_sums, i, x_.row(i));
        }
      },
      TraceOwn(batch, x_.data, x_.stride * sizeof(float), hidden * sizeof(float)));
}

}  // namespace tandem
