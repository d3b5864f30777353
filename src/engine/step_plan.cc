#include "engine/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace tandem {
namespace {

static_assert(std::is_trivially_copyable_v<PlanSequence>);
static_assert(std::is_trivially_copyable_v<StepRecord>);

struct PlanHeader {
  uint32_t doorbell;
  int32_t has_work, stop;
  int32_t num_sequences, num_tokens, num_blocks;
};

template <typename T>
void Append(std::vector<std::byte>& bytes, const T* values, size_t count) {
  const size_t at = bytes.size();
  bytes.resize(at + count * sizeof(T));
  if (count > 0) std::memcpy(bytes.data() + at, values, count * sizeof(T));
}

template <typename T>
void Extract(std::span<const std::byte>& bytes, T* values, size_t count) {
  CHECK(bytes.size() >= count * sizeof(T));
  if (count > 0) std::memcpy(static_cast<void*>(values), bytes.data(), count * sizeof(T));
  bytes = bytes.subspan(count * sizeof(T));
}

}  // namespace

int32_t StepPlan::prompt_rows() const {
  int32_t rows = 0;
  for (const PlanSequence& s : sequences) rows += s.is_chunk() ? s.num_rows : 0;
  return rows;
}

void StepPlan::Truncate(int32_t max_prompt_rows) {
  for (PlanSequence& s : sequences) {
    if (!s.is_chunk()) continue;
    s.num_rows = std::min(s.num_rows, max_prompt_rows);
    max_prompt_rows -= s.num_rows;
  }
  std::erase_if(sequences, [](const PlanSequence& s) { return s.num_rows == 0; });
}

std::vector<std::byte> StepPlan::Serialize() const {
  const PlanHeader header{doorbell,
                          has_work,
                          stop,
                          static_cast<int32_t>(sequences.size()),
                          static_cast<int32_t>(tokens.size()),
                          static_cast<int32_t>(blocks.size())};
  std::vector<std::byte> bytes;
  Append(bytes, &header, 1);
  Append(bytes, sequences.data(), sequences.size());
  Append(bytes, tokens.data(), tokens.size());
  Append(bytes, blocks.data(), blocks.size());
  return bytes;
}

StepPlan StepPlan::Deserialize(std::span<const std::byte> bytes) {
  PlanHeader header;
  Extract(bytes, &header, 1);
  StepPlan plan;
  plan.doorbell = header.doorbell;
  plan.has_work = header.has_work != 0;
  plan.stop = header.stop != 0;
  plan.sequences.resize(header.num_sequences);
  plan.tokens.resize(header.num_tokens);
  plan.blocks.resize(header.num_blocks);
  Extract(bytes, plan.sequences.data(), plan.sequences.size());
  Extract(bytes, plan.tokens.data(), plan.tokens.size());
  Extract(bytes, plan.blocks.data(), plan.blocks.size());
  return plan;
}

StepShape ShapeOf(const StepPlan& plan, int32_t max_prompt_rows, int k, int attn_rank,
                  int attn_tp_size) {
  StepPlan cut;
  cut.sequences = plan.sequences;
  cut.Truncate(max_prompt_rows);
  StepShape shape;
  for (const PlanSequence& s : cut.sequences) {
    shape.rows += s.num_rows;
    const int32_t drafts = s.useful_drafts(k);
    if (drafts > 0) ++shape.draft_rows;
    shape.k_draft = std::max(shape.k_draft, drafts);
  }
  const Range own = Share(shape.rows, attn_rank, attn_tp_size);
  int64_t row = 0;
  for (const PlanSequence& s : cut.sequences) {
    row += s.num_rows;  // head rows are the last ones of a sequence
    const Range head{row - s.head_rows(), row};
    shape.rank_head_rows += static_cast<int32_t>(
        std::max<int64_t>(0, std::min(head.end, own.end) - std::max(head.begin, own.begin)));
  }
  return shape;
}

StepRecord MakeRecord(const StepPlan& plan, uint64_t commit_hash, int k, int max_step_rows,
                      const Layout& layout, int rank) {
  StepRecord record;
  record.commit_hash = commit_hash;
  record.doorbell = plan.doorbell;
  record.has_work = plan.has_work;
  record.stop = plan.stop;
  record.prompt_rows = plan.prompt_rows();
  for (const PlanSequence& s : plan.sequences) {
    if (s.is_chunk()) continue;
    ++record.windows;
    record.k_verify = std::max(record.k_verify, s.num_rows - 1);
  }
  const auto shape = [&](int32_t max_prompt_rows) {
    return ShapeOf(plan, max_prompt_rows, k, layout.attn_rank(rank), layout.attn_tp_size());
  };
  record.free_shape = shape(kNoPromptLimit);
  for (int n = 1; n <= layout.dp_size(); ++n) {
    record.shared_shape[n - 1] = shape(max_step_rows / n);
  }
  return record;
}

Result<GroupPlan> Agree(std::span<const StepRecord> records, const Layout& layout,
                        int max_step_rows) {
  GroupPlan plan;
  int prompting = 0;  // replicas with prompt rows
  plan.doorbell = records[0].doorbell;
  for (int rank = 0; rank < layout.tp_size(); ++rank) {
    const StepRecord& record = records[rank];
    const int leader = layout.leader(layout.replica(rank));
    if (record.commit_hash != records[leader].commit_hash) {
      return Internal(fmt::format("rank {} committed {:016x}, its replica's leader rank {} {:016x}",
                                  rank, record.commit_hash, leader, records[leader].commit_hash));
    }
    plan.any_work |= record.has_work != 0;
    plan.stop |= record.stop != 0;
    plan.mixed |= record.windows > 0;
    plan.doorbell = std::min(plan.doorbell, record.doorbell);
    plan.k_verify = std::max(plan.k_verify, record.k_verify);
    if (rank == leader && record.prompt_rows > 0) ++prompting;
  }
  const bool capped = plan.mixed && prompting > 0;
  if (capped) plan.max_prompt_rows = max_step_rows / prompting;
  for (int rank = 0; rank < layout.tp_size(); ++rank) {
    const StepRecord& record = records[rank];
    const StepShape& shape = capped ? record.shared_shape[prompting - 1] : record.free_shape;
    const auto share = [&](int32_t rows) {
      return static_cast<int32_t>(
          Share(rows, layout.attn_rank(rank), layout.attn_tp_size()).size());
    };
    plan.row_begin[rank + 1] = plan.row_begin[rank] + share(shape.rows);
    plan.head_begin[rank + 1] = plan.head_begin[rank] + shape.rank_head_rows;
    plan.draft_begin[rank + 1] = plan.draft_begin[rank] + share(shape.draft_rows);
    plan.k_draft = std::max(plan.k_draft, shape.k_draft);
    if (rank == layout.leader(layout.replica(rank))) {
      plan.prompt_rows += std::min(record.prompt_rows, plan.max_prompt_rows);
    }
  }
  return plan;
}

}  // namespace tandem
