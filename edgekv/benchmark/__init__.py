"""Speed and memory, of this and of other libraries, each measured in a process of its own.

contest      rounds of contestants, alternating, and the medians
contestant   the process: `python -m edgekv.benchmark.contestant`
ours         edgekv's own path, and its decode time along a stream
mlx_lm       mlx-lm with the same weights
llama_cpp    llama.cpp on the same file
"""
