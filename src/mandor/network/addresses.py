"""Virtual addresses of services, by their number in the cluster: pure."""

import ipaddress
from dataclasses import dataclass

NUMBER_MOST = 65_534
"""Largest number of a service; every range below holds that many addresses."""
RESERVED_NUMBERS = 63
"""Numbers 1 to 63 are kept free for the cluster itself."""


@dataclass(frozen=True, slots=True)
class VirtualRange:
    """Ranges of virtual addresses of one data path."""

    ipv4: str
    ipv6: str = ""

    def addresses(self, number: int) -> tuple[str, ...]:
        """Return the virtual addresses of the service with this number."""
        if not RESERVED_NUMBERS < number <= NUMBER_MOST:
            raise ValueError(f"{number} is not the number of a service")
        return tuple(
            str(ipaddress.ip_network(each).network_address + number) for each in (self.ipv4, self.ipv6) if each
        )


ROUTED = VirtualRange("10.93.0.0/16", "fd93::/112")
"""Virtual addresses that a packet filter balances."""
LOOPBACK = VirtualRange("127.93.0.0/16")
"""Virtual addresses of nodes without root: a relay listens on them."""
