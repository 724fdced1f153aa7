"""The settings as a page of documentation: `python -m gateway.settings_reference`."""

from __future__ import annotations

import sys

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from gateway.settings import ENV_PREFIX, SECRET_KEYS, Settings, StaticWorker

HEAD = """# Settings

What `headrace serve -c FILE` reads once at its start. Everything that may change while traffic flows is policy
([policy.md](policy.md)). Made from `gateway/settings.py` by `python -m gateway.settings_reference`.

A value comes from the first of: the command line, the environment (`{prefix}<KEY>`, for lists as YAML), the file, the
default. In the file, `${{NAME}}` and `${{NAME:-default}}` are taken from the environment; `$${{` is a plain `${{`. A
secret ({secrets}) may be `file:/path`: the first line of that file, which others must not be able to change. The path
of `policy` is relative to the settings file.

```yaml
listen: 127.0.0.1:8080
admin: 127.0.0.1:8081
redis: embedded
policy: policy.yaml
workers:
  - {{id: w1, url: "http://127.0.0.1:9001", pool: short-chat, models: [tiny], max_model_len: 4096}}
```
"""


def reference() -> str:
    """The page."""
    secrets = ", ".join(f"`{key}`" for key in sorted(SECRET_KEYS))
    parts = [HEAD.format(prefix=ENV_PREFIX, secrets=secrets)]
    parts += ["\n", *_table(Settings, env=True), "\n## `workers`\n\n", *_table(StaticWorker, env=False)]
    return "".join(parts)


def _table(model: type[BaseModel], *, env: bool) -> list[str]:
    lines = [
        "| key | default | environment | what |\n" if env else "| key | default | what |\n",
        "|---" * (4 if env else 3) + "|\n",
    ]
    for key, field in model.model_fields.items():
        variable = f" `{ENV_PREFIX}{key.upper()}` |" if env else ""
        lines.append(f"| `{key}` | {_default(field.default)} |{variable} {field.description} |\n")
    return lines


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value == ():
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
