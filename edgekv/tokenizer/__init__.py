"""Text to token ids and back, from whatever form a model brings its vocabulary in."""

from edgekv.tokenizer.base import Tokenizer
from edgekv.tokenizer.detokenizer import Detokenizer
from edgekv.tokenizer.folder import load_tokenizer_folder
from edgekv.tokenizer.gguf import load_tokenizer_gguf

__all__ = ["Detokenizer", "Tokenizer", "load_tokenizer_folder", "load_tokenizer_gguf"]
