#include "model/load_queue.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>
#include <tuple>

#include "base/text_file.h"

namespace tandem {
namespace {

// What one job reads: small enough that all threads end together (a tenth of a second of disk),
// large enough that jobs cost nothing.
constexpr int64_t kJobBytes = int64_t{32} << 20;
// What is read at once and packed from there: half of a 512 KiB second-level cache, the other half
// is for the panels being written. Far above the cost of a system call.
constexpr int64_t kStripBytes = int64_t{256} << 10;
constexpr std::chrono::milliseconds kProgressInterval{50};

// Some rows of a load's tensor.
struct Job {
  const TensorLoad* load = nullptr;
  Range rows;
};

int64_t RowsOf(const TensorInfo& tensor) {
  return tensor.shape.size() == 2 ? tensor.shape[0] : 1;
}
int64_t WidthOf(const TensorInfo& tensor) {
  return tensor.shape.back();
}
int64_t RowBytes(const TensorInfo& tensor) {
  return WidthOf(tensor) * static_cast<int64_t>(DTypeSize(tensor.dtype));
}

// Rows that make up about `bytes`: whole panels, one at least.
int64_t RowsIn(int64_t bytes, const TensorInfo& tensor) {
  return std::max<int64_t>(bytes / std::max<int64_t>(RowBytes(tensor), 1) / kPanel, 1) * kPanel;
}

// Cuts all loads into jobs, in the order of their files: a disk reads them front to back, and the
// cuts make the end even whatever comes last.
std::vector<Job> MakeJobs(const std::vector<TensorLoad>& loads) {
  std::vector<Job> jobs;
  for (const TensorLoad& load : loads) {
    const int64_t rows = RowsOf(*load.tensor), step = RowsIn(kJobBytes, *load.tensor);
    for (int64_t row = 0; row < rows; row += step) {
      jobs.push_back({&load, {row, std::min(row + step, rows)}});
    }
  }
  const auto place = [](const Job& job) {
    const TensorInfo& tensor = *job.load->tensor;
    return std::tuple(tensor.file, tensor.offset, job.rows.begin);
  };
  std::stable_sort(jobs.begin(), jobs.end(),
                   [&](const Job& a, const Job& b) { return place(a) < place(b); });
  return jobs;
}

// What one thread reads into.
struct Scratch {
  std::vector<std::byte> bytes;
  std::vector<float> floats;
};

// Reads rows of a tensor in strips; use(data, rows) gets each.
template <typename Use>
Status ForStrips(const TensorSource& source, const TensorInfo& tensor, Range rows, Scratch& scratch,
                 const Use& use) {
  const int64_t row_bytes = RowBytes(tensor), step = RowsIn(kStripBytes, tensor);
  for (int64_t row = rows.begin; row < rows.end; row += step) {
    const Range strip{row, std::min(row + step, rows.end)};
    const size_t bytes = static_cast<size_t>(strip.size() * row_bytes);
    if (scratch.bytes.size() < bytes) scratch.bytes.resize(bytes);
    const std::span<std::byte> data(scratch.bytes.data(), bytes);
    RETURN_IF_ERROR(source.Read(tensor, static_cast<size_t>(row * row_bytes), data));
    RETURN_IF_ERROR(use(data, strip));
  }
  return Status();
}

Status LoadScales(const TensorLoad& load, Scratch& scratch) {
  const int64_t width = WidthOf(*load.scales);
  const auto use = [&](std::span<const std::byte> data, Range rows) {
    scratch.floats.resize(static_cast<size_t>(rows.size() * width));
    WidenToFloats(load.scales->dtype, data.data(), scratch.floats);
    for (const float scale : scratch.floats) {
      if (!std::isfinite(scale)) {
        return InvalidArgument("tensor " + Quoted(load.scales->name) +
                               " has a scale that is not finite");
      }
    }
    for (const auto& [part, matrix] : load.targets) {
      PackScaleRows(scratch.floats.data(), width, rows, part, *matrix);
    }
    return Status();
  };
  return ForStrips(*load.source, *load.scales, {0, RowsOf(*load.scales)}, scratch, use);
}

Status RunJob(const Job& job, Scratch& scratch) {
  const TensorLoad& load = *job.load;
  const int64_t width = WidthOf(*load.tensor), row_bytes = RowBytes(*load.tensor);
  if (!load.bytes.empty()) {
    const size_t begin = static_cast<size_t>(job.rows.begin * row_bytes);
    const size_t bytes = static_cast<size_t>(job.rows.size() * row_bytes);
    return load.source->Read(*load.tensor, begin, load.bytes.subspan(begin, bytes));
  }
  // The scales belong to the job that has the first row.
  if (load.scales != nullptr && job.rows.begin == 0) RETURN_IF_ERROR(LoadScales(load, scratch));
  const auto use = [&](std::span<const std::byte> data, Range rows) {
    if (load.tensor->dtype == DType::kF8E4M3 && HasFp8NaN(data)) {
      return InvalidArgument("tensor " + Quoted(load.tensor->name) +
                             " has an FP8 code that is NaN");
    }
    if (!load.floats.empty()) {
      const size_t begin = static_cast<size_t>(rows.begin * width);
      const size_t count = static_cast<size_t>(rows.size() * width);
      WidenToFloats(load.tensor->dtype, data.data(), load.floats.subspan(begin, count));
    }
    for (const auto& [part, matrix] : load.targets) {
      PackRows(load.tensor->dtype, data.data(), width, rows, part, *matrix);
    }
    return Status();
  };
  return ForStrips(*load.source, *load.tensor, job.rows, scratch, use);
}

class Progress {
 public:
  Progress(int64_t total, const std::function<void(double)>& report)
      : total_(total), report_(report) {}

  void Add(int64_t bytes) {
    if (!report_) return;
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + kProgressInterval;
    report_(static_cast<double>(done_) / static_cast<double>(total_));
  }

 private:
  const int64_t total_;
  const std::function<void(double)>& report_;
  std::mutex mutex_;
  int64_t done_ = 0;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace

Status LoadQueue::Run(int num_threads, const std::function<void(double)>& report) {
  const std::vector<Job> jobs = MakeJobs(loads_);
  const auto bytes_of = [](const Job& job) {
    return job.rows.size() * RowBytes(*job.load->tensor);
  };
  int64_t total = 0;
  for (const Job& job : jobs) total += bytes_of(job);
  Progress progress(total, report);
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;  // guards `first`
  Status first;
  const auto work = [&] {
    Scratch scratch;
    for (size_t i = next++; i < jobs.size() && !failed; i = next++) {
      const Status status = RunJob(jobs[i], scratch);
      if (!status.ok()) {
        const std::lock_guard lock(mutex);
        if (first.ok()) first = status;
        failed = true;
        return;
      }
      progress.Add(bytes_of(jobs[i]));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  loads_.clear();
  return first;
}

}  // namespace tandem
