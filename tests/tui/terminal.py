"""The command in a real terminal (a pty) of its own, with a screen that can be read."""

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pyte

# Sequences with a private mark that pyte would take for colours.
PRIVATE = re.compile(r"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p")


class Terminal:
    """A process behind a pty, and the screen that a person would see."""

    def __init__(self, *args, size=(100, 30), env=None):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgekv", *map(str, args)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""} | (env or {}),
            start_new_session=True,
            # It is the session's own terminal: Ctrl-C there is a signal, and so is its end.
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.raw = ""
        self._lock = threading.Lock()
        self._screen = pyte.HistoryScreen(*size)
        self._stream = pyte.Stream(self._screen)
        # A terminal that nobody reads holds its program up.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.kill()
        self._reader.join()
        os.close(self.master)

    def _read(self):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the other side has closed it
                return
            text = decoder.decode(data)
            self.raw += text
            with self._lock:
                self._stream.feed(PRIVATE.sub("", text))

    @property
    def text(self):
        """What is on the screen now."""
        with self._lock:
            return "\n".join(line.rstrip() for line in self._screen.display)

    def until(self, words, seconds=40):
        """Wait until the words are on the screen, a line break counting as a space."""
        end = time.monotonic() + seconds
        wanted = re.compile(r"\s*".join(map(re.escape, words.split())))
        while not wanted.search(self.text):
            assert time.monotonic() < end, f"never: {words}\n{self.text[-3000:]}"
            assert self.process.poll() is None or wanted.search(self.text), self.text[-3000:]
            time.sleep(0.02)
        return self

    def send(self, keys):
        os.write(self.master, keys.encode())
        return self

    def wait(self, seconds=30):
        """Its exit code, when it has ended."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it goes on\n{self.text[-2000:]}"
            time.sleep(0.02)
        self._reader.join()
        return self.process.returncode

    def kill(self):
        """kill -9 of the process, as a crash or the kernel would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def when(condition, seconds=40):
    """Wait for what can be seen from outside."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
