"""What counts as one address where connections are counted by address."""

from __future__ import annotations

import ipaddress


def origin_of(address: str) -> str:
    """Return what counts as one address: of IPv6 a network of 64 bits, because whoever has one address has all of it.

    >>> origin_of("192.0.2.7"), origin_of("::ffff:192.0.2.7"), origin_of("2001:db8::7:1%eth0")
    ('192.0.2.7', '192.0.2.7', '2001:db8::/64')
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))
