// Close full blocks: keys packed by channel, values by token. A thread quantizes one row of the
// packed matrix; grid: (2 * threadgroup, n_kv_heads, blocks), the keys first, then the values.

constexpr int GROUPS = DIM / V_GROUP;
const int index = thread_index_in_threadgroup;
const int head = threadgroup_position_in_grid.y, block = threadgroup_position_in_grid.z;
const int packed = block * int(threadgroups_per_grid.y) + head;

if (threadgroup_position_in_grid.x == 0 && index < DIM) {
  const device half* x = keys + block * keys_strides[0] + head * keys_strides[1] + index * keys_strides[3];
  half channel[BLOCK];
  for (int t = 0; t < BLOCK; ++t) {
    channel[t] = x[t * keys_strides[2]];
  }
  const int row = packed * DIM + index;
  quantize<K_BITS, BLOCK>(
      channel, k_codes + row * (BLOCK * K_BITS / 32), k_scale + row, k_zero + row);
}
if (threadgroup_position_in_grid.x == 1 && index < BLOCK * GROUPS) {
  const device half* x = values + block * values_strides[0] + head * values_strides[1];
  half channels[V_GROUP];
  for (int i = 0; i < V_GROUP; ++i) {
    int token = index / GROUPS, channel = index % GROUPS * V_GROUP + i;
    channels[i] = x[token * values_strides[2] + channel * values_strides[3]];
  }
  const int row = packed * BLOCK * GROUPS + index;
  quantize<V_BITS, V_GROUP>(
      channels, v_codes + row * (V_GROUP * V_BITS / 32), v_scale + row, v_zero + row);
}
