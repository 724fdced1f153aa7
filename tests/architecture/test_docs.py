"""Documents name only what exists: files, links, commands, make targets; the map of files is complete."""

import ast
import os
import re
import shlex
from pathlib import Path

import click
import pytest
from source_tree import ROOT, source_files, tracked_files

from headrace import cli

DOCUMENTS = [
    path for path in tracked_files() if path.suffix == ".md" and (len(path.parts) == 1 or path.parts[0] == "docs")
]
TOP_LEVEL = {path.parts[0] for path in tracked_files()}
NOT_HERE = {".venv", "policy.yaml", "headrace.yaml", "workers.yaml"}  # made by the reader

INLINE_CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


def text_of(path: Path) -> str:
    return (ROOT / path).read_text()


def blocks(path: Path, language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(text_of(path)) if name == language]


def is_path(word: str) -> bool:
    """Whether inline code is meant as a file of the repository."""
    if not PATH.fullmatch(word) or word.split("/")[0] in NOT_HERE:
        return False
    suffix = Path(word).suffix in {".py", ".md", ".yaml", ".toml", ".lock"}
    return suffix or ("/" in word and word.split("/")[0] in TOP_LEVEL)


def named_paths(path: Path) -> set[str]:
    return {word for word in INLINE_CODE.findall(BLOCK.sub("", text_of(path))) if is_path(word)}


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as renderers make them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", text_of(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_documents_are_found() -> None:
    assert {Path("README.md"), Path("ARCHITECTURE.md"), Path("CHANGELOG.md"), Path("docs/quickstart.md")} <= {
        *DOCUMENTS
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_path_exists(document: Path) -> None:
    everywhere = {path.name for path in tracked_files()}  # a bare name, as `settings.py`, means any file called so
    missing = [name for name in named_paths(document) if not [*ROOT.glob(name)] and name not in everywhere]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_link_resolves(document: Path) -> None:
    broken = []
    for link in LINK.findall(BLOCK.sub("", text_of(document))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = Path(os.path.normpath(document.parent / name)) if name else document
        if not (ROOT / target).exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_map_of_files_is_complete() -> None:
    """Every file of the program has a line of its own: `path` and what it is for."""
    lines = text_of(Path("ARCHITECTURE.md")).splitlines()
    mapped = {match[1] for line in lines if (match := re.match(r"\| `([^`]+)` \| \S.*\|$", line))}
    wanted = {str(path) for path in source_files() if path.name != "__init__.py"}
    assert wanted - mapped == set()
    assert {name for name in mapped if name.endswith(".py")} - wanted == set()


def shell_lines(path: Path) -> list[str]:
    """Commands of the sh blocks: continued lines joined, comments and what follows a pipe left out."""
    joined = "\n".join(blocks(path, "sh")).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def words_of(line: str) -> list[str]:
    """The words of the first command on a line, without assignments before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|;&>"):
            break
        if words or not re.fullmatch(r"[A-Z_]+=.*", word):
            words.append(word)
    return words


def parse(group: click.Command, words: list[str]) -> None:
    """Have click parse a command line as it would to run it, without running it."""
    context = group.make_context("headrace", list(words), resilient_parsing=False)
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)


def command_lines(program: str) -> list[tuple[Path, str]]:
    return [
        (path, line)
        for path in DOCUMENTS
        for line in shell_lines(path)
        if words_of(line) and words_of(line)[0] == program
    ]


def test_every_headrace_command_parses() -> None:
    lines = command_lines("headrace") + command_lines(".venv/bin/headrace")
    assert len(lines) > 5
    for path, line in lines:
        try:
            parse(cli, words_of(line)[1:])
        except click.exceptions.Exit:
            continue  # --help and --version
        except click.ClickException as error:
            pytest.fail(f"{path}: {line}: {error.format_message()}")


def test_every_make_target_exists() -> None:
    targets = set(TARGET.findall(text_of(Path("Makefile"))))
    lines = command_lines("make")
    assert lines
    for path, line in lines:
        asked = {word for word in words_of(line)[1:] if "=" not in word}
        assert asked <= targets, f"{path}: {line}"


def test_shell_programs_are_ones_that_readers_have() -> None:
    known = {"make", "headrace", ".venv/bin/headrace", "curl", "git", "cd", "export", "kill", "echo", "python", "pip"}
    known.add(".")  # reads a file into the shell
    strange = [(str(path), line) for path in DOCUMENTS for line in shell_lines(path) if words_of(line)[0] not in known]
    assert not strange


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_python_examples_compile(document: Path) -> None:
    for source in blocks(document, "python"):
        ast.parse(source)


def test_ci_runs_what_the_readme_says() -> None:
    run = ROOT / ".ci/run"
    assert os.access(run, os.X_OK)
    called = re.findall(r"^make ([a-z-]+)(?: \|\| make \1.*)?$", run.read_text(), re.MULTILINE)
    assert called == ["test", "test-engines"]
    readme = {line.strip() for line in shell_lines(Path("README.md"))}
    assert {f"make {target}" for target in called} <= {line.split("#")[0].strip() for line in readme}


def test_targets_are_phony_and_explained() -> None:
    makefile = text_of(Path("Makefile"))
    targets = set(TARGET.findall(makefile))
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert targets == set(phony[1].split())
    explained = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    assert {"install", "up", "test", "test-engines", "bench", "lint", "clean"} <= explained
