"""``/live``: tells a page, as server-sent events, that something it shows has changed.

Events are ``hello`` at the beginning, ``changed``, ``alive`` when nothing else was said for a while, and ``bye`` before
the stream ends by itself, whereupon the page asks anew: so a stream does not outlive its session for long. The data of
each is the mark last seen, which the page gives back as ``seen``: nothing is missed between two streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from flask import Response, request
from werkzeug.exceptions import BadRequest, ServiceUnavailable

from manager.api.auth import VIEWER, allow, reader_left
from manager.errors import Busy
from manager.store.change_feed import parse_topic
from webui.site import site, web

STREAM_S = 30.0
"""How long a stream lasts."""
ALIVE_S = 10.0
"""Silence after which a stream says that it is there."""
LEAST_S = 1.0
"""Time between two changes that are sent, and between two looks whether the page is still there."""


@web.get("/live")
@allow(VIEWER)
def live() -> Response:
    """Changes of a topic; 503 where too many follow already."""
    changes, gone, held = site().changes, reader_left(request), ExitStack()
    try:
        topic = parse_topic(request.args.get("topic", ""))
        wait = held.enter_context(changes.following(topic))
    except ValueError as error:
        raise BadRequest(str(error)) from None
    except Busy as error:
        raise ServiceUnavailable(str(error)) from None
    seen = request.args.get("seen")
    events = tell(lambda mark, timeout_s: None if gone() or changes.closed else wait(mark, timeout_s), seen)
    response = Response(events, mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})
    response.call_on_close(held.close)
    return response


def tell(
    wait: Callable[[str, float], str | None],
    seen: str | None,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """The events of one stream.

    ``wait`` answers the mark after a wait for another one than the given, or None when nobody listens any more.
    """
    begun_s = said_s = now_s()
    mark = wait("", 0.0)
    if mark is None:
        return
    yield f"event: hello\ndata: {mark}\n\n"
    if seen and seen != mark:
        yield f"event: changed\ndata: {mark}\n\n"
    while (time_s := now_s()) < begun_s + STREAM_S:
        newer = wait(mark, LEAST_S)
        if newer is None:
            return
        if newer != mark:
            mark, said_s = newer, time_s
            yield f"event: changed\ndata: {mark}\n\n"
            sleep(LEAST_S)
        elif time_s >= said_s + ALIVE_S:
            said_s = time_s
            yield f"event: alive\ndata: {mark}\n\n"
    yield f"event: bye\ndata: {mark}\n\n"
