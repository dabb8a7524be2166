"""A client that sends requests before the answers to those before came, and notes when each was sent and answered."""

from __future__ import annotations

import random
import socket
import time
from contextlib import closing
from dataclasses import dataclass

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Pipelined:
    """What a client asks for again and again; every answer has as many bytes as the first one."""

    address: tuple[str, int]
    ask: bytes

    def times_ms(self, seed: int, batches: int, most: int) -> list[float]:
        """Over one connection, up to ``most`` requests at a time, in segments that are cut anywhere; of each answer,
        from when the last byte of its request was sent to its own last byte. Raises OSError.
        """
        chances = random.Random(seed)
        times_ms: list[float] = []
        with closing(socket.create_connection(self.address, timeout=TIMEOUT_S)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            began_s = time.monotonic()
            connection.sendall(self.ask)
            answer_bytes = len(connection.recv(65536))  # a small one, in one segment
            times_ms.append(1000 * (time.monotonic() - began_s))
            for _ in range(batches):
                times_ms += self._batch(connection, chances, chances.randint(1, most), answer_bytes)
        return times_ms

    def _batch(self, connection: socket.socket, chances: random.Random, count: int, answer_bytes: int) -> list[float]:
        asked = self.ask * count
        sent_s: list[float] = []
        sent = 0
        while sent < len(asked):
            piece = chances.randint(1, len(asked) - sent)
            now_s = time.monotonic()
            connection.sendall(asked[sent : sent + piece])
            sent += piece
            sent_s += [now_s] * (sent // len(self.ask) - len(sent_s))
        answered_s: list[float] = []
        received = 0
        while received < count * answer_bytes:
            came = len(connection.recv(65536))
            if not came:
                raise ConnectionError("closed while answers were waited for")
            received += came
            answered_s += [time.monotonic()] * (received // answer_bytes - len(answered_s))
        return [1000 * (end_s - begin_s) for begin_s, end_s in zip(sent_s, answered_s, strict=True)]
