#include "kernels/rotation.h"

#include <algorithm>

namespace inferscale::kernels {

RotationTile::RotationTile(const RopeTable& table, Direction direction, std::size_t floats)
    : table_(table),
      direction_(direction),
      stride_(table.spec().pairing == RopePairing::kAdjacent ? 2 * std::size_t{table.pairs()}
                                                             : std::size_t{table.pairs()}),
      capacity_(floats / std::max<std::size_t>(stride_, 1)),
      cos_(capacity_ * stride_),
      sin_(capacity_ * stride_) {}

void RotationTile::put(std::size_t slot, std::size_t pair, float c, float s) {
  if (table_.spec().pairing == RopePairing::kAdjacent) {
    const std::size_t i = slot * stride_ + 2 * pair;
    cos_[i] = c;
    cos_[i + 1] = c;
    sin_[i] = -s;
    sin_[i + 1] = s;
  } else {
    cos_[slot * stride_ + pair] = c;
    sin_[slot * stride_ + pair] = s;
  }
}

void RotationTile::fill(std::size_t slot, std::uint32_t first_position, std::size_t n_tokens) {
  for (std::size_t t = 0; t < n_tokens; ++t) {
    const std::uint32_t position = first_position + static_cast<std::uint32_t>(t);
    const float* cos = table_.cos_row(position);
    const float* sin = table_.sin_row(position);
    for (std::size_t i = 0; i < table_.pairs(); ++i) {
      if (direction_ == Direction::kForward) {
        put(slot + t, i, cos[i], sin[i]);
      } else {
        const double c = cos[i];
        const double s = sin[i];
        const double scale = 1.0 / (c * c + s * s);
        put(slot + t, i, static_cast<float>(c * scale), static_cast<float>(-s * scale));
      }
    }
  }
}

Rotation RotationTile::from(std::size_t slot) const {
  Rotation rotation;
  rotation.pairing = table_.spec().pairing;
  rotation.rotary_dim = 2 * std::size_t{table_.pairs()};
  rotation.stride = stride_;
  rotation.cos = cos_.data() + slot * stride_;
  rotation.sin = sin_.data() + slot * stride_;
  return rotation;
}

}  // namespace inferscale::kernels
