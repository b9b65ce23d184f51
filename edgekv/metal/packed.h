// Packed matrices as a lane reads and writes them. See packed.py for the layout.

constant constexpr int BLOCK = 64;
constant constexpr int LANES = 32;

// Eight codes side by side are BITS whole bytes, whatever BITS is: the unit a lane works on.
template <int BITS>
inline void load_chunk(const device uint* words, int chunk, thread float (&x)[8]) {
  if (BITS == 8) {
    uint low = words[2 * chunk], high = words[2 * chunk + 1];
    for (int i = 0; i < 4; ++i) {
      x[i] = float((low >> (8 * i)) & 255);
      x[4 + i] = float((high >> (8 * i)) & 255);
    }
    return;
  }
  uint codes;
  if (BITS == 4) {
    codes = words[chunk];
  } else if (BITS == 2) {
    codes = ((const device ushort*)words)[chunk];
  } else {
    const device uchar* bytes = (const device uchar*)words + BITS * chunk;
    codes = uint(bytes[0]) | uint(bytes[1]) << 8 | uint(bytes[2]) << 16;
  }
  for (int i = 0; i < 8; ++i) {
    x[i] = float((codes >> (BITS * i)) & ((1 << BITS) - 1));
  }
}

// Quantize N numbers to codes of BITS: see packed.quantize, with which every bit agrees.
template <int BITS, int N>
inline void quantize(
    const thread half* x, device uint* words, device half* scale, device half* zero) {
  constexpr float LEVELS = (1 << BITS) - 1;
  float low = float(x[0]), high = low;
  for (int i = 1; i < N; ++i) {
    low = min(low, float(x[i]));
    high = max(high, float(x[i]));
  }
  low = max(low, -65504.0f);
  high = min(high, 65504.0f);
  half step = half(high / LEVELS - low / LEVELS);
  half base = half(low);
  *scale = step;
  *zero = base;
  float divisor = step == half(0) ? 1.0f : float(step);
  uint word = 0;
  int bit = 0;
  for (int i = 0; i < N; ++i) {
    float code = rint((float(x[i]) - float(base)) / divisor);
    uint bits = uint(clamp(code, 0.0f, LEVELS));
    word |= bits << bit;
    bit += BITS;
    if (bit >= 32) {
      *words = word;
      words += 1;
      bit -= 32;
      word = bit > 0 ? bits >> (BITS - bit) : 0;
    }
  }
}
