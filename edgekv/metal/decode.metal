// Attention of a few new tokens over the cache: partial softmaxes of one KV head, for ROWS tokens
// and the GROUP query heads that share it.
//
// A threadgroup takes a contiguous run of tiles, its simdgroups every SIMDGROUPS-th of them, and
// each packed number is read once for all VECTORS queries. `table` has four numbers for each
// token and tile: the block's slot (or ~place of fp16 tokens in `hot`), the distance from the
// tile's first token to the query, and the first and last (exclusive) token that is seen.
//
// grid: (32 * SIMDGROUPS * splits, n_kv_heads, rows / ROWS). With one split the output is
// (rows, n_heads, DIM) in O; else (splits, rows, n_heads, DIM + 2) in fp32: the weighted values,
// the largest score and the sum of the weights.

constexpr int VECTORS = ROWS * GROUP;
constexpr int THREADS = SIMDGROUPS * LANES;
constexpr int RUN = run_of<DIM>();
constexpr int GROUPS = DIM / V_GROUP;
constexpr int COPIES = copies_of<DIM>();
constexpr int CHUNKS = DIM / 8;
constexpr int KEPT = 8 / COPIES;
constexpr int STAGE = VECTORS * BLOCK > DIM ? VECTORS * BLOCK : DIM;

threadgroup float queries[VECTORS * DIM];
threadgroup uint turns[DIM / 2];
threadgroup float stages[SIMDGROUPS * STAGE];
threadgroup half scales[SIMDGROUPS * 2 * BLOCK * GROUPS];
threadgroup float tops[SIMDGROUPS];
threadgroup float totals[SIMDGROUPS];

const int lane = thread_index_in_simdgroup;
const int simdgroup = simdgroup_index_in_threadgroup;
const int index = thread_index_in_threadgroup;
const int head = threadgroup_position_in_grid.y, n_heads = hot_shape[1];
const int first_row = threadgroup_position_in_grid.z * ROWS;
const int split = threadgroup_position_in_grid.x, splits = threadgroups_per_grid.x;
const int tiles = table_shape[1], capacity = hot_shape[2];

for (int i = index; i < VECTORS * DIM; i += THREADS) {
  int v = i / DIM, row = first_row + v / GROUP;
  queries[i] = float(q[((row * n_heads + head) * GROUP + v % GROUP) * DIM + i % DIM]) * factor;
}
for (int i = index; i < DIM / 2; i += THREADS) {
  turns[i] = frequencies[i];
}
threadgroup_barrier(mem_flags::mem_threadgroup);

threadgroup float* stage = stages + simdgroup * STAGE;
threadgroup half* scale = scales + simdgroup * 2 * BLOCK * GROUPS;
threadgroup half* zero = scale + BLOCK * GROUPS;

float top[VECTORS], total[VECTORS], out_of[VECTORS][KEPT];
for (int v = 0; v < VECTORS; ++v) {
  top[v] = MASKED;
  total[v] = 0;
  for (int i = 0; i < KEPT; ++i) {
    out_of[v][i] = 0;
  }
}

for (int tile = split * tiles / splits + simdgroup; tile < (split + 1) * tiles / splits;
     tile += SIMDGROUPS) {
  int entry = lane < 4 * ROWS ? table[((first_row + lane / 4) * tiles + tile) * 4 + lane % 4] : 0;
  int slot = simd_broadcast(entry, 0);
  int distance[ROWS], seen_first[ROWS], seen_last[ROWS];
  int first = BLOCK, last = 0;
  for (int row = 0; row < ROWS; ++row) {
    distance[row] = simd_broadcast(entry, 4 * row + 1);
    seen_first[row] = simd_broadcast(entry, 4 * row + 2);
    seen_last[row] = simd_broadcast(entry, 4 * row + 3);
    first = min(first, seen_first[row]);
    last = max(last, seen_last[row]);
  }
  if (first >= last) {
    continue;
  }
  const int packed = slot * n_heads + head;
  const device half* keys = hot + (head * capacity + ~slot) * DIM;
  const device half* values = keys + n_heads * capacity * DIM;

  // Scores: each lane ends with those of two tokens.
  const int token = 8 * (lane % 8) + 2 * (lane / 8);
  float sums[VECTORS][8] = {}, bias[VECTORS] = {};
  for (int pair = 0; pair < DIM / 2; pair += RUN) {
    if (lane < RUN) {
      float2 s = 1, z = 0;
      if (slot >= 0) {
        int low = packed * DIM + pair + lane, high = low + DIM / 2;
        s = float2(k_scale[low], k_scale[high]);
        z = float2(k_zero[low], k_zero[high]);
      }
      stage_queries<DIM, ROWS, GROUP>(
          queries, turns, distance, pair + lane, s, z, lane, stage, bias);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (slot >= 0) {
      const device uint* codes = k_codes + packed * (DIM * BLOCK * K_BITS / 32);
      score_packed<DIM, VECTORS, K_BITS>(codes, stage, pair, lane, sums);
    } else {
      for (int i = 0; i < 2; ++i) {
        if (token + i >= first && token + i < last) {
          float scores[VECTORS] = {};
          score_half<DIM, VECTORS>(keys + (token + i) * DIM, stage, pair, scores);
          for (int v = 0; v < VECTORS; ++v) {
            sums[v][i] += scores[v];
          }
        }
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  // Online softmax, in fp32 and with a finite minimum.
  for (int v = 0; v < VECTORS; ++v) {
    if (slot >= 0) {
      fold<4, 8>(sums[v], lane);
    }
    float offset = simd_sum(bias[v]);
    int from = seen_first[v / GROUP], to = seen_last[v / GROUP];
    float a = token >= from && token < to ? sums[v][0] + offset : MASKED;
    float b = token + 1 >= from && token + 1 < to ? sums[v][1] + offset : MASKED;
    float highest = max(top[v], simd_max(max(a, b)));
    float shrink = exp(top[v] - highest);
    top[v] = highest;
    a = exp(a - highest);
    b = exp(b - highest);
    total[v] = total[v] * shrink + a + b;
    for (int i = 0; i < KEPT; ++i) {
      out_of[v][i] *= shrink;
    }
    stage[v * BLOCK + token] = a;
    stage[v * BLOCK + token + 1] = b;
  }

  // Values: lane copy * CHUNKS + chunk takes eight channels of every COPIES-th token.
  if (slot >= 0) {
    for (int i = lane; i < BLOCK * GROUPS; i += LANES) {
      scale[i] = v_scale[packed * BLOCK * GROUPS + i];
      zero[i] = v_zero[packed * BLOCK * GROUPS + i];
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const int copy = lane / CHUNKS, chunk = lane % CHUNKS;
  float added[VECTORS][8] = {}, added_bias[VECTORS] = {};
  for (int t = first + copy; copy < COPIES && t < last; t += COPIES) {
    float x[8];
    if (slot >= 0) {
      int at = t * GROUPS + chunk * 8 / V_GROUP;
      const device uint* codes = v_codes + (packed * BLOCK + t) * (DIM * V_BITS / 32);
      load_chunk<V_BITS>(codes, chunk, x);
      add_chunk<VECTORS>(stage + t, x, scale[at], zero[at], added, added_bias);
    } else {
      load_halves(values + t * DIM, chunk, x);
      add_chunk<VECTORS>(stage + t, x, 1, 0, added, added_bias);
    }
  }
  for (int v = 0; v < VECTORS; ++v) {
    for (int i = 0; i < 8; ++i) {
      added[v][i] += added_bias[v];
    }
    fold<COPIES, CHUNKS>(added[v], lane);
    for (int i = 0; i < KEPT; ++i) {
      out_of[v][i] += added[v][i];
    }
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// The simdgroups' partial softmaxes become one.
for (int v = 0; v < VECTORS; ++v) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = simd_sum(total[v]);
  if (lane == 0) {
    tops[simdgroup] = top[v];
    totals[simdgroup] = sum;
  }
  if (lane < COPIES * CHUNKS) {
    for (int i = 0; i < KEPT; ++i) {
      stages[simdgroup * DIM + 8 * (lane % CHUNKS) + KEPT * (lane / CHUNKS) + i] = out_of[v][i];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float highest = MASKED, whole = 0;
  for (int s = 0; s < SIMDGROUPS; ++s) {
    highest = max(highest, tops[s]);
  }
  for (int s = 0; s < SIMDGROUPS; ++s) {
    whole += totals[s] * exp(tops[s] - highest);
  }
  int row = ((first_row + v / GROUP) * n_heads + head) * GROUP + v % GROUP;
  int rows = q_shape[0] * n_heads * GROUP;
  for (int i = index; i < DIM; i += THREADS) {
    float value = 0;
    for (int s = 0; s < SIMDGROUPS; ++s) {
      value += stages[s * DIM + i] * exp(tops[s] - highest);
    }
    if (SPLIT) {
      out[(split * rows + row) * (DIM + 2) + i] = value;
    } else {
      out[row * DIM + i] = O(value / whole);
    }
  }
  if (SPLIT && index == 0) {
    out[(split * rows + row) * (DIM + 2) + DIM] = highest;
    out[(split * rows + row) * (DIM + 2) + DIM + 1] = whole;
  }
}
