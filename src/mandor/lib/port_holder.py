"""Finds the program that listens on a port of this machine."""


def port_holder(port: int, protocol: str = "tcp") -> str:
    """Return name and process id of the program, as `nginx (process 4242)`; empty if it cannot be found out."""
    import psutil  # Loaded when it is needed: the command line starts faster without it.

    try:
        sockets = psutil.net_connections(kind="udp" if protocol == "udp" else "tcp")
    except (psutil.Error, OSError):
        return ""
    listening = (psutil.CONN_LISTEN, psutil.CONN_NONE)
    for each in sockets:
        if each.laddr and each.laddr.port == port and each.status in listening and each.pid:
            try:
                return f"{psutil.Process(each.pid).name()} (process {each.pid})"
            except psutil.Error:
                continue
    return ""
