"""The sources of the master key: a file, a command such as one of a TPM or a vault, or the environment."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from typing import NamedTuple

from weft.storage.private_file import read_private_file
from weft.storage.segment_log.sealed.errors import KeyUnavailable
from weft.storage.segment_log.sealed.layout import KEY_BYTES

COMMAND_SECONDS = 30.0
"""Longest run of a command that prints the key."""
TEXT_BYTES_MAX = 4096
"""Longest text with keys."""
KEYS_MAX = 8
_MADE = "`openssl rand -hex 32` makes one"


class KeySource(NamedTuple):
    """Exactly one of the three."""

    key_file: str | None = None
    command: tuple[str, ...] = ()
    environment: str | None = None

    def __str__(self) -> str:
        if self.key_file is not None:
            return self.key_file
        # Of a command only its name: an argument may be a secret.
        return f"the command {self.command[0]}" if self.command else f"the variable {self.environment}"

    def masters(self) -> list[bytes]:
        """Return the master keys, the current one first; later ones open a ring that is still under them. Blocks.

        Raises:
            KeyUnavailable: there is none, or it is not a key. The message never has the key.
        """
        words = self._text().split()
        if not words:
            raise KeyUnavailable(f"{self} holds no key: expected 32 bytes in hex or base64; {_MADE}")
        if len(words) > KEYS_MAX:
            raise KeyUnavailable(f"{self} holds {len(words)} words; expected at most {KEYS_MAX} keys, one a line")
        return [self._key(word, number) for number, word in enumerate(words, 1)]

    def _key(self, word: bytes, number: int) -> bytes:
        for decode in (bytes.fromhex, _base64):
            try:
                key = decode(word.decode("ascii"))
            except ValueError:
                continue
            if len(key) == KEY_BYTES:
                return key
        raise KeyUnavailable(f"key {number} of {self} is not 32 bytes in hex or base64; {_MADE}")

    def _text(self) -> bytes:
        if self.key_file is not None:
            try:
                text = read_private_file(self.key_file, TEXT_BYTES_MAX)
            except OSError as error:
                raise KeyUnavailable(f"the key file {self.key_file} cannot be used: {_why(error)}") from None
        elif self.command:
            text = _output(self.command)
        else:
            found = os.environ.get(self.environment or "")
            if found is None:
                raise KeyUnavailable(f"the variable {self.environment} is not set, and should hold the key")
            text = os.fsencode(found)
        if len(text) > TEXT_BYTES_MAX:
            raise KeyUnavailable(f"{self} gives more than {TEXT_BYTES_MAX} bytes; expected a key")
        return text


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _output(command: tuple[str, ...]) -> bytes:
    """Return what a command prints, up to one byte more than a key may have."""
    name = command[0]
    try:
        # Its messages go to the node's own standard error. What it prints is the key, which nothing may log.
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:  # noqa: S603
            killer = _Killer(process)
            try:
                assert process.stdout is not None
                text = process.stdout.read(TEXT_BYTES_MAX + 1)
                if len(text) > TEXT_BYTES_MAX:
                    process.kill()
                status = process.wait()
            finally:
                killer.cancel()
    except OSError as error:
        raise KeyUnavailable(f"the command {name} for the key cannot be run: {_why(error)}") from None
    if killer.has_fired:
        raise KeyUnavailable(f"the command {name} gave no key within {COMMAND_SECONDS:.0f} s")
    if status and len(text) <= TEXT_BYTES_MAX:
        raise KeyUnavailable(f"the command {name} for the key ended with status {status}; run it by hand to see why")
    return text


class _Killer:
    """Ends a command that takes too long."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.has_fired = False
        self._process = process
        self._timer = threading.Timer(COMMAND_SECONDS, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def _fire(self) -> None:
        self.has_fired = True
        self._process.kill()

    def cancel(self) -> None:
        """Stop waiting."""
        self._timer.cancel()
