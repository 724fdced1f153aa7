"""A real llama.cpp server on loopback: `python llama_server.py MODEL.gguf PORT SLOTS CONTEXT_PER_SLOT NAME`.

Runs in the engine's own Python and imports nothing of this project. Prints one JSON line when it is ready; ends at
the end of standard input, so that it cannot outlive whoever started it.
"""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    """Serve until standard input ends."""
    model, port, slots, context, name = sys.argv[1:]
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = model
    params.model_alias = {name}
    params.port = int(port)
    params.n_parallel = int(slots)
    params.n_ctx = int(slots) * int(context)  # llama.cpp splits it evenly
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.warmup = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = llama.Server(params)
    sys.stdout.write(json.dumps({"event": "ready", "url": server.listening_address}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main()
