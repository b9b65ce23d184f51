"""The chat: a Textual app that owns the engine. Nothing here imports MLX before the first paint."""

import os

# Read by Textual when it is imported. A key waits for the next frame; frames are drawn only where
# something changed. While a reply streams, 95 of 100 keys are on the screen within 29 ms at 120
# frames a second, and within 50 at Textual's own 60 (benchmarks/chat_latency.py, two cores).
os.environ.setdefault("TEXTUAL_FPS", "120")
