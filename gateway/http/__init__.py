"""The data plane: HTTP/1.1 on asyncio protocols and llhttp."""
