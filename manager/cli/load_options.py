"""Options that describe a load: those of `equipoise load`, which other commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from manager.cli.options import Decorator, ManPage
from manager.load.load_errors import SpecError
from manager.load.spec import KEY_FIELD, RANGES, HttpOptions, LoadSpec, MemcachedOptions, Phase, parse_target

_MEMCACHED = MemcachedOptions()
_CONNECTIONS = 64
_OPTION_OF = {
    "target": "TARGET",
    "host": "TARGET",
    "path": "TARGET",
    "port": "TARGET",
    "rate_rps": "--rate",
    "duration_s": "--duration",
    "schedule": "--schedule",
    "warmup_s": "--warmup",
    "connections": "--connections",
    "pipeline": "--pipeline",
    "seed": "--seed",
    "timeout_s": "--timeout",
    "connect_timeout_s": "--connect-timeout",
    "interval_s": "--interval",
    "headers": "--header",
    "keys": "--keys",
    "zipf": "--zipf",
    "value_bytes": "--value-bytes",
    "set_share": "--set-share",
}
_ONLY_FOR = {"headers": "http", "value_bytes": "memcached", "set_share": "memcached"}


class GroupedCommand(ManPage):
    """A command whose options are listed under headings, in this order; the rest comes last."""

    groups: Mapping[str, tuple[str, ...]] = {
        "Load": ("--rate", "--duration", "--schedule", "--closed", "--warmup"),
        "Connections": ("--connections", "--pipeline", "--timeout", "--connect-timeout"),
        "Requests": ("--keys", "--zipf", "--value-bytes", "--set-share", "--header", "--seed"),
        "Output": ("--interval", "--picture", "--json"),
    }

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print each group of options."""
        left = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        for heading, names in {**self.groups, "Other options": ()}.items():
            chosen = [one for one in left if one.opts[0] in names or not names]
            left = [one for one in left if one not in chosen]
            records = [record for one in chosen if (record := one.get_help_record(ctx))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def number(field: str, *, above: bool = False) -> click.FloatRange:
    """What an option takes that sets this field of a load. ``above`` the least value of its range, which is refused."""
    return click.FloatRange(*RANGES[field], min_open=above)


def whole(field: str) -> click.IntRange:
    """Likewise, without a fraction."""
    low, high = RANGES[field]
    return click.IntRange(int(low), int(high))


def _options() -> tuple[Decorator, ...]:
    def option(name: str, kind: click.ParamType[Any], default: object, text: str, metavar: str = "N") -> Decorator:
        return click.option(name, type=kind, default=default, show_default=True, metavar=metavar, help=text)

    return (
        option("--seed", whole("seed"), 1, "Seed of arrivals, keys and values."),
        option("--connections", whole("connections"), _CONNECTIONS, "Connections, which are kept open."),
        option("--pipeline", whole("pipeline"), 1, "Requests that may be outstanding on a connection."),
        option("--timeout", number("timeout_s"), 10.0, "Seconds after which a request times out.", "S"),
        option("--connect-timeout", number("connect_timeout_s"), 5.0, "Seconds to wait for the server.", "S"),
        option("--keys", whole("keys"), _MEMCACHED.keys, f"Number of keys; of HTTP those of {KEY_FIELD}."),
        option("--zipf", number("zipf"), 0.0, "Exponent of Zipf's law; 0: all keys alike.", "X"),
        option(
            "--value-bytes",
            click.STRING,
            "100",
            "memcached: sizes of values: N, LOW-HIGH, NxWEIGHT,... or etc.",
            "SIZES",
        ),
        option(
            "--set-share",
            number("set_share"),
            _MEMCACHED.set_share,
            "memcached: share of sets; the rest are gets.",
            "X",
        ),
        click.option(
            "--header",
            "headers",
            multiple=True,
            metavar="TEXT",
            help="HTTP: another header, such as 'Accept-Encoding: gzip'.",
        ),
    )


def load_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of connections, keys and values."""
    for option in reversed(_options()):
        function = option(function)
    return function


def usage_error(error: SpecError, target: str = "TARGET") -> click.UsageError:
    """The same error, which names the option. ``target``: what the target is called."""
    option = _OPTION_OF[error.field].replace("TARGET", target)
    return click.UsageError(f"{option} {error.value} is refused: use {error.allowed}")


def protocol_of(
    context: click.Context, target: str, options: Mapping[str, Any], *, alone: bool = True
) -> tuple[str, int, HttpOptions | MemcachedOptions]:
    """Host, port and protocol of a TARGET with these options. Raises SpecError, UsageError.

    Not ``alone``: options for another protocol are for another target.
    """
    scheme, host, port, path = parse_target(target)
    for name, owner in _ONLY_FOR.items():
        if alone and owner != scheme and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{_OPTION_OF[name]} is for {owner}:// targets only")
    if scheme == "memcached":
        sizes = options["value_bytes"]
        value_bytes = int(sizes) if sizes.isdecimal() and len(sizes) < 10 else sizes
        return host, port, MemcachedOptions(options["keys"], value_bytes, options["set_share"], options["zipf"])
    headers = tuple(_header(header) for header in options["headers"])
    asked = KEY_FIELD in path or (alone and context.get_parameter_source("keys") is ParameterSource.COMMANDLINE)
    return host, port, HttpOptions(path, headers, options["keys"] if asked else 1, options["zipf"])


def driven_load(
    context: click.Context, option: str, target: str, options: Mapping[str, Any], *, alone: bool
) -> LoadSpec:
    """What a profile sends to the TARGET of an ``option``, at a rate that is set for each load. Raises UsageError."""
    try:
        host, port, protocol = protocol_of(context, target, options, alone=alone)
        return LoadSpec(
            host,
            port,
            protocol,
            (Phase(options["seconds"], 1.0),),
            warmup_s=options["settle"],
            connections=options["connections"],
            seed=options["seed"],
            timeout_s=options["timeout"],
            connect_timeout_s=options["connect_timeout"],
            pipeline=options["pipeline"],
        )
    except SpecError as error:
        raise usage_error(error, option) from error


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name, value.strip()
