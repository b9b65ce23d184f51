"""The colour of the terminal's background, asked before the app takes the terminal."""

import os
import re
import select
import sys
import termios
import time
import tty

QUESTIONS = b"\x1b]11;?\x1b\\\x1b[c"
"""The background's colour (OSC 11 of xterm's control sequences), and what the terminal is: every
terminal answers the second, so that one without an answer to the first is not waited for."""

ANSWERED = re.compile(rb"\x1b\[\?[0-9;]*c")
COLOUR = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
PATIENCE_S = 0.15
LONGEST = 4096
WEIGHTS = (0.299, 0.587, 0.114)
"""Of red, green and blue in brightness (ITU-R BT.601)."""


def has_light_background() -> bool | None:
    """None where it cannot be known. Call it with a terminal on standard input and output."""
    try:
        return is_light(_ask(sys.stdin.fileno(), sys.stdout.fileno()))
    except (OSError, ValueError, termios.error):
        return None


def is_light(answer: bytes) -> bool | None:
    """Whether the colour in a terminal's answer is a light one; None where there is none."""
    found = COLOUR.search(answer)
    if found is None:
        return None
    parts = [int(digits, 16) / float(16 ** len(digits) - 1) for digits in found.groups()]
    brightness: float = sum(weight * part for weight, part in zip(WEIGHTS, parts, strict=True))
    return brightness > 0.5


def _ask(source: int, target: int) -> bytes:
    """What the terminal says, as far as it comes in time."""
    kept = termios.tcgetattr(source)
    answer, end = b"", time.monotonic() + PATIENCE_S
    try:
        tty.setcbreak(source, termios.TCSANOW)
        os.write(target, QUESTIONS)
        while not ANSWERED.search(answer) and len(answer) < LONGEST:
            ready, _, _ = select.select([source], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                break
            answer += os.read(source, 512)
    finally:
        termios.tcsetattr(source, termios.TCSANOW, kept)
    return answer
