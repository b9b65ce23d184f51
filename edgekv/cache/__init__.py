"""The rolling KV cache: what is kept, where, in which form."""
