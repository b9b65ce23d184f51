"""edgekv: language models in a memory size fixed in advance."""

__version__ = "0.1.0"
