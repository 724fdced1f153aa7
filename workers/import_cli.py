"""`headrace worker import`: what runs by a MindIE `config.json`, written as a `workers.yaml`."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from workers.engines.base import Launch
from workers.engines.mindie import MAX_CONFIG_BYTES, read_config


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
        import orjson

        click.echo(orjson.dumps(document).decode())
    else:
        click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


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
