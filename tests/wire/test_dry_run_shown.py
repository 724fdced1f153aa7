"""What a dry run and a plan show on a terminal of 80 columns, and in a pipe."""

import io
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from loadtest.cli_plan import plan
from loadtest.plan_output import layouts_table
from workers import plain_tables
from workers.run_cli import run

NAMES = ("short-chat-replica-one", "short-chat-replica-two")
DEVICES = "shared: {devices: [{id: 0, memory: 80GiB, name: H100}, {id: 1, memory: 80GiB, name: H100}]}\n"


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def dry_run(tmp_path: Path, models: tuple[str, str]) -> Result:
    file = tmp_path / "workers.yaml"
    file.write_text(
        f"{DEVICES}instances:\n"
        + "".join(
            f"  - {{name: {name}, served_name: s, pool: short-chat, model_path: {model}, device: {device}}}\n"
            for device, (name, model) in enumerate(zip(NAMES, models, strict=True))
        )
    )
    return CliRunner().invoke(run, ["-c", str(file), "--dry-run", "--state-dir", str(tmp_path / "state")])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Tables go to a terminal of 80 columns."""
    shown = Terminal()

    def made(width: int = 80) -> Console:
        return Console(file=shown, width=width, color_system=None)

    monkeypatch.setattr(plain_tables, "Console", made)
    return shown


def test_a_dry_run_on_a_narrow_terminal(tmp_path: Path, terminal: Terminal) -> None:
    done = dry_run(tmp_path, ("Llama-3.1-8B", "Llama-3.1-8B"))
    assert done.exit_code in (0, 2)  # whatever listens on this host is a fault, and shown
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    memory = lines[lines.index("Device memory, on each device of the instance") + 1 :]
    assert memory[0].split()[0] == "instance"
    assert "fault: instances" not in done.stderr
    assert [line.split()[0] for line in memory[2:4]] == list(NAMES)
    assert "483,920" in memory[2]
    assert not {"…", "┃", "│"} & set(terminal.getvalue())


def test_a_dry_run_in_a_pipe_has_every_column(tmp_path: Path) -> None:
    text = dry_run(tmp_path, ("Llama-3.1-8B", "Llama-3.1-8B")).stdout
    assert "weights         KV  activations   runtime      total  share  KV tokens  longest  sure" in text
    assert all(name in text for name in NAMES)


def test_faults_leave_no_empty_table_and_known_models_are_told_once(tmp_path: Path) -> None:
    done = dry_run(tmp_path, ("nope", "nada"))
    assert done.exit_code == 2
    assert "Device memory" not in done.stdout
    assert "Ports" in done.stdout
    for number, model in enumerate(("nope", "nada")):
        assert f"fault: instances[{number}].model_path: {model}: is no directory with a config.json" in done.stderr
    assert done.stderr.count("Llama-3.1-405B") == 1


def test_a_plan_on_a_narrow_terminal(terminal: Terminal) -> None:
    asked = "--model Llama-3.1-70B --device h100 --prompt 500,2000,8000 --output 100,300,900 --rate 1 --seconds 30"
    assert CliRunner().invoke(plan, asked.split()).exit_code == 0
    text = terminal.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "Simulated with the production scheduler\n" in text
    assert "163,840 B" in text
    assert not {"…", "┃", "│"} & set(text)


def test_a_plan_of_nothing_has_no_rows() -> None:
    assert layouts_table([], "nothing").row_count == 0
