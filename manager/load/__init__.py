"""Load for HTTP and memcached's text protocol, and the response times that a client sees.

An open loop sends when the schedule says so, whether or not earlier requests were answered; a server that stalls for
a second at 1,000 requests/s therefore shows 1,000 slow answers. A closed loop, which waits for each answer, would
show one per connection, and hide the tail; it is good for finding out how much the server can do.

    from manager.load import HttpOptions, LoadSpec, Phase, run

    spec = LoadSpec("192.0.2.10", 80, HttpOptions("/index.html"), (Phase(60, 500), Phase(300, 1000)), warmup_s=2)
    result = run(spec, on_interval=lambda interval: print(interval.histogram.percentile_us(95)))

`equipoise load` is the same on the command line.
"""

from manager.load.load_errors import LoadError, SpecError
from manager.load.result import IntervalResult, LoadResult
from manager.load.runner import run
from manager.load.spec import HttpOptions, LoadSpec, MemcachedOptions, Phase, parse_schedule, parse_target

__all__ = [
    "HttpOptions",
    "IntervalResult",
    "LoadError",
    "LoadResult",
    "LoadSpec",
    "MemcachedOptions",
    "Phase",
    "SpecError",
    "parse_schedule",
    "parse_target",
    "run",
]
