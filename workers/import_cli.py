"""`headrace worker import` and `export`: what runs by a MindIE `config.json` as a `workers.yaml`, and back."""

from __future__ import annotations

from pathlib import Path

import click
import orjson
import yaml

from workers.engines.base import Launch
from workers.engines.mindie import MAX_CONFIG_BYTES, read_config, write_config
from workers.expand import parse_workers
from workers.instances import Engine
from workers.launch import launch_of
from workers.yamldoc import MAX_BYTES


@click.command("import")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--pool", required=True, help="The policy's pool they belong to.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, which is YAML too.")
def import_config(*, config: Path, pool: str, as_json: bool) -> None:
    """Turn a MindIE config.json into a workers.yaml: one instance for each list of devices.

    One daemon with several instances shares its ports; instances of their own need their own, so only the first keeps
    what the file has and the others are given some.
    """
    try:
        with config.open("rb") as file:
            launches = read_config(file.read(MAX_CONFIG_BYTES + 1))
    except OSError as error:
        raise click.UsageError(f"{config}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(f"{config}: {error}") from error
    document = {
        "shared": {"devices": [{"id": device, "kind": "ascend"} for one in launches for device in one.device_ids]},
        "instances": [_instance(one, pool, keeps_ports=index == 0) for index, one in enumerate(launches)],
    }
    if as_json:
        click.echo(orjson.dumps(document).decode())
    else:
        click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


@click.command("export")
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The workers.yaml.",
)
@click.option("--instance", "names", multiple=True, help="Only these.  [default: all whose engine is MindIE]")
@click.option("--set", "variables", multiple=True, metavar="NAME=VALUE", help="Set a variable of the file.")
@click.option("--json", "as_json", is_flag=True, help="In one line; it is JSON either way.")
def export_config(*, path: Path, names: tuple[str, ...], variables: tuple[str, ...], as_json: bool) -> None:
    """Print the MindIE config.json of one daemon that runs these instances.

    They must be alike but for their devices; its ports are those of the first.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        pairs = [word.partition("=") for word in variables]
        found = parse_workers(text, {name: value for name, _, value in pairs})
        wanted = [one for one in found.instances if one.name in names or (not names and one.engine is Engine.MINDIE)]
        if unknown := set(names) - {one.name for one in wanted}:
            raise click.UsageError(f"{path}: there is no instance {', '.join(sorted(unknown))}")
        if others := [one.name for one in wanted if one.engine is not Engine.MINDIE]:
            raise click.UsageError(f"{path}: not an instance of MindIE: {', '.join(others)}")
        document = write_config([launch_of(one, "") for one in wanted])
        click.echo((orjson.dumps(orjson.loads(document)) if as_json else document).decode())
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}") from error


def _instance(launch: Launch, pool: str, *, keeps_ports: bool) -> dict[str, object]:
    values: dict[str, object | None] = {
        "name": launch.name,
        "engine": "mindie",
        "model_path": launch.model,
        "served_name": launch.served_name,
        "pool": pool,
        "device": list(launch.device_ids),
        "tensor_parallel": launch.tensor_parallel,
        "host": launch.host,
        "port": launch.port if keeps_ports else None,
        "metrics_port": launch.metrics_port if keeps_ports else None,
        "other_ports": dict(launch.ports) if keeps_ports and launch.ports else None,
        "max_model_len": launch.max_model_len,
        "max_num_seqs": launch.max_num_seqs,
        "max_num_batched_tokens": launch.max_num_batched_tokens,
        "kv_bytes": None if launch.kv_bytes is None else f"{launch.kv_bytes // 2**30}GiB",
        "block_size": launch.block_size,
        "prefix_caching": launch.prefix_caching,
    }
    return {name: value for name, value in values.items() if value is not None}
