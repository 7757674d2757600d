"""Find the ports that a process has chosen for itself.

If the test chose the port, another process could take the port before the tested process opens it.
"""

from __future__ import annotations

import psutil


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports that a process listens on."""
    found = psutil.Process(pid).net_connections("tcp")
    return sorted(each.laddr.port for each in found if each.status == psutil.CONN_LISTEN)
