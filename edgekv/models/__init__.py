"""The model families: which configuration is run by which module."""

ARCHITECTURES = {
    "llama": "edgekv.models.llama",
    "mistral": "edgekv.models.mistral",
    "qwen2": "edgekv.models.qwen2",
    "qwen3": "edgekv.models.qwen3",
}
"""model_type of a configuration → the module that holds its ModelArgs and Model."""
