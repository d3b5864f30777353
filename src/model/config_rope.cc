#include "model/config_rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem {
namespace {

// Frequencies must fall from pair to pair (theta > 1); the largest theta we know of is 1e8.
constexpr double kMinTheta = 1.001;
constexpr double kMaxTheta = 1e12;
// No model stretches a context of more than 2^20 positions, nor any by more than 1e6.
constexpr int64_t kMaxOriginal = int64_t{1} << 20;
constexpr double kMaxFactor = 1e6;

RopeScaling ReadScaling(const ConfigFields& fields) {
  RopeScaling rope;
  std::string type;
  for (const char* key : {"type", "rope_type"}) fields.ReadWord(key, {"yarn", "default"}, type);
  if (type.empty()) fields.Refuse("rope_type", "is missing");
  fields.Only("partial_rotary_factor", 1.0);
  if (type != "yarn") return rope;

  rope.present = true;
  fields.RefuseIfAbsent("factor");
  fields.RefuseIfAbsent("original_max_position_embeddings");
  fields.ReadDouble("factor", 1.0, kMaxFactor, rope.factor);
  fields.ReadInt("original_max_position_embeddings", 1, kMaxOriginal,
                 rope.original_max_position_embeddings);
  fields.ReadDouble("beta_fast", 1e-3, 1e6, rope.beta_fast);
  fields.ReadDouble("beta_slow", 1e-3, 1e6, rope.beta_slow);
  fields.ReadDouble("mscale", 0.0, 1e3, rope.mscale);
  fields.ReadDouble("mscale_all_dim", 0.0, 1e3, rope.mscale_all_dim);
  if (rope.beta_fast < rope.beta_slow) fields.Refuse("beta_fast", "is less than beta_slow");
  fields.Only("truncate", true);
  if (fields.Has("attention_factor")) {
    fields.RefuseValue("attention_factor", "is not supported, only mscale");
  }
  return rope;
}

// How much attention is sharpened when the context is stretched by `factor`.
double YarnMscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

void ReadRope(const ConfigFields& fields, ModelConfig& config) {
  const auto scaling = fields.Object("rope_scaling");
  const auto parameters = fields.Object("rope_parameters");
  fields.ReadDouble("rope_theta", kMinTheta, kMaxTheta, config.rope_theta);
  const double theta = config.rope_theta;
  if (parameters) {
    parameters->ReadDouble("rope_theta", kMinTheta, kMaxTheta, config.rope_theta);
  }
  if (!parameters || !parameters->Has("rope_theta")) fields.RefuseIfAbsent("rope_theta");
  if (fields.Has("rope_theta") && theta != config.rope_theta) {
    fields.RefuseValue("rope_theta", "is not what rope_parameters says");
  }

  if (scaling) config.rope_scaling = ReadScaling(*scaling);
  if (!parameters) return;
  const RopeScaling other = ReadScaling(*parameters);
  if (scaling && other != config.rope_scaling) {
    fields.Refuse("rope_scaling", "is not what rope_parameters says");
  }
  config.rope_scaling = other;
}

float ModelConfig::SoftmaxScale() const {
  const double m =
      rope_scaling.present ? YarnMscale(rope_scaling.factor, rope_scaling.mscale_all_dim) : 1.0;
  return static_cast<float>(m * m / std::sqrt(static_cast<double>(qk_head_dim())));
}

float ModelConfig::RopeMscale() const {
  if (!rope_scaling.present) return 1.0f;
  return static_cast<float>(YarnMscale(rope_scaling.factor, rope_scaling.mscale) /
                            YarnMscale(rope_scaling.factor, rope_scaling.mscale_all_dim));
}

std::vector<float> ModelConfig::RopeInvFreq() const {
  const double dim = static_cast<double>(qk_rope_head_dim);
  // The (fractional) pair that turns `rotations` times over the original context.
  const auto pair_of = [&](double rotations) {
    const double context = static_cast<double>(rope_scaling.original_max_position_embeddings);
    return dim * std::log(context / (2.0 * std::numbers::pi * rotations)) /
           (2.0 * std::log(rope_theta));
  };
  double low = 0.0;
  double high = 0.0;
  if (rope_scaling.present) {
    low = std::max(std::floor(pair_of(rope_scaling.beta_fast)), 0.0);
    high = std::min(std::ceil(pair_of(rope_scaling.beta_slow)), dim - 1.0);
    if (low == high) high += 0.001;
  }
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < qk_rope_head_dim / 2; ++i) {
    const double plain = std::pow(rope_theta, -2.0 * static_cast<double>(i) / dim);
    double ramp = 0.0;
    if (rope_scaling.present) {
      ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    }
    inv_freq.push_back(
        static_cast<float>(plain * (1.0 - ramp) + plain / rope_scaling.factor * ramp));
  }
  return inv_freq;
}

}  // namespace tandem
