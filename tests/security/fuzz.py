"""Broken input for every parser that reads from outside, millions of it.

    python -m tests.security.fuzz [--inputs 1000000] [--seed N] [--target NAME]

Inputs are examples of what a parser expects, mutated at random, several times each. A parser may refuse them in the way
that its caller handles; anything else it raises, a broken promise of what it answers, or a second without an answer
fails, and is told with the input and the seed that finds it again.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

HANG_S = 10
"""An input may take so long; the longest seen takes some milliseconds, on a machine that is not busy otherwise."""

_WORDS = (
    b"0 -0 -1 1 1e308 1e400 -1e400 NaN Infinity inf nan 9007199254740993 18446744073709551616 0x10 1_000 00 .5 5. "
    b'null true false "" [] {} \\u0000 \\ud800 \xff \xc3\x28 \x00 \r\n \n \r \t : , = ; \' " % %00 %ff + - . / \\ '
    b"\xe2\x80\xa8 \xef\xbb\xbf \xf0\x9f\x98\x80 \xd9\xa3"
).split(b" ")
_LARGE = (b"9" * 400, b"[" * 3000, b'{"a":' * 3000, b"a" * 70_000, b"1," * 9000, b" " * 9000, b"- , " * 3000)


@dataclass(frozen=True, slots=True)
class Target:
    """A parser. ``take`` raises nothing for an input that is refused as it should be.

    ``share`` is its part of all inputs, and smaller for what takes longer.
    """

    name: str
    examples: Sequence[bytes]
    take: Callable[[bytes], None]
    share: float


class Broken(AssertionError):
    """An input that a parser does not bear."""


def inputs(examples: Sequence[bytes], count: int, chance: random.Random) -> Iterator[bytes]:
    """Mutations of the examples; what has become of one is the base of the next few."""
    data = bytearray()
    for number in range(count):
        if number % 8 == 0 or len(data) > 20_000:
            data = bytearray(chance.choice(examples))
        _mutate(data, examples, chance)
        yield bytes(data)


def _mutate(data: bytearray, examples: Sequence[bytes], chance: random.Random) -> None:
    place = chance.randrange(len(data) + 1)
    end = min(len(data), place + chance.randrange(1, 12))
    match chance.randrange(10):
        case 0 | 1 | 2 if place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        case 3 | 4:
            data[place:end] = chance.choice(_WORDS)
        case 5:
            data[place:place] = chance.choice(_WORDS)
        case 6:
            del data[place:end]
        case 7:
            data[place:place] = bytes(data[place:end]) * chance.randrange(1, 20)
        case 8:
            other = chance.choice(examples)
            data[place:] = other[chance.randrange(len(other) + 1) :]
        case 9 if chance.randrange(500) == 0:
            data[place:place] = chance.choice(_LARGE)
        case _:
            data[place:place] = chance.randbytes(chance.randrange(1, 6))


def fuzz(target: Target, count: int, seed: int) -> None:
    """Give a parser so many inputs. Raises Broken."""
    chance = random.Random(f"{seed} {target.name}")
    data = b""
    try:
        with _within(HANG_S) as again:
            for number, data in enumerate(inputs(target.examples, count, chance)):
                target.take(data)
                if number % 100 == 0:
                    again()
    except Exception as error:  # whatever a parser raises that it should not is what is looked for
        shown = data if len(data) < 500 else data[:500] + b"..."
        raise Broken(f"{target.name}, seed {seed}: {type(error).__name__}: {error}, for {shown!r}") from error


@contextmanager
def _within(seconds: float) -> Iterator[Callable[[], None]]:
    """Raises TimeoutError in the block unless the answer is called every so often."""

    def hangs(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {seconds:g} s")

    def again() -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, hangs)
    again()
    try:
        yield again
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    """Fuzz all parsers, or one."""
    from tests.security.targets import targets

    with tempfile.TemporaryDirectory() as folder:
        _run(targets(folder))


def _run(targets: Sequence[Target]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N", help="in all; %(default)s")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="another one each time by default")
    parser.add_argument("--target", choices=[one.name for one in targets], help="this one alone")
    given = parser.parse_args()
    chosen = [one for one in targets if given.target in {None, one.name}]
    whole = sum(one.share for one in chosen)
    print(f"seed {given.seed}")
    for target in chosen:
        count = round(given.inputs * target.share / whole)
        begun_s = time.perf_counter()
        fuzz(target, count, given.seed)
        took_s = time.perf_counter() - begun_s
        print(
            f"{target.name:12} {count:9,d} inputs {took_s:6.1f} s {took_s / max(count, 1) * 1e6:6.1f} us each",
            flush=True,
        )


if __name__ == "__main__":
    main()
