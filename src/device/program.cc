#include "device/program.h"

namespace tandem {

void Program::Add(OpTag tag, Work work, Trace trace) {
  operations_.push_back({tag, std::move(work), nullptr, std::move(trace)});
}

void Program::AddCollective(OpTag tag, std::function<Status()> work) {
  operations_.push_back({tag, nullptr, std::move(work), nullptr});
  ++num_collectives_;
}

void Program::RunThread(int thread, ThreadTeam& team, RowTracer* tracer, Status& status) const {
  const Worker worker{thread, team.size()};
  for (const Operation& operation : operations_) {
    if (operation.work) {
      operation.work(worker);
    } else if (thread == 0) {
      status = operation.collective();
    }
    team.barrier().Wait();
    // Written by thread 0 before the meeting only, so all threads see the same answer here.
    if (!status.ok()) return;
    if (tracer != nullptr && operation.trace) {
      if (thread == 0) operation.trace(*tracer, operation.tag);
      team.barrier().Wait();
    }
  }
}

Status Program::Run(ThreadTeam& team, RowTracer* tracer) const {
  Status status;
  team.Run([&](int thread) { RunThread(thread, team, tracer, status); });
  return status;
}

}  // namespace tandem
