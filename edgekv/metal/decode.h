// The steps of decode attention over one tile: 64 tokens of one KV head, by one simdgroup, for
// all queries that share the head. See decode.metal for how they fit together.

constant constexpr float MASKED = -1e30f;

// Channel i and channel i + DIM / 2 turn together. A run of so many pairs is staged at once.
template <int DIM>
constexpr int run_of() {
  return DIM % 64 == 0 ? 32 : 16;
}

// How many lanes may read the same channels of a value row, each for tokens of its own.
template <int DIM>
constexpr int copies_of() {
  return DIM == 96 ? 2 : 256 / DIM;
}

// Rotate one run of pairs of every query to the tile's first token, and multiply by the scale of
// the keys' channels. `bias` gathers this lane's share of query * zero.
template <int DIM, int ROWS, int GROUP>
inline void stage_queries(
    const threadgroup float* queries,
    const threadgroup uint* turns,
    const thread int* distance,
    int pair,
    float2 scale,
    float2 zero,
    int lane,
    threadgroup float* staged,
    thread float* bias) {
  constexpr int RUN = run_of<DIM>();
  for (int row = 0; row < ROWS; ++row) {
    // In turns of 2^-32: the product wraps around where the angle does, and nothing is rounded.
    int turn = int(turns[pair] * uint(distance[row]));
    float cosine;
    float sine = sincos(float(turn) * 1.4629180792671596e-9f, cosine);
    for (int v = row * GROUP; v < (row + 1) * GROUP; ++v) {
      float a = queries[v * DIM + pair], b = queries[v * DIM + pair + DIM / 2];
      float x = a * cosine - b * sine, y = b * cosine + a * sine;
      bias[v] += x * zero.x + y * zero.y;
      staged[v * 2 * RUN + lane] = x * scale.x;
      staged[v * 2 * RUN + RUN + lane] = y * scale.y;
    }
  }
}

// Packed keys of one run: lane 8c + w takes every fourth channel, and of it tokens 8w .. 8w + 7.
template <int DIM, int VECTORS, int BITS>
inline void score_packed(
    const device uint* codes,
    const threadgroup float* staged,
    int first,
    int lane,
    thread float (&sums)[VECTORS][8]) {
  constexpr int RUN = run_of<DIM>();
  for (int k = lane / 8; k < 2 * RUN; k += 4) {
    int channel = first + (k < RUN ? k : k - RUN + DIM / 2);
    float x[8];
    load_chunk<BITS>(codes + channel * (BLOCK * BITS / 32), lane % 8, x);
    for (int v = 0; v < VECTORS; ++v) {
      float q = staged[v * 2 * RUN + k];
      for (int i = 0; i < 8; ++i) {
        sums[v][i] += q * x[i];
      }
    }
  }
}

// fp16 keys of one run: a lane takes one token, in a row of its own.
template <int DIM, int VECTORS>
inline void score_half(
    const device half* key, const threadgroup float* staged, int first, thread float* scores) {
  constexpr int RUN = run_of<DIM>();
  for (int k = 0; k < 2 * RUN; k += 4) {
    int channel = first + (k < RUN ? k : k - RUN + DIM / 2);
    half4 x = ((const device half4*)(key + channel))[0];
    for (int v = 0; v < VECTORS; ++v) {
      const threadgroup float* q = staged + (v * 2 * RUN + k);
      scores[v] += q[0] * x.x + q[1] * x.y + q[2] * x.z + q[3] * x.w;
    }
  }
}

// The sum over COPIES lanes that hold the same eight numbers, a part of which stays with each:
// copy c of lane c * STRIDE + w keeps numbers c * 8 / COPIES and on, in front.
template <int COPIES, int STRIDE>
inline void fold(thread float (&x)[8], int lane) {
  int copy = lane / STRIDE;
  // Unrolled, every index is a constant and the numbers stay in registers.
#pragma clang loop unroll(full)
  for (int step = COPIES / 2, n = 4; step > 0; step /= 2, n /= 2) {
    bool upper = copy & step;
    int partner = min((copy ^ step) * STRIDE + lane % STRIDE, LANES - 1);
    for (int i = 0; i < n; ++i) {
      float given = upper ? x[i] : x[n + i];
      float kept = upper ? x[n + i] : x[i];
      x[i] = kept + simd_shuffle(given, partner);
    }
  }
}

// Eight channels of a row of fp16 values.
inline void load_halves(const device half* row, int chunk, thread float (&x)[8]) {
  for (int i = 0; i < 2; ++i) {
    half4 part = ((const device half4*)row)[2 * chunk + i];
    x[4 * i] = part.x;
    x[4 * i + 1] = part.y;
    x[4 * i + 2] = part.z;
    x[4 * i + 3] = part.w;
  }
}

// Eight channels of one token's values, by the weight that each query gives the token.
template <int VECTORS>
inline void add_chunk(
    const threadgroup float* weights,
    const thread float (&x)[8],
    float scale,
    float zero,
    thread float (&sums)[VECTORS][8],
    thread float* bias) {
  for (int v = 0; v < VECTORS; ++v) {
    float weight = weights[v * BLOCK];
    bias[v] += weight * zero;
    weight *= scale;
    for (int i = 0; i < 8; ++i) {
      sums[v][i] += weight * x[i];
    }
  }
}
