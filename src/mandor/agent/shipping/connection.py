"""One connection to a receiver, opened on first use and reopened after errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from mandor.errors import Unavailable

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Connection:
    """A TCP connection to a receiver."""

    def __init__(self, where: str, seconds: float, connect: Callable[[], Awaitable[Pair]]) -> None:
        self._where, self._seconds, self._connect = where, seconds, connect
        self._pair: Pair | None = None
        self.made = 0
        """How often the connection was opened."""

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Pair]:
        """Yield the connection; errors and timeouts inside the block close it and raise `Unavailable`."""
        try:
            async with asyncio.timeout(self._seconds):
                if self._pair is not None and (self._pair[0].at_eof() or self._pair[1].is_closing()):
                    self.drop()
                if self._pair is None:
                    self._pair = await self._connect()
                    self._pair[1].transport.set_write_buffer_limits(0)
                    self.made += 1
                yield self._pair
        except TimeoutError as error:
            self.drop()
            raise Unavailable(f"{self._where} did not answer within {self._seconds:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            self.drop()
            raise Unavailable(
                f"{self._where}: {error.strerror or error}"
                if isinstance(error, OSError)
                else f"{self._where} closed the connection"
            ) from error
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        if self._pair is not None:
            pair, self._pair = self._pair, None
            pair[1].transport.abort()
