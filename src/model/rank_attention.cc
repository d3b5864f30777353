// The attention half of a decoder layer (MODEL.md 2.3, DESIGN 4 and 7): latents and query inputs on
// the row's owner, heads on every rank of the group.
#include <cstring>

#include "model/rank_model.h"

namespace tandem {

void RankModel::WriteLatent(int64_t layer, const AttentionRow& row, int64_t replica_row) const {
  if (!row.active) return;
  const LatentCache& cache = caches_[layer];
  std::memcpy(cache.Slot(row.table, row.position), LatentOf(replica_row), cache.slot_bytes);
}

// hidden_ = RMSNorm(x_), and each own row's latent in the cache's format: where the group shares
// one cache, the owner writes it there, and nothing else, since a fill meets nobody and peers may
// be at the next pass already; else it lies behind the row that is gathered.
void RankModel::RecordLatents(Program& program, int64_t layer, int pass, const RowBatch& batch,
                              bool write) {
  const LayerCommon& common = weights_.common(layer);
  const int l = static_cast<int>(layer);
  RecordNorm(program, {"attn_norm", l, pass}, batch, common.input_norm, hidden_);
  const Program::Trace trace_latents =
      TraceOwn(batch, latents_.data, latents_.stride * sizeof(float), latent_size_ * sizeof(float));
  program.Add(
      {"kv_a", l, pass},
      [=, this, &common](const Worker& worker) {
        kernels_.matmul(common.kv_a, {hidden_.data, hidden_.stride}, OwnRows(batch).size(),
                        latents_, worker);
      },
      trace_latents);
  const bool in_place = group_.shares_memory();
  program.Add(
      {"latent", l, pass},
      [=, this, &common](const Worker& worker) {
        const Range own = OwnRows(batch);
        const Range rows = RowsOfWorker(own.size(), worker);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          const AttentionRow& row = batch.rows[own.begin + i];
          float* latent = latents_.row(i);
          kernels_.rms_norm(latent, common.kv_a_norm.data(), config_.kv_lora_rank,
                            static_cast<float>(config_.rms_norm_eps), latent);
          if (row.active) weights_.rope().Rotate(row.position, latent + config_.kv_lora_rank);
          if (!in_place) {
            EncodeLatent(format_, latent, config_.kv_lora_rank, config_.qk_rope_head_dim,
                         LatentOf(own.begin + i));
          } else if (write && row.active) {
            EncodeLatent(format_, latent, config_.kv_lora_rank, config_.qk_rope_head_dim,
                         caches_[layer].Slot(row.table, row.position));
          }
        }
      },
      trace_latents);
}

// The inputs of the query projection, gathered within the group.
void RankModel::RecordQueries(Program& program, int64_t layer, int pass, const RowBatch& batch) {
  const LayerCommon& common = weights_.common(layer);
  const int l = static_cast<int>(layer);
  if (config_.q_lora_rank == 0) {
    program.Add({"q_input", l, pass}, [=, this](const Worker& worker) {  // attn_norm's rows
      const Range own = OwnRows(batch);
      const Range rows = RowsOfWorker(own.size(), worker);
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        std::memcpy(GroupRow(own.begin + i), hidden_.row(i), config_.hidden_size * sizeof(float));
      }
    });
    return;
  }
  const Program::Trace trace =
      TraceOwn(batch, config_.q_lora_rank * sizeof(float),
               [this](int64_t, int64_t replica_row) { return GroupRow(replica_row); });
  program.Add(
      {"q_a", l, pass},
      [=, this, &common](const Worker& worker) {
        const Range own = OwnRows(batch);
        kernels_.matmul(common.q_a, {hidden_.data, hidden_.stride}, own.size(),
                        {GroupRow(own.begin), group_stride_}, worker);
      },
      trace);
  program.Add(
      {"q_a_norm", l, pass},
      [=, this, &common](const Worker& worker) {
        const Range own = OwnRows(batch);
        const Range rows = RowsOfWorker(own.size(), worker);
        for (int64_t row = own.begin + rows.begin; row < own.begin + rows.end; ++row) {
          kernels_.rms_norm(GroupRow(row), common.q_a_norm.data(), config_.q_lora_rank,
                            static_cast<float>(config_.rms_norm_eps), GroupRow(row));
        }
      },
      trace);
}

// Every rank of the group gets all query inputs and latents; where each has a cache of its own it
// writes all rows.
void RankModel::RecordGatherLatents(Program& program, int64_t layer, int pass,
                                    const RowBatch& batch, bool write) {
  const int l = static_cast<int>(layer);
  const int index = l * 16 + pass;  // at most 8 draft passes
  program.AddCollective({"gather_rows", l, pass}, [=, this] {
    return group_.GatherRows({"attention", index}, *group_rows_, group_stride_ * sizeof(float),
                             batch.group_begin);
  });
  if (write && !group_.shares_memory()) {
    program.Add({"write_latents", l, pass}, [=, this](const Worker& worker) {
      const Range rows = RowsOfWorker(ReplicaRows(batch), worker);
      for (int64_t row = rows.begin; row < rows.end; ++row)
        WriteLatent(layer, batch.rows[row], row);
    });
  }
}

void RankModel::RecordAttention(Program& program, int64_t layer, int pass, const RowBatch& batch) {
  const AttentionShard& shard = weights_.attention(layer, rank_);
  const int l = static_cast<int>(layer);
  const int64_t head_dim = config_.qk_head_dim(), latent = config_.kv_lora_rank;
  const int64_t nope = config_.qk_nope_head_dim, v = config_.v_head_dim;
  // The MTP module has no entry for slot 0 (DESIGN 5).
  const int32_t first_key = layer == config_.num_hidden_layers ? 1 : 0;

  program.Add(
      {"q_b", l, pass},
      [=, this, &shard](const Worker& worker) {
        kernels_.matmul(shard.query, {group_rows_data_, group_stride_}, ReplicaRows(batch), query_,
                        worker);
      },
      TraceHeads(batch, query_, head_dim, shard.heads));
  program.Add(
      {"q_rope", l, pass},
      [=, this](const Worker& worker) {
        const Range rows = RowsOfWorker(ReplicaRows(batch), worker);
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          if (!batch.rows[row].active) continue;
          for (int64_t h = 0; h < num_heads_; ++h) {
            weights_.rope().Rotate(batch.rows[row].position, query_.row(row) + h * head_dim + nope);
          }
        }
      },
      TraceHeads(batch, query_, head_dim, shard.heads));
  program.Add(
      {"q_latent", l, pass},
      [=, this, &shard](const Worker& worker) {
        kernels_.matmul_heads(shard.key_up, {query_.data, query_.stride}, head_dim,
                              ReplicaRows(batch), query_latent_, latent, worker);
      },
      TraceHeads(batch, query_latent_, latent, shard.heads));
  const AttentionShape shape{static_cast<int>(num_heads_), static_cast<int>(latent),
                             static_cast<int>(config_.qk_rope_head_dim), config_.SoftmaxScale(),
                             format_};
  program.Add(
      {"attention", l, pass},
      [=, this](const Worker& worker) {
        kernels_.latent_attention(shape, caches_[layer], first_key, batch.rows, ReplicaRows(batch),
                                  {query_latent_.data, query_latent_.stride},
                                  {query_.data + nope, query_.stride}, head_dim, attended_, worker);
      },
      TraceHeads(batch, attended_, latent, shard.heads));
  program.Add(
      {"v_up", l, pass},
      [=, this, &shard](const Worker& worker) {
        kernels_.matmul_heads(shard.value_up, {attended_.data, attended_.stride}, latent,
                              ReplicaRows(batch), values_, v, worker);
      },
      TraceHeads(batch, values_, v, shard.heads));
  program.Add({"o_proj", l, pass}, [=, this, &shard](const Worker& worker) {
    kernels_.matmul_segments(
        shard.output, shard.output_bounds, {values_.data, values_.stride}, ReplicaRows(batch),
        {reinterpret_cast<float*>(group_pieces_->local()), config_.hidden_size}, worker);
  });
  program.AddCollective({"collect_attention", l, pass}, [=, this] {
    return group_.CollectRows({"o_proj", l * 16 + pass}, *group_pieces_, group_piece_bytes_,
                              batch.group_begin);
  });
}

}  // namespace tandem
