"""Requests and the incremental parsers: every answer must be read the same however its bytes are cut."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.load import HttpOptions, MemcachedOptions
from manager.load.http1 import MAX_HEAD_BYTES, Http
from manager.load.keys import key_chooser
from manager.load.memcached_text import MAX_LINE_BYTES, Memcached, MemcachedParser
from manager.load.protocol import AnswerParser, BadAnswer, Verdict


def http_parser() -> AnswerParser:
    return Http(HttpOptions(), "h:80").new_parser()


def memcached_parser() -> AnswerParser:
    return MemcachedParser(Counter())


def feed_pieces(parser: AnswerParser, pieces: Sequence[bytes]) -> Verdict:
    """Feed all pieces; all but the last must be incomplete."""
    for piece in pieces[:-1]:
        assert parser.feed(piece) is None
    return parser.feed(pieces[-1])


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % len(data) for place in places} - {0}), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


# answer, verdict, must_close
HTTP_ANSWERS: list[tuple[bytes, str, bool]] = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "", False),
    (b"HTTP/1.1 200\r\ncontent-length:0\r\n\r\n", "", False),
    (b"HTTP/1.1 204 No Content\r\n\r\n", "", False),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", "", False),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\nConnection: close\r\n\r\nhi", "", True),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", "", True),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\nhi", "", False),
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\nx", "http_404", False),
    (b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "http_503", False),
    (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "", False),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "", False),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 3\r\n\r\n"
        b'A;ext="1"\r\n0\r\n\r\n12345\r\n1F\r\n' + b"x" * 31 + b"\r\n00\r\nTrailer: t\r\nOther: u\r\n\r\n",
        "",
        False,
    ),
    (b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "", False),
    (b"HTTP/1.1 200 OK\nContent-Length: 3\n\r\n\n\r\n", "", False),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 4\n\n\n\r\n\n", "", False),
    (b"HTTP/1.1 404 Not Found\nTransfer-Encoding: chunked\n\n5\nhel\r\n\r\n0\nTrailer: t\n\n", "http_404", False),
]
MEMCACHED_ANSWERS: list[tuple[bytes, str]] = [
    (b"VALUE k 0 5\r\nhello\r\nEND\r\n", ""),
    (b"VALUE k 0 0\r\n\r\nEND\r\n", ""),
    (b"VALUE k 12 12\r\n\r\nEND\r\nEND\r\n\r\nEND\r\n", ""),
    (b"END\r\n", ""),
    (b"STORED\r\n", ""),
    (b"ERROR\r\n", "memcached_error"),
    (b"CLIENT_ERROR bad data chunk\r\n", "client_error"),
    (b"SERVER_ERROR out of memory storing object\r\n", "server_error"),
]
PLACES = st.lists(st.integers(0, 1000), max_size=8)


@given(index=st.integers(0, len(HTTP_ANSWERS) - 1), places=PLACES)
def test_http_answers_in_any_pieces(index: int, places: list[int]) -> None:
    data, verdict, must_close = HTTP_ANSWERS[index]
    parser = http_parser()
    for pieces in (cut(data, places), [data], [bytes([byte]) for byte in data]):  # one connection, three answers
        assert feed_pieces(parser, pieces) == verdict
        assert parser.must_close == must_close


@given(index=st.integers(0, len(MEMCACHED_ANSWERS) - 1), places=PLACES)
def test_memcached_answers_in_any_pieces(index: int, places: list[int]) -> None:
    data, verdict = MEMCACHED_ANSWERS[index]
    parser = memcached_parser()
    for pieces in (cut(data, places), [data], [bytes([byte]) for byte in data]):
        assert feed_pieces(parser, pieces) == verdict


@given(
    answers=st.lists(st.sampled_from([data for data, _, must_close in HTTP_ANSWERS if not must_close]), min_size=1),
    places=PLACES,
)
def test_pipelined_http_answers_in_any_pieces(answers: list[bytes], places: list[int]) -> None:
    verdicts = {data: verdict for data, verdict, _ in HTTP_ANSWERS}
    assert read_all(http_parser(), cut(b"".join(answers), places)) == [verdicts[data] for data in answers]


@given(answers=st.lists(st.sampled_from(MEMCACHED_ANSWERS), min_size=1), places=PLACES)
def test_pipelined_memcached_answers_in_any_pieces(answers: list[tuple[bytes, str]], places: list[int]) -> None:
    pieces = cut(b"".join(data for data, _ in answers), places)
    assert read_all(memcached_parser(), pieces) == [verdict for _, verdict in answers]


def read_all(parser: AnswerParser, pieces: Sequence[bytes]) -> list[Verdict]:
    """The verdicts on all answers, as the engine reads them."""
    verdicts: list[Verdict] = []
    for piece in pieces:
        data = piece
        while data and (verdict := parser.feed(data)) is not None:
            verdicts.append(verdict)
            data = parser.rest
    return verdicts


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header line\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * (MAX_HEAD_BYTES + 1),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES,
    ],
)
def test_bad_http_is_refused(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        http_parser().feed(data)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"NOT_STORED\r\n",
        b"VALUE k 0 x\r\n",
        b"VALUE k 0 " + b"9" * 5000 + b"\r\n",
        b"VALUE k 0 3\r\nhello\r\nEND\r\n",
        b"VALUE k 0 5\r\nhelloxxxxxxx",
        b"x" * (MAX_LINE_BYTES + 1),
    ],
)
def test_bad_memcached_is_refused(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        memcached_parser().feed(data)


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the close", ""),
        (b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: gzip\r\n\r\nuntil the close", "http_500"),
        (b"HTTP/1.1 200 OK\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", None),
    ],
)
def test_close_ends_only_bodies_without_a_length(data: bytes, verdict: Verdict) -> None:
    parser = http_parser()
    assert parser.feed(data) is None
    assert parser.end() == verdict


@pytest.mark.parametrize("new_parser", [http_parser, memcached_parser])
def test_close_before_any_answer_is_no_answer(new_parser: Callable[[], AnswerParser]) -> None:
    assert new_parser().end() is None


def test_http_request() -> None:
    options = HttpOptions("/a?b=c", (("Accept-Encoding", "gzip"), ("host", "example.org")))
    assert Http(options, "[2001:db8::1]:80").next_request() == (
        b"GET /a?b=c HTTP/1.1\r\nUser-Agent: equipoise-load\r\nAccept-Encoding: gzip\r\nhost: example.org\r\n\r\n"
    )
    assert b"\r\nHost: h:80\r\n" in Http(HttpOptions(), "h:80").next_request()


def test_memcached_mix() -> None:
    protocol = Memcached(MemcachedOptions(keys=50, value_bytes=10, set_share=0.25), seed=3)
    requests = [protocol.next_request() for _ in range(4000)]
    sets = [request for request in requests if request.startswith(b"set ")]
    assert 850 < len(sets) < 1150
    assert len({request.split()[1] for request in requests}) == 50
    for request in sets:
        line, value = request.split(b"\r\n", 1)
        assert line.endswith(b" 0 0 10")
        assert len(value) == 12
        assert value.endswith(b"\r\n")
    again = Memcached(MemcachedOptions(keys=50, value_bytes=10, set_share=0.25), seed=3)
    assert requests == [again.next_request() for _ in range(4000)]


def test_zipf_prefers_the_first_keys() -> None:
    protocol = Memcached(MemcachedOptions(keys=1000, set_share=0, zipf=1), seed=3)
    counts = Counter(protocol.next_request() for _ in range(20_000))
    harmonic = sum(1 / rank for rank in range(1, 1001))
    for rank in (1, 2, 5, 20):
        expected = 20_000 / rank / harmonic
        assert abs(counts[b"get equipoise:%d\r\n" % (rank - 1)] - expected) < 5 * expected**0.5


@given(keys=st.integers(1, 300), zipf=st.floats(0, 5), seed=st.integers(0, 1000))
def test_keys_are_in_range_and_reproducible(keys: int, zipf: float, seed: int) -> None:
    draws = [[choose() for _ in range(50)] for choose in (key_chooser(keys, zipf, Random(seed)) for _ in range(2))]
    assert draws[0] == draws[1]
    assert all(0 <= key < keys for key in draws[0])


def test_sizes_of_values() -> None:
    protocol = Memcached(MemcachedOptions(keys=1000, value_bytes="100x9,4096x1", set_share=1), seed=1)
    sizes: dict[bytes, set[int]] = defaultdict(set)
    for _ in range(9000):
        line, value = protocol.next_request().split(b"\r\n", 1)
        sizes[line.split()[1]].add(len(value) - 2)
    assert set().union(*sizes.values()) == {100, 4096}
    assert all(len(of_key) == 1 for of_key in sizes.values())  # a key's value always has the same size
    assert 0.08 < sum(of_key == {4096} for of_key in sizes.values()) / len(sizes) < 0.12


def test_http_keys() -> None:
    protocol = Http(HttpOptions("/item/{key}.html", keys=5), "h:80", seed=2)
    paths = {protocol.next_request().split()[1] for _ in range(200)}
    assert paths == {b"/item/%d.html" % key for key in range(5)}


def test_memcached_misses_are_counted_apart() -> None:
    protocol = Memcached(MemcachedOptions(), seed=1)
    parser = protocol.new_parser()
    assert parser.feed(b"END\r\n") == ""
    assert parser.feed(b"VALUE k 0 1\r\nx\r\nEND\r\n") == ""
    assert protocol.events == {"misses": 1}
