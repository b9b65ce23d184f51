"""Attention over the cache: the kernels, their twins in plain operations, and who chooses."""
