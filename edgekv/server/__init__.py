"""HTTP in the shapes that programs for OpenAI's and Anthropic's services already speak."""
