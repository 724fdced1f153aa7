"""`headrace report`: a page of what the suites found."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page to write.",
)
@click.option("--force", is_flag=True, help="Write over a page that exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(files: tuple[str, ...], output: Path, force: bool, as_json: bool) -> None:
    """Make a page of what suites printed with --json.

    FILEs have the lines that verify, loadtest compare, processes, soak, simulate, replay and ramp print with --json;
    - is the standard input. The page is one HTML file that needs nothing else: figures with their targets, those that
    fall short first, and charts.

    Exit status 0: written, whatever the figures say. 1: it cannot be written. 2: a line is none of theirs; nothing is
    written then.
    """
    from loadtest.report import ReportError, make_report
    from loadtest.report_lines import LineError

    try:
        figures, failed = make_report(files, output, force=force)
    except LineError as error:
        raise click.UsageError(str(error)) from None
    except ReportError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        import orjson

        click.echo(orjson.dumps({"report": str(output), "figures": figures, "failed": failed}).decode())
        return
    short = f"{failed} of {figures} figures fall short" if failed else f"all {figures} figures are reached"
    click.echo(f"wrote {output}: {short if figures else 'no figures with targets'}")
