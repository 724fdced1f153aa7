"""What the gateway's commands have in common: options, the settings, the way to a running gateway."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from gateway.cli_output import ADMIN_URL, ADMIN_VARIABLE, Failure, Output

if TYPE_CHECKING:
    from gateway.admin_client import Admin, AdminError
    from gateway.settings import Settings

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")


def _admin_url(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """The URL that was given; of the variable, which is the gateway's setting, the address as a URL."""
    assert param.name is not None
    if ctx.get_parameter_source(param.name) is not click.core.ParameterSource.ENVIRONMENT:
        return value
    from gateway.settings_text import callable_url, parse_address

    try:
        return callable_url(parse_address(value))
    except ValueError as error:
        raise click.UsageError(f"{ADMIN_VARIABLE}: {error}, got {value!r}. A URL can be given by --admin.") from None


admin_url_option = click.option(
    "--admin", "admin_url", default=ADMIN_URL, show_default=True, envvar=ADMIN_VARIABLE, callback=_admin_url,
    help=f"URL of the admin listener; also HOST:PORT in {ADMIN_VARIABLE}.",
)  # fmt: skip
state_dir_option = click.option(
    "--state-dir", metavar="DIR", help="Where keys are kept; default ~/.local/state/headrace."
)


def read_settings(out: Output, config: Path | None, overrides: dict[str, object]) -> Settings:
    """The settings, or the end with status 2 and every problem on a line."""
    from gateway.settings import load_settings
    from gateway.settings_text import SettingsError

    try:
        return load_settings(config, overrides)
    except SettingsError as error:
        for problem in error.problems:
            out.trouble(f"{config}: {problem}" if config and not problem.source else str(problem))
        raise SystemExit(2) from None


def ask(out: Output, admin_url: str, path: str) -> Any:
    """What the admin plane answers, or the end with status 1 and the reason on a line."""
    from gateway.admin_client import AdminError

    try:
        return gateway_at(out, admin_url).get(path)
    except AdminError as error:
        raise Failure(str(error)) from None


def tell(out: Output, admin_url: str, path: str, body: Any = None) -> Any:
    """What the admin plane answers to a change, or the end with status 1 and the reason on a line."""
    from gateway.admin_client import AdminError

    try:
        return gateway_at(out, admin_url, change=True).post(path, body)
    except AdminError as error:
        raise Failure(str(error)) from None


def gateway_at(out: Output, admin_url: str, *, change: bool = False) -> Admin:
    """The gateway at this address, with the best token there is for it."""
    from gateway.admin_client import Admin

    return Admin(admin_url, *admin_token(out, admin_url, change=change))


def admin_token(out: Output, admin_url: str, *, change: bool = False) -> tuple[str | None, str]:
    """The best token that the gateway of this host has, and what helps where it is refused.

    None on loopback for reads, which need none there.
    """
    remedy = "set HEADRACE_ADMIN_TOKEN, or HEADRACE_STATE_DIR to the gateway's state directory"
    if not change and urlsplit(admin_url).hostname in {"127.0.0.1", "localhost", "::1"}:
        return None, remedy
    from gateway.admin.access import Role, TokenError, read_token, token_file

    settings = read_settings(out, None, {})
    if settings.admin_token is not None:
        return settings.admin_token.get_secret_value(), "that is what HEADRACE_ADMIN_TOKEN holds"
    remedy += f" (looked in {settings.state_dir})"
    for role in reversed(Role):
        try:
            return read_token(settings.state_dir / token_file(role)), remedy
        except TokenError as error:
            raise Failure(str(error)) from None
        except OSError:
            continue
    return None, remedy  # then the gateway says that it wants one


def status_of(error: AdminError) -> int:
    """The exit status that an answer of the admin plane means: 2 for invalid input, else 1."""
    return 2 if error.status in {400, 413, 422} else 1
