"""What `headrace loadtest replay` and `ramp` are told: options, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from loadtest.live_figures import Goal
    from loadtest.live_target import Target
    from loadtest.traces import TraceRequest
    from loadtest.workload import Workload

DEFAULT_TRACE = "azure2023_conv"
DEFAULT_URL = "http://127.0.0.1:8080"
KEY_CHARS = 4096

Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A number that can be counted with: neither infinite nor none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        if not isfinite(found):
            self.fail(f"must be a finite number, got {value}", param, ctx)
        return found


Positive = Number(0, min_open=True)
Rate = Number(1e-3, 1e5)
SECONDS_MAX = 86_400.0


def _url(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Scheme and host of a gateway; `/v1` at the end, as clients have it, is left out."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise click.BadParameter(f"{value!r}: must be http://HOST:PORT or https://HOST:PORT, as in {DEFAULT_URL}")
    if parts.username is not None or parts.password is not None:
        raise click.BadParameter("a key does not belong into the URL; give it with --key or HEADRACE_API_KEY")
    if parts.path.rstrip("/") not in {"", "/v1"} or parts.query or parts.fragment:
        raise click.BadParameter(f"{value!r}: must end after the port, or with /v1")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")


def _key_of(value: str | None) -> str:
    """The key itself, or the first line of the file that is named. No message shows it."""
    if value is None:
        return ""
    hint = "--key or HEADRACE_API_KEY"
    if value.startswith("file:"):
        path = Path(value.removeprefix("file:"))
        try:
            with path.open(encoding="utf-8") as file:
                value = file.readline(KEY_CHARS + 1).strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise click.BadParameter(f"{path}: cannot be read: {why}", param_hint=hint) from None
        if not value:
            raise click.BadParameter(f"{path}: its first line is empty; the key should be there", param_hint=hint)
    if not value.isascii() or not value.isprintable() or " " in value or len(value) > KEY_CHARS:
        raise click.BadParameter(f"a key is at most {KEY_CHARS} visible characters without spaces", param_hint=hint)
    return value


def _word(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    """A name that can stand in a header."""
    if value is not None and not (value.isascii() and value.isprintable() and value.strip() and len(value) <= 64):
        raise click.BadParameter(f"{value[:80]!r}: must be a name of at most 64 characters")
    return value or ""


_SHARED = (
    click.argument("trace", default=DEFAULT_TRACE),
    click.option("--url", default=DEFAULT_URL, show_default=True, callback=_url, help="The gateway, or any such API."),
    click.option(
        "--key", envvar="HEADRACE_API_KEY", show_envvar=True, metavar="KEY|file:PATH",
        help="Its key; best in a file, as others see command lines.",
    ),
    click.option("--model", default="", help="Model to ask for.  [default: the first of /v1/models]"),
    click.option("--priority", callback=_word, metavar="CLASS", help="Class that the requests ask for."),
    click.option("--ttft-slo", type=Positive, default=2.0, show_default=True, help="Seconds to the first token."),
    click.option("--tpot-slo", type=Positive, default=0.1, show_default=True, help="Seconds for each further token."),
    click.option(
        "--timeout", type=Number(0.1, 3600), default=120.0, show_default=True, help="Seconds for a whole answer."
    ),
    click.option(
        "--max-in-flight", type=click.IntRange(1, 50_000), default=900, show_default=True,
        help="Requests at once; what is due beyond is not sent, and counted.",
    ),
    click.option(
        "--ignore-eos/--no-ignore-eos", default=True, show_default=True,
        help="Answers of the recorded length, or as the model likes.",
    ),
    click.option("--skip", type=Number(0), default=0.0, help="Seconds to leave out at the recording's beginning."),
    click.option("--seed", type=click.IntRange(0), help="Of the prompts' text.  [default: another each time]"),
)  # fmt: skip


def shared(command: Command) -> Command:
    """What both commands take."""
    for option in reversed(_SHARED):
        command = option(command)
    return command


def trace_of(options: dict[str, Any]) -> Workload:
    """The recording, long enough for what is left out at its beginning."""
    from loadtest.recorded import laps, read_trace
    from loadtest.workload import WorkloadError

    try:
        trace = read_trace(options["trace"])
        next(laps(trace, options["skip"]))  # says so when it is too short
    except WorkloadError as error:
        raise click.UsageError(str(error)) from None
    return trace


def traffic_of(options: dict[str, Any]) -> tuple[Workload, tuple[float, list[TraceRequest]]]:
    """The trace, and what is to be sent of it in how many seconds."""
    from loadtest.recorded import DEFAULT_SECONDS, at_rate, at_scale
    from loadtest.workload import WorkloadError

    if options["rate"] is not None and options["rate_scale"] is not None:
        raise click.UsageError("--rate and --rate-scale say the same thing; give one")
    trace = trace_of(options)
    seconds, part = options["seconds"], {"skip_s": options["skip"], "limit": options["limit"]}
    try:
        if options["rate"] is not None:
            return trace, at_rate(trace, options["rate"], seconds=seconds or DEFAULT_SECONDS, **part)
        return trace, at_scale(trace, options["rate_scale"] or 1.0, seconds=seconds, **part)
    except WorkloadError as error:
        raise click.UsageError(str(error)) from None


def target_of(options: dict[str, Any]) -> Target:
    """Where requests go and what each says."""
    from loadtest.live_target import LiveError, Target, make_room

    try:
        make_room(options["max_in_flight"])
    except LiveError as error:
        raise click.UsageError(str(error)) from None
    names = ("url", "model", "priority", "max_in_flight", "ignore_eos")
    return Target(key=_key_of(options["key"]), timeout_s=options["timeout"], **{name: options[name] for name in names})


def goal_of(options: dict[str, Any]) -> Goal:
    """What a good answer is."""
    from loadtest.live_figures import Goal

    return Goal(options["ttft_slo"], options["tpot_slo"])


def seed_of(options: dict[str, Any]) -> int:
    """The one that was asked for, or one that no run before had: its prompts would still be cached."""
    from random import SystemRandom

    return SystemRandom().randrange(1 << 32) if options["seed"] is None else int(options["seed"])
