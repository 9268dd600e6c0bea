"""What `?` shows."""

LINES = """\
views     : and a name, then enter
            nodes (no)  workloads (wl)  instances (inst)  events (ev), and every other kind:
            volumes, quotas, reservations, tasks, spares …  as in `mandor get`
            :ns NAME    another namespace; :ns all, or 0: all of them
            :logs NAME [TASK]   :explain NAME   :describe NAME
            :q          quit; also q and ctrl-c

moving    ↑ ↓ j k     a line             g G       first, last
            pgup pgdn   a page             ← →       sideways
            ⏎           a level down: a node's or a workload's instances, an instance's log
            esc         out of the filter, then a level up

on a row  d           describe: its story, with what happened and what to do
            e, x        explain: why here, why not, what would help
            l           log             y         its YAML
            s           shell           v         events about it
            ctrl-d      delete, after a question
            c u         cordon, uncordon a node

shown     /           filter: a regular expression; !text for all others; labels count, too
            ctrl-w      more columns, fewer columns

sorted by N name   A age   S phase   R ready   T restarts   O node
            P pending   F failed   C cpu   M memory   I instances; the same key again turns it round

in text   w wrap   r read again   s stop or go on scrolling (logs)   / filter\
""".splitlines()
