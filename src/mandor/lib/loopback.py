"""Check whether an address is on this machine."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a host name or address names the loopback interface; other names are never looked up."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
