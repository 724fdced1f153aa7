"""The scheduler: pure decisions on when and where a request runs. No clock, no sockets, no asyncio."""
