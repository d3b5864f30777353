#include "device/program.h"

namespace tandem {

void Program::Add(OpTag tag, Work work, Trace trace) {
  operations_.push_back({tag, std::move(work), nullptr, std::move(trace)});
}

void Program::AddCollective(OpTag tag, std::function<Status()> work) {
  operations_.push_back({tag, nullptr, std::move(work), nullptr});
  ++num_collectives_;
}

void Program::RunThread(int thread, ThreadTeam& team, RowTracer* tracer, Failure& failure) const {
  const Worker worker{thread, team.size()};
  for (size_t i = 0; i < operations_.size(); ++i) {
    const Operation& operation = operations_[i];
    if (operation.work) {
      operation.work(worker);
    } else if (thread == 0) {
      failure.status = operation.collective();
      if (!failure.status.ok()) failure.operation = i;
    }
    team.barrier().Wait();
    // A thread may still be here when thread 0 has failed in the next operation: it must then come
    // to that meeting too.
    if (failure.operation <= i) return;
    if (tracer != nullptr && operation.trace) {
      if (thread == 0) operation.trace(*tracer, operation.tag);
      team.barrier().Wait();
    }
  }
}

Status Program::Run(ThreadTeam& team, RowTracer* tracer) const {
  Failure failure;
  team.Run([&](int thread) { RunThread(thread, team, tracer, failure); });
  return failure.status;
}

}  // namespace tandem
