"""The simulator: the control plane and its agents, unchanged, on a clock that runs as fast as they can follow."""
