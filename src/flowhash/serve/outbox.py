"""Answers that are written and not yet read by their clients: how much memory they may take."""

from __future__ import annotations

import threading

from flowhash.serve.errors import ProblemError, busy

ANSWERS = 4  # of the largest size, that may be held at the same time
SMALL = 1 << 16  # bytes; answers up to it are always given, so that slow clients stop nobody


class Outbox:
    """Counts the bytes of answers, from when they are written until their clients have them.

    Used by all threads of a server.

    Args:
        largest: bytes of one answer at the most.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.held = 0
        self._lock = threading.RLock()  # an Answer may be freed at any moment, also in here

    def take(self, size: int) -> None:
        """Count bytes that are held from now on.

        Raises:
            ProblemError: 503, if those of others fill the memory; nothing was counted then.
        """
        with self._lock:
            if self.held + size > ANSWERS * self.largest:
                raise busy(
                    "large answers that other clients have not read yet fill the memory; try again "
                    "in a moment, or ask for less"
                )
            self.held += size

    def give(self, size: int) -> None:
        """Count bytes that are not held any more."""
        with self._lock:
            self.held -= size

    def check(self, size: int) -> None:
        """Refuse an answer that is too large.

        Raises:
            ProblemError: 413, with how to ask for less.
        """
        if size > self.largest:
            raise ProblemError(
                413,
                f"the answer would have more than {self.largest} bytes, the most this server "
                "sends; ask for fewer hits (top, count), fewer vectors at once, or no payloads "
                "(payloads: false)",
                "answer_too_large",
            )


class Answer(bytes):
    """A large answer: counted as held for as long as anybody has it."""

    _outbox: Outbox | None = None

    @classmethod
    def of(cls, body: bytes, outbox: Outbox) -> Answer:
        """An answer whose bytes ``outbox`` has counted already."""
        made = cls(body)
        made._outbox = outbox
        return made

    def __del__(self) -> None:
        if self._outbox is not None:
            self._outbox.give(len(self))


class Draft:
    """An answer while it is written, piece by piece; one that grows too large ends at once.

    Args:
        outbox: counts its bytes.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._pieces: list[bytes] = []
        self._size = self._taken = 0

    def add(self, piece: bytes) -> None:
        """Append a piece.

        Raises:
            ProblemError: 413 if the answer is too large now, 503 if there is no room for it.
        """
        self._size += len(piece)
        self._outbox.check(self._size)
        if self._size > SMALL:
            self._outbox.take(self._size - self._taken)
            self._taken = self._size
        self._pieces.append(piece)

    def whole(self) -> bytes:
        """All pieces as one; what was counted for them is the answer's now."""
        body = b"".join(self._pieces)
        if self._taken:
            body = Answer.of(body, self._outbox)
            self._taken = 0
        return body

    def drop(self) -> None:
        """Let go of the pieces, whether there was an answer or not."""
        self._pieces.clear()
        self._outbox.give(self._taken)
        self._taken = 0
