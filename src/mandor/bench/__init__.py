"""`mandor bench`: scenarios in the shape of Kubernetes' scheduler_perf, run by Mandor's own scheduler."""
