"""Real engines without a GPU, a model hub or root: installed once into the user's cache, served a generated model.

`python -m workers.engines.cpu --help` is the way in. What runs inside an engine's own environment (`tiny_model.py`,
`vllm_forks.py`, `llama_server.py`) is a script for that environment's Python and imports nothing of this project.
"""
