"""The chat: a Textual app that owns the engine. Nothing here imports MLX before the first paint."""
