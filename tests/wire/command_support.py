"""Commands as a user starts them: processes of their own, and what they say."""

from __future__ import annotations

import asyncio
import os
import sys


async def command(*words: str, **env: str) -> asyncio.subprocess.Process:
    """`headrace WORDS`, begun."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "headrace", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **env},
    )


async def said(process: asyncio.subprocess.Process, within_s: float) -> tuple[int | None, str, str]:
    """Its status and what it wrote, once it has ended."""
    async with asyncio.timeout(within_s):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()
