// The splits' partial softmaxes become one: see merge.py for the rule. A simdgroup takes one row
// of `partials` (splits, rows, DIM + 2), at most 32 splits; grid: (32, rows, 1).

const int lane = thread_index_in_simdgroup;
const int row = threadgroup_position_in_grid.y;
const int splits = partials_shape[0], stride = partials_shape[1] * (DIM + 2);
const device float* part = partials + row * (DIM + 2);

float top = lane < splits ? part[lane * stride + DIM] : MASKED;
float total = lane < splits ? part[lane * stride + DIM + 1] : 0;
float share = exp(top - simd_max(top));
share /= simd_sum(share * total);

float sums[DIM / LANES] = {};
for (int split = 0; split < splits; ++split) {
  float weight = simd_shuffle(share, split);
  for (int i = 0; i < DIM / LANES; ++i) {
    sums[i] += weight * part[split * stride + lane + LANES * i];
  }
}
for (int i = 0; i < DIM / LANES; ++i) {
  out[row * DIM + lane + LANES * i] = O(sums[i]);
}
