"""Turn WikiText as it is distributed, in separate tokens, into ordinary text.

python benchmarks/detokenize.py wiki.test.tokens > wikitext2-test.txt
"""

import re
import sys
from pathlib import Path

RULES = (
    (r" @(.)@ ", r"\1"),
    (r" ([.,;:!?%)\]'])", r"\1"),
    (r"([(\[$]) ", r"\1"),
    (r'" ([^"\n]*?) "', r'"\1"'),
    (r" '(s|t|re|ve|ll|d|m)\b", r"'\1"),
    (r"(?m)^ +| +$", ""),
    (r"\n{3,}", r"\n\n"),
)


def detokenize(text: str) -> str:
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return text.strip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(detokenize(Path(sys.argv[1]).read_text("utf-8")))
