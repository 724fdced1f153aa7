"""`python -m workers.engines.cpu`: install engines and make the model they serve."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click

from workers.engines.cpu.install import RECIPES, InstallError, ensure_installed
from workers.engines.cpu.models import gemma_gguf, tiny_model


def say(line: str) -> None:
    """Progress, for people: on standard error, so that standard output holds results only."""
    click.echo(line, err=True)


@click.group()
def main() -> None:
    """Real engines on this machine's CPU."""


@main.command()
@click.argument("engine", type=click.Choice(sorted(RECIPES)))
def install(engine: str) -> None:
    """Install ENGINE once into the user's cache and print its Python."""
    try:
        click.echo(ensure_installed(engine, say))
    except InstallError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.argument("engine", type=click.Choice(sorted(RECIPES)))
@click.argument("target", type=click.Path(path_type=Path))
def model(engine: str, target: Path) -> None:
    """Write a model that ENGINE can serve to TARGET: for vllm a directory, for llamacpp a file."""
    try:
        (tiny_model if engine == "vllm" else gemma_gguf)(target, say)
    except (InstallError, subprocess.CalledProcessError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(target)


if __name__ == "__main__":
    main()
