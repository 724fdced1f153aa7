"""The engines there are, by the name that reports and the command line use."""

from workers.engines.base import Adapter
from workers.engines.llamacpp import LLAMACPP
from workers.engines.mindie import MINDIE
from workers.engines.sglang import SGLANG
from workers.engines.trtllm import TRTLLM
from workers.engines.vllm import SIMULATOR, VLLM

ADAPTERS: dict[str, Adapter] = {each.name: each for each in (VLLM, SGLANG, TRTLLM, LLAMACPP, MINDIE, SIMULATOR)}
