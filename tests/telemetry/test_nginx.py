"""NGINX log lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.source import TimeField
from manager.telemetry.nginx import LogLine, MalformedLine, parse_line, parse_syslog

REQUEST, UPSTREAM = TimeField.REQUEST, TimeField.UPSTREAM


@pytest.mark.parametrize(
    ("text", "field", "line"),
    [
        ("request_time=0.012 upstream_response_time=0.010 status=200", REQUEST, LogLine(12_000, None, False)),
        ("request_time=0.012 upstream_response_time=0.010 status=200", UPSTREAM, LogLine(10_000, None, False)),
        ("request_time=0.000 upstream_response_time=- status=200", REQUEST, LogLine(500, None, False)),
        ("request_time=0.000 upstream_response_time=- status=200", UPSTREAM, LogLine(None, None, False)),
        ("upstream_response_time=0.1, 0.2 : 0.3 status=200", UPSTREAM, LogLine(600_000, None, False)),
        ("upstream_response_time=-, 0.2 status=502", UPSTREAM, LogLine(200_000, None, True)),
        ("request_time=60.000 status=504", REQUEST, LogLine(60_000_000, None, True)),
        ("msec=1700000000.123 request_time=0.001", REQUEST, LogLine(1000, 1700000000.123, False)),
        ('1.2.3.4 "GET /?request_time=9" request_time=0.001', REQUEST, LogLine(1000, None, False)),
        ("request_time=0.001 agent=x request_time=9.000", REQUEST, LogLine(1000, None, False)),
    ],
)
def test_a_line_is_read(text: str, field: TimeField, line: LogLine) -> None:
    found = parse_line(text, field)
    assert found.time_us == (None if line.time_us is None else pytest.approx(line.time_us))
    assert (found.end_s, found.failed) == (line.end_s, line.failed)


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("", REQUEST, "without a usable request_time="),
        ("request_time=-", REQUEST, "without a usable request_time="),
        ("request_time=0,001", REQUEST, "without a usable request_time="),
        ("request_time=-0.001", REQUEST, "without a usable request_time="),
        ("request_time=1e3", REQUEST, "without a usable request_time="),
        ("xrequest_time=0.001", REQUEST, "without a usable request_time="),
        ("request_time=0.001", UPSTREAM, "without a usable upstream_response_time="),
        ("upstream_response_time=0.1,0.2", UPSTREAM, "without a usable upstream_response_time="),
        ("request_time=9999999999", REQUEST, "request_time above 1e.06 s"),
        ("request_time=\u0661.5", REQUEST, "without a usable"),
    ],
)
def test_a_malformed_line_is_refused_without_being_quoted(text: str, field: TimeField, reason: str) -> None:
    with pytest.raises(MalformedLine, match=reason) as caught:
        parse_line(text, field)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    ("packet", "tag", "message"),
    [
        (b"<190>Nov 21 04:08:00 web-1 nginx: request_time=0.001", "nginx", "request_time=0.001"),
        (b"<190>Nov  1 04:08:00 web-1.example.org shop: a: b", "shop", "a: b"),
        (b"<190>Nov 21 04:08:00 nginx: nohostname", "nginx", "nohostname"),
        (b"<14>Nov 21 04:08:00 ::1 t_1: \xff\n", "t_1", "\ufffd"),
    ],
)
def test_a_packet_is_read(packet: bytes, tag: str, message: str) -> None:
    assert parse_syslog(packet) == (tag, message)


@pytest.mark.parametrize(
    "packet",
    [b"", b"request_time=0.001", b"<190>request_time=0.001", b"<190>1 2026-11-21T04:08:00Z h nginx - - - x",
     b"<190>Nov 21 04:08:00 web-1 " + b"x" * 33 + b": y"],
)  # fmt: skip
def test_a_packet_of_another_kind_is_refused(packet: bytes) -> None:
    with pytest.raises(MalformedLine, match="not syslog as NGINX sends it"):
        parse_syslog(packet)


@given(st.binary(max_size=300), st.sampled_from(TimeField))
def test_no_packet_breaks_the_reader(packet: bytes, field: TimeField) -> None:
    for part in (packet, b"<190>Nov 21 04:08:00 h nginx: " + packet):
        try:
            line = parse_line(parse_syslog(part)[1], field)
        except MalformedLine:
            continue
        assert line.time_us is None or 0 < line.time_us <= 1e12


@given(st.integers(0, 10**8), st.lists(st.integers(0, 10**6), min_size=1, max_size=5))
def test_every_time_nginx_writes_is_understood(request_ms: int, upstream_ms: list[int]) -> None:
    """ngx_http_log_request_time and ngx_http_upstream_response_time_variable print %T.%03M."""
    parts = [f"{ms // 1000}.{ms % 1000:03}" for ms in upstream_ms]
    text = (
        f"request_time={request_ms // 1000}.{request_ms % 1000:03} upstream_response_time={', '.join(parts)} status=200"
    )
    assert parse_line(text, REQUEST).time_us == pytest.approx(max(request_ms * 1000, 500))
    assert parse_line(text, UPSTREAM).time_us == pytest.approx(max(sum(upstream_ms) * 1000, 500))
