"""Text of the help page (`?`)."""

LINES = """\
views     : and a name, then enter
            nodes (no)  workloads (wl)  instances (inst)  events (ev), and every other kind:
            volumes, quotas, reservations, tasks, spares …  as in `mandor get`
            :ns NAME    switch the namespace; :ns all, or 0: all namespaces
            :logs NAME [TASK]   :explain NAME   :describe NAME
            :q          quit; also q and ctrl-c

moving    ↑ ↓ j k     a line             g G       first, last
            pgup pgdn   a page             ← →       sideways
            ⏎           open: a node's or a workload's instances, an instance's log
            esc         clear the filter, then go back

on a row  d           describe: state, next step, settings and events
            e, x        explain: why it is placed there, or why not
            l           log             y         YAML
            s           shell           v         events
            ctrl-d      delete, after confirmation
            c u         cordon, uncordon a node

shown     /           filter by regular expression, also in labels; !text inverts it
            ctrl-w      more columns, fewer columns

sorted by N name   A age   S phase   R ready   T restarts   O node
            P pending   F failed   C cpu   M memory   I instances; the same key again reverses

in text   w wrap   r read again   s toggle scrolling (logs)   / filter\
""".splitlines()
