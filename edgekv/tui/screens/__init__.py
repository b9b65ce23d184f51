"""One screen a task: the chat, and what opens above it."""
